"""Outcomes and reports: the JSON that tenancy gets, how errors age, and the one sentence."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from monky_deployd.domain import sentences
from monky_deployd.domain.report import (
    ErrorKind,
    Fault,
    Outcome,
    Phase,
    ServiceStatus,
    build_report,
    rfc3339,
)
from monky_deployd.errors import ExitCode, Reason, exit_code

T0 = datetime(2026, 12, 1, 3, 0, 0, tzinfo=UTC)
T1, T2 = T0 + timedelta(seconds=4.21), T0 + timedelta(seconds=14.9)
WORDS = 'Head "https://reg.example/v2/shop/web/manifests/8": no basic auth credentials'
FAULT = Fault(WORDS, ErrorKind.AUTH, "web", "reg.example/shop/web:8", "reg.example")


def outcome(reason: Reason = Reason.PULL_FAILED, **fields: Any) -> Outcome:
    fields = {"faults": (FAULT,), "finished_at": T1, **fields}
    return Outcome(reason, "it is so", Phase.PULL, 8, T0, **fields)


def test_a_report_has_the_documented_shape() -> None:
    status = ServiceStatus("web", "i:7", "running", "healthy", container="shop-web-1")
    told = outcome(
        services=(status,), notes=("a note",), running=7, release="8-abc", next_try=T2
    ).with_history(None)

    report = build_report(told, report_id="0f6c", seq=12, agent_version="0.1.0", next_contact_by=T0)

    assert (report.report_id, report.seq) == ("0f6c", 12)
    assert json.loads(json.dumps(report.body)) == {
        "report_id": "0f6c",
        "seq": 12,
        "generation": 8,
        "phase": "pull",
        "outcome": "pull-failed",
        "message": "it is so",
        "started_at": "2026-12-01T03:00:00.000Z",
        "finished_at": "2026-12-01T03:00:04.210Z",
        "errors": [
            {
                "kind": "auth",
                "message": WORDS,
                "service": "web",
                "image": "reg.example/shop/web:8",
                "registry": "reg.example",
                "first_seen": "2026-12-01T03:00:04.210Z",
                "count": 1,
            }
        ],
        "services": [
            {
                "service": "web",
                "image": "i:7",
                "state": "running",
                "health": "healthy",
                "restarts": 0,
                "exit_code": None,
                "container": "shop-web-1",
                "good": True,
            }
        ],
        "notes": ["a note"],
        "running_generation": 7,
        "next_try": "2026-12-01T03:00:14.900Z",
        "agent_version": "0.1.0",
        "next_contact_by": "2026-12-01T03:00:00.000Z",
    }


def test_what_is_not_known_is_null_or_left_out() -> None:
    body = replace(outcome(faults=(Fault("words"),)), generation=None).as_json()
    assert (body["generation"], body["running_generation"], body["next_try"]) == (None, None, None)
    assert body["errors"] == [
        {
            "kind": "other",
            "message": "words",
            "service": "",
            "image": "",
            "registry": "",
            "count": 1,
        }
    ]


def test_a_hint_stands_beside_the_message() -> None:
    document = replace(FAULT, hint="log in").as_json()
    assert (document["message"], document["hint"]) == (WORDS, "log in")


def test_a_report_does_not_show_its_body_in_a_repr() -> None:
    report = build_report(outcome(), report_id="r", seq=1, agent_version="1", next_contact_by=T0)
    assert WORDS not in repr(report)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (T0, "2026-12-01T03:00:00.000Z"),
        (T0 + timedelta(microseconds=999_999), "2026-12-01T03:00:00.999Z"),
        (T0.astimezone(timezone(timedelta(hours=5, minutes=30))), "2026-12-01T03:00:00.000Z"),
    ],
)
def test_moments_are_utc_with_milliseconds(moment: datetime, text: str) -> None:
    assert rfc3339(moment) == text


@pytest.mark.parametrize("reason", Reason)
def test_an_outcome_is_good_if_the_host_matches_the_manifest(reason: Reason) -> None:
    good = reason in {Reason.CONVERGED, Reason.UP_TO_DATE}
    assert outcome(reason).good is good
    assert outcome(reason).exit_code is exit_code(reason)
    assert (exit_code(reason) is ExitCode.CONVERGED) is good


@pytest.mark.parametrize(
    ("reason", "faults", "failure"),
    [
        (Reason.PULL_FAILED, (FAULT,), True),
        (Reason.ROLLED_BACK, (), True),
        (Reason.CONVERGED, (), False),
        (Reason.UP_TO_DATE, (), False),
        (Reason.UP_TO_DATE, (FAULT,), True),
    ],
)
def test_a_report_of_a_failure_is_known_as_one(
    reason: Reason, faults: tuple[Fault, ...], failure: bool
) -> None:
    told = outcome(reason, faults=faults)
    report = build_report(told, report_id="r", seq=1, agent_version="1", next_contact_by=T0)
    assert report.is_failure is failure


# How errors age


def test_a_fault_that_stays_keeps_its_first_seen_and_is_counted() -> None:
    first = outcome(finished_at=T0).with_history(None)
    second = outcome(finished_at=T1).with_history(first)
    third = outcome(finished_at=T2).with_history(second)
    seen = [(f.first_seen, f.count) for o in (first, second, third) for f in o.faults]
    assert seen == [(T0, 1), (T0, 2), (T0, 3)]


@pytest.mark.parametrize(
    "other",
    [
        replace(FAULT, service="db"),
        replace(FAULT, image="reg.example/shop/web:9"),
        replace(FAULT, kind=ErrorKind.TLS),
        replace(FAULT, message="denied"),
    ],
)
def test_another_fault_is_new(other: Fault) -> None:
    first = outcome(finished_at=T0).with_history(None)
    second = outcome(faults=(other, FAULT), finished_at=T1).with_history(first)
    assert [(f.first_seen, f.count) for f in second.faults] == [(T1, 1), (T0, 2)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "read tcp 10.0.0.2:49152->10.0.0.1:443: reset",
            "read tcp 10.0.0.2:50001->10.0.0.1:443: reset",
        ),
        ("restarts in a loop: 9 restarts so far", "restarts in a loop: 10 restarts so far"),
    ],
)
def test_a_message_with_other_numbers_is_the_same_fault_in_its_newest_words(
    before: str, after: str
) -> None:
    first = outcome(faults=(Fault(before, service="web"),), finished_at=T0).with_history(None)
    second = outcome(faults=(Fault(after, service="web"),), finished_at=T1).with_history(first)
    assert second.faults == (Fault(after, service="web", first_seen=T0, count=2),)


def test_a_fault_that_went_and_came_back_is_new() -> None:
    first = outcome(finished_at=T0).with_history(None)
    between = outcome(Reason.CONVERGED, faults=(), finished_at=T1).with_history(first)
    again = outcome(finished_at=T2).with_history(between)
    assert [(f.first_seen, f.count) for f in again.faults] == [(T2, 1)]


# The one sentence

FAULTS = tuple(Fault(f"words {n}", service=f"s{n}") for n in range(5))
TWO_OF_WEB = [ServiceStatus("web", "i", "running"), ServiceStatus("web", "i", "running")]


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        (sentences.converged(7, TWO_OF_WEB), "generation 7 runs: 1 service good"),
        (sentences.converged(7, []), "generation 7 runs: 0 services good"),
        (sentences.up_to_date(7), "generation 7 runs already and all its services are good"),
        (
            sentences.pull_failed(8, FAULTS[:1], 7),
            "generation 8 can't be pulled: s0: words 0; generation 7 keeps running",
        ),
        (
            sentences.pull_failed(8, [Fault("words")], None),
            "generation 8 can't be pulled: words; nothing was running",
        ),
        (
            sentences.not_good(8, FAULTS, "generation 7 was brought back and runs"),
            "generation 8 is not good: s0: words 0 | s1: words 1 | s2: words 2 | and 2 more; "
            "generation 7 was brought back and runs",
        ),
        (
            sentences.held(8, 7),
            "generation 8 was tried and found bad; it is not tried again until its manifest or a "
            "value in it changes; generation 7 keeps running",
        ),
        (sentences.failed("no grant", 7), "no grant; generation 7 keeps running"),
    ],
)
def test_the_sentence_of_an_outcome(sentence: str, words: str) -> None:
    assert sentence == words
