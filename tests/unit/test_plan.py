"""The next step, and which generations are taken, as tables."""

import pytest

from monky_deployd.domain.plan import History, Step, check_generation, next_step
from monky_deployd.errors import ManifestError, Reason

NEW, OLD, OTHER = "8-new", "7-old", "6-other"

# (good, current, held), containers good?, forced? -> step for NEW
STEPS = [
    ("first-deploy", (None, None, None), False, False, Step.DEPLOY),
    ("first-deploy-beside-containers", (None, None, None), True, False, Step.DEPLOY),
    ("new-release", (OLD, OLD, None), True, False, Step.DEPLOY),
    ("runs-and-is-good", (NEW, NEW, None), True, False, Step.NOTHING),
    ("runs-and-is-good-forced", (NEW, NEW, None), True, True, Step.NOTHING),
    ("drifted", (NEW, NEW, None), False, False, Step.REPAIR),
    ("drifted-forced", (NEW, NEW, None), False, True, Step.REPAIR),
    ("crash-after-the-switch", (OLD, NEW, None), True, False, Step.DEPLOY),
    ("crash-while-going-back", (NEW, OLD, None), True, False, Step.DEPLOY),
    ("current-is-gone", (NEW, None, None), True, False, Step.DEPLOY),
    ("state-is-lost", (None, NEW, None), True, False, Step.DEPLOY),
    ("rolled-back", (OLD, OLD, NEW), True, False, Step.HOLD),
    ("rolled-back-and-drifted", (OLD, OLD, NEW), False, False, Step.HOLD),
    ("rolled-back-forced", (OLD, OLD, NEW), True, True, Step.DEPLOY),
    ("first-release-stopped", (None, NEW, NEW), False, False, Step.HOLD),
    ("first-release-stopped-forced", (None, NEW, NEW), False, True, Step.DEPLOY),
    ("rollback-failed", (OLD, NEW, NEW), False, False, Step.HOLD),
    ("another-is-held", (OLD, OLD, OTHER), True, False, Step.DEPLOY),
    ("good-while-another-is-held", (NEW, NEW, OTHER), True, False, Step.NOTHING),
]


@pytest.mark.parametrize(
    ("releases", "containers_good", "forced", "step"),
    [row[1:] for row in STEPS],
    ids=[row[0] for row in STEPS],
)
def test_the_next_step(
    releases: tuple[str | None, str | None, str | None],
    containers_good: bool,
    forced: bool,
    step: Step,
) -> None:
    good, current, held = releases
    history = History(good_release=good, current=current, held_release=held)
    assert next_step(NEW, history, containers_good=containers_good, forced=forced) is step


@pytest.mark.parametrize(
    ("applied", "generation", "digest", "allow_older", "note"),
    [
        (None, 1, "a", False, None),
        (7, 8, "b", False, None),
        (7, 7, "a", False, None),
        (7, 7, "b", False, "published generation 7 twice with different content"),
        (7, 6, "b", True, "generation 6 is older than 7, as the host's config allows"),
        (7, 8, "b", True, None),
    ],
)
def test_a_generation_that_is_taken(
    applied: int | None, generation: int, digest: str, allow_older: bool, note: str | None
) -> None:
    history = History(applied_generation=applied, applied_digest="a" if applied else None)
    notes = check_generation(generation, digest, history, allow_older=allow_older)
    assert len(notes) == (1 if note else 0)
    assert all(note and note in said for said in notes)


@pytest.mark.parametrize("digest", ["a", "b"])
def test_an_older_generation_is_refused_and_named(digest: str) -> None:
    history = History(applied_generation=7, applied_digest="a")
    with pytest.raises(ManifestError, match="generation 6 is older than generation 7") as caught:
        check_generation(6, digest, history, allow_older=False)
    assert caught.value.reason is Reason.MANIFEST_STALE
    assert not caught.value.retryable
