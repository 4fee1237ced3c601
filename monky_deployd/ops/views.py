"""What a person sees on a terminal: live progress, and the outcome as a table."""

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from monky_deployd.domain.report import Outcome, rfc3339
from monky_deployd.ops.progress import Progress, Row
from monky_deployd.ops.status import StatusView

_BAR_WIDTH = 24


class ProgressView:
    """A `Progress` as something that rich can draw again and again."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, row in self._progress.rows.items():
            table.add_row(Text(name), _bar(row), Text(_amount(row)), Text(row.text))
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
    console = Console(soft_wrap=True)
    if outcome.services:
        console.print(_services(outcome))
    for fault in outcome.faults:
        place = f"{fault.service}: " if fault.service else ""
        since = f", {fault.count} times" if fault.count > 1 else ""
        console.print(Text(f"{place}{fault.message} [{fault.kind}{since}]", style="red"))
        if fault.hint:
            console.print(Text(f"  hint: {fault.hint}", style="dim"))
    for note in outcome.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    style = "green" if outcome.good else "bold red"
    console.print(Text(f"{outcome.reason}: {outcome.sentence}", style=style))


def print_status(view: StatusView) -> None:
    """The state on stdout: the last outcome, and what waits."""
    state = view.state
    console = Console(soft_wrap=True)
    console.print(Text(f"environment {view.environment}", style="bold"))
    if state.last_outcome is None:
        console.print("no pass has been made yet")
    else:
        print_outcome(state.last_outcome)
        console.print(f"last pass ended {rfc3339(state.last_outcome.finished_at)}")
        if state.last_outcome.next_try:
            console.print(f"next try at {rfc3339(state.last_outcome.next_try)}")
    if state.held_release:
        console.print(f"release {state.held_release} is held until something in it changes")
    console.print(
        f"reports waiting: {state.reports_pending}, dropped so far: {state.reports_dropped}"
    )


def _services(outcome: Outcome) -> Table:
    table = Table()
    for column in ("service", "state", "health", "restarts", "image", "container"):
        table.add_column(column, overflow="fold")
    for status in outcome.services:
        exited = "" if status.exit_code is None else f" ({status.exit_code})"
        table.add_row(
            Text(status.service),
            Text(status.state + exited, style="green" if status.good else "red"),
            Text(status.health),
            Text(str(status.restarts)),
            Text(status.image),
            Text(status.container),
        )
    return table


def _bar(row: Row) -> RenderableType:
    if not row.total:
        return Text("")
    return ProgressBar(total=row.total, completed=row.fetched, width=_BAR_WIDTH)


def _amount(row: Row) -> str:
    if not row.total:
        return ""
    return f"{len(row.layers)} layers, {decimal(row.fetched)} of {decimal(row.total)}"
