"""The daemon as systemd runs it: what keeps it from starting reaches the journal and STATUS."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from monky_deployd.domain.secret import Scrubber
from monky_deployd.errors import ExitCode, LockedError, MonkyError
from monky_deployd.host.journal import fields, setup_logging
from monky_deployd.host.sdnotify import Notifier
from monky_deployd.ops.daemon import run_daemon

logger = logging.getLogger(__name__)


def run_service(config_path: Path, environ: Mapping[str, str]) -> ExitCode:
    """Run the daemon to its end; the exit code. Expected failures are logged and told systemd."""
    try:
        asyncio.run(run_daemon(config_path, environ))
    except MonkyError as error:
        _last_words(error, environ)
        # Whoever holds the lock ends by itself: the unit may try again, as it may not after a 2.
        return ExitCode.DEPLOY_FAILED if isinstance(error, LockedError) else error.exit_code
    return ExitCode.CONVERGED


def _last_words(error: MonkyError, environ: Mapping[str, str]) -> None:
    # As lines on stderr: of a datagram journald can't tell the unit once its sender is gone.
    setup_logging("info", environ={**environ, "JOURNAL_STREAM": ""}, scrubber=Scrubber())
    logger.error("%s", error, extra=fields(reason=error.reason))
    notifier = Notifier(environ.get("NOTIFY_SOCKET"))
    notifier.status(str(error))
    notifier.barrier()
