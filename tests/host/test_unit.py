"""The unit: its hardening, READY and STATUS, the watchdog, and how it outlives its neighbours."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monky_deployd.demo.serving import serve
from tests.host.site import CONFIG, GRANT, IN_CONTACT, STATE, UNIT, Site
from tests.real.services import one_shot

pytestmark = pytest.mark.host

MOST_EXPOSURE = 1.2


class SlowRegistry:
    """A registry that holds the request for a manifest until `release`."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.release = threading.Event()
        routes = [Route("/v2/", self._ping), Route("/v2/{rest:path}", self._manifest)]
        self.app = Starlette(routes=routes)

    async def _ping(self, request: Request) -> Response:
        return JSONResponse({})

    async def _manifest(self, request: Request) -> Response:
        self.asked.set()
        await asyncio.to_thread(self.release.wait, 60)
        error = {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown after all"}
        return JSONResponse({"errors": [error]}, 404)


@contextmanager
def someone_logged_in(site: Site, user: str, home: str) -> Iterator[None]:
    """A user of the host who did `docker login` with the registry's right password."""
    registry = site.world.registry
    login = ["docker", "login", "--password-stdin", "--username", registry.username, registry.host]
    as_user = ["runuser", "-u", user, "--", "env", f"HOME={home}"]
    site.host.run([*as_user, *login], input=registry.password.reveal())
    assert registry.host in site.host.read(f"{home}/.docker/config.json")
    try:
        yield
    finally:
        site.host.run(["rm", "-r", f"{home}/.docker"])


def test_the_unit_is_hardened(enrolled: Site) -> None:
    shown = enrolled.host.run(["systemd-analyze", "security", UNIT]).stdout
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", shown)
    assert level is not None
    assert float(level[1]) <= MOST_EXPOSURE, shown
    enrolled.host.run(["systemd-analyze", "verify", "--man=no", f"{UNIT}.service"])


def test_pull_up_and_rollback_work_under_it(enrolled: Site) -> None:
    image = enrolled.image("shop/web", "under-the-unit")
    good = enrolled.deploy({"web": {"image": image}})
    assert good["services"][0]["image"] == image

    bad = enrolled.publish({"web": one_shot(image, code=1)})
    report = enrolled.wait_for_report("rolled-back", bad)
    assert report["running_generation"] == good["generation"]
    assert enrolled.world.container("web")["State"]["Running"]


def test_status_says_generation_outcome_and_contact(enrolled: Site) -> None:
    generation = enrolled.deploy()["generation"]
    status = enrolled.wait_for_status(f"generation {generation} runs")
    assert status == f"generation {generation} runs: 1 service good | {IN_CONTACT}"
    shown = enrolled.systemctl("status", UNIT)
    assert "Active: active (running)" in shown
    assert f'Status: "{status}"' in shown


def test_the_agent_stays_without_ready_while_its_config_is_wrong(enrolled: Site) -> None:
    since = enrolled.now()
    good = enrolled.host.read(CONFIG)
    enrolled.host.run(["tee", CONFIG], input=good.replace("environment:", "enviroment:"))
    try:
        assert enrolled.host.run(["systemctl", "restart", UNIT], check=False).returncode != 0
        wrong = f"{CONFIG}: environment: this setting is required"
        assert enrolled.show("ActiveState") == "failed"
        assert enrolled.show("ExecMainStatus") == "2"
        assert enrolled.show("NRestarts") == "0"
        assert enrolled.show("StatusText").startswith(wrong)
        said = enrolled.entries(since, "--priority=err", "SYSLOG_IDENTIFIER=monky-deployd")
        assert [entry["MESSAGE"].startswith(wrong) for entry in said] == [True]
    finally:
        enrolled.host.run(["tee", CONFIG], input=good)
        enrolled.systemctl("restart", UNIT)


def test_a_reload_reads_the_config_again_without_a_restart(enrolled: Site) -> None:
    process, good = enrolled.show("MainPID"), enrolled.host.read(CONFIG)
    enrolled.host.run(["tee", CONFIG], input=f"{good}log: {{level: debug}}\n")
    try:
        since = enrolled.now()
        enrolled.systemctl("reload", UNIT)
        enrolled.eventually(lambda: enrolled.entries(since, "PRIORITY=7"), "a debug entry")
        assert enrolled.show("MainPID") == process
    finally:
        enrolled.host.run(["tee", CONFIG], input=good)
        enrolled.systemctl("reload", UNIT)
        enrolled.wait_for_status(IN_CONTACT)


def test_the_grant_may_come_as_a_systemd_credential(enrolled: Site) -> None:
    grant = enrolled.world.tenancy.grant(enrolled.world.slug)
    enrolled.host.run(["rm", GRANT])
    enrolled.host.run(["sh", "-c", "umask 077; cat >/root/kit"], input=grant)
    with enrolled.drop_in("LoadCredential=grant:/root/kit"):
        enrolled.systemctl("restart", UNIT)
        enrolled.deploy()
        enrolled.agent("grant", "install", "/root/kit")


def test_the_login_of_a_human_is_never_used(enrolled: Site) -> None:
    image = enrolled.image("shop/web", "for-the-agent-alone")
    enrolled.host.run(["useradd", "--create-home", "--groups", "docker", "human"])
    with (
        someone_logged_in(enrolled, "root", "/root"),
        someone_logged_in(enrolled, "human", "/home/human"),
        someone_logged_in(enrolled, UNIT, STATE),
    ):
        without = enrolled.publish({"web": {"image": image}}, entries=[])
        error = enrolled.wait_for_report("pull-failed", without)["errors"][0]
        assert (error["kind"], error["service"]) == ("auth", "web")
        assert "no basic auth credentials" in error["message"]

        enrolled.deploy({"web": {"image": image}})
    credentials = json.loads(enrolled.host.read(f"{STATE}/docker/config.json"))
    assert list(credentials["auths"]) == [enrolled.world.registry.host]


def test_the_watchdog_restarts_an_agent_that_hangs_and_containers_stay(enrolled: Site) -> None:
    enrolled.deploy()
    container = enrolled.world.incarnation("web")
    since = enrolled.now()
    with enrolled.drop_in("WatchdogSec=2s\nRestartSec=100ms"):
        enrolled.systemctl("restart", UNIT)
        enrolled.systemctl("kill", "--kill-whom=main", "--signal=STOP", UNIT)
        enrolled.eventually(lambda: enrolled.show("NRestarts") == "1", "a restart")
        enrolled.wait_for_status(IN_CONTACT)
        assert "Fatal Python error: Aborted" in enrolled.host.journal(UNIT, since)
    assert enrolled.world.incarnation("web") == container


def test_a_long_pull_does_not_wake_the_watchdog(enrolled: Site) -> None:
    slow = SlowRegistry()

    def fed() -> int:
        return int(enrolled.show("WatchdogTimestampMonotonic"))

    with enrolled.drop_in("WatchdogSec=1s"), serve(slow.app) as served:
        enrolled.systemctl("restart", UNIT)
        image = f"{served.host}:{served.port}/shop/web:1"
        generation = enrolled.publish({"web": {"image": image}})
        assert slow.asked.wait(60)
        begin = fed()
        enrolled.eventually(lambda: fed() > begin + 3_000_000, "a sign of life 3 s later")
        slow.release.set()
        enrolled.wait_for_report("pull-failed", generation)
        assert enrolled.show("NRestarts") == "0"


def test_a_restart_of_docker_leaves_the_agent_alone_and_it_converges(enrolled: Site) -> None:
    enrolled.deploy()
    process = enrolled.show("MainPID")
    enrolled.systemctl("restart", "docker")
    assert enrolled.show("MainPID") == process
    enrolled.deploy({"web": enrolled.service("after-the-restart")})
    assert enrolled.world.container("web")["State"]["Running"]


def test_while_docker_is_down_the_agent_says_so_and_goes_on_when_it_is_back(
    enrolled: Site,
) -> None:
    service = enrolled.service("while-down")
    enrolled.systemctl("stop", "docker.socket", "docker.service")
    generation = enrolled.publish({"web": service})
    enrolled.wait_for_report("engine-unreachable", generation)
    enrolled.wait_for_status("next try at")
    enrolled.systemctl("start", "docker")
    enrolled.systemctl("reload", UNIT)
    enrolled.wait_for_report("converged", generation)


def test_after_a_reboot_all_is_back_without_a_hand(enrolled: Site) -> None:
    generation = enrolled.deploy()["generation"]
    enrolled.host.reboot()
    enrolled.engine()
    enrolled.wait_for_status(f"generation {generation} runs")
    enrolled.wait_for_status(IN_CONTACT)
    assert enrolled.world.container("web")["State"]["Running"]
    assert enrolled.host.failed_units() == []
