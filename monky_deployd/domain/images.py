"""Which image of a removed release may be removed too. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalImage:
    """A local image as the Engine describes it (`GET /images/{name}/json`)."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()


def what_to_remove(image: LocalImage | None, reference: str, reference_id: str) -> str | None:
    """What to ask the engine to remove of an `image` that a release took by `reference`.

    `reference_id` is the id that the reference has by now. None where nothing is to be removed:
    the image is gone, somebody gave it another tag, or it never came from a registry, so that
    nothing could bring it back.
    """
    if image is None or not image.digests:
        return None
    if reference_id == image.id:
        return reference
    return None if image.tags else image.id
