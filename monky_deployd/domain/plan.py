"""What to do next, decided from the manifest, the host and the history. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from monky_deployd.errors import ManifestError, Reason


class Step(StrEnum):
    """What a pass does once the release is rendered and the host looked at."""

    NOTHING = "nothing"
    REPAIR = "repair"
    DEPLOY = "deploy"
    HOLD = "hold"


@dataclass(frozen=True)
class History:
    """What the agent remembers and what is on disk.

    `applied_generation` is the generation that was last brought up good, and `applied_digest`
    the digest of its manifest. `good_release` was verified last, `current` is
    what the symlink names, `held_release` was tried, found bad and rolled back or stopped.
    """

    applied_generation: int | None = None
    applied_digest: str | None = None
    good_release: str | None = None
    current: str | None = None
    held_release: str | None = None


def check_generation(
    generation: int, digest: str, history: History, *, allow_older: bool
) -> tuple[str, ...]:
    """Notes for the report. Raises ManifestError (MANIFEST_STALE) for an older generation."""
    applied = history.applied_generation
    if applied is None or generation > applied:
        return ()
    if generation == applied:
        if digest == history.applied_digest:
            return ()
        return (
            f"tenancy published generation {generation} twice with different content; "
            "the newer content was taken",
        )
    if allow_older:
        return (f"generation {generation} is older than {applied}, as the host's config allows",)
    raise ManifestError(
        f"generation {generation} is older than generation {applied}, which this host applied",
        remedy="publish a higher generation, or set allow_older_generation: true on this host",
        reason=Reason.MANIFEST_STALE,
    )


def next_step(release_id: str, history: History, *, containers_good: bool, forced: bool) -> Step:
    """The next step for the rendered `release_id`.

    A release that was rolled back is held until something of it changes, because trying it
    again would take the service down again; `forced` (a person asked) tries it all the same.
    """
    if release_id == history.held_release and not forced:
        return Step.HOLD
    if release_id != history.good_release or release_id != history.current:
        return Step.DEPLOY
    return Step.NOTHING if containers_good else Step.REPAIR
