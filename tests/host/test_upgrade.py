"""What becomes of an installed agent: upgraded, rolled back, removed. Containers stay."""

from subprocess import CompletedProcess

import pytest

from tests.host.bundle import VERSION, Bundles
from tests.host.site import CONFIG, GRANT, IN_CONTACT, STATE, UNIT, VERSIONS, Site

pytestmark = pytest.mark.host

NEXT = "99.0.0"
CURRENT, PREVIOUS = "/opt/monky-deployd/current", "/opt/monky-deployd/previous"
ENDS_AT_ONCE = {"ops/service.py": ("    try:\n", "    raise RuntimeError\n    try:\n")}
DIALS_NOWHERE = {"domain/config.py": ("{self.host}:{self.port}", "{self.host}:1")}


@pytest.fixture
def running(enrolled: Site) -> Site:
    """This tree's version, running and in contact, with a container."""
    if version(enrolled, CURRENT) != VERSION:
        enrolled.install()
    enrolled.deploy()
    return enrolled


def version(site: Site, link: str) -> str:
    """The version behind a link."""
    target = site.host.run(["readlink", link], check=False).stdout.strip()
    return target.removeprefix(f"{VERSIONS}/")


def versions(site: Site) -> set[str]:
    return set(site.host.run(["ls", VERSIONS]).stdout.split())


def failed_upgrade(site: Site, *options: str, **bundle: object) -> CompletedProcess[str]:
    """An install.sh that ends with 1 and leaves everything as it was."""
    installed = versions(site), version(site, CURRENT), version(site, PREVIOUS)
    config, container = site.host.read(CONFIG), site.world.incarnation("web")
    done = site.install(*options, check=False, **bundle)  # type: ignore[arg-type]
    assert done.returncode == 1, done.stdout
    assert (versions(site), version(site, CURRENT), version(site, PREVIOUS)) == installed
    assert site.host.read(CONFIG) == config
    site.wait_for_status(IN_CONTACT)
    assert site.agent("--version").stdout == f"monky-deployd {installed[1]}\n"
    assert site.world.incarnation("web") == container
    return done


def test_an_upgrade_from_a_source_tree_and_the_way_back(running: Site, bundles: Bundles) -> None:
    container = running.world.incarnation("web")
    said = running.install(bundle=bundles.source(NEXT), script="packaging/install.sh").stdout
    assert "started: " in said
    assert IN_CONTACT in said
    assert (version(running, CURRENT), version(running, PREVIOUS)) == (NEXT, VERSION)
    assert versions(running) == {NEXT, VERSION}
    running.eventually(lambda: running.world.report()["agent_version"] == NEXT, "its report")
    assert running.world.incarnation("web") == container

    said = running.install("--rollback", "--dry-run").stdout
    assert said == f"install.sh: would go back to {VERSION}\n"
    running.install("--rollback")
    assert (version(running, CURRENT), version(running, PREVIOUS)) == (VERSION, NEXT)
    assert IN_CONTACT in running.show("StatusText")
    assert running.world.incarnation("web") == container


def test_a_version_that_does_not_start_is_rolled_back_by_itself(
    running: Site, bundles: Bundles
) -> None:
    done = failed_upgrade(running, bundle=bundles.bundle("99.0.1", ENDS_AT_ONCE))
    assert done.stderr == (
        "install.sh: 99.0.1 did not come up well: it did not become ready; "
        "see journalctl -u monky-deployd\n"
    )
    assert done.stdout.endswith(f"install.sh: went back to {VERSION}\n")


def test_a_version_that_does_not_reach_tenancy_is_rolled_back_by_itself(
    running: Site, bundles: Bundles
) -> None:
    bundle = bundles.bundle("99.0.2", DIALS_NOWHERE)
    done = failed_upgrade(running, "--wait", "3", bundle=bundle)
    assert "99.0.2 did not come up well: " in done.stderr
    assert "refused" in done.stderr
    assert done.stdout.endswith(f"install.sh: went back to {VERSION}\n")


def test_a_config_that_leads_nowhere_is_taken_back(running: Site) -> None:
    running.configure(tenancy={"port": 1})
    done = failed_upgrade(running, "--wait", "3", "--config", running.push_config("nowhere.yaml"))
    assert done.stdout.endswith(f"install.sh: went back to {VERSION}\n")


def test_uninstall_leaves_all_that_is_the_environments_and_purge_the_containers_alone(
    running: Site,
) -> None:
    container = running.world.incarnation("web")
    assert running.install("--uninstall", "--dry-run").stdout.startswith("install.sh: would remove")
    assert running.show("ActiveState") == "active"

    running.install("--uninstall")
    assert running.show("LoadState") == "not-found"
    left = {line.split()[0] for line in running.traces().splitlines() if line.startswith("/")}
    assert {CONFIG, GRANT, STATE} <= left
    assert not any(path.startswith(("/opt", "/usr", "/etc/systemd")) for path in left)
    assert running.world.incarnation("web") == container

    said = running.install("--uninstall", "--purge").stdout
    assert "1 containers of the environment keep running" in said
    assert running.traces() == ""
    ours = ["find", "/etc", "/opt", "/run", "/tmp", "/usr", "/var", "-name", f"*{UNIT}*"]
    assert running.host.run(ours).stdout == ""
    assert running.host.failed_units() == []
    assert running.world.incarnation("web") == container
    running.world.close()
