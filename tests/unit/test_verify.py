"""Whether what runs matches the release: every state that a container can be in, as tables."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from monky_deployd.domain.report import ServiceStatus
from monky_deployd.domain.verify import (
    Container,
    Expected,
    Standing,
    Verdict,
    expected_services,
    judge,
    settled,
    standing,
)

IMAGE, PULLED, OLD = "reg.example/shop/web:1", "sha256:new", "sha256:old"
WEB = Expected("web", IMAGE)
UP = Container("c1", "shop-web-1", "web", PULLED, "running", started_at="t1")
POLICIES = ["", "no", "on-failure", "always", "unless-stopped"]


def seen(**fields: Any) -> Container:
    return replace(UP, **fields)


def looked(
    first: Container | list[Container],
    second: Container | list[Container] | None = None,
    *,
    expected: Expected = WEB,
    baseline: dict[str, int] | None = None,
    image_ids: dict[str, str] | None = None,
) -> Verdict:
    """The verdict of two looks; of one that saw the same twice where `second` isn't given."""
    second = first if second is None else second
    return judge(
        [expected],
        baseline or {},
        first if isinstance(first, list) else [first],
        second if isinstance(second, list) else [second],
        {IMAGE: PULLED} if image_ids is None else image_ids,
    )


def problem(verdict: Verdict) -> str:
    [fault] = verdict.faults
    assert (fault.service, fault.image, fault.registry) == ("web", IMAGE, "reg.example")
    return fault.message


# One container, one look

RUNNING = [
    ("", Standing.GOOD),
    ("healthy", Standing.GOOD),
    ("starting", Standing.STARTING),
    ("unhealthy", Standing.BAD),
]
ONE_SHOTS = [
    ("", Standing.DONE),
    ("no", Standing.DONE),
    ("on-failure", Standing.DONE),
    ("always", Standing.BAD),
    ("unless-stopped", Standing.BAD),
]
OTHER_STATES = ["created", "restarting", "paused", "removing", "dead", ""]


@pytest.mark.parametrize(("health", "meant"), RUNNING)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_running_container_stands_as_its_health_says(
    health: str, meant: Standing, policy: str
) -> None:
    assert standing(seen(health=health, restart_policy=policy)) is meant


@pytest.mark.parametrize(("policy", "meant"), ONE_SHOTS)
@pytest.mark.parametrize("health", ["", "healthy", "starting", "unhealthy"])
def test_an_exit_code_of_zero_means_done_unless_it_should_have_been_started_again(
    policy: str, meant: Standing, health: str
) -> None:
    ended = seen(state="exited", exit_code=0, restart_policy=policy, health=health)
    assert standing(ended) is meant


@pytest.mark.parametrize(("policy", "code"), [*product(POLICIES, [1, 137, 255])])
def test_any_other_exit_code_is_bad(policy: str, code: int) -> None:
    assert standing(seen(state="exited", exit_code=code, restart_policy=policy)) is Standing.BAD


@pytest.mark.parametrize(("state", "policy", "code"), [*product(OTHER_STATES, POLICIES, [0, 1])])
def test_every_other_state_is_bad(state: str, policy: str, code: int) -> None:
    for health in ("", "healthy", "starting"):
        container = seen(state=state, exit_code=code, restart_policy=policy, health=health)
        assert standing(container) is Standing.BAD


# One look, judged

GOOD = [
    ("running", {}),
    ("healthy", {"health": "healthy"}),
    ("one-shot", {"state": "exited"}),
    ("one-shot-on-failure", {"state": "exited", "restart_policy": "on-failure"}),
]
BAD = [
    ("unhealthy", {"health": "unhealthy"}, "container shop-web-1 is unhealthy"),
    (
        "starting",
        {"health": "starting"},
        "container shop-web-1 is still starting: its healthcheck has not passed yet",
    ),
    (
        "exit-code",
        {"state": "exited", "exit_code": 3},
        "container shop-web-1 exited (3)",
    ),
    (
        "out-of-memory",
        {"state": "exited", "exit_code": 137, "oom_killed": True},
        "container shop-web-1 exited (137), killed for lack of memory",
    ),
    (
        "exit-with-the-engines-words",
        {"state": "exited", "exit_code": 127, "error": "exec: no such file"},
        "container shop-web-1 exited (127): exec: no such file",
    ),
    (
        "ended-but-should-always-run",
        {"state": "exited", "restart_policy": "always"},
        "container shop-web-1 exited (0) and stays down, against its restart policy always",
    ),
    (
        "restarting",
        {"state": "restarting", "restarts": 4, "exit_code": 1},
        "container shop-web-1 restarts in a loop: 4 restarts so far, last exit code 1",
    ),
    (
        "created-with-the-engines-words",
        {"state": "created", "exit_code": 128, "error": "bind: address already in use"},
        "container shop-web-1 was created but did not start: bind: address already in use",
    ),
    ("created", {"state": "created"}, "container shop-web-1 was created but did not start"),
    ("paused", {"state": "paused"}, "container shop-web-1 is paused"),
    (
        "dead",
        {"state": "dead", "error": "device busy"},
        "container shop-web-1 is dead: device busy",
    ),
    ("removing", {"state": "removing"}, "container shop-web-1 is removing"),
    (
        "old-image",
        {"image_id": OLD},
        "container shop-web-1 still runs image sha256:old, not sha256:new, which was pulled",
    ),
    (
        "one-shot-of-the-old-image",
        {"state": "exited", "image_id": OLD},
        "container shop-web-1 still runs image sha256:old, not sha256:new, which was pulled",
    ),
]


@pytest.mark.parametrize("fields", [fields for _, fields in GOOD], ids=[name for name, _ in GOOD])
def test_a_container_that_is_good(fields: dict[str, Any]) -> None:
    verdict = looked(seen(**fields))
    assert (verdict.faults, verdict.doubtful) == ((), False)
    assert [status.good for status in verdict.statuses] == [True]


@pytest.mark.parametrize(
    ("fields", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_a_container_that_is_bad_is_told_with_its_reason(
    fields: dict[str, Any], message: str
) -> None:
    verdict = looked(seen(**fields))
    assert problem(verdict) == message
    assert verdict.faults[0].hint == "docker logs shop-web-1"
    assert [status.good for status in verdict.statuses] == [False]


def test_without_a_known_image_id_any_image_will_do() -> None:
    assert not looked(seen(image_id=OLD), image_ids={}).faults


# Two looks: what happened in between, or before

RESTARTED = seen(restarts=1, started_at="t2")
LOOKS: list[tuple[Any, ...]] = [
    ("quiet", UP, UP, {}, "", False),
    ("crash-loop", RESTARTED, seen(restarts=3, started_at="t3"), {}, "3 restarts so far", False),
    ("first-crash", UP, RESTARTED, {}, "1 restart so far", False),
    (
        "crash-loop-with-healthcheck",
        seen(health="starting", restarts=1),
        seen(health="starting", restarts=2),
        {},
        "restarts in a loop",
        False,
    ),
    ("engine-forgot-its-restarts", seen(restarts=5), seen(started_at="t2"), {}, "again", False),
    ("started-again-by-hand", UP, seen(started_at="t2"), {}, "started again while", False),
    ("crashed-before-the-first-look", RESTARTED, RESTARTED, {}, "", True),
    ("crashed-before-and-healthy-now", *[replace(RESTARTED, health="healthy")] * 2, {}, "", False),
    ("crashed-long-ago", RESTARTED, RESTARTED, {"c1": 1}, "", False),
    ("crashed-again-since-long-ago", *[seen(restarts=2)] * 2, {"c1": 1}, "", True),
    ("new-at-the-second-look", [], UP, {}, "", True),
    ("new-and-healthy", [], seen(health="healthy"), {}, "", False),
    ("made-again-in-between", seen(id="c0"), UP, {}, "", True),
    ("ended-in-between", UP, seen(state="exited", exit_code=1), {}, "exited (1)", False),
    ("done-in-between", UP, seen(state="exited"), {}, "", False),
    (
        "one-shot-that-needed-three-tries",
        seen(restarts=1, restart_policy="on-failure"),
        seen(restarts=2, restart_policy="on-failure", state="exited"),
        {},
        "",
        False,
    ),
    ("got-healthy", seen(health="starting"), seen(health="healthy"), {}, "", False),
    ("got-unhealthy", seen(health="healthy"), seen(health="unhealthy"), {}, "unhealthy", False),
    ("came-up-late", seen(state="created", started_at="0"), UP, {}, "", True),
]


@pytest.mark.parametrize(
    ("first", "second", "baseline", "words", "doubtful"),
    [row[1:] for row in LOOKS],
    ids=[row[0] for row in LOOKS],
)
def test_two_looks(
    first: Container | list[Container],
    second: Container,
    baseline: dict[str, int],
    words: str,
    doubtful: bool,
) -> None:
    verdict = looked(first, second, baseline=baseline)
    assert (words in problem(verdict)) if words else not verdict.faults
    assert verdict.doubtful is doubtful


# How many containers

COUNTS = [
    (0, 0, ""),
    (1, 1, ""),
    (3, 3, ""),
    (1, 0, "the service has no container"),
    (3, 2, "the service has 2 containers where the release wants 3"),
    (1, 2, "the service has 2 containers where the release wants 1"),
    (0, 1, "the service has 1 container where the release wants 0"),
]


@pytest.mark.parametrize(("wanted", "found", "message"), COUNTS)
def test_a_service_has_as_many_containers_as_the_release_wants(
    wanted: int, found: int, message: str
) -> None:
    containers = [seen(id=f"c{number}", name=f"shop-web-{number}") for number in range(found)]
    verdict = looked(containers, expected=replace(WEB, replicas=wanted))
    assert [fault.message for fault in verdict.faults] == ([message] if message else [])
    missing = [status for status in verdict.statuses if status.state == "missing"]
    assert len(missing) == (1 if found < wanted else 0)
    assert len(verdict.statuses) == found + len(missing)


def test_each_bad_replica_is_told() -> None:
    bad = {"state": "exited", "exit_code": 1}
    containers = [seen(id="c1"), seen(id="c2", name="b", **bad), seen(id="c3", name="c", **bad)]
    verdict = looked(containers, expected=replace(WEB, replicas=3))
    assert [fault.message for fault in verdict.faults] == [
        "container b exited (1)",
        "container c exited (1)",
    ]


def test_each_service_is_judged_by_its_own_containers() -> None:
    stranger = seen(id="c9", service="orphan", state="exited", exit_code=1)
    down = seen(id="c2", name="shop-db-1", service="db", state="exited", exit_code=1)
    expected = [Expected("db", "db:1"), WEB, Expected("gone", "")]
    verdict = judge(expected, {}, [], [stranger, UP, down], {})
    assert [(fault.service, fault.registry) for fault in verdict.faults] == [
        ("db", "docker.io"),
        ("gone", ""),
    ]


@pytest.mark.parametrize(
    ("fields", "state", "code"),
    [
        ({}, "running", None),
        ({"state": "exited"}, "completed", 0),
        ({"state": "exited", "exit_code": 3}, "exited", 3),
        ({"state": "exited", "restart_policy": "always"}, "exited", 0),
        ({"state": "paused"}, "paused", None),
    ],
)
def test_a_status_says_what_the_engine_says(
    fields: dict[str, Any], state: str, code: int | None
) -> None:
    [status] = looked(seen(health="healthy", restarts=2, **fields)).statuses
    assert status == ServiceStatus(
        "web", IMAGE, state, "healthy", 2, code, "shop-web-1", good=status.good
    )


@pytest.mark.parametrize(
    ("containers", "meant"),
    [
        ([], True),
        ([UP], True),
        ([seen(health="starting")], False),
        ([UP, seen(health="starting")], False),
        ([seen(state="restarting")], True),
        ([seen(service="orphan", health="starting")], True),
    ],
)
def test_it_is_settled_once_nothing_of_the_release_is_starting(
    containers: list[Container], meant: bool
) -> None:
    assert settled([WEB], containers) is meant


# What the model wants: as Compose 2.26.1 and 2.40.3 print it, without services of other profiles


@pytest.mark.parametrize(
    ("service", "replicas"),
    [
        ({}, 1),
        ({"deploy": None}, 1),
        ({"deploy": {"resources": {}, "placement": {}}}, 1),
        ({"deploy": {"mode": "global"}}, 1),
        ({"deploy": {"replicas": 3}}, 3),
        ({"deploy": {"replicas": 0}}, 0),
        ({"scale": 2}, 2),
        ({"scale": 0, "deploy": None}, 0),
        ({"scale": 2, "deploy": {"replicas": 2}}, 2),
    ],
)
def test_the_model_says_how_many_containers_a_service_has(
    service: dict[str, Any], replicas: int
) -> None:
    model = {"services": {"web": {"image": IMAGE, **service}}}
    assert expected_services(model) == (Expected("web", IMAGE, replicas),)


def test_the_models_services_come_in_order_with_their_images() -> None:
    model = {"services": {"web": {"image": IMAGE}, "built": {"image": None}, "a": {"image": "a"}}}
    assert expected_services(model) == (Expected("a", "a"), Expected("built", ""), WEB)
    assert expected_services({}) == expected_services({"services": None}) == ()
