"""The grant's life under a running agent: superseded, unsafe, replaced; what runs keeps running."""

from datetime import timedelta

import httpx
import pytest

from tests.real.world import World

pytestmark = pytest.mark.real


def openbao_takes(world: World, grant: str) -> bool:
    answer = httpx.post(
        f"{world.openbao.url}/v1/auth/jwt-tenancy/login",
        json={"role": "see_env", "jwt": grant},
        trust_env=False,
    )
    return answer.status_code == 200


def manifest_status(world: World, grant: str) -> int:
    url = f"http://127.0.0.1:{world.tenancy_port}/v1/environments/{world.slug}/manifest"
    headers = {"Authorization": f"Bearer {grant}"}
    return httpx.get(url, headers=headers, trust_env=False).status_code


def test_a_superseded_grant_is_named_and_a_new_one_adopted_without_a_restart(
    world: World, idle: str
) -> None:
    first = world.install_grant()
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        line = daemon.wait_for("generation 1 runs")
        before, pid = world.incarnation("web"), daemon.pid

        second = world.tenancy.grant(world.slug)
        line = daemon.wait_for("superseded", since=line)
        assert openbao_takes(world, first)
        assert manifest_status(world, first) == 401
        assert daemon.is_running
        assert world.incarnation("web") == before

        world.publish(2, {"web": {"image": idle, "environment": {"N": "2"}}})
        world.install_grant(second)
        daemon.wait_for("generation 2 runs", since=line)
        assert (daemon.pid, daemon.is_running) == (pid, True)
        assert world.variables("web")[b"N"] == b"2"
        assert "using grant" in daemon.log
        assert second not in daemon.log
    assert "what runs keeps running" in daemon.log


def test_once_says_that_the_grant_is_superseded_and_touches_nothing(
    world: World, idle: str
) -> None:
    world.deploy(1, {"web": {"image": idle}})
    before = world.incarnation("web")
    world.tenancy.grant(world.slug)
    world.publish(2, {"web": {"image": idle, "environment": {"N": "2"}}})

    ran = world.once()

    assert (ran.code, ran.json["outcome"]) == (3, "grant-superseded")
    assert "superseded" in ran.stderr
    assert world.incarnation("web") == before


def test_a_grant_that_others_can_read_is_refused_until_its_mode_is_mended(
    world: World, idle: str
) -> None:
    world.grant_file.chmod(0o644)
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        daemon.wait_for(f"has mode 0644; chmod 0600 {world.grant_file}")
        assert world.tenancy.requests == []

        world.grant_file.chmod(0o600)
        daemon.wait_for("generation 1 runs")


def test_once_refuses_a_grant_that_others_can_read_with_the_command_that_mends_it(
    world: World,
) -> None:
    world.grant_file.chmod(0o644)
    ran = world.once()
    assert (ran.code, ran.json["outcome"]) == (2, "grant-unsafe")
    assert f"chmod 0600 {world.grant_file}" in ran.stderr
    assert world.tenancy.requests == []


def test_a_missing_grant_is_waited_for(world: World, idle: str) -> None:
    world.grant_file.unlink()
    world.publish(1, {"web": {"image": idle}})
    with world.daemon() as daemon:
        daemon.wait_for(f"there is no grant at {world.grant_file}")
        world.install_grant()
        daemon.wait_for("generation 1 runs")


def test_an_expired_grant_is_told_from_a_superseded_one(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})
    world.install_grant(world.tenancy.issuer.issue(world.slug, lifetime=timedelta(hours=-1)))
    ran = world.once()
    assert (ran.code, ran.json["outcome"]) == (3, "grant-expired")


def test_a_grant_that_ends_soon_is_told_in_the_log_and_in_the_report(
    world: World, idle: str
) -> None:
    world.install_grant(world.tenancy.issuer.issue(world.slug, lifetime=timedelta(days=2, hours=1)))
    ran = world.deploy(1, {"web": {"image": idle}})
    assert "the grant expires in 2 days, on 20" in ran.stderr
    [note] = world.report()["notes"]
    assert note.startswith("the grant expires in 2 days")
    assert ran.json["notes"] == []
