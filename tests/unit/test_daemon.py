"""The long-running agent as a whole, with a docker CLI of shell: signals, reload and its ends."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from monky_deployd.agent.wiring import open_agent
from monky_deployd.demo.tenancy_server import FakeTenancy
from monky_deployd.errors import ConfigError, LockedError, MonkyError
from monky_deployd.host.lock import StateLock
from monky_deployd.host.store import read_state
from monky_deployd.ops import daemon as module
from monky_deployd.ops.daemon import run_daemon
from tests.unit.agent_fakes import ENV, Record, RecordingNotifier, config, manifest

NO_COMPOSE = "#!/bin/sh\necho \"docker: 'compose' is not a docker command.\" >&2\nexit 1\n"
# Says its version; anything else is noted in the FIFO beside it, and lasts for ever.
HANGING = """#!/bin/sh
case "$*" in *version*) echo 2.40.3; exit;; esac
echo $$ > "$(dirname "$0")/begun"
exec sleep 2147483647
"""


class LogLines(logging.Handler):
    """Every log line, to be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Record[str] = Record()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Agent:
    """The files of one agent, and what it says to the service manager and the log."""

    def __init__(self, base: Path, tenancy: FakeTenancy, port: int) -> None:
        self.base = base
        self.tenancy = tenancy
        self.port = port
        self.config = base / "config.yaml"
        self.notifiers: Record[RecordingNotifier] = Record()
        self.log = LogLines()
        self.docker(NO_COMPOSE)
        self.configure()
        grant = base / "grant"
        grant.touch(mode=0o600)
        grant.write_text(tenancy.grant(ENV))

    def docker(self, script: str) -> None:
        path = self.base / "docker"
        path.write_text(script)
        path.chmod(0o755)

    def configure(self, **settings: Any) -> None:
        tenancy = {"port": self.port, "wait": 5, **settings.pop("tenancy", {})}
        docker = {"binary": str(self.base / "docker")}
        document = config(self.base, tenancy=tenancy, docker=docker, **settings)
        self.config.write_text(yaml.safe_dump(document.model_dump(mode="json")))

    @property
    def notifier(self) -> RecordingNotifier:
        return self.notifiers[0]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        """The daemon until the block ends, and its end as a service manager brings it about."""
        task = asyncio.create_task(run_daemon(self.config, {}))
        # From here on, signals are the daemon's.
        await self.notifiers.number(1)
        try:
            yield task
        finally:
            if not task.done():
                os.kill(os.getpid(), signal.SIGTERM)
            await task

    async def logged(self, words: str) -> None:
        await self.log.lines.first(lambda line: words in line)

    async def ready(self, times: int) -> None:
        """Wait until READY was said so many times."""
        await self.notifier.said.first(lambda _: self.notifier.said.count("READY=1") >= times)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    tenancy = FakeTenancy()
    tenancy.publish(ENV, {})
    with tenancy.serve() as served:
        made = Agent(tmp_path, tenancy, served.port)

        def notifier(socket: str | None) -> RecordingNotifier:
            made.notifiers.append(RecordingNotifier())
            return made.notifiers[-1]

        monkeypatch.setattr(module, "Notifier", notifier)
        monkeypatch.setattr(module, "setup_logging", lambda *args, **kwargs: None)
        logger = logging.getLogger("monky_deployd")
        logger.addHandler(made.log)
        logger.setLevel(logging.INFO)
        try:
            yield made
        finally:
            logger.removeHandler(made.log)
            logger.setLevel(logging.NOTSET)


def hangup() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


async def test_it_is_ready_makes_its_pass_and_stops_when_it_is_told(agent: Agent) -> None:
    async with agent.running():
        await agent.notifier.said.first(
            lambda m: m.endswith("; nothing was running | in contact with tenancy")
        )

    assert agent.notifier.states == ["READY=1", "STOPPING=1"]
    assert agent.log.lines[-1] == "stopped; what runs keeps running"
    last = read_state(agent.base / "state/state.db").last_outcome
    assert last is not None
    assert last.reason == "manifest-invalid"


async def test_a_missing_compose_is_named_at_the_start_and_does_not_end_the_agent(
    agent: Agent,
) -> None:
    async with agent.running():
        await agent.logged("finds no Compose plugin")
        await agent.logged("in contact with tenancy")


async def test_neither_ready_nor_the_stop_waits_for_a_docker_cli_that_hangs(agent: Agent) -> None:
    agent.docker("#!/bin/sh\nexec sleep 2147483647\n")
    async with agent.running():
        await agent.ready(1)
    assert agent.notifier.states == ["READY=1", "STOPPING=1"]


async def test_a_stop_ends_the_children_of_a_pass_and_gives_the_lock_back(agent: Agent) -> None:
    os.mkfifo(agent.base / "begun")
    agent.docker(HANGING)
    agent.tenancy.publish(ENV, yaml.safe_load(manifest()))
    async with agent.running():
        begun = await asyncio.to_thread((agent.base / "begun").read_text)
        with pytest.raises(LockedError):
            StateLock(agent.base / "state").__enter__()

    assert not Path("/proc", begun.strip()).exists()
    with StateLock(agent.base / "state"):
        pass
    assert any("interrupted in phase admit" in line for line in agent.log.lines)
    assert read_state(agent.base / "state/state.db").last_outcome is None


async def test_a_hangup_reads_the_config_again_and_makes_a_pass_at_once(agent: Agent) -> None:
    async with agent.running():
        await agent.logged("nothing was running")
        agent.configure(reports={"heartbeat_interval": 7})
        passes = len(agent.log.lines)
        hangup()
        await agent.ready(2)
        await agent.log.lines.first(
            lambda _: any("nothing was running" in line for line in agent.log.lines[passes:])
        )

    assert agent.notifier.states == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]
    assert "configuration reloaded" in agent.log.lines


async def test_hangups_in_a_row_end_in_one_agent_that_works(agent: Agent) -> None:
    async with agent.running():
        await agent.logged("in contact with tenancy")
        hangup()
        hangup()
        await agent.ready(2)
        hangup()
        agent.tenancy.publish(ENV, {"schema": 77})
        await agent.logged("schema 77")

    assert agent.notifier.states[:3] == ["READY=1", "RELOADING=1", "READY=1"]
    assert agent.notifier.states[-1] == "STOPPING=1"


async def test_a_stop_that_comes_during_a_reload_is_the_last_word(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_agent

    @asynccontextmanager
    async def stopped_while_opening(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with opened(*args, **kwargs) as parts:
            if "RELOADING=1" in agent.notifier.states:
                os.kill(os.getpid(), signal.SIGTERM)
                await agent.notifier.said.first(lambda m: m == "STOPPING=1")
            yield parts

    monkeypatch.setattr(module, "open_agent", stopped_while_opening)
    async with agent.running() as daemon:
        await agent.ready(1)
        hangup()
        await daemon

    assert agent.notifier.states == ["READY=1", "RELOADING=1", "STOPPING=1"]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda agent: agent.config.write_text("environment: []"), "the old one stays in force"),
        (
            lambda agent: agent.configure(state_dir=str(agent.base / "elsewhere")),
            "state_dir can't change while the agent runs",
        ),
        (
            lambda agent: agent.configure(tenancy={"ca_file": str(agent.base / "none.pem")}),
            "the new configuration can't be used, the old one goes on",
        ),
    ],
    ids=["invalid", "another state_dir", "unusable"],
)
async def test_a_config_that_is_no_good_leaves_the_old_one_in_force(
    agent: Agent, break_it: Callable[[Agent], Any], words: str
) -> None:
    async with agent.running() as daemon:
        await agent.logged("in contact with tenancy")
        break_it(agent)
        hangup()
        await agent.logged(words)
        await agent.log.lines.first(lambda _: agent.log.lines.count("in contact with tenancy") >= 2)
        assert not daemon.done()

    assert not (agent.base / "elsewhere").exists()
    assert agent.notifier.states == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]


def config_is_missing(agent: Agent) -> None:
    agent.config.unlink()


def ca_file_is_missing(agent: Agent) -> None:
    agent.configure(tenancy={"ca_file": str(agent.base / "none.pem")})


@pytest.mark.parametrize("break_it", [config_is_missing, ca_file_is_missing])
async def test_at_the_start_a_config_that_is_no_good_ends_the_agent(
    agent: Agent, break_it: Callable[[Agent], None]
) -> None:
    break_it(agent)
    with pytest.raises(ConfigError) as caught:
        await run_daemon(agent.config, {})
    assert caught.value.exit_code == 2
    assert all(notifier.states == [] for notifier in agent.notifiers)


async def test_a_second_agent_is_refused(agent: Agent) -> None:
    (agent.base / "state").mkdir(mode=0o700)
    with StateLock(agent.base / "state"), pytest.raises(MonkyError, match="another monky-deployd"):
        await run_daemon(agent.config, {})
