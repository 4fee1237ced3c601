"""Child processes, with real ones: their environment, their output, and that they end."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.clients import process
from monky_deployd.clients.process import Finished, run_child
from monky_deployd.errors import ComposeError, Reason

SH = "/bin/sh"
PATIENCE = 20.0
# Says its process group once its grandchild runs; both stay until they are told to end.
# The grandchild says it: until it has its own traps, a signal to it gets lost.
FAMILY = "trap 'wait; exit 143' TERM; (trap - TERM; echo $$ >&2; exec sleep 99999) & wait"
# The same, but nothing of it ends on SIGTERM. The shell notes in the file $1 that it came.
STUBBORN = """
(trap '' TERM; exec sleep 99999) &
trap 'touch "$1"' TERM
echo $$ >&2
while :; do wait; done
"""


class Lines(list[str]):
    """The lines on stderr; the first can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()

    def __call__(self, line: str) -> None:
        self.append(line)
        self.came.set()


async def sh(script: str, *args: str, **options: Any) -> Finished:
    defaults: dict[str, Any] = {"env": {"PATH": os.environ["PATH"]}, "cwd": "/"}
    defaults["time_limit"] = PATIENCE
    return await run_child([SH, "-c", script, SH, *args], **{**defaults, **options})


def group_exists(group: int) -> bool:
    """Whether a process of the group still runs; one that only waits to be collected does not."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, pgrp = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:3]
            if int(pgrp) == group and state != "Z":
                return True
    return False


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what the kernel tells nobody of."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def family(script: str, *args: str) -> AsyncIterator[tuple[asyncio.Task[Finished], int]]:
    """A child with a grandchild, both running, and their process group."""
    said = Lines()
    running = asyncio.create_task(sh(script, *args, on_stderr=said))
    try:
        async with asyncio.timeout(PATIENCE):
            await said.came.wait()
        group = int(said[0])
        assert group_exists(group)
        yield running, group
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# Environment and input


async def test_a_child_has_exactly_the_environment_that_it_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", "from the agent")
    done = await run_child(
        ["env"], env={"PATH": "/usr/bin:/bin", "ONLY": "this"}, cwd="/", time_limit=PATIENCE
    )
    assert set(done.stdout.decode().splitlines()) == {"PATH=/usr/bin:/bin", "ONLY=this"}
    assert (await sh("pwd", cwd=str(tmp_path))).stdout == f"{tmp_path}\n".encode()


async def test_the_program_is_looked_up_in_the_childs_path(tmp_path: Path) -> None:
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o700)
    done = await run_child(["only-here"], env={"PATH": str(tmp_path)}, cwd="/", time_limit=PATIENCE)
    assert done == Finished(0, b"found\n")


async def test_a_child_reads_its_input_and_then_the_end_of_it() -> None:
    content = b"services: {}\n" * 100_000
    assert (await sh("cat", stdin=content)).stdout == content
    assert (await sh("cat")).stdout == b""


async def test_a_child_that_does_not_read_its_input_is_judged_by_its_exit_code() -> None:
    assert (await sh("exit 3", stdin=b"x" * 10_000_000)).code == 3


async def test_a_child_has_a_session_of_its_own() -> None:
    """A Ctrl-C in the agent's terminal is the agent's to handle."""
    done = await sh('read -r _ _ _ _ group session _ < /proc/$$/stat; echo "$group $session $$"')
    group, session, pid = done.stdout.split()
    assert group == session == pid
    assert int(session) != os.getsid(0)


# Output


@pytest.mark.parametrize("code", [0, 1, 17, 125])
async def test_the_exit_code_is_the_childs(code: int) -> None:
    assert await sh(f"echo out; exit {code}") == Finished(code, b"out\n")


async def test_a_child_that_a_signal_ended_has_a_negative_exit_code() -> None:
    assert (await sh("kill -KILL $$")).code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("", []),
        ("printf 'a\\nb\\n' >&2", ["a", "b"]),
        ("printf 'a\\nno end' >&2", ["a", "no end"]),
        ("printf '\\n\\n' >&2", ["", ""]),
        ("printf 'a\\r\\n' >&2", ["a\r"]),
        ("printf '\\303\\244\\n\\377\\n' >&2", ["ä", "\ufffd"]),
        ("printf '\\303' >&2; printf '\\244\\n' >&2", ["ä"]),
        ("printf 'lines without' >&2; printf ' a break\\n' >&2", ["lines without a break"]),
    ],
)
async def test_each_line_on_stderr_is_told(script: str, lines: list[str]) -> None:
    said = Lines()
    await sh(script, on_stderr=said)
    assert said == lines


async def test_a_line_is_told_while_the_child_still_runs(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    said = Lines()
    running = asyncio.create_task(
        sh('echo ready >&2; read -r go < "$1"', str(fifo), on_stderr=said)
    )
    async with asyncio.timeout(PATIENCE):
        await said.came.wait()
        assert not running.done()
        await asyncio.to_thread(fifo.write_text, "go\n")
        assert (await running).code == 0


async def test_a_line_may_be_long() -> None:
    said = Lines()
    await sh("head -c 900000 /dev/zero | tr '\\0' x >&2; echo >&2; echo next >&2", on_stderr=said)
    assert [len(line) for line in said] == [900_000, 4]


async def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_MAX_LINE", 1000)
    said = Lines()
    await sh("head -c 1000000 /dev/zero | tr '\\0' x >&2", on_stderr=said)
    assert sum(map(len, said)) == 1_000_000
    assert max(map(len, said)) <= 1000 + 65536


async def test_stdout_is_kept_up_to_its_limit_and_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_MAX_STDOUT", 100_000)
    done = await sh("head -c 1000000 /dev/zero && exit 7")
    assert (done.code, len(done.stdout)) == (7, 100_000)


async def test_both_outputs_may_be_larger_than_a_pipe() -> None:
    said = Lines()
    done = await sh(
        "head -c 500000 /dev/zero; head -c 500000 /dev/zero | tr '\\0' x >&2", on_stderr=said
    )
    assert (len(done.stdout), len("".join(said))) == (500_000, 500_000)


def test_what_a_child_printed_does_not_show_in_a_repr() -> None:
    assert "c4n4ry" not in repr(Finished(0, b"c4n4ry"))


# The end


async def test_when_time_is_up_the_whole_group_ends() -> None:
    said = Lines()
    done = await sh(FAMILY, time_limit=1, on_stderr=said)
    assert (done.timed_out, done.code != 0) == (True, True)
    assert not group_exists(int(said[0]))


@pytest.mark.parametrize("script", [FAMILY, STUBBORN], ids=["willing", "stubborn"])
async def test_when_the_task_is_cancelled_the_whole_group_ends(
    script: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "_TERM_GRACE", 0.2 if script is STUBBORN else PATIENCE)
    async with family(script, str(tmp_path / "told")) as (running, group):
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not group_exists(group)
    assert ("does not end on SIGTERM" in caplog.text) is (script is STUBBORN)


async def test_a_second_cancellation_does_not_leave_the_group_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "_TERM_GRACE", 100 * PATIENCE)
    told = tmp_path / "told"
    async with family(STUBBORN, str(told)) as (running, group):
        running.cancel()
        await eventually(told.exists)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await eventually(lambda: not group_exists(group))


async def test_what_a_child_left_in_its_group_ends_with_it() -> None:
    done = await sh("sleep 99999 >/dev/null 2>&1 & echo $$")
    assert done.code == 0
    assert not group_exists(int(done.stdout))


async def test_a_child_is_told_to_end_before_it_is_killed(tmp_path: Path) -> None:
    script = 'trap "touch $1; wait; exit 0" TERM; sleep 99999 & echo $$ >&2; wait'
    trace = tmp_path / "told"
    said = Lines()
    await sh(script, str(trace), time_limit=1, on_stderr=said)
    assert trace.exists()


async def test_an_error_in_the_reader_ends_the_child_and_comes_out() -> None:
    groups = []

    def fail(line: str) -> None:
        groups.append(int(line))
        raise ValueError("no such line")

    with pytest.raises(ValueError, match="no such line"):
        await sh(FAMILY, on_stderr=fail)
    assert not group_exists(groups[0])


# No child at all


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("no-such-program", "no-such-program can't be started in /: No such file or directory"),
        ("/etc/passwd", "/etc/passwd can't be started in /: Permission denied"),
    ],
)
async def test_a_program_that_can_not_be_started_is_named_with_the_remedy(
    program: str, words: str
) -> None:
    with pytest.raises(ComposeError) as caught:
        await run_child([program], env={"PATH": "/bin"}, cwd="/", time_limit=PATIENCE)
    assert caught.value.cause == words
    assert "install the docker CLI" in caught.value.remedy
    assert caught.value.reason is Reason.COMPOSE_UNUSABLE


async def test_a_directory_that_is_gone_is_not_taken_for_a_missing_program(tmp_path: Path) -> None:
    with pytest.raises(ComposeError) as caught:
        await sh("true", cwd=str(tmp_path / "gone"))
    assert "gone: No such file or directory" in caught.value.cause
    assert not caught.value.remedy


async def test_an_argument_that_is_too_long_does_not_show(tmp_path: Path) -> None:
    with pytest.raises(ComposeError) as caught:
        await sh("true", "c4n4ry" * 1_000_000)
    assert "Argument list too long" in str(caught.value)
    assert "c4n4ry" not in str(caught.value)
