"""packaging/install.sh on a bare host: what it makes, what it leaves alone, what it refuses."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from monky_deployd.demo.serving import serve
from tests.host.bundle import VERSION
from tests.host.site import CONFIG, GRANT, IN_CONTACT, STATE, UNIT, VERSIONS, Site

pytestmark = pytest.mark.host

PLUGIN_DIRECTORIES = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
)
OLD_PYTHON = "#!/bin/sh\necho 3.9\n"
OLD_COMPOSE = """#!/bin/sh
case "$1" in
docker-cli-plugin-metadata) echo '{"SchemaVersion":"0.1.0","Vendor":"test","Version":"v2.17.3"}' ;;
*) echo 2.17.3 ;;
esac
"""


@pytest.fixture
def bare(site: Site) -> Site:
    """The host with nothing of ours on it."""
    if site.traces():
        site.uninstall()
    return site


@contextmanager
def moved(site: Site, path: str, target: str = "", *, stand_in: str = "") -> Iterator[None]:
    """A file of the host's elsewhere for a while; perhaps with a script in its place."""
    target = target or f"{path}.away"
    site.host.run(["mv", path, target])
    try:
        if stand_in:
            site.host.run(["tee", path], input=stand_in)
            site.host.run(["chmod", "0755", path])
        yield
    finally:
        site.host.run(["mv", "--no-target-directory", target, path])


def compose_plugin(site: Site) -> str:
    """Where the host's Compose plugin is."""
    found = site.host.run(["find", *PLUGIN_DIRECTORIES, "-name", "docker-compose"], check=False)
    return found.stdout.split()[0]


def old_engine() -> Starlette:
    """An engine that only says which version it is (Docker Engine API, /_ping and /version)."""

    async def ping(request: Request) -> Response:
        return Response("OK", headers={"API-Version": "1.40"})

    async def version(request: Request) -> Response:
        return JSONResponse({"Version": "19.03.15", "ApiVersion": "1.40"})

    routes = [Route("/_ping", ping), Route("/{api}/version", version)]
    return Starlette(routes=routes)


def refusal(site: Site, *options: str, prefix: tuple[str, ...] = ()) -> list[str]:
    """What install.sh says as it refuses; it must have left the host as it was."""
    before = site.traces()
    done = site.install(*options, check=False, prefix=prefix)
    assert done.returncode == 1, done.stdout
    assert site.traces() == before
    return [line.removeprefix("install.sh: ") for line in done.stderr.splitlines()]


def test_who_is_not_root_is_refused(bare: Site) -> None:
    said = refusal(bare, prefix=("runuser", "-u", "nobody", "--"))
    assert said == ["this must be run as root; nothing was changed"]


def test_a_host_that_does_not_run_systemd_is_refused(bare: Site) -> None:
    hidden = 'mount -t tmpfs none /run/systemd && exec "$@"'
    said = refusal(bare, prefix=("unshare", "--mount", "sh", "-c", hidden, "sh"))
    assert said == [
        "this host does not run systemd, which the agent needs",
        "nothing was changed",
    ]


def test_a_host_with_an_old_python_is_refused(bare: Site) -> None:
    with moved(bare, "/usr/bin/python3", stand_in=OLD_PYTHON):
        said = refusal(bare)
    assert said == [
        "/usr/bin/python3 is 3.9 and must be 3.11 or newer: upgrade the host",
        "nothing was changed",
    ]


def test_a_host_without_python3_venv_is_refused(bare: Site) -> None:
    where = "import ensurepip; print(ensurepip.__path__[0])"
    package = bare.host.run(["/usr/bin/python3", "-c", where]).stdout.strip()
    with moved(bare, package):
        said = refusal(bare)
    assert said == [
        "/usr/bin/python3 can't make virtual environments: apt-get install python3-venv",
        "nothing was changed",
    ]


def test_a_host_without_docker_is_refused(bare: Site) -> None:
    with moved(bare, "/usr/bin/docker"):
        said = refusal(bare)
    assert said == ["Docker is not installed: apt-get install docker.io", "nothing was changed"]


def test_a_host_whose_engine_does_not_answer_is_refused(bare: Site) -> None:
    said = refusal(bare, prefix=("env", "DOCKER_HOST=unix:///run/nowhere.sock"))
    assert said == [
        "the Docker Engine does not answer: systemctl start docker",
        "nothing was changed",
    ]


def test_a_host_with_an_old_engine_is_refused(bare: Site) -> None:
    with serve(old_engine()) as served:
        said = refusal(bare, prefix=("env", f"DOCKER_HOST=tcp://{served.host}:{served.port}"))
    assert said == [
        "Docker Engine is 19.03.15 and must be 20.10 or newer: upgrade it",
        "nothing was changed",
    ]


def test_a_host_with_an_old_compose_is_refused(bare: Site) -> None:
    with moved(bare, compose_plugin(bare), stand_in=OLD_COMPOSE):
        said = refusal(bare)
    assert said == [
        "Compose is 2.17.3 and must be 2.26.1 or newer: upgrade the plugin",
        "nothing was changed",
    ]


def test_a_compose_plugin_in_roots_home_does_not_count(bare: Site) -> None:
    bare.host.run(["mkdir", "-p", "/root/.docker/cli-plugins"])
    with moved(bare, compose_plugin(bare), "/root/.docker/cli-plugins/docker-compose"):
        assert bare.host.run(["docker", "compose", "version"]).returncode == 0
        said = refusal(bare)
    assert said[0].startswith("the Compose plugin is missing, or only in a home: install it")
    assert said[1:] == ["nothing was changed"]


def test_dependencies_that_were_altered_are_refused(bare: Site) -> None:
    alter = "cp -r /root/wheelhouse /root/altered && echo >>$(ls /root/altered/h11-*.whl)"
    bare.host.run(["sh", "-c", alter])
    said = refusal(bare, "--offline", "/root/altered")
    assert any("DO NOT MATCH THE HASHES" in line for line in said)
    assert said[-1] == "the dependencies can't be installed; nothing was changed"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--sideways"], "unknown option --sideways; see --help"),
        (["--config", "/nowhere.yaml"], "there is no configuration /nowhere.yaml"),
        (["--from", "/nowhere"], "there is no /nowhere"),
        (["--purge"], "--purge goes with --uninstall"),
        (["--rollback"], "there is no earlier version to go back to"),
    ],
)
def test_a_wrong_call_is_refused(bare: Site, options: list[str], sentence: str) -> None:
    assert refusal(bare, *options) == [sentence]


def test_a_dry_run_changes_nothing(bare: Site) -> None:
    said = bare.install("--dry-run").stdout
    assert said == (
        f"install.sh: the host is fit; would install {VERSION} into {VERSIONS}/{VERSION}\n"
    )
    assert bare.traces() == ""


def test_an_install_makes_everything_and_starts_nothing_that_is_not_configured(bare: Site) -> None:
    said = bare.install(prefix=("sh", "-c", 'umask 077; exec "$@"', "sh")).stdout
    host = bare.host
    assert "set environment, tenancy.host and openbao.url in" in said

    assert UNIT in host.run(["id", "--name", "--groups", UNIT]).stdout.split()
    assert "docker" in host.run(["id", "--name", "--groups", UNIT]).stdout.split()
    shown = host.run(["stat", "-c", "%n %U:%G %a", "/etc/monky-deployd", CONFIG, STATE]).stdout
    assert shown.splitlines() == [
        "/etc/monky-deployd root:root 755",
        f"{CONFIG} root:{UNIT} 640",
        f"{STATE} {UNIT}:{UNIT} 700",
    ]
    assert host.read(CONFIG) == Path("config.example.yaml").read_text()
    assert host.run(["readlink", "/opt/monky-deployd/current"]).stdout == f"{VERSIONS}/{VERSION}\n"
    as_agent = ["runuser", "-u", UNIT, "--", "/usr/local/bin/monky-deployd"]
    assert host.run([*as_agent, "--version"]).stdout == f"monky-deployd {VERSION}\n"
    assert "valid" in host.run([*as_agent, "config", "check"]).stdout
    assert (bare.show("UnitFileState"), bare.show("ActiveState")) == ("disabled", "inactive")


def test_config_and_grant_lead_to_containers_that_run(site: Site) -> None:
    generation = site.publish()
    site.configure()
    grant = site.world.tenancy.grant(site.world.slug)
    said = site.install("--config", site.push_config(), "--grant", "-", input=grant)
    assert "install.sh: started: " in said.stdout
    assert grant not in said.stdout + said.stderr
    site.wait_for_report("converged", generation)

    assert site.world.container("web")["State"]["Running"]
    assert site.host.run(["stat", "-c", "%U:%G %a", GRANT]).stdout == f"root:{UNIT} 640\n"
    assert site.show("UnitFileState") == "enabled"
    site.wait_for_status(IN_CONTACT)


def test_a_second_run_leaves_everything_alone(enrolled: Site) -> None:
    before, process = enrolled.traces(), enrolled.show("MainPID")
    said = enrolled.install().stdout
    assert "it runs already" in said
    assert enrolled.traces() == before
    assert enrolled.show("MainPID") == process


def test_with_no_start_the_agent_that_runs_is_left_alone(enrolled: Site) -> None:
    process = enrolled.show("MainPID")
    enrolled.configure(log={"level": "debug"})
    config = enrolled.push_config()
    enrolled.install("--no-start", "--config", config)
    assert (enrolled.show("MainPID"), enrolled.show("ActiveState")) == (process, "active")
    assert "debug" in enrolled.host.read(CONFIG)
    assert "debug" not in enrolled.host.read(f"{CONFIG}.old")


def test_an_edited_config_is_never_overwritten(enrolled: Site) -> None:
    enrolled.host.run(["sh", "-c", f"echo '# edited' >>{CONFIG}; chmod 0644 {CONFIG}"])
    before = enrolled.traces(), enrolled.host.read(CONFIG)
    enrolled.install()
    assert (enrolled.traces(), enrolled.host.read(CONFIG)) == before


def test_a_malformed_config_is_refused_by_its_key(enrolled: Site) -> None:
    enrolled.configure(tenancy={"prot": 443})
    said = refusal(enrolled, "--config", enrolled.push_config("wrong.yaml"))
    assert len(said) == 1
    assert said[0].startswith("/root/wrong.yaml: tenancy.prot: unknown setting; did you mean port?")
    assert said[0].endswith("nothing was changed")


def test_a_running_agent_survives_an_install_with_a_malformed_config(enrolled: Site) -> None:
    process = enrolled.show("MainPID")
    with moved(enrolled, CONFIG, "/root/good.yaml"):
        enrolled.host.run(["tee", CONFIG], input="environment: [\n")
        said = refusal(enrolled)
    assert len(said) == 1
    assert said[0].startswith(f"{CONFIG}: not valid YAML (line 2, column 1)")
    assert enrolled.show("MainPID") == process


def test_a_grant_of_another_environment_is_refused(enrolled: Site) -> None:
    grant = enrolled.world.tenancy.issuer.issue("env-of-others")
    enrolled.host.run(["tee", "/root/kit"], input=grant)
    said = refusal(enrolled, "--grant", "/root/kit")
    assert len(said) == 1
    assert said[0].startswith("the grant is for environment 'env-of-others', and the configuration")
    assert grant not in said[0]


def test_one_of_two_installs_at_once_is_refused(enrolled: Site) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(enrolled.install, check=False) for _ in range(2)]
        done, refused = sorted((one.result() for one in both), key=lambda one: one.returncode)
    assert done.returncode == 0, done.stderr
    assert refused.returncode == 1
    assert refused.stderr == "install.sh: another install.sh is at work; nothing was changed\n"
