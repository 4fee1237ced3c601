"""The agent as a service: new generations, signals, a sudden death, a rival."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.real.services import never_ready
from tests.real.world import World, eventually

pytestmark = pytest.mark.real


def children_of_the_agent(world: World) -> list[int]:
    """The processes that the agent started, however deep: they alone have its DOCKER_CONFIG."""
    marker = f"DOCKER_CONFIG={world.state}/docker".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def may_hold(world: World) -> bool:
    """Whether the agent asked tenancy to hold its request: then it has nothing else to do."""
    return any(seen.headers.get("prefer") == "wait=55" for seen in world.tenancy.requests)


def test_a_new_generation_is_deployed_while_a_request_is_held(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        line = daemon.wait_for("generation 1 runs")
        eventually(lambda: may_hold(world), "a request that may be held")
        asked = len(world.tenancy.requests)

        world.publish(2, {"web": {"image": idle, "environment": {"N": "2"}}})
        daemon.wait_for("generation 2 runs", since=line)

        assert world.variables("web")[b"N"] == b"2"
        manifests = [r for r in world.tenancy.requests[asked:] if r.method == "GET"]
        assert len(manifests) <= 1
    assert [report["generation"] for report in world.tenancy.reports(world.slug)] == [1, 2]


def test_sigterm_ends_an_idle_agent_and_leaves_containers_running(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        daemon.wait_for("generation 1 runs")
        before = world.incarnation("web")
        assert daemon.stop() == 0
    assert world.incarnation("web") == before
    assert world.container("web")["State"]["Status"] == "running"
    assert "stopped; what runs keeps running" in daemon.log


def test_sigterm_ends_an_agent_that_waits_for_a_service(world: World, idle: str) -> None:
    services = {"slow": never_ready(idle), "web": {"image": idle}}
    world.publish(1, services, deploy={"wait_timeout": 600})
    with world.daemon() as daemon:
        eventually(lambda: is_running(world, "slow"), "the slow service")
        assert children_of_the_agent(world)
        before = world.incarnation("slow"), world.incarnation("web")
        assert daemon.stop() == 0
    assert children_of_the_agent(world) == []
    assert (world.incarnation("slow"), world.incarnation("web")) == before


def is_running(world: World, service: str) -> bool:
    names = world.docker("ps", "--format", "{{.Names}}", "--filter", "status=running")
    return f"{world.slug}-{service}-1" in names.split()


@contextmanager
def silent_registry() -> Iterator[tuple[str, threading.Event]]:
    """A server that accepts connections and never answers: its host, and when it was asked."""
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            held = []
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    break
                asked.set()
            for connection in held:
                connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", asked
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_sigterm_ends_an_agent_that_pulls(world: World, idle: str) -> None:
    world.deploy(1, {"web": {"image": idle}})
    before = world.incarnation("web")
    with silent_registry() as (host, asked):
        world.publish(2, {"web": {"image": idle}, "stuck": {"image": f"{host}/stuck:1"}})
        with world.daemon() as daemon:
            assert asked.wait(60)
            assert children_of_the_agent(world)
            assert daemon.stop() == 0
        assert children_of_the_agent(world) == []
    assert world.incarnation("web") == before


def test_after_kill_9_in_the_middle_of_a_pass_the_next_start_converges(
    world: World, idle: str
) -> None:
    ready = {"test": ["CMD", "test", "-e", "/tmp/ready"], "interval": "1s", "start_period": "1h"}
    service = {"image": idle, "healthcheck": ready}
    world.deploy(1, {"web": {"image": idle}})
    world.publish(2, {"web": {"image": idle, "environment": {"N": "2"}}, "slow": service})
    with world.daemon() as daemon:
        eventually(lambda: is_running(world, "slow"), "the slow service")
        daemon.send(signal.SIGKILL)
        assert daemon.wait() == -signal.SIGKILL

    world.inside("slow", "touch", "/tmp/ready")
    with world.daemon() as daemon:
        daemon.wait_for("generation 2 runs")
        report = world.wait_for_report(2)
    assert (report["outcome"], report["generation"]) == ("converged", 2)
    assert world.variables("web")[b"N"] == b"2"
    eventually(lambda: children_of_the_agent(world) == [], "the end of the killed agent's children")


def test_sighup_takes_in_a_changed_config(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        line = daemon.wait_for("generation 1 runs")
        assert "DEBUG" not in daemon.log

        world.configure(log={"level": "debug"})
        daemon.send(signal.SIGHUP)
        line = daemon.wait_for("configuration reloaded", since=line)
        line = daemon.wait_for("DEBUG", since=line)
        daemon.wait_for("generation 1 runs already", since=line)


def test_sighup_with_an_invalid_config_keeps_the_old_one(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        line = daemon.wait_for("generation 1 runs")
        world.configure(tenancy={"hots": "typo"})
        daemon.send(signal.SIGHUP)
        line = daemon.wait_for("the old one stays in force", since=line)
        assert "tenancy.hots: unknown setting; did you mean host?" in daemon.log
        line = daemon.wait_for("generation 1 runs already", since=line)

        world.publish(2, {"web": {"image": idle, "environment": {"N": "2"}}})
        daemon.wait_for("generation 2 runs", since=line)


def test_sighup_tries_a_failed_generation_again_at_once(world: World, idle: str) -> None:
    path = f"{world.slug}/late"
    entries = [world.robot_entry(), {"name": "LATE", "path": path}]
    world.publish(1, {"web": {"image": idle}}, entries=entries)
    with world.daemon() as daemon:
        line = daemon.wait_for("next try at")
        world.openbao.put(path, {"value": "here now"})
        daemon.send(signal.SIGHUP)
        daemon.wait_for("generation 1 runs", since=line)


def test_a_failed_generation_is_tried_again_by_itself(world: World, idle: str) -> None:
    path = f"{world.slug}/late"
    entries = [world.robot_entry(), {"name": "LATE", "path": path}]
    world.publish(1, {"web": {"image": idle, "env_file": ".env"}}, entries=entries)
    with world.daemon() as daemon:
        line = daemon.wait_for("next try at")
        world.openbao.put(path, {"value": "here now"})
        daemon.wait_for("generation 1 runs", since=line)
        eventually(lambda: world.report()["outcome"] == "converged", "the good news")
    outcomes = [report["outcome"] for report in world.tenancy.reports(world.slug)]
    assert outcomes[0] == "secret-missing"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        # systemd starts it again after this one: the holder of the lock ends by itself.
        ("run", 1),
        ("once", 2),
    ],
)
def test_a_second_agent_on_the_same_state_is_refused(
    world: World, idle: str, command: str, code: int
) -> None:
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        daemon.wait_for("in contact with tenancy")
        ran = world.agent(command)
        assert ran.code == code
        assert f"(pid {daemon.pid})" in ran.stderr
        assert str(world.state) in ran.stderr
        assert daemon.is_running


def with_files(world: World, first: str, second: str) -> list[dict[str, Any]]:
    path = world.put("files", {"first": first, "second": second})
    return [
        world.robot_entry(),
        *(
            {"name": name, "path": path, "key": name, "use": "file", "target": f"conf/{name}"}
            for name in ("first", "second")
        ),
    ]


def test_a_changed_file_recreates_the_service_that_mounts_it_and_no_other(
    world: World, idle: str
) -> None:
    services = {
        name: {"image": idle, "volumes": [f"./conf/{name}:/file:ro"]}
        for name in ("first", "second")
    } | {"neither": {"image": idle}}
    world.publish(1, services, entries=with_files(world, "one", "same"))
    with world.daemon() as daemon:
        line = daemon.wait_for("generation 1 runs")
        before = {name: world.incarnation(name) for name in services}
        world.publish(2, services, entries=with_files(world, "two", "same"))
        daemon.wait_for("generation 2 runs", since=line)

    touched = {name for name in services if world.incarnation(name) != before[name]}
    assert touched == {"first"}
    assert world.inside("first", "cat", "/file") == b"two"
    assert world.inside("second", "cat", "/file") == b"same"


def test_an_idle_agent_starts_no_process(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        daemon.wait_for("generation 1 runs")
        eventually(lambda: may_hold(world), "a request that may be held")
        assert children_of_the_agent(world) == []
