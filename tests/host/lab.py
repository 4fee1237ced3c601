"""Bare Debian hosts with a real systemd and their own dockerd, booted by systemd-nspawn.

Nothing here needs systemd as PID 1 of the machine. A host shares the machine's network, so
that servers on 127.0.0.1 are reachable from it; everything else is its own.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from tests.host.slot import Slot

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
SUITES: Mapping[str, str] = {"bookworm": "Debian 12", "trixie": "Debian 13"}
"""The suites that build_rootfs.sh knows."""

_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
_MASKED = (
    # The kernel and its settings are the machine's, not the host's to change.
    "systemd-modules-load.service",
    "systemd-sysctl.service",
    # No background job of the distribution may run while a test measures.
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
)
_BOOT_SECONDS = 120.0
_STOP_SECONDS = 120.0
_RUN_SECONDS = 120.0
_POLL_SECONDS = 0.1
# systemd-nspawn(1): with --keep-unit it leaves the restart to its caller.
_NSPAWN_WANTS_RESTART = 133
_TAIL_LINES = 25


class LabError(AssertionError):
    """A host did not do what a test relies on; the message has the host's own words."""


class HostLab:
    """Makes hosts. Root file systems come from `cache`, where build_rootfs.sh puts them."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def boot(self, suite: str, workdir: Path) -> "BootedHost":
        """A freshly installed host of `suite`, up and running; its disk is in `workdir`.

        The caller closes it. LabError if it can't be built or doesn't come up.
        """
        archive = self._root_archive(suite)
        slot = Slot.claim(self._cache / "slots")
        host = BootedHost(suite, workdir, slot)
        try:
            host.install(archive)
            slot.add_network()
            host.start()
        except BaseException:
            host.close()
            raise
        return host

    def _root_archive(self, suite: str) -> Path:
        environment = {**os.environ, "MONKY_CACHE": str(self._cache)}
        command = [str(HERE / "build_rootfs.sh"), suite]
        built = subprocess.run(command, env=environment, capture_output=True, text=True)
        if built.returncode != 0:
            raise LabError(f"the root file system of {suite} can't be built:\n{built.stderr}")
        return Path(built.stdout.strip())


class BootedHost:
    """One host. Its disk outlives `kill`, `poweroff` and `reboot`; `close` removes it."""

    def __init__(self, suite: str, workdir: Path, slot: Slot) -> None:
        self.suite = suite
        self.name = slot.name
        self.root = workdir / "root"
        """The host's disk, as the machine sees it. While the host runs, use push and read."""
        self._slot = slot
        self._view = workdir / "cgroup"
        self._console = workdir / "console.log"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._init: int | None = None

    @property
    def init_pid(self) -> int:
        """The process id of the host's PID 1 on the machine. LabError if it isn't running."""
        if self._init is None:
            raise LabError(f"{self.name} is not running")
        return self._init

    def install(self, archive: Path) -> None:
        """Unpack the root file system and adapt it to the machine that it shares."""
        self.root.mkdir(parents=True)
        self._view.mkdir()
        unpack = ["tar", "--extract", "--numeric-owner", "--same-permissions", "--file"]
        subprocess.run([*unpack, str(archive), "--directory", str(self.root)], check=True)
        (self.root / "etc/hostname").write_text(f"{self.name}\n")
        daemon_config = self.root / "etc/docker/daemon.json"
        daemon_config.parent.mkdir(parents=True, exist_ok=True)
        daemon_config.write_text(json.dumps(self._slot.docker_config(), indent=2))
        for unit in _MASKED:
            (self.root / "etc/systemd/system" / unit).symlink_to("/dev/null")

    def start(self) -> None:
        """Switch the host on and wait until systemd has started every unit.

        A failed unit does not stop this: see `failed_units`. LabError if it doesn't come up.
        """
        with self._console.open("ab") as console:
            self._nspawn = subprocess.Popen(
                self._boot_command(),
                env={**_ENVIRONMENT, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait_until_up()

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        input: str | bytes | None = None,
        timeout: float = _RUN_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run `argv` as root in the host, in an environment made from scratch.

        LabError if it ends with another code than 0 (unless `check` is off) or takes longer
        than `timeout` seconds.
        """
        process = subprocess.Popen(
            ["nsenter", f"--target={self.init_pid}", "-m", "-p", "-u", "-i", "-n", "--", *argv],
            env=_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        sent = input.encode() if isinstance(input, str) else input
        try:
            output = process.communicate(sent, timeout)
        except BaseException as error:
            # nsenter waits for a child of its own, which a signal to it alone would orphan.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise LabError(f"{self.name}: {argv} took longer than {timeout:g} s") from error
            raise
        stdout, stderr = (stream.decode(errors="replace") for stream in output)
        if check and process.returncode != 0:
            said = _tail(stdout + stderr)
            raise LabError(f"{self.name}: {argv} ended with code {process.returncode}:\n{said}")
        return subprocess.CompletedProcess(list(argv), process.returncode, stdout, stderr)

    def push(self, src: Path, dst: str) -> None:
        """Copy the file or directory `src` to the absolute path `dst` in the host, as root's."""
        target = PurePosixPath(dst)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(src, arcname=target.name, filter=_owned_by_root)
        self.run(["mkdir", "-p", str(target.parent)])
        self.run(["tar", "-x", "-p", "-C", str(target.parent)], input=buffer.getvalue())

    def read(self, path: str) -> str:
        """The text of a file in the host. LabError if it can't be read."""
        return self.run(["cat", path]).stdout

    def journal(self, unit: str, *args: str) -> str:
        """What `unit` logged so far, as `journalctl` with `args` prints it."""
        self.run(["journalctl", "--sync"])
        return self.run(["journalctl", "--no-pager", f"--unit={unit}", *args]).stdout

    def failed_units(self) -> list[str]:
        """The units that systemd counts as failed."""
        listed = self.run(["systemctl", "list-units", "--failed", "--plain", "--no-legend"]).stdout
        return [line.split()[0] for line in listed.splitlines() if line.strip()]

    def reboot(self) -> None:
        """Restart the host through its systemd, and wait until it is up again."""
        # The command dies with the PID 1 that it asks.
        self.run(["systemctl", "reboot"], check=False)
        code = self._wait_until_off()
        if code != _NSPAWN_WANTS_RESTART:
            raise LabError(f"{self.name} did not reboot:\n{self._console_tail()}")
        self.start()

    def poweroff(self) -> None:
        """Shut the host down through its systemd; `start` switches it on again."""
        self.run(["systemctl", "poweroff"], check=False)
        self._wait_until_off()

    def kill(self) -> None:
        """Cut the power: every process of the host ends at once, nothing is stopped in order."""
        if self._init is not None:
            os.kill(self._init, signal.SIGKILL)
        elif self._nspawn is not None:
            self._nspawn.kill()
        self._wait_until_off()

    def close(self) -> None:
        """Kill the host if it runs, and remove all that it had on the machine."""
        try:
            self.kill()
        finally:
            self._slot.release()
            shutil.rmtree(self.root, ignore_errors=True)

    def _boot_command(self) -> list[str]:
        nspawn = [
            "systemd-nspawn",
            f"--directory={self.root}",
            f"--machine={self.name}",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--link-journal=no",
            "--capability=all",
            "--system-call-filter=@keyring bpf add_key keyctl request_key",
            f"--bind={self._view}:/sys/fs/cgroup",
        ]
        # A host must not outlive the test run, however that ends; nspawn takes SIGTERM as the
        # order to shut down.
        dies_with_us = ["setpriv", "--pdeathsig=TERM"]
        own_cgroup = [str(HERE / "own_cgroup.sh"), self.name, str(self._view)]
        return [*dies_with_us, *own_cgroup, *nspawn]

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + _BOOT_SECONDS
        self._init = self._poll(self._find_init, deadline)
        self._poll(self._is_up, deadline)

    def _is_up(self) -> bool | None:
        state = self.run(["systemctl", "is-system-running", "--wait"], check=False).stdout.strip()
        return True if state in ("running", "degraded") else None

    def _poll(self, ready: Callable[[], T | None], deadline: float) -> T:
        while (answer := ready()) is None:
            if self._nspawn is None or self._nspawn.poll() is not None:
                self._init = None
                raise LabError(f"{self.name} ended while booting:\n{self._console_tail()}")
            if time.monotonic() > deadline:
                raise LabError(f"{self.name} did not come up:\n{self._console_tail()}")
            time.sleep(_POLL_SECONDS)
        return answer

    def _find_init(self) -> int | None:
        """systemd-nspawn's child that is PID 1 in a namespace and has become systemd."""
        if self._nspawn is None:
            return None
        for pid in _children(self._nspawn.pid):
            status = _status(pid)
            if status.get("Name") == "systemd" and status.get("NSpid", "").split()[1:] == ["1"]:
                return pid
        return None

    def _wait_until_off(self) -> int:
        """The exit code of systemd-nspawn; 0 if the host was off."""
        code = 0
        if self._nspawn is not None:
            try:
                code = self._nspawn.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise LabError(f"{self.name} did not end:\n{self._console_tail()}") from error
        self._nspawn = self._init = None
        return code

    def _console_tail(self) -> str:
        return _tail(self._console.read_text(errors="replace"))


def _children(pid: int) -> list[int]:
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []


def _status(pid: int) -> dict[str, str]:
    """The fields of proc(5)'s status file; empty if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in fields}


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
