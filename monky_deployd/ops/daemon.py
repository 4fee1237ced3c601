"""The long-running agent: signals, reload, and the daemon between them."""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from monky_deployd.agent.wiring import open_agent
from monky_deployd.clients.compose import ComposeCli
from monky_deployd.domain.config import Config
from monky_deployd.domain.secret import Scrubber
from monky_deployd.errors import ComposeError, ConfigError, MonkyError
from monky_deployd.host.config_file import load_config
from monky_deployd.host.journal import setup_logging
from monky_deployd.host.sdnotify import Notifier, watchdog_interval

logger = logging.getLogger(__name__)


async def run_daemon(config_path: Path, environ: Mapping[str, str]) -> None:
    """Run until SIGTERM or SIGINT. SIGHUP re-reads config and grant and reconciles at once.

    A config that is invalid or can't be used at a reload is logged, and the old one kept. Raises
    MonkyError where the agent can't start.
    """
    config = load_config(config_path)
    notifier = Notifier(environ.get("NOTIFY_SOCKET"))
    stop, reload = asyncio.Event(), asyncio.Event()
    _handle_signals(notifier, stop, reload)
    # The config that the agent ran with before the reload, until the new one has been opened.
    before: Config | None = None
    reloaded = False
    while not stop.is_set():
        reload.clear()
        try:
            await _serve(config, environ, notifier, stop, reload, reloaded=reloaded)
        except MonkyError as error:
            if before is None:
                raise
            logger.error("the new configuration can't be used, the old one goes on: %s", error)
            config, before = before, None
            continue
        if not stop.is_set():
            notifier.reloading()
            config, before, reloaded = _reload(config_path, config), config, True
    logger.info("stopped; what runs keeps running")


def _handle_signals(notifier: Notifier, stop: asyncio.Event, reload: asyncio.Event) -> None:
    def stopping() -> None:
        # At once: a pass under way may need some seconds to end its children.
        notifier.stopping()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping)
    loop.add_signal_handler(signal.SIGHUP, reload.set)


async def _serve(
    config: Config,
    environ: Mapping[str, str],
    notifier: Notifier,
    stop: asyncio.Event,
    reload: asyncio.Event,
    *,
    reloaded: bool,
) -> None:
    scrubber = Scrubber()
    setup_logging(
        config.log.level, environ=environ, scrubber=scrubber, environment=config.environment
    )
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    interval = watchdog_interval(environ, os.getpid())
    async with (
        open_agent(
            config, scrubber, credentials_directory=Path(credentials) if credentials else None
        ) as agent,
        asyncio.TaskGroup() as group,
    ):
        # Beside the daemon: neither READY nor a stop waits for a docker CLI that hangs.
        check = group.create_task(_check_compose(agent.compose))
        await agent.daemon(notifier, interval, forced=reloaded).run(stop, reload)
        check.cancel()


async def _check_compose(compose: ComposeCli) -> None:
    """Name a missing or old Compose at the start, before there is a manifest to be applied."""
    try:
        await compose.version()
    except ComposeError as error:
        # It may be installed while the agent runs; each pass says the same until then.
        logger.error("%s", error)


def _reload(path: Path, old: Config) -> Config:
    try:
        new = load_config(path)
        if new.state_dir != old.state_dir:
            raise ConfigError(
                "state_dir can't change while the agent runs", remedy="restart the agent"
            )
    except MonkyError as error:
        logger.error("the configuration is not reloaded, the old one stays in force: %s", error)
        return old
    logger.info("configuration reloaded")
    return new
