"""`<state_dir>/docker/config.json`: the agent owns it whole, and nothing stands in for it."""

from pathlib import Path

from monky_deployd.errors import DockerConfigError, FileError, Reason
from monky_deployd.host.files import make_private_dir, write_private


def write_docker_config(directory: Path, content: bytes) -> bool:
    """Write `config.json` (0600) in `directory` (0700). False if it was the same already.

    Raises DockerConfigError where either can't be made; there is no falling back to a home.
    """
    try:
        make_private_dir(directory)
        return write_private(directory / "config.json", content)
    except FileError as error:
        disk = error.reason is Reason.DISK
        raise DockerConfigError(
            f"DOCKER_CONFIG {directory} can't be written: {error.cause}",
            remedy=error.remedy or "nothing falls back to a home's .docker; make it writable",
            reason=Reason.DISK if disk else None,
        ) from error
