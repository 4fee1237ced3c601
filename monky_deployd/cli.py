"""The command line. Each command is a few lines that call `ops`."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from monky_deployd import __version__
from monky_deployd.agent.wiring import open_agent, open_outside
from monky_deployd.domain.report import Outcome
from monky_deployd.domain.secret import Scrubber
from monky_deployd.errors import ExitCode, GrantError, MonkyError
from monky_deployd.host.config_file import DEFAULT_CONFIG_PATH, load_config
from monky_deployd.host.hardening import forbid_core_dumps
from monky_deployd.host.journal import setup_logging
from monky_deployd.ops.doctor import Doctor, Finding
from monky_deployd.ops.enrol import check_grant, install_grant, show_grant
from monky_deployd.ops.once import reconcile_once
from monky_deployd.ops.preview import Preview, preview
from monky_deployd.ops.progress import Progress
from monky_deployd.ops.service import run_service
from monky_deployd.ops.status import read_status

_EXIT_CODES = """\
exit codes:
  0  converged (or the check passed)
  1  the deploy failed; what ran before keeps running
  2  usage or configuration
  3  tenancy or OpenBao unreachable or refusing
  4  refused by the host's policy
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; expected failures become one sentence on stderr."""
    arguments = build_parser().parse_args(argv)
    try:
        forbid_core_dumps()
        return int(arguments.command(arguments))
    except MonkyError as error:
        _print_error(error, as_json=getattr(arguments, "json", False))
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 128 + 2


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands, also for completions and man pages."""
    parser = argparse.ArgumentParser(
        prog="monky-deployd",
        description="Makes this Docker Compose host match what the tenancy service says.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_CONFIG_PATH,
        metavar="FILE",
        help="the configuration file (default: %(default)s)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run as a daemon: poll, reconcile, report, for ever")
    run.set_defaults(command=_run)
    once = commands.add_parser("once", help="make one pass now, and say how it went")
    once.add_argument("--json", action="store_true", help="print the outcome as JSON")
    once.set_defaults(command=_once)
    plan = commands.add_parser("plan", help="say what a pass would do now, and do none of it")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    plan.set_defaults(command=_plan)
    status = commands.add_parser("status", help="say how the last pass went, and what waits")
    status.add_argument("--json", action="store_true", help="print the state as JSON")
    status.set_defaults(command=_status)
    doctor = commands.add_parser(
        "doctor", help="test the way to a deploy step by step; changes nothing"
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(command=_doctor)
    _add_config(commands)
    _add_grant(commands)
    return parser


def _add_config(commands: Any) -> None:
    config = commands.add_parser("config", help="look at the configuration")
    config_commands = config.add_subparsers(required=True, metavar="COMMAND")
    check = config_commands.add_parser("check", help="say whether the configuration is valid")
    check.set_defaults(command=_config_check)
    show = config_commands.add_parser("show", help="print the configuration with its defaults")
    show.add_argument("--json", action="store_true", help="print it as JSON instead of YAML")
    show.set_defaults(command=_config_show)


def _add_grant(commands: Any) -> None:
    grant = commands.add_parser("grant", help="install or look at the grant")
    grant_commands = grant.add_subparsers(required=True, metavar="COMMAND")
    install = grant_commands.add_parser(
        "install",
        help="put a grant in place; a running agent adopts it by itself",
        description="Reads the grant from FILE or, with -, from standard input; never from argv.",
    )
    install.add_argument("source", metavar="FILE", help="the file with the grant; - for stdin")
    install.add_argument(
        "--check", action="store_true", help="only say whether it could be installed"
    )
    install.set_defaults(command=_grant_install)
    show = grant_commands.add_parser("show", help="print the grant's claims, never the grant")
    show.add_argument("--json", action="store_true", help="print the claims as JSON")
    show.set_defaults(command=_grant_show)


def _run(arguments: argparse.Namespace) -> int:
    return run_service(arguments.config, os.environ)


def _once(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    progress = Progress()

    async def make_pass() -> Outcome:
        scrubber = Scrubber()
        setup_logging(
            config.log.level,
            environ=os.environ,
            scrubber=scrubber,
            environment=config.environment,
        )
        async with open_agent(
            config,
            scrubber,
            credentials_directory=_credentials_directory(),
            on_event=progress.take,
            on_phase=progress.enter,
        ) as agent:
            return await reconcile_once(agent)

    if arguments.json:
        outcome = asyncio.run(make_pass())
        _print_json(outcome.as_json())
        return outcome.exit_code
    # rich costs a tenth of a second to import: only where a person looks.
    from monky_deployd.ops import views

    if sys.stderr.isatty():
        with views.live(progress):
            outcome = asyncio.run(make_pass())
    else:
        outcome = asyncio.run(make_pass())
    views.print_outcome(outcome)
    return outcome.exit_code


def _plan(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)

    async def look_ahead() -> Preview | Outcome:
        scrubber = Scrubber()
        setup_logging(
            config.log.level,
            environ=os.environ,
            scrubber=scrubber,
            environment=config.environment,
        )
        async with open_outside(
            config, scrubber, credentials_directory=_credentials_directory()
        ) as outside:
            return await preview(outside)

    found = asyncio.run(look_ahead())
    code = found.exit_code if isinstance(found, Outcome) else ExitCode.CONVERGED
    if arguments.json:
        _print_json(found.as_json())
        return code
    from monky_deployd.ops import views

    if isinstance(found, Outcome):
        views.print_outcome(found)
    else:
        views.print_preview(found)
    return code


def _status(arguments: argparse.Namespace) -> int:
    view = read_status(load_config(arguments.config))
    if arguments.json:
        _print_json(view.as_json())
        return view.exit_code
    from monky_deployd.ops import views

    views.print_status(view)
    return view.exit_code


def _doctor(arguments: argparse.Namespace) -> int:
    doctor = Doctor(load_config(arguments.config), _credentials_directory())

    async def examine() -> list[Finding]:
        findings = []
        async for finding in doctor.examine():
            findings.append(finding)
            if not arguments.json:
                mark = "ok  " if finding.good else "FAIL"
                _say(f"{mark}  {finding.check}: {finding.sentence}")
        return findings

    findings = asyncio.run(examine())
    if arguments.json:
        _print_json({"findings": [finding.as_json() for finding in findings]})
    return max(finding.exit_code for finding in findings)


def _credentials_directory() -> Path | None:
    path = os.environ.get("CREDENTIALS_DIRECTORY")
    return Path(path) if path else None


def _config_check(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    _say(
        f"{arguments.config} is valid: environment {config.environment}, "
        f"tenancy {config.tenancy.base_url}"
    )
    return ExitCode.CONVERGED


def _config_show(arguments: argparse.Namespace) -> int:
    document = load_config(arguments.config).model_dump(mode="json")
    if arguments.json:
        _print_json(document)
    else:
        _say(yaml.safe_dump(document, sort_keys=False).rstrip())
    return ExitCode.CONVERGED


def _grant_install(arguments: argparse.Namespace) -> int:
    config, text = load_config(arguments.config), _read_grant(arguments.source)
    view = check_grant(config, text) if arguments.check else install_grant(config, text)
    state = "can be installed" if arguments.check else "is installed"
    _say(f"{view.sentence(datetime.now(UTC))} {state} at {view.path}")
    return ExitCode.CONVERGED


def _grant_show(arguments: argparse.Namespace) -> int:
    view = show_grant(load_config(arguments.config))
    if arguments.json:
        _print_json(view.as_json())
    else:
        _say(view.sentence(datetime.now(UTC)))
    return ExitCode.CONVERGED


def _read_grant(source: str) -> str:
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text()
    except OSError as error:
        raise GrantError(f"no grant can be read from {source}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GrantError(f"{source} is not text, so it holds no grant") from None


def _print_error(error: MonkyError, *, as_json: bool) -> None:
    if as_json:
        _print_json({"outcome": error.reason.value, "message": str(error)})
    print(f"monky-deployd: {error}", file=sys.stderr)  # noqa: T201


def _print_json(document: dict[str, Any]) -> None:
    _say(json.dumps(document, indent=2))


def _say(text: str) -> None:
    print(text)  # noqa: T201
