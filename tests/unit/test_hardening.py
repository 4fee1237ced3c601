"""No crash of the agent writes its memory anywhere: shown on processes that are really made to."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from monky_deployd.errors import StateError
from monky_deployd.host import hardening
from monky_deployd.host.hardening import forbid_core_dumps

# What it is before and after the call, and what a child gets, as the kernel says.
REPORT = """
import ctypes, json, resource, subprocess, sys
from pathlib import Path
from monky_deployd.host.hardening import forbid_core_dumps

def state():
    dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    return [dumpable, *resource.getrlimit(resource.RLIMIT_CORE)]

before = state()
forbid_core_dumps()
after = state()
forbid_core_dumps()
shell = "ulimit -Sc; ulimit -Hc; tr '\\\\0' '\\\\n' < /proc/self/environ"
child = subprocess.run(["sh", "-c", shell], env={"A": "b"}, capture_output=True, text=True)
descriptors = len(list(Path("/proc/self/fd").iterdir()))
print(json.dumps([before, after, state(), child.stdout.split(), descriptors > 0]))
"""
ABORT = """
import os, resource, sys
from monky_deployd.host.hardening import forbid_core_dumps
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
if sys.argv[1] == "forbidden":
    forbid_core_dumps()
os.abort()
"""
# A command that looks at its own process in place of the config.
COMMAND = """
import ctypes, resource, sys
from monky_deployd import cli

def look(path):
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), *resource.getrlimit(resource.RLIMIT_CORE))
    raise SystemExit(0)

cli.load_config = look
cli.run_service = lambda path, environ: look(path)
cli.main(sys.argv[1:])
"""


def python(script: str, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", script, *args]
    return subprocess.run(argv, capture_output=True, text=True, env=environment, cwd=cwd)


def test_the_process_and_its_children_can_not_dump() -> None:
    done = python(REPORT)
    assert done.returncode == 0, done.stderr
    before, after, again, child, sees_its_descriptors = json.loads(done.stdout)
    assert before[0] == 1
    assert after == again == [0, 0, 0]
    assert child == ["0", "0", "A=b"]
    assert sees_its_descriptors


def has_dumped(mode: str, directory: Path) -> bool:
    """Whether a process that aborts leaves a core, by its status and in its directory."""
    directory.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", f'cd "{directory}" && exec "$@"', "sh", sys.executable, "-c", ABORT, mode],
        environment,
    )
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    return os.WCOREDUMP(status) or any(directory.iterdir())


def test_a_process_that_aborts_leaves_no_core(tmp_path: Path) -> None:
    if not has_dumped("allowed", tmp_path / "allowed"):
        print("nothing dumps core on this machine: the other half of this test shows nothing")
    assert not has_dumped("forbidden", tmp_path / "forbidden")


@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["once"],
        ["once", "--json"],
        ["doctor"],
        ["status"],
        ["grant", "install", "/dev/null"],
        ["grant", "show"],
    ],
    ids=" ".join,
)
def test_every_command_begins_with_it(command: list[str]) -> None:
    done = python(COMMAND, *command)
    assert done.stdout == "0 0 0\n", done.stderr


def test_a_system_that_refuses_is_told_and_nothing_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(option: int, value: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(hardening, "_prctl", refuse)
    monkeypatch.setattr(hardening.resource, "getrlimit", lambda limit: (0, 0))
    with pytest.raises(StateError, match=r"can't be turned off: .*Operation not permitted"):
        forbid_core_dumps()


def test_the_kernels_own_refusal_becomes_an_error() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        hardening._prctl(4, 99)
