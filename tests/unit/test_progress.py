"""How far a pull or an up is, gathered from Compose's events."""

import pytest

from monky_deployd.domain.compose_events import ComposeEvent
from monky_deployd.domain.report import Phase
from monky_deployd.ops.progress import Progress, Row

MB = 1_000_000


def layer(text: str, current: int | None = None, total: int | None = None) -> ComposeEvent:
    return ComposeEvent(id="a1", parent="web", text=text, current=current, total=total)


@pytest.fixture
def progress() -> Progress:
    return Progress()


def test_a_layer_grows_and_is_whole_when_it_was_fetched(progress: Progress) -> None:
    progress.take(layer("Pulling fs layer"))
    assert (progress.rows["web"].fetched, progress.rows["web"].total) == (0, 0)
    progress.take(layer("Downloading", 1 * MB, 4 * MB))
    assert (progress.rows["web"].fetched, progress.rows["web"].total) == (1 * MB, 4 * MB)
    progress.take(layer("Download complete"))
    assert progress.rows["web"].fetched == 4 * MB


def test_extracting_counts_other_bytes_and_does_not_change_the_sum(progress: Progress) -> None:
    progress.take(layer("Downloading", 4 * MB, 4 * MB))
    progress.take(layer("Extracting", 1, 20 * MB))
    assert (progress.rows["web"].fetched, progress.rows["web"].total) == (4 * MB, 4 * MB)


def test_no_layer_is_more_than_whole(progress: Progress) -> None:
    progress.take(layer("Downloading", 9 * MB, 4 * MB))
    progress.take(layer("Downloading", None, None))
    assert (progress.rows["web"].fetched, progress.rows["web"].total) == (4 * MB, 4 * MB)


def test_a_service_sums_its_layers_and_shows_its_last_words(progress: Progress) -> None:
    progress.take(ComposeEvent(id="web", text="Pulling"))
    progress.take(layer("Downloading", 1 * MB, 4 * MB))
    other = ComposeEvent(id="b2", parent="web", text="Downloading", current=2 * MB, total=2 * MB)
    progress.take(other)
    assert (progress.rows["web"].fetched, progress.rows["web"].total) == (3 * MB, 6 * MB)
    progress.take(ComposeEvent(id="web", text="Error", status="denied"))
    assert progress.rows["web"].text == "Error denied"


def test_what_is_about_nothing_in_particular_is_passed_over(progress: Progress) -> None:
    progress.take(ComposeEvent(log="a warning", level="warning"))
    progress.take(ComposeEvent(error="no"))
    assert progress.rows == {}


@pytest.mark.parametrize(
    ("phase", "kept"),
    [(Phase.PULL, False), (Phase.UP, False), (Phase.SWITCH, True), (Phase.VERIFY, True)],
)
def test_rows_begin_anew_with_the_pull_and_with_the_up(
    progress: Progress, phase: Phase, kept: bool
) -> None:
    progress.take(ComposeEvent(id="web", text="Pulled"))
    progress.enter(phase)
    assert progress.phase is phase
    assert progress.rows == ({"web": Row("Pulled")} if kept else {})
