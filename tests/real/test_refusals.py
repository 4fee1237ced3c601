"""What the agent refuses, and what it is refused: the reason is told, and nothing is touched."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monky_deployd.demo.openbao import OpenBao
from tests.real.world import Ran, World

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def running(lasting_world: World, idle: str) -> World:
    """A world whose generation 5 runs, and is left as it is by every test."""
    lasting_world.deploy(5, {"web": {"image": idle}})
    return lasting_world


def refused(world: World, reason: str, code: int, *words: str) -> Ran:
    """One pass that ends with `reason` and says `words`, and leaves everything as it was."""
    before = world.incarnation("web"), (world.state / "current").readlink()
    ran = world.once()
    assert (ran.code, ran.json["outcome"]) == (code, reason), ran.stdout
    assert world.report()["outcome"] == reason
    assert world.report()["running_generation"] == 5
    for word in words:
        assert word in ran.json["message"]
    assert (world.incarnation("web"), (world.state / "current").readlink()) == before
    return ran


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "A B", "value": "v"}, "'A B'"),
        ({"name": "COMPOSE_FILE", "value": "v"}, "'COMPOSE_FILE'"),
        ({"name": "UP", "value": "v", "use": "file", "target": "../up"}, "'UP'"),
        ({"name": "NEW", "value": "v", "use": "age-key"}, "'age-key'"),
        ({"name": "NOHOST", "value": "u:p", "use": "registry-auth"}, "'NOHOST'"),
    ],
)
def test_an_entry_that_cannot_be_carried_is_refused_by_name(
    running: World, idle: str, entry: dict[str, Any], words: str
) -> None:
    running.publish(6, {"web": {"image": idle}}, entries=[entry])
    refused(running, "entry-refused", 1, words)


@pytest.mark.parametrize(
    ("value", "words"),
    [("c4n4ry\0", "holds a NUL character"), (12345678901234567890, "'NAME'"), (None, "'NAME'")],
)
def test_a_value_in_openbao_that_cannot_be_carried_is_refused_by_name(
    running: World, idle: str, value: object, words: str
) -> None:
    path = running.put("odd", {"key": value})
    running.publish(6, {"web": {"image": idle}}, entries=[{"name": "NAME", "path": path}])
    ran = refused(running, "entry-refused", 1, words, "NAME")
    assert "c4n4ry" not in ran.stderr + ran.stdout + str(running.report())


def test_compose_files_that_compose_refuses_are_told_in_its_words(running: World) -> None:
    running.publish(6, {"web": {"imagee": "x"}})
    refused(running, "compose-invalid", 1, "services.web", "imagee")


def test_a_variable_without_a_value_is_told_in_composes_words(running: World, idle: str) -> None:
    running.publish(6, {"web": {"image": f"{idle}${{TAG:?tag not set}}"}})
    refused(running, "compose-invalid", 1, "required variable TAG is missing a value: tag not set")


def missing(openbao: OpenBao, path: str) -> None:
    """Never written."""


def deleted(openbao: OpenBao, path: str) -> None:
    openbao.put(path, {"value": "v"})
    openbao.delete(path)


def destroyed(openbao: OpenBao, path: str) -> None:
    openbao.destroy(path, openbao.put(path, {"value": "v"}))


@pytest.mark.parametrize("made", [missing, deleted, destroyed])
def test_a_secret_that_is_not_there_is_told_apart_and_named(
    running: World, idle: str, made: Callable[[OpenBao, str], None]
) -> None:
    path = f"{running.slug}/absent"
    made(running.openbao, path)
    running.publish(6, {"web": {"image": idle}}, entries=[{"name": "PASSWORD", "path": path}])
    refused(running, f"secret-{made.__name__}", 3, "'PASSWORD'", path)


def test_a_secret_of_another_environment_is_forbidden(running: World, idle: str) -> None:
    running.openbao.put("env-of-others/db", {"value": "v"})
    entry = {"name": "PASSWORD", "path": "env-of-others/db"}
    running.publish(6, {"web": {"image": idle}}, entries=[entry])
    refused(running, "openbao-forbidden", 3, "'PASSWORD'", "env-of-others/db")


@pytest.fixture
def sealed(running: World, idle: str) -> Iterator[World]:
    running.publish(5, {"web": {"image": idle}})
    running.openbao.seal()
    try:
        yield running
    finally:
        running.openbao.unseal()


def test_a_sealed_openbao_is_named_and_what_runs_keeps_running(sealed: World) -> None:
    refused(sealed, "openbao-sealed", 3)
    sealed.openbao.unseal()
    assert sealed.once().code == 0


def test_a_lower_generation_is_refused(running: World, idle: str) -> None:
    running.publish(4, {"web": {"image": idle}})
    refused(running, "manifest-stale", 1, "generation 4 is older than generation 5")


def test_a_lower_generation_is_applied_where_the_host_allows_it(world: World, idle: str) -> None:
    world.deploy(5, {"web": {"image": idle}})
    world.configure(allow_older_generation=True)
    ran = world.deploy(4, {"web": {"image": idle}})
    assert ran.json["running_generation"] == 4
    assert ran.json["notes"] == [
        "generation 4 is older than 5, as the host's config allows",
    ]


def test_tenancy_that_does_not_answer_ends_the_pass_with_its_own_exit_code(world: World) -> None:
    world.configure(tenancy={"port": 1, "request_timeout": 2})
    ran = world.once()
    assert (ran.code, ran.json["outcome"]) == (3, "tenancy-unreachable")


def test_an_engine_that_does_not_answer_is_named(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})
    world.configure(docker={"socket": f"{world.base}/no-engine.sock"})
    ran = world.once()
    assert (ran.code, ran.json["outcome"]) == (1, "engine-unreachable")
    assert f"{world.base}/no-engine.sock" in ran.json["message"]
    assert world.report()["outcome"] == "engine-unreachable"
