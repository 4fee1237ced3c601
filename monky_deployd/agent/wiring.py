"""Puts the parts of an agent together, for `run` and `once` alike: the one place that knows all."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from monky_deployd import __version__
from monky_deployd.agent.contact import Poller
from monky_deployd.agent.courier import Courier
from monky_deployd.agent.grants import GrantKeeper
from monky_deployd.agent.housekeeping import Housekeeper
from monky_deployd.agent.journey import OnPhase
from monky_deployd.agent.loop import Daemon
from monky_deployd.agent.memory import Memory
from monky_deployd.agent.mend import Mender
from monky_deployd.agent.reconcile import Reconciler
from monky_deployd.agent.tools import Tools
from monky_deployd.agent.watch import Watcher
from monky_deployd.agent.worker import Worker
from monky_deployd.clients.compose import ComposeCli, OnEvent
from monky_deployd.clients.engine import EngineClient
from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.clients.tenancy import TenancyClient
from monky_deployd.domain.config import Config
from monky_deployd.domain.secret import Scrubber
from monky_deployd.host.files import make_private_dir
from monky_deployd.host.grant import GrantFile
from monky_deployd.host.keys import load_key
from monky_deployd.host.lock import StateLock
from monky_deployd.host.releases import Releases
from monky_deployd.host.sdnotify import Notifier
from monky_deployd.host.store import Store

# What a pass may take (seconds) beside its pulls: two rounds of `up`, and all that is asked.
_PASS_MARGIN = 3 * 3600.0


@dataclass(frozen=True)
class Agent:
    """The parts of one agent, open and ready."""

    config: Config
    grants: GrantKeeper
    tenancy: TenancyClient
    compose: ComposeCli
    engine: EngineClient
    reconciler: Reconciler
    mender: Mender
    memory: Memory
    housekeeper: Housekeeper
    courier: Courier

    def daemon(self, notifier: Notifier, watchdog: float | None, *, forced: bool) -> Daemon:
        """The daemon over these parts. `forced`: the first pass tries a held release again."""
        return Daemon(
            partial(Poller, self.config.tenancy, self.tenancy, self.grants),
            partial(Watcher, self.engine),
            partial(
                Worker,
                self.reconciler,
                self.mender,
                self.memory,
                self.grants,
                tidy=self.housekeeper.tidy,
                forced=forced,
                refresh_interval=self.config.secrets.refresh_interval,
                longest_pass=_PASS_MARGIN + 2 * self.config.docker.pull_timeout,
            ),
            self.courier,
            notifier,
            watchdog,
        )


@dataclass(frozen=True)
class Outside:
    """What leads out of an agent: to tenancy, and with `tools` to everything else."""

    tenancy: TenancyClient
    grants: GrantKeeper
    tools: Tools


@contextlib.asynccontextmanager
async def open_outside(
    config: Config,
    scrubber: Scrubber,
    *,
    credentials_directory: Path | None = None,
    on_event: OnEvent | None = None,
    on_phase: OnPhase | None = None,
) -> AsyncIterator[Outside]:
    """Open what leads out. It takes no lock: what changes the state directory needs one.

    Raises FileError or ConfigError.
    """
    state_dir = Path(config.state_dir)
    make_private_dir(state_dir)
    async with contextlib.AsyncExitStack() as stack:
        tenancy = await stack.enter_async_context(
            TenancyClient(
                config.tenancy, config.overlay, config.environment, agent_version=__version__
            )
        )
        engine = await stack.enter_async_context(EngineClient(config.docker.socket))
        grant_file = GrantFile(Path(config.grant_file), credentials_directory)
        tools = Tools(
            config=config,
            releases=Releases(state_dir),
            compose=ComposeCli(config.docker, state_dir, scrubber),
            engine=engine,
            scrubber=scrubber,
            open_openbao=lambda: OpenBaoClient(config.openbao, config.overlay),
            key=load_key(state_dir / "host.key"),
            on_event=on_event,
            on_phase=on_phase,
        )
        yield Outside(tenancy, GrantKeeper(grant_file, config.environment, scrubber), tools)


@contextlib.asynccontextmanager
async def open_agent(
    config: Config,
    scrubber: Scrubber,
    *,
    credentials_directory: Path | None = None,
    on_event: OnEvent | None = None,
    on_phase: OnPhase | None = None,
) -> AsyncIterator[Agent]:
    """Open everything that one agent needs, under the lock of its state directory.

    Raises LockedError where another agent holds it, and FileError, StateError or ConfigError.
    """
    state_dir = Path(config.state_dir)
    make_private_dir(state_dir)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(StateLock(state_dir))
        outside = await stack.enter_async_context(
            open_outside(
                config,
                scrubber,
                credentials_directory=credentials_directory,
                on_event=on_event,
                on_phase=on_phase,
            )
        )
        tools, grants = outside.tools, outside.grants
        tools.releases.sweep()
        store = stack.enter_context(
            Store(state_dir / "state.db", outbox_limit=config.reports.outbox_limit)
        )
        heartbeat = config.reports.heartbeat_interval
        memory = Memory(store, tools.releases, heartbeat, grants.notes)
        yield Agent(
            config,
            grants,
            outside.tenancy,
            tools.compose,
            tools.engine,
            Reconciler(tools),
            Mender(tools),
            memory,
            Housekeeper(tools.engine, tools.releases, store),
            Courier(memory, outside.tenancy, lambda: grants.current().token, heartbeat),
        )
