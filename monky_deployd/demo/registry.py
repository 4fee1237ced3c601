"""A real registry for the demo and the tests: CNCF distribution, what Harbor runs inside."""

import json
import re
import secrets
import subprocess
from pathlib import Path
from typing import Self

from monky_deployd.demo.child import Child
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import MonkyError

_START_SECONDS = 30
_LISTENING = re.compile(r"listening on (127\.0\.0\.1:\d+)")


class Registry:
    """A registry on a free port of 127.0.0.1 that asks for a user name and password."""

    def __init__(self, base: Path, *, username: str, password: Secret) -> None:
        """Start it, with its storage, password file and log below `base`.

        MonkyError if it doesn't start.
        """
        self._users = base / "htpasswd"
        self.username = username
        self.rotate(password)
        config = base / "config.yml"
        config.write_text(_config(base / "storage", self._users))
        log = base / "registry.log"
        self._child = Child(["docker-registry", "serve", str(config)], log)
        self.host = self._child.wait_for(lambda: _listening(log), seconds=_START_SECONDS)

    @classmethod
    def start(
        cls,
        base: Path,
        *,
        username: str = "robot$estate+reader",
        password: Secret | None = None,
    ) -> Self:
        """A running registry below `base`; without `password` it makes a random one."""
        return cls(base, username=username, password=password or Secret(secrets.token_urlsafe(24)))

    def rotate(self, password: Secret) -> None:
        """Make `password` the only valid one, at once: the registry re-reads a changed file."""
        self.password = password
        fresh = self._users.with_suffix(".new")
        fresh.write_text(_htpasswd_line(self.username, password))
        fresh.replace(self._users)

    def stop(self) -> None:
        """Stop it; `base` is left to the caller."""
        self._child.stop()


def _config(storage: Path, users: Path) -> str:
    # JSON is YAML too.
    return json.dumps(
        {
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(storage)}},
            "http": {"addr": "127.0.0.1:0"},
            "auth": {"htpasswd": {"realm": "monky-deployd", "path": str(users)}},
        },
        indent=2,
    )


def _htpasswd_line(username: str, password: Secret) -> str:
    """One line of an Apache htpasswd file, bcrypt: the only form that the registry takes."""
    try:
        done = subprocess.run(
            ["htpasswd", "-niB", username],
            input=password.reveal(),
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise MonkyError(
            "htpasswd can't make the registry's password file",
            remedy="install apache2-utils with packaging/parts.sh",
        ) from error
    return done.stdout.strip() + "\n"


def _listening(log: Path) -> str | None:
    found = _LISTENING.search(log.read_text(errors="replace"))
    return found[1] if found else None
