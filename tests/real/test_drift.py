"""What happens to containers behind the agent's back is put right, and told."""

import json
import os
import re
import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.demo.registry import Registry
from monky_deployd.domain.secret import Secret
from tests.real.services import STAY, sh
from tests.real.world import Daemon, World, eventually

pytestmark = pytest.mark.real


def running(image: str, **settings: Any) -> dict[str, Any]:
    """A service without a healthcheck, which stops soon."""
    return {"image": image, "stop_grace_period": "1s", **settings}


def runs(world: World, service: str) -> bool:
    """Whether the service has a container that runs."""
    names = ["ps", "--format", "{{.Names}} {{.Status}}", "--filter", f"name={world.slug}-{service}"]
    shown = world.docker(*names)
    return "Up" in shown and "Paused" not in shown


@contextmanager
def deployed(world: World, services: dict[str, Any], **manifest: Any) -> Iterator[Daemon]:
    """A daemon that has brought `services` up as generation 1."""
    world.publish(1, services, **manifest)
    with world.daemon() as daemon:
        daemon.wait_for("generation 1 runs")
        world.wait_for_report(1)
        yield daemon


def tells_of(world: World, generation: int) -> dict[str, Any]:
    """The first report on `generation`, as soon as tenancy has it."""

    def found() -> list[dict[str, Any]]:
        return [r for r in world.tenancy.reports(world.slug) if r["generation"] == generation]

    eventually(found, f"a report on generation {generation}")
    return found()[0]


def drift_of(report: dict[str, Any]) -> str:
    return " ".join(report["notes"])


@pytest.mark.parametrize("deed", [["rm", "--force"], ["stop"], ["kill"], ["pause"]], ids=" ".join)
def test_what_is_done_by_hand_is_undone(world: World, idle: str, deed: list[str]) -> None:
    """Without a restart policy, and with an exit code of 0 when it is told to stop."""
    services = {"web": running(idle), "other": running(idle)}
    with deployed(world, services) as daemon:
        other = world.incarnation("other")
        world.docker(*deed, f"{world.slug}-web-1")
        eventually(lambda: runs(world, "web"), "the service's return")
        report = world.wait_for_report(2)

        assert (report["outcome"], report["generation"]) == ("converged", 1)
        # Each deed is several events; which is first, or whether a look is, is chance.
        assert re.search(f"drift: .*({world.slug}-web-1|web: the service)", drift_of(report))
        assert world.incarnation("other") == other
        daemon.wait_for("drift: ")
        daemon.wait_for("runs again as it was released")
    assert len(world.tenancy.reports(world.slug)) == 2


def test_a_container_that_was_taken_from_its_network_comes_back_to_it(
    world: World, idle: str
) -> None:
    services = {"web": running(idle), "other": running(idle)}
    network = f"{world.slug}_default"
    with deployed(world, services, networks={"default": {}}):
        other = world.incarnation("other")
        world.docker("network", "disconnect", network, f"{world.slug}-web-1")
        report = world.wait_for_report(2)

        assert report["outcome"] == "converged"
        assert report["notes"] == [
            f"drift: container {world.slug}-web-1 was disconnected from network {network}"
        ]
        assert network in world.container("web")["NetworkSettings"]["Networks"]
        assert world.incarnation("other") == other


@pytest.mark.parametrize(
    "deed", [["update", "--restart", "always"], ["rename"]], ids=lambda d: d[0]
)
def test_a_container_whose_settings_were_changed_is_made_anew(
    world: World, idle: str, deed: list[str]
) -> None:
    services = {"web": running(idle), "other": running(idle)}
    name = f"{world.slug}-web-1"
    with deployed(world, services):
        other, before = world.incarnation("other"), world.container("web")["Id"]
        world.docker(*deed, name, *([f"{name}-renamed"] if deed == ["rename"] else []))
        report = world.wait_for_report(2)

        assert report["outcome"] == "converged"
        assert "drift: container" in drift_of(report)
        after = world.container("web")
        assert after["Id"] != before
        assert after["HostConfig"]["RestartPolicy"]["Name"] != "always"
        assert world.incarnation("other") == other


def test_the_agents_own_changes_are_no_drift(world: World, idle: str) -> None:
    with deployed(world, {"web": running(idle)}) as daemon:
        world.publish(2, {"web": running(idle, environment={"N": "2"})})
        line = daemon.wait_for("generation 2 runs")
        world.docker("rm", "--force", f"{world.slug}-web-1")
        daemon.wait_for("generation 2 runs again", since=line)
        reports = [world.wait_for_report(number) for number in (1, 2, 3)]

    assert [report["generation"] for report in reports] == [1, 2, 2]
    assert reports[1]["notes"] == []


def test_a_container_that_crashes_in_a_loop_is_told_and_not_fought(world: World, idle: str) -> None:
    script = "test -e /crash && exit 3; " + STAY
    service = running(idle, command=sh(script), restart="always")
    with deployed(world, {"web": service}):
        before = world.container("web")["Id"]
        world.docker("exec", f"{world.slug}-web-1", "touch", "/crash")
        world.docker("exec", f"{world.slug}-web-1", "kill", "-9", "-1")
        eventually(lambda: world.container("web")["RestartCount"] > 1, "a restart loop")
        report = world.wait_for_report(2)

    assert report["outcome"] == "unhealthy"
    assert "restarts in a loop" in report["errors"][0]["message"]
    assert report["next_try"]
    assert world.container("web")["Id"] == before


def test_what_drifted_is_put_right_while_a_newer_generation_cannot_be_had(
    world: World, idle: str
) -> None:
    """And that one's error stays what tenancy and the operator see."""
    with deployed(world, {"web": running(idle)}) as daemon:
        missing = f"{world.registry.host}/{world.slug}/web:nowhere"
        world.publish(2, {"web": running(missing)})
        daemon.wait_for("generation 2 can't be pulled")
        failed = world.wait_for_report(2)
        line = daemon.wait_for("can't be pulled")
        world.docker("rm", "--force", f"{world.slug}-web-1")
        daemon.wait_for("generation 1 runs again", since=line)
        reports = world.tenancy.reports
        eventually(lambda: any(r["notes"] for r in reports(world.slug)), "a report of the drift")
        report = next(r for r in reports(world.slug) if r["notes"])

    assert runs(world, "web")
    assert (report["outcome"], report["generation"]) == ("pull-failed", 2)
    assert report["errors"][0]["message"] == failed["errors"][0]["message"]
    assert "drift: " in drift_of(report)
    assert report["running_generation"] == 1


def test_an_image_that_is_gone_with_its_container_is_pulled_again(
    world: World, image: Callable[..., str]
) -> None:
    reference = image(f"{world.slug}/web", "1", files={"/page": b"one"})
    services = {"web": running(reference, command=sh(STAY))}
    with deployed(world, services) as daemon:
        found = world.container("web")["Image"]
        world.docker("rm", "--force", f"{world.slug}-web-1")
        world.docker("rmi", "--force", found)
        eventually(lambda: runs(world, "web"), "the service's return")
        daemon.wait_for("generation 1 runs:", since=1)


def test_after_a_stop_of_everything_the_release_comes_up_from_disk(world: World, idle: str) -> None:
    """Tenancy and OpenBao are both out of reach."""
    world.deploy(1, {"web": running(idle)}, entries=[world.robot_entry()])
    world.docker("rm", "--force", f"{world.slug}-web-1")
    world.configure(
        tenancy={"port": 1}, openbao={"url": "http://127.0.0.1:1"}, log={"level": "debug"}
    )
    with world.daemon() as daemon:
        daemon.wait_for("generation 1 runs again as it was released")
        assert runs(world, "web")


def test_a_changed_secret_recreates_the_services_that_use_it_and_no_other(
    world: World, idle: str
) -> None:
    path = world.put("db", {"password": "the first one"})
    entries = [
        world.robot_entry(),
        {"name": "PASSWORD", "path": path, "key": "password"},
        {"name": "key", "path": path, "key": "password", "use": "file", "target": "keys/db"},
    ]
    services = {
        "by-env": running(idle, environment={"PASSWORD": "${PASSWORD}"}),
        "by-file": running(idle, volumes=["./keys/db:/db:ro"]),
        "neither": running(idle),
    }
    world.configure(secrets={"refresh_interval": 1})
    with deployed(world, services, entries=entries) as daemon:
        neither = world.incarnation("neither")
        line = daemon.wait_for("generation 1 runs")
        world.put("db", {"password": "the second one"})
        daemon.wait_for("generation 1 runs:", since=line)

        assert world.variables("by-env")[b"PASSWORD"] == b"the second one"
        assert world.inside("by-file", "cat", "/db") == b"the second one"
        assert world.incarnation("neither") == neither


def test_a_secret_that_is_gone_is_told_and_what_runs_stays(world: World, idle: str) -> None:
    path = world.put("db", {"password": "the first one"})
    entries = [world.robot_entry(), {"name": "PASSWORD", "path": path, "key": "password"}]
    world.configure(secrets={"refresh_interval": 1})
    with deployed(world, {"web": running(idle)}, entries=entries):
        before = world.incarnation("web")
        world.put("db", {"another": "key"})
        report = world.wait_for_report(2)

        assert report["outcome"] == "secret-missing"
        assert world.incarnation("web") == before


@pytest.fixture
def own_registry(tmp_path: Path) -> Iterator[Registry]:
    base = tmp_path / "registry"
    base.mkdir()
    registry = Registry.start(base, username="robot", password=Secret("the first"))
    yield registry
    registry.stop()


@contextmanager
def at_the_first_pull(world: World, deed: Callable[[], None]) -> Iterator[None]:
    """Do `deed` when the agent is about to pull for the first time, and let it go on then."""
    asked, answer = world.base / "asked", world.base / "answer"
    for fifo in (asked, answer):
        os.mkfifo(fifo)
    wrapper = world.base / "docker"
    wrapper.write_text(
        f"""#!/bin/sh
case " $* " in *" pull "*)
  if mkdir {shlex.quote(str(world.base / "pulled"))} 2>/dev/null; then
    echo >{shlex.quote(str(asked))}; cat {shlex.quote(str(answer))} >/dev/null
  fi;;
esac
exec docker "$@"
"""
    )
    wrapper.chmod(0o755)
    world.configure(docker={"binary": str(wrapper)})

    def do() -> None:
        asked.read_bytes()
        deed()
        answer.write_bytes(b"go on")

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def test_a_credential_that_was_rotated_is_read_again_and_the_pull_tried_once_more_at_once(
    world: World, own_registry: Registry, run_label: str
) -> None:
    """Under a running agent: the registry has the new password, OpenBao gets it a moment late."""
    from monky_deployd.demo.images import make_image

    world.registry = own_registry
    first, second = (
        make_image(world.engine, own_registry, f"{world.slug}/web", tag, label=run_label)
        for tag in ("1", "2")
    )
    entries = [world.robot_entry()]
    with deployed(world, {"web": running(first)}, entries=entries) as daemon:
        own_registry.rotate(Secret("the second"))

        def store_the_new_one() -> None:
            world.put("robot", {"username": "robot", "password": "the second"})

        with at_the_first_pull(world, store_the_new_one):
            line = daemon.wait_for("generation 1 runs")
            daemon.send(signal.SIGHUP)
            world.publish(2, {"web": running(second)}, entries=entries)
            daemon.wait_for("the pull is tried again", since=line)
            daemon.wait_for("generation 2 runs", since=line)
        assert tells_of(world, 2)["outcome"] == "converged"

    login = json.loads((world.state / "docker/config.json").read_text())
    assert list(login["auths"]) == [own_registry.host]
