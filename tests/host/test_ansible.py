"""The Ansible role: on a bare host, again on the same host, and at each kind of change."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.host.bundle import ROOT, VERSION, Bundles
from tests.host.site import CONFIG, GRANT, IN_CONTACT, UNIT, Site
from tests.parts import require
from tests.servers import ALL_PARTS

pytestmark = pytest.mark.host

NEXT_VERSION = "99.0.0"

_CACHE = Path(os.environ.get("MONKY_CACHE") or "/var/cache/monky-deployd-dev")
_PLAYBOOK = ROOT / "packaging/ansible/example.yml"
_PLUGINS = ROOT / "tests/host/ansible_plugins/connection"


@dataclass(frozen=True)
class Run:
    """How a run of the playbook ended."""

    code: int
    output: str

    @property
    def changed(self) -> int:
        """How many tasks changed something."""
        (count,) = re.findall(r"^host +:.* changed=(\d+) ", self.output, re.MULTILINE)
        return int(count)


class Role:
    """Runs packaging/ansible/example.yml against one host, with the variables of its world."""

    def __init__(self, site: Site, bundle: Path, workdir: Path) -> None:
        self._site = site
        self._workdir = workdir
        world = site.world
        self._variables: dict[str, Any] = {
            "monky_deployd_bundle": str(bundle),
            "monky_deployd_environment": world.slug,
            "monky_deployd_tenancy_host": "127.0.0.1",
            "monky_deployd_tenancy_port": world.tenancy_port,
            "monky_deployd_openbao_url": world.openbao.url,
            "monky_deployd_settings": {
                "tenancy": {"scheme": "http"},
                "docker": {"settle_time": 1},
            },
            "monky_deployd_grant": world.tenancy.grant(world.slug),
        }

    @property
    def grant(self) -> str:
        return str(self._variables["monky_deployd_grant"])

    def set(self, **variables: Any) -> None:
        """Change variables for all runs to come; their names without the role's prefix."""
        self._variables |= {f"monky_deployd_{name}": value for name, value in variables.items()}

    def run(self, *options: str, **variables: Any) -> Run:
        """One run, with `variables` for it alone. It may fail."""
        extra = {f"monky_deployd_{name}": value for name, value in variables.items()}
        files = {
            "inventory.yaml": {"monky_deployd": {"hosts": {"host": self._connection()}}},
            "variables.yaml": {**self._variables, **extra},
        }
        for name, content in files.items():
            (self._workdir / name).write_text(yaml.safe_dump(content))
        done = subprocess.run(
            [
                str(_CACHE / "ansible/bin/ansible-playbook"),
                f"--inventory={self._workdir / 'inventory.yaml'}",
                f"--extra-vars=@{self._workdir / 'variables.yaml'}",
                *options,
                str(_PLAYBOOK),
            ],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    def apply(self, *options: str, **variables: Any) -> Run:
        """One run that has to end well."""
        run = self.run(*options, **variables)
        assert run.code == 0, run.output
        return run

    def _connection(self) -> dict[str, Any]:
        return {
            "ansible_connection": "nsenter",
            "ansible_nsenter_init_pid": self._site.host.init_pid,
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
        }

    def _environment(self) -> dict[str, str]:
        """Nothing of who runs the tests, above all not their ansible.cfg."""
        config = self._workdir / "ansible.cfg"
        config.write_text(
            f"[defaults]\nconnection_plugins = {_PLUGINS}\nnocolor = true\n"
            "[connection]\npipelining = true\n"
        )
        return {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_HOME": str(self._workdir),
        }


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of this tree, as release.sh makes it."""
    output = tmp_path_factory.mktemp("release")
    script = [str(ROOT / "packaging/release.sh"), "--allow-dirty", str(output)]
    subprocess.run(script, check=True, capture_output=True)
    return output / f"monky-deployd-{VERSION}.tar.gz"


@pytest.fixture(scope="session")
def next_release(release: Path, bundles: Bundles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a higher version."""
    output = tmp_path_factory.mktemp("next-release")
    shutil.unpack_archive(release, output)
    bundle = output / f"monky-deployd-{NEXT_VERSION}"
    (output / f"monky-deployd-{VERSION}").rename(bundle)
    for wheel in bundle.glob("*.whl"):
        wheel.unlink()
    for wheel in bundles.bundle(NEXT_VERSION).glob("monky_deployd-*.whl"):
        shutil.copy(wheel, bundle)
    return Path(shutil.make_archive(str(bundle), "gztar", output, bundle.name))


@pytest.fixture(scope="module")
def role(site: Site, release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    """The role, for a host with nothing of ours on it; in the end nothing is there again."""
    playbook = _CACHE / "ansible/bin/ansible-playbook"
    require("ansible-core", playbook.exists(), ALL_PARTS)
    if site.traces():
        site.uninstall()
    site.publish()
    yield Role(site, release, tmp_path_factory.mktemp("ansible"))
    site.uninstall()


@dataclass(frozen=True)
class FirstTime:
    """A check and then a run on the bare host, and what the check left there."""

    check: Run
    traces: str
    run: Run


@pytest.fixture(scope="module")
def first(site: Site, role: Role) -> FirstTime:
    check = role.apply("--check", "--diff")
    traces = site.traces() + site.host.run(["find", "/var/cache", "-name", "monky*"]).stdout
    return FirstTime(check, traces, role.apply("-vvv", "--diff"))


@pytest.fixture
def deployed(first: FirstTime, site: Site, role: Role) -> Site:
    """The host as the role leaves it."""
    site.wait_for_status(IN_CONTACT)
    return site


def test_check_mode_on_a_bare_host_says_what_would_change_and_changes_nothing(
    first: FirstTime,
) -> None:
    assert first.check.changed > 0
    assert "+environment: env-" in first.check.output
    assert first.traces == ""


def test_the_agent_runs_and_deploys_as_after_install_sh(first: FirstTime, deployed: Site) -> None:
    assert first.run.changed > 0
    assert deployed.show("ActiveState") == "active"
    assert deployed.show("UnitFileState") == "enabled"
    assert deployed.deploy({"web": deployed.service("2")})["outcome"] == "converged"
    listing = ["stat", "--format=%U:%G %a", CONFIG, GRANT]
    assert deployed.host.run(listing).stdout.split("\n")[:2] == [
        "root:monky-deployd 640",
        "root:monky-deployd 640",
    ]


def test_the_grant_is_never_printed(first: FirstTime, role: Role) -> None:
    assert "TASK [monky_deployd : Put the grant in place]" in first.run.output
    printed = role.grant in first.run.output + first.check.output
    assert not printed


def test_the_config_holds_what_was_set_and_no_other_default(deployed: Site) -> None:
    world = deployed.world
    assert yaml.safe_load(deployed.host.read(CONFIG)) == {
        "environment": world.slug,
        "tenancy": {"host": "127.0.0.1", "port": world.tenancy_port, "scheme": "http"},
        "openbao": {"url": world.openbao.url},
        "docker": {"settle_time": 1},
    }


def test_a_second_run_changes_nothing(deployed: Site, role: Role) -> None:
    before = deployed.traces(), deployed.show("MainPID")
    assert role.apply().changed == 0
    assert role.apply("--check").changed == 0
    assert (deployed.traces(), deployed.show("MainPID")) == before


def test_another_config_is_reloaded_and_the_agent_goes_on(deployed: Site, role: Role) -> None:
    pid, since = deployed.show("MainPID"), deployed.now()
    settings = {"tenancy": {"scheme": "http"}, "log": {"level": "debug"}}
    assert role.apply("--check", settings=settings).changed > 0
    assert "level: debug" not in deployed.host.read(CONFIG)
    role.set(settings=settings)
    role.apply()
    assert "level: debug" in deployed.host.read(CONFIG)
    deployed.eventually(lambda: reloads(deployed, since), "a reload")
    assert deployed.show("MainPID") == pid


def test_a_config_that_the_agent_would_refuse_is_not_put_in_place(
    deployed: Site, role: Role
) -> None:
    before = deployed.traces()
    run = role.run(settings={"tenancy": {"prot": 8443}})
    assert run.code != 0
    assert "tenancy.prot: unknown setting; did you mean port?" in run.output
    assert deployed.traces() == before


def test_another_grant_is_adopted(deployed: Site, role: Role) -> None:
    pid, since = deployed.show("MainPID"), deployed.now()
    role.set(grant=deployed.world.tenancy.grant(deployed.world.slug))
    assert role.apply("--diff").changed > 0
    deployed.eventually(lambda: reloads(deployed, since), "a reload")
    deployed.wait_for_status(IN_CONTACT)
    assert deployed.show("MainPID") == pid


def test_a_grant_that_the_agent_would_refuse_is_named_and_not_printed(
    deployed: Site, role: Role
) -> None:
    before = deployed.traces()
    grant = deployed.world.tenancy.grant("env-other")
    run = role.run("-vvv", grant=grant)
    assert run.code != 0
    assert "the grant is for environment 'env-other'" in run.output
    printed = grant in run.output
    assert not printed
    assert deployed.traces() == before


def test_without_a_grant_the_one_on_the_host_is_left_alone(deployed: Site, role: Role) -> None:
    before = deployed.host.read(GRANT)
    assert role.apply(grant="").changed == 0
    assert deployed.host.read(GRANT) == before


def test_another_version_is_installed_and_runs(
    deployed: Site, role: Role, next_release: Path
) -> None:
    pid = deployed.show("MainPID")
    role.set(bundle=str(next_release))
    assert role.apply().changed > 0
    assert deployed.agent("--version").stdout.strip() == f"{UNIT} {NEXT_VERSION}"
    assert deployed.show("MainPID") != pid
    assert IN_CONTACT in deployed.show("StatusText")
    bundles = deployed.host.run(["find", "/var/cache", "-maxdepth", "1", "-name", f"{UNIT}-*"])
    assert f"-{NEXT_VERSION}\n" in bundles.stdout
    assert f"-{VERSION}\n" not in bundles.stdout
    assert role.apply().changed == 0


def reloads(site: Site, since: str) -> list[str]:
    """What the agent said of reloads."""
    said = [entry["MESSAGE"] for entry in site.entries(since)]
    return [message for message in said if message == "configuration reloaded"]
