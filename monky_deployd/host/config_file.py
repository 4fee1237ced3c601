"""Reads the configuration file."""

import os
from pathlib import Path

from monky_deployd.domain.config import Config, parse_config
from monky_deployd.errors import ConfigError, FileError
from monky_deployd.host.files import read_regular

DEFAULT_CONFIG_PATH = Path("/etc/monky-deployd/config.yaml")
_MAX_CONFIG = 1024 * 1024


def load_config(path: Path) -> Config:
    """The configuration in `path`. Raises ConfigError that names the file and each fault."""
    # Symbolic links are ordinary for a configuration file; its target must be regular.
    target = Path(os.path.realpath(path))
    try:
        content = read_regular(target, limit=_MAX_CONFIG)
        return parse_config(content.decode(), source=str(path))
    except FileError as error:
        raise ConfigError(
            error.cause if target == path else f"{path}: {error.cause}",
            remedy=error.remedy
            or "write it from config.example.yaml, or name another with --config",
        ) from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", remedy="save it as UTF-8") from None
