"""What a person sees on a terminal: live progress, and the outcome as a table.

Names and messages come from outside. They are shown as they are: no markup in them is obeyed,
and what a terminal would obey is made visible.
"""

import sys

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from monky_deployd.domain.changes import Change
from monky_deployd.domain.report import Fault, Outcome, rfc3339
from monky_deployd.ops.preview import Preview
from monky_deployd.ops.progress import Progress, Row
from monky_deployd.ops.status import StatusView

_BAR_WIDTH = 24
# For a file or a pipe: a name that is broken over two lines can't be searched for.
_NO_TERMINAL_WIDTH = 10_000


class ProgressView:
    """A `Progress` as something that rich can draw again and again."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, row in self._progress.rows.items():
            table.add_row(_text(name), _bar(row), Text(_amount(row)), _text(row.text))
        return Group(Text(f"phase: {self._progress.phase}", style="bold"), table)


def live(progress: Progress) -> Live:
    """A live display of `progress` on stderr, to be used with `with`; gone when it ends."""
    return Live(
        ProgressView(progress),
        console=Console(stderr=True),
        refresh_per_second=8,
        transient=True,
    )


def print_outcome(outcome: Outcome) -> None:
    """The outcome on stdout: the services as a table, the errors verbatim, the sentence."""
    console = _console()
    if outcome.services:
        console.print(_services(outcome))
    for fault in outcome.faults:
        console.print(_text(_fault_line(fault), style="red"))
        if fault.hint:
            console.print(_text(f"  hint: {fault.hint}", style="dim"))
    for note in outcome.notes:
        console.print(_text(f"note: {note}", style="yellow"))
    style = "green" if outcome.good else "bold red"
    console.print(_text(f"{outcome.reason}: {outcome.sentence}", style=style))


def print_preview(preview: Preview) -> None:
    """What a pass would do, on stdout: the services as a table, the notes, the sentence."""
    console = _console()
    table = Table()
    for column in ("service", "change", "image", "differs in"):
        table.add_column(column, overflow="fold")
    for change in preview.changes:
        style = "dim" if change.change is Change.UNCHANGED else "bold"
        what = f"{change.change}, pulled" if change.pulled else f"{change.change}"
        table.add_row(
            _text(change.service),
            _text(what, style=style),
            _text(change.image),
            _text(", ".join(change.keys)),
        )
    console.print(table)
    for problem in preview.problems:
        console.print(_text(problem, style="red"))
    for note in preview.notes:
        console.print(_text(f"note: {note}", style="yellow"))
    console.print(_text(f"{preview.step}: {preview.sentence}", style="bold"))


def print_status(view: StatusView) -> None:
    """The state on stdout: the last outcome, and what waits."""
    state = view.state
    console = _console()
    console.print(_text(f"environment {view.environment}", style="bold"))
    if state.last_outcome is None:
        console.print("no pass has been made yet")
    else:
        print_outcome(state.last_outcome)
        console.print(f"last pass ended {rfc3339(state.last_outcome.finished_at)}")
        if state.last_outcome.next_try:
            console.print(f"next try at {rfc3339(state.last_outcome.next_try)}")
    if state.contact:
        since = rfc3339(state.contact.since)
        console.print(_text(f"no contact with tenancy since {since}: {state.contact.sentence}"))
    if state.decommissioned:
        console.print("tenancy has given the environment up; nothing of it is touched any more")
    if state.held_release:
        console.print(f"release {state.held_release} is held until something in it changes")
    console.print(
        f"reports waiting: {state.reports_pending}, dropped so far: {state.reports_dropped}"
    )


def _console() -> Console:
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH)


def _text(text: str, style: str = "") -> Text:
    """Foreign `text` for the screen, with escapes for what a terminal would obey or hide."""
    shown = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    return Text(shown, style=style)


def _fault_line(fault: Fault) -> str:
    place = f"{fault.service}: " if fault.service else ""
    often = f", {fault.count} times" if fault.count > 1 else ""
    since = f" since {rfc3339(fault.first_seen)}" if often and fault.first_seen else ""
    return f"{place}{fault.message} [{fault.kind}{often}{since}]"


def _services(outcome: Outcome) -> Table:
    table = Table()
    for column in ("service", "state", "health", "restarts", "image", "container"):
        table.add_column(column, overflow="fold")
    for status in outcome.services:
        exited = "" if status.exit_code is None else f" ({status.exit_code})"
        table.add_row(
            _text(status.service),
            _text(status.state + exited, style="green" if status.good else "red"),
            _text(status.health),
            _text(str(status.restarts)),
            _text(status.image),
            _text(status.container),
        )
    return table


def _bar(row: Row) -> RenderableType:
    if not row.total:
        return Text("")
    return ProgressBar(total=row.total, completed=row.fetched, width=_BAR_WIDTH)


def _amount(row: Row) -> str:
    if not row.total:
        return ""
    layers = "1 layer" if len(row.layers) == 1 else f"{len(row.layers)} layers"
    return f"{layers}, {decimal(row.fetched)} of {decimal(row.total)}"
