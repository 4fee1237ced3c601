"""The host's policy on a release: on its files before Compose reads them, then on the model.

Nothing has been touched yet, so a refusal leaves what runs exactly as it was.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from monky_deployd.domain.config import Config
from monky_deployd.domain.manifest import ENV_FILE, PRIVATE_DIR
from monky_deployd.domain.policy import check_model, refusal
from monky_deployd.domain.policy_sources import check_sources
from monky_deployd.domain.rendering import Release, Rendering
from monky_deployd.host.files import read_regular
from monky_deployd.host.real_path import real_path

_MAX_FILE = 16 * 1024 * 1024


def admit_sources(rendering: Rendering, config: Config) -> frozenset[str]:
    """Check the compose files as they stand. The release files that are compose source.

    Raises PolicyError with everything that the policy refuses in them.
    """
    files = {name: file.content for name, file in rendering.files.items()}
    checked = check_sources(files, rendering.release.compose_files, config.policy)
    if checked.violations:
        raise refusal(checked.violations)
    return checked.names


def admit_on_disk(
    release: Release, directory: Path, model: Mapping[str, Any], config: Config
) -> None:
    """Check a release that lies in `directory` already: the policy may be stricter by now.

    Raises PolicyError with everything that the policy refuses, FileError for a file that is gone.
    """
    files = {name: read_regular(directory / name, limit=_MAX_FILE) for name in release.files}
    checked = check_sources(files, release.compose_files, config.policy)
    if checked.violations:
        raise refusal(checked.violations)
    admit_model(model, directory, checked.names, config)


def admit_model(
    model: Mapping[str, Any], directory: Path, sources: Collection[str], config: Config
) -> None:
    """Check the resolved `model` of the release in `directory`, with the names of its `sources`.

    Raises PolicyError with everything that the policy refuses in it.
    """
    violations = check_model(
        model,
        config.policy,
        project_directory=str(directory),
        real_path=real_path,
        docker_socket=config.docker.socket,
        own_files=(*sources, ENV_FILE, PRIVATE_DIR),
        private=(config.state_dir, config.grant_file),
    )
    if violations:
        raise refusal(violations)
