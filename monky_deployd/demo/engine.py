"""A Docker Engine for the demo and the tests: the running one, or a dockerd of their own."""

import os
import secrets
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx

from monky_deployd.demo.child import Child
from monky_deployd.errors import EngineError, MonkyError

DEFAULT_SOCKET = Path("/var/run/docker.sock")

_START_SECONDS = 60
_STOP_SECONDS = 30
_PING_SECONDS = 2
_REQUEST_SECONDS = 120


class Engine:
    """A Docker Engine behind a unix socket, with a small synchronous client."""

    def __init__(self, socket: Path, daemon: "_Daemon | None" = None) -> None:
        self.socket = socket
        self._daemon = daemon

    @classmethod
    def ensure(cls, base: Path) -> Self:
        """The engine that answers on the default socket, else a new dockerd there.

        A new one keeps its data, state and log below `base`. MonkyError if it doesn't start.
        """
        if answers(DEFAULT_SOCKET):
            return cls(DEFAULT_SOCKET)
        return cls(DEFAULT_SOCKET, _Daemon(base, DEFAULT_SOCKET, base / "data"))

    @classmethod
    def private(cls, base: Path, data_root: Path) -> Self:
        """A second dockerd with a bridge of its own and no firewall rules, beside the first one.

        It pulls, and runs containers with `network_mode` none or host. Its images are in
        `data_root`; its socket, state and log are below `base`. Needs root and iproute2.
        """
        socket = base / "docker.sock"
        # With `--bridge=none` a dockerd removes docker0 as it starts, another daemon's or not.
        bridge = _Bridge()
        options = (f"--bridge={bridge.name}", "--iptables=false", "--ip-forward=false")
        try:
            return cls(socket, _Daemon(base, socket, data_root, options=options, bridge=bridge))
        except MonkyError:
            bridge.remove()
            raise

    @property
    def docker_host(self) -> str:
        """The engine's address as DOCKER_HOST takes it."""
        return f"unix://{self.socket}"

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """One call of the Engine API. EngineError with the engine's own words from 400 on."""
        with _client(self.socket, _REQUEST_SECONDS) as client:
            response = client.request(method, path, params=params, headers=headers, content=content)
        if response.is_error:
            raise EngineError(f"the engine refused {method} {path}: {response.text.strip()}")
        return response

    def stop(self) -> None:
        """Stop the dockerd that was started here; an engine that was found is left running."""
        if self._daemon is not None:
            self._daemon.stop()


def answers(socket: Path) -> bool:
    """Whether a Docker Engine answers on `socket`."""
    try:
        with _client(socket, _PING_SECONDS) as client:
            return client.get("/_ping").is_success
    except httpx.TransportError:
        return False


def _client(socket: Path, seconds: float) -> httpx.Client:
    transport = httpx.HTTPTransport(uds=str(socket))
    return httpx.Client(transport=transport, base_url="http://docker", timeout=seconds)


class _Bridge:
    """A network bridge without a cable, from the range for benchmarks (RFC 2544)."""

    def __init__(self) -> None:
        self.name = f"mdd-{secrets.token_hex(4)}"
        _ip("link", "add", "name", self.name, "type", "bridge")
        _ip("address", "add", f"198.19.{240 + secrets.randbelow(16)}.1/24", "dev", self.name)

    def remove(self) -> None:
        _ip("link", "delete", self.name)


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if done.returncode != 0:
        raise MonkyError(f"ip {' '.join(args)} failed: {done.stderr.strip()}")


class _Daemon:
    """A dockerd of our own, with the containerd that it starts."""

    def __init__(
        self,
        base: Path,
        socket: Path,
        data_root: Path,
        *,
        options: tuple[str, ...] = (),
        bridge: "_Bridge | None" = None,
    ) -> None:
        self._bridge = bridge
        self._exec_root = base / "exec"
        self._roots = (self._exec_root, data_root)
        self._foreign_mounts = Counter(_mounts_below(self._roots))
        argv = [
            "dockerd",
            f"--host=unix://{socket}",
            f"--data-root={data_root}",
            f"--exec-root={self._exec_root}",
            f"--pidfile={base / 'dockerd.pid'}",
            *options,
        ]
        self._child = Child(argv, base / "dockerd.log")
        try:
            self._child.wait_for(lambda: answers(socket) or None, seconds=_START_SECONDS)
        except MonkyError:
            self._stop_orphan()
            raise

    def stop(self) -> None:
        self._child.stop(seconds=_STOP_SECONDS)
        self._stop_orphan()
        self._unmount()
        if self._bridge is not None:
            self._bridge.remove()

    def _stop_orphan(self) -> None:
        # A dockerd that crashed or had to be killed leaves its containerd behind.
        with suppress(FileNotFoundError, ProcessLookupError):
            pid = int((self._exec_root / "containerd" / "containerd.pid").read_text())
            os.kill(pid, signal.SIGTERM)

    def _unmount(self) -> None:
        # Where / is not a shared mount, dockerd leaves the bind mount of its data root behind.
        left = Counter(_mounts_below(self._roots)) - self._foreign_mounts
        for mount in sorted(left.elements(), reverse=True):
            done = subprocess.run(["umount", mount], capture_output=True, text=True)
            if done.returncode != 0:
                raise EngineError(f"{mount} can't be unmounted: {done.stderr.strip()}")


def _mounts_below(roots: Iterable[Path]) -> list[str]:
    """The mount points at or below `roots`, one for each mount (proc(5), mountinfo)."""
    every = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [mount for mount in every if any(Path(mount).is_relative_to(root) for root in roots)]
