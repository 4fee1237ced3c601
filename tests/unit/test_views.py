"""What a person sees: everything that came from outside, as it is, and nothing that it orders."""

import io
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from monky_deployd.domain.changes import Change, ServiceChange
from monky_deployd.domain.compose_events import ComposeEvent
from monky_deployd.domain.plan import Step
from monky_deployd.domain.report import ErrorKind, Fault, Outcome, Phase, ServiceStatus
from monky_deployd.errors import Reason
from monky_deployd.host.store import AgentState
from monky_deployd.ops.preview import Preview
from monky_deployd.ops.progress import Progress
from monky_deployd.ops.status import StatusView
from monky_deployd.ops.views import ProgressView, live, print_outcome, print_preview, print_status
from tests.unit.agent_fakes import NOW, outcome

LONG_IMAGE = (
    "harbor.internal.example.org:5000/robot$shop+pull/team/with-a-long-name:1.2.3"
    "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)
ODD_NAMES = [
    "[red]web[/red]",
    "robot$shop+pull",
    "[bold]",
    "[/]",
    "\\[x]",
    ":smile:",
    "http://x/[a]",
    "größe-日本",
    "100% {name} %s",
]


def shown(capsys: pytest.CaptureFixture[str], what: Outcome) -> str:
    print_outcome(what)
    return capsys.readouterr().out


def service(name: str = "web", **fields: Any) -> ServiceStatus:
    return ServiceStatus(service=name, image=fields.pop("image", "i:1"), state="running", **fields)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_and_messages_survive_as_they_are(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    fault = Fault(f"no {name}", service=name, hint=f"see {name}")
    what = outcome(
        Reason.PULL_FAILED,
        sentence=f"{name} can't be pulled",
        faults=(fault,),
        services=(service(name, container=name),),
        notes=(f"a note on {name}",),
    )

    text = shown(capsys, what)

    assert f"{name}: no {name} [other]" in text
    assert f"  hint: see {name}" in text
    assert f"note: a note on {name}" in text
    assert f"pull-failed: {name} can't be pulled" in text
    [row] = [line for line in text.splitlines() if line.startswith("│")]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert (cells[0], cells[-1]) == (name, name)


def test_what_a_terminal_would_obey_is_made_visible(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x1b]0;title\x07\r\u202e\x9b31m"
    what = outcome(
        Reason.PULL_FAILED,
        sentence=evil,
        faults=(Fault(evil, service=evil, hint=evil),),
        services=(service(evil, container=evil, image=evil, health=evil),),
        notes=(evil,),
    )

    text = shown(capsys, what)

    assert not set("\x1b\x07\r\u202e\x9b") & set(text)
    assert r"\x1b[2J\x1b]0;title\x07\r\u202e\x9b31m" in text


def test_a_message_of_several_lines_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    what = outcome(Reason.PULL_FAILED, faults=(Fault("one\ntwo", service="web"),))
    assert "web: one\ntwo [other]\n" in shown(capsys, what)


def test_nothing_is_broken_over_two_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "words " * 100 + "end"
    text = shown(capsys, outcome(sentence=sentence, services=(service(image=LONG_IMAGE),)))
    assert LONG_IMAGE in text
    assert f"converged: {sentence}\n" in text
    assert max(map(len, text.splitlines())) < 1000


def test_on_a_narrow_terminal_long_names_are_folded_and_not_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "dumb")

    print_outcome(outcome(services=(service(image=LONG_IMAGE),)))

    rows = [line for line in terminal.getvalue().splitlines() if line.startswith("│")]
    column = "".join(row.split("│")[5].strip() for row in rows)
    assert column == LONG_IMAGE


def test_the_services_are_a_table_with_their_state(capsys: pytest.CaptureFixture[str]) -> None:
    services = (
        service("db", health="healthy", restarts=2, container="shop-db-1"),
        ServiceStatus("job", "j:1", "exited", exit_code=3, good=False),
    )
    lines = shown(capsys, outcome(services=services)).splitlines()
    rows = [[c.strip() for c in line.strip("│").split("│")] for line in lines if "│" in line]
    assert rows == [
        ["db", "running", "healthy", "2", "i:1", "shop-db-1"],
        ["job", "exited (3)", "", "0", "j:1", ""],
    ]


def test_an_error_that_lasts_tells_how_often_and_since_when(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fault = Fault("denied", ErrorKind.AUTH, "web", first_seen=NOW, count=3)
    text = shown(capsys, outcome(Reason.PULL_FAILED, faults=(fault,)))
    assert "web: denied [auth, 3 times since 2026-12-01T03:00:00.000Z]\n" in text


def test_an_error_without_a_service_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, outcome(Reason.UP_FAILED, faults=(Fault("network x not found"),)))
    assert text.startswith("network x not found [other]\n")


# --- status


def test_status_says_what_waits(capsys: pytest.CaptureFixture[str]) -> None:
    last = outcome(
        Reason.PULL_FAILED, sentence="no", next_try=datetime(2026, 12, 1, 3, 5, tzinfo=UTC)
    )
    state = AgentState(
        last_outcome=last,
        held_release="2-bbbbbbbbbbbb",
        decommissioned=True,
        reports_pending=4,
        reports_dropped=1,
    )

    print_status(StatusView("env-a", state))

    assert capsys.readouterr().out.splitlines() == [
        "environment env-a",
        "pull-failed: no",
        "last pass ended 2026-12-01T03:00:00.000Z",
        "next try at 2026-12-01T03:05:00.000Z",
        "tenancy has given the environment up; nothing of it is touched any more",
        "release 2-bbbbbbbbbbbb is held until something in it changes",
        "reports waiting: 4, dropped so far: 1",
    ]


def test_status_of_an_agent_that_made_no_pass_yet(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(StatusView("env-a", AgentState()))
    assert capsys.readouterr().out.splitlines() == [
        "environment env-a",
        "no pass has been made yet",
        "reports waiting: 0, dropped so far: 0",
    ]


# --- progress


def drawn(progress: Progress) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(ProgressView(progress))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("name", ODD_NAMES)
def test_progress_shows_names_as_they_are(name: str) -> None:
    progress = Progress()
    progress.enter(Phase.PULL)
    progress.take(ComposeEvent(id=name, text="Pulling", status=name))
    text = drawn(progress)
    assert text.startswith("phase: pull")
    assert f"Pulling {name}" in text
    assert name in text.splitlines()[1].split("Pulling")[0]


def test_progress_counts_bytes_once_they_are_known() -> None:
    progress = Progress()
    progress.take(ComposeEvent(id="web", text="Pulling"))
    assert "layer" not in drawn(progress)
    progress.take(
        ComposeEvent(id="a", parent="web", text="Downloading", current=500_000, total=2_000_000)
    )
    assert "1 layer, 500.0 kB of 2.0 MB" in drawn(progress)


def test_the_live_view_is_on_stderr_and_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress()
    with live(progress):
        progress.enter(Phase.PULL)
    assert capsys.readouterr().out == ""


def test_a_plan_shows_each_service_and_what_it_differs_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = (
        ServiceChange("web[b]", Change.CHANGED, "web:2", ("environment", "image"), pulled=True),
        ServiceChange("gone", Change.REMOVED, ""),
    )
    plan = Preview("env-a", "shop", 7, "7-aa", Step.REPAIR, changes, ("db: it ended",), ("so",))
    print_preview(plan)
    told = capsys.readouterr().out
    web, gone = (next(line for line in told.splitlines() if n in line) for n in ("web[b]", "gone"))
    assert "changed, pulled" in web and "web:2" in web and "environment, image" in web
    assert "removed" in gone and "pulled" not in gone
    assert "db: it ended\nnote: so\nrepair: generation 7 is not as it should be" in told
