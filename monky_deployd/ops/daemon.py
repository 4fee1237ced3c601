"""The long-running agent: signals, reload, and the daemon between them."""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from monky_deployd.agent.wiring import open_agent
from monky_deployd.domain.config import Config
from monky_deployd.domain.secret import Scrubber
from monky_deployd.errors import ComposeError, ConfigError, MonkyError
from monky_deployd.host.config_file import load_config
from monky_deployd.host.journal import setup_logging
from monky_deployd.host.sdnotify import Notifier, watchdog_interval

logger = logging.getLogger(__name__)


async def run_daemon(config_path: Path, environ: Mapping[str, str]) -> None:
    """Run until SIGTERM or SIGINT. SIGHUP re-reads config and grant and reconciles at once.

    An invalid config at a reload is logged and the old one kept. Raises MonkyError where the
    agent can't start.
    """
    config = load_config(config_path)
    notifier = Notifier(environ.get("NOTIFY_SOCKET"))
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    reloaded = False
    while not stop.is_set():
        reload.clear()
        await _serve(config, environ, notifier, stop, reload, reloaded=reloaded)
        if reload.is_set() and not stop.is_set():
            notifier.reloading()
            config, reloaded = _reload(config_path, config), True
    notifier.stopping()
    logger.info("stopped; what runs keeps running")


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
    async with open_agent(
        config, scrubber, credentials_directory=Path(credentials) if credentials else None
    ) as agent:
        try:
            await agent.compose.version()
        except ComposeError as error:
            # It may be installed while the agent runs; each pass says the same until then.
            logger.error("%s", error)
        interval = watchdog_interval(environ, os.getpid())
        await agent.daemon(notifier, interval, forced=reloaded).run(stop, reload)


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
