"""The host's own key: it keys the hashes in names and labels, so that they give nothing away."""

import secrets
from pathlib import Path

from monky_deployd.errors import FileError
from monky_deployd.host.files import read_regular, write_private

_LENGTH = 32


def load_key(path: Path) -> bytes:
    """The key in `path`, made there (0600) on first use. Raises FileError.

    A new key only means that the next pass sees a new release: nothing is lost with the old one.
    """
    if path.exists():
        key = read_regular(path, limit=_LENGTH + 1)
        if len(key) == _LENGTH:
            return key
    write_private(path, secrets.token_bytes(_LENGTH))
    key = read_regular(path, limit=_LENGTH + 1)
    if len(key) != _LENGTH:
        raise FileError(f"{path} can't hold the host's key", remedy="check the file system")
    return key
