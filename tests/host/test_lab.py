"""The lab itself: what the other host tests rely on is there and real."""

import io
import json
import tarfile
import urllib.request
from pathlib import Path

import pytest

from tests.host.lab import BootedHost, HostLab, LabError

pytestmark = pytest.mark.host

COMPOSE_FILE = """
services:
  web:
    image: lab:1
    command: ["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/www"]
    ports: ["127.0.0.1::80"]
    stop_signal: SIGKILL
  peer:
    image: lab:1
    command: ["/bin/busybox", "sleep", "2147483647"]
    stop_signal: SIGKILL
"""


@pytest.fixture
def image(host: BootedHost) -> str:
    """A busybox image in the host's own engine."""
    host.run(["docker", "import", "-", "lab:1"], input=busybox_archive())
    return "lab:1"


def busybox_archive() -> bytes:
    page = b"served from the host\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add("/bin/busybox", "bin/busybox")
        member = tarfile.TarInfo("www/index.html")
        member.size = len(page)
        archive.addfile(member, io.BytesIO(page))
    return buffer.getvalue()


def version(host: BootedHost, *argv: str) -> str:
    return host.run(argv).stdout.strip()


def test_every_unit_started(host: BootedHost) -> None:
    assert host.failed_units() == []
    assert host.run(["systemctl", "is-system-running"]).stdout == "running\n"


def test_debian_12_has_the_versions_that_it_stands_for(debian12: BootedHost) -> None:
    assert version(debian12, "systemd-analyze", "--version").startswith("systemd 252 ")
    assert version(debian12, "/usr/bin/python3", "--version").startswith("Python 3.11.")
    assert version(debian12, "docker", "compose", "version", "--short") == "2.40.3"
    engine = version(debian12, "docker", "version", "--format", "{{.Server.Version}}")
    assert engine.startswith("20.10.")


def test_debian_13_has_the_versions_that_it_stands_for(debian13: BootedHost) -> None:
    assert version(debian13, "systemd-analyze", "--version").startswith("systemd 257 ")
    assert version(debian13, "/usr/bin/python3", "--version").startswith("Python 3.13.")
    assert version(debian13, "docker", "compose", "version", "--short").startswith("2.26.1")
    engine = version(debian13, "docker", "version", "--format", "{{.Server.Version}}")
    assert engine.startswith("26.1.")


def test_the_dockerd_is_the_hosts_own(host: BootedHost, image: str) -> None:
    name = version(host, "docker", "info", "--format", "{{.Name}}")
    said = host.run(["docker", "run", "--rm", image, "/bin/busybox", "echo", "ran"]).stdout
    assert (name, said) == (host.name, "ran\n")


def test_a_compose_project_has_its_network_and_published_ports(
    host: BootedHost, image: str, tmp_path: Path
) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE_FILE)
    host.push(tmp_path, "/srv/demo")
    compose = ["docker", "compose", "--project-directory", "/srv/demo"]
    host.run([*compose, "up", "--detach", "--wait"])
    try:
        fetch = ["/bin/busybox", "wget", "-q", "-O", "-", "http://web/"]
        inside = host.run([*compose, "exec", "-T", "peer", *fetch], timeout=20).stdout
        address = version(host, *compose, "port", "web", "80")
        with urllib.request.urlopen(f"http://{address}/", timeout=20) as answer:
            outside = answer.read().decode()
    finally:
        host.run([*compose, "down"])
    assert (inside, outside) == ("served from the host\n", "served from the host\n")


def test_the_journal_keeps_a_units_words_and_fields(host: BootedHost) -> None:
    host.run(["systemd-run", "--wait", "--unit=speaker", "echo", "hello from a unit"])
    assert "hello from a unit" in host.journal("speaker", "--output=cat")

    entry = b"MESSAGE=with a field\nMONKY_PHASE=pull\n"
    program = (
        "from socket import *;"
        f"socket(AF_UNIX, SOCK_DGRAM).sendto({entry!r}, '/run/systemd/journal/socket')"
    )
    host.run(["systemd-run", "--wait", "--unit=fields", "/usr/bin/python3", "-c", program])
    found = host.journal("fields", "--output=json", "MONKY_PHASE=pull")
    assert json.loads(found)["MESSAGE"] == "with a field"


def test_a_command_gets_a_clean_environment_and_its_input(
    host: BootedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONKY_LEAK", "from the test's own environment")
    assert "MONKY_LEAK" not in host.run(["env"]).stdout
    assert host.run(["cat"], input="typed").stdout == "typed"


def test_a_failing_command_is_told_in_its_own_words(host: BootedHost) -> None:
    with pytest.raises(LabError, match="No such file"):
        host.run(["cat", "/nowhere"])
    assert host.run(["cat", "/nowhere"], check=False).returncode == 1


def test_a_command_that_hangs_is_ended(host: BootedHost) -> None:
    with pytest.raises(LabError, match="took longer than"):
        host.run(["sleep", "4242"], timeout=0.5)
    assert "4242" not in host.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"], check=False).stdout


def test_a_reboot_keeps_the_disk_and_starts_docker_again(host: BootedHost, image: str) -> None:
    boot_id = ["cat", "/proc/1/stat"]
    before = host.run(boot_id).stdout.split()[21]
    host.run(["touch", "/root/kept", "/run/lost"])
    host.reboot()
    assert host.run(boot_id).stdout.split()[21] != before
    assert host.run(["ls", "/root/kept", "/run/lost"], check=False).stdout == "/root/kept\n"
    assert (
        host.run(["docker", "run", "--rm", image, "/bin/busybox", "echo", "ran"]).stdout == "ran\n"
    )


def test_a_host_comes_up_again_after_its_power_was_cut(lab: HostLab, tmp_path: Path) -> None:
    host = lab.boot("bookworm", tmp_path)
    try:
        host.run(["sh", "-c", "echo before >/root/kept; sync"])
        host.kill()
        with pytest.raises(LabError, match="is not running"):
            host.read("/root/kept")
        host.start()
        assert host.read("/root/kept") == "before\n"
        host.poweroff()
        host.start()
        assert host.failed_units() == []
    finally:
        host.close()
    assert not host.root.exists()
