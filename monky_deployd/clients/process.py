"""The one place that starts processes: own environment, own process group, bounded in time."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from monky_deployd.errors import ComposeError

logger = logging.getLogger(__name__)

_TERM_GRACE = 10.0
_CHUNK = 65536
_MAX_LINE = 1024 * 1024
_MAX_STDOUT = 32 * 1024 * 1024


@dataclass(frozen=True)
class Finished:
    """How a child ended. `stdout` may hold secrets: it is never logged."""

    code: int
    stdout: bytes = field(repr=False)
    timed_out: bool = False


async def run_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    time_limit: float,
    stdin: bytes = b"",
    on_stderr: Callable[[str], None] | None = None,
) -> Finished:
    """Run `argv` with exactly `env`, for at most `time_limit` seconds.

    Each line on stderr goes to `on_stderr`; stdout is returned whole, up to 32 MiB. When time is
    up, or this task is cancelled, the whole process group gets SIGTERM and, 10 s later, SIGKILL.
    Raises ComposeError if the program can't be started.
    """
    process = await _start(argv, env, cwd)
    talk = asyncio.gather(
        _feed(process, stdin),
        _read_all(process.stdout),
        _read_lines(process.stderr, _ignore if on_stderr is None else on_stderr),
    )
    try:
        async with asyncio.timeout(time_limit):
            _, stdout, _ = await talk
            code = await process.wait()
        return Finished(code, stdout)
    except TimeoutError:
        return Finished(-signal.SIGKILL, b"", timed_out=True)
    finally:
        await _end_group(process)
        talk.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await talk


async def _start(
    argv: Sequence[str], env: Mapping[str, str], cwd: str
) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            cwd=cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        no_program = error.errno in {errno.ENOENT, errno.EACCES} and error.filename != cwd
        raise ComposeError(
            f"{argv[0]} can't be started in {cwd}: {error.strerror}",
            remedy="install the docker CLI or set docker.binary and docker.path"
            if no_program
            else "",
        ) from error


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    stdin = process.stdin
    if stdin is None:
        return
    # A child that doesn't read its input to the end is judged by what it says, not by this.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()


async def _read_all(stream: asyncio.StreamReader | None) -> bytes:
    content = bytearray()
    async for chunk in _chunks(stream):
        content += chunk[: _MAX_STDOUT - len(content)]
    return bytes(content)


async def _read_lines(stream: asyncio.StreamReader | None, on_line: Callable[[str], None]) -> None:
    rest = b""
    async for chunk in _chunks(stream):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            on_line(line[:_MAX_LINE].decode("utf-8", "replace"))
        if len(rest) > _MAX_LINE:
            on_line(rest.decode("utf-8", "replace"))
            rest = b""
    if rest:
        on_line(rest.decode("utf-8", "replace"))


async def _chunks(stream: asyncio.StreamReader | None) -> AsyncIterator[bytes]:
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        yield chunk


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End what is left of the child's process group, also where the child itself is gone."""
    if not _signal_group(process.pid, signal.SIGTERM):
        return
    ended = asyncio.create_task(_group_ended(process))
    try:
        # Not asyncio.timeout: in a task that is being cancelled, Python 3.11's never times out.
        await asyncio.wait({ended}, timeout=_TERM_GRACE)
        if not ended.done():
            logger.warning("a child's process group does not end on SIGTERM and is killed")
    finally:
        # Also where a second cancellation cuts the wait short.
        ended.cancel()
        _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


async def _group_ended(process: asyncio.subprocess.Process) -> None:
    await process.wait()
    # Grandchildren aren't ours to wait for; the kernel offers no event for a group's end.
    while _signal_group(process.pid, 0):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; False if nothing of it is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _ignore(line: str) -> None:
    del line
