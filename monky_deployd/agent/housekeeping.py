"""Images of releases that are gone: recorded as they are pulled, removed when nobody has them."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monky_deployd.clients.engine import EngineClient
from monky_deployd.domain.images import what_to_remove
from monky_deployd.domain.rendering import PULLED_FILE
from monky_deployd.errors import EngineError, FileError, StateError
from monky_deployd.host.files import read_regular, write_private
from monky_deployd.host.releases import Releases
from monky_deployd.host.store import Store

logger = logging.getLogger(__name__)

_MAX_RECORD = 1024 * 1024

# Image ids, each with the reference by which it was pulled.
Pulled = dict[str, str]


def remember_pulled(releases: Releases, release_id: str, image_ids: Mapping[str, str]) -> None:
    """Record that a release pulled these images (ids by reference). Raises FileError."""
    known = pulled_by(releases, [release_id])
    record = {**known, **{image_id: reference for reference, image_id in image_ids.items()}}
    content = json.dumps(record, indent=1, sort_keys=True) + "\n"
    write_private(releases.path(release_id) / PULLED_FILE, content.encode())


def pulled_by(releases: Releases, release_ids: Iterable[str]) -> Pulled:
    """The images that these releases pulled, as far as that is on record."""
    found: Pulled = {}
    for release_id in release_ids:
        path = releases.path(release_id) / PULLED_FILE
        try:
            document = json.loads(read_regular(path, limit=_MAX_RECORD))
        except (FileError, ValueError) as error:
            logger.debug("which images release %s pulled is not on record: %s", release_id, error)
            continue
        found |= {str(image_id): str(reference) for image_id, reference in dict(document).items()}
    return found


@dataclass(frozen=True)
class Housekeeper:
    """Removes images that only releases had that are gone; never by force, never a prune."""

    engine: EngineClient
    releases: Releases
    store: Store

    async def tidy(self) -> None:
        """Remove what may go. What can't be found out now is tried the next time."""
        try:
            unused = self.store.state().unused_images
            if not unused:
                return
            spared = {*pulled_by(self.releases, self.releases.ids())}
            spared |= await self.engine.images_in_use()
            for image_id, reference in unused.items():
                if image_id not in spared:
                    await self._remove(image_id, reference)
            self.store.update(unused_images={})
        except (EngineError, FileError, StateError) as error:
            logger.warning("images that nobody needs could not be removed: %s", error)

    async def _remove(self, image_id: str, reference: str) -> None:
        image, named = await self.engine.image(image_id), await self.engine.image(reference)
        name = what_to_remove(image, reference, named.id if named else "")
        if name and await self.engine.remove_image(name):
            logger.info("image %s (%s) is no longer needed and was removed", reference, image_id)
