"""Reaches a host of the lab as BootedHost.run does: as root, in the namespaces of its PID 1."""

import subprocess
from pathlib import Path
from shlex import quote
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleFileNotFound
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: nsenter
short_description: Reach a host that runs in namespaces of this machine
description: Runs commands in the namespaces of a process, in an environment made from scratch.
options:
  init_pid:
    description: The process whose namespaces make the host.
    type: int
    vars:
      - name: ansible_nsenter_init_pid
  remote_user:
    description: Always root; commands run as who runs Ansible.
    default: root
"""

_NAMESPACES = ("-m", "-p", "-u", "-i", "-n")
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


class Connection(ConnectionBase):
    """Each command is a process of its own, so that there is nothing to open or to close."""

    transport = "nsenter"
    has_pipelining = True

    def _connect(self) -> "Connection":
        return self

    def close(self) -> None:
        """Nothing is open."""

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Run a shell command; its exit code, output and error output."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return self._run(cmd, input=in_data or b"")

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copy a file of this machine into the host."""
        if not Path(in_path).is_file():
            raise AnsibleFileNotFound(f"there is no file {in_path}")
        with Path(in_path).open("rb") as source:
            self._copy(f"cat >{quote(out_path)}", stdin=source)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copy a file of the host to this machine."""
        Path(out_path).write_bytes(self._copy(f"cat {quote(in_path)}", stdin=subprocess.DEVNULL))

    def _copy(self, command: str, **stdin: Any) -> bytes:
        code, output, said = self._run(command, **stdin)
        if code != 0:
            raise AnsibleConnectionFailure(f"{command} failed: {said.decode(errors='replace')}")
        return output

    def _run(self, command: str, **stdin: Any) -> tuple[int, bytes, bytes]:
        target = f"--target={self.get_option('init_pid')}"
        argv = ["nsenter", target, *_NAMESPACES, "--", "/bin/sh", "-c", command]
        done = subprocess.run(argv, env=_ENVIRONMENT, capture_output=True, **stdin)
        return done.returncode, done.stdout, done.stderr
