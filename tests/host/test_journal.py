"""What the operator reads: journalctl's entries with their fields and priorities, whole."""

from typing import Any

import pytest

from monky_deployd.demo.registry import Registry
from tests.host.site import UNIT, Site

pytestmark = pytest.mark.host

ERROR, INFO = "3", "6"
# Over the largest datagram of journald (212,960 bytes), so that it goes by way of a memory file.
LONG_LINES = 30_000
# As the unit's main process: journald finds the unit of a datagram only while its sender lives.
SPEAK_AS_THE_AGENT = """\
import logging, os, signal
from monky_deployd.domain.secret import Scrubber
from monky_deployd.host.journal import fields, setup_logging
from monky_deployd.host.sdnotify import Notifier
setup_logging("info", environ=os.environ, scrubber=Scrubber(), environment="env-of-test")
logging.error("%s", "\\n".join(f"line {{n}}" for n in range({lines})), extra=fields(phase="pull"))
Notifier(os.environ["NOTIFY_SOCKET"]).ready()
signal.pause()
"""


@pytest.fixture
def failed_pull(enrolled: Site, other_registry: Registry) -> dict[str, Any]:
    """A generation that needs a credential and a tag that aren't there; its report."""
    services = {
        "web": {"image": f"{other_registry.host}/shop/web:1"},
        "db": {"image": f"{enrolled.world.registry.host}/shop/db:never-pushed"},
    }
    return enrolled.wait_for_report("pull-failed", enrolled.publish(services))


def test_the_errors_are_the_registrys_own_words(
    enrolled: Site, failed_pull: dict[str, Any]
) -> None:
    words = {error["service"]: error["message"] for error in failed_pull["errors"]}
    assert "no basic auth credentials" in words["web"]
    assert "manifest unknown" in words["db"]

    read = enrolled.host.journal(UNIT, "--priority=err", "--output=cat").splitlines()
    for service, message in words.items():
        assert any(line.startswith(f"{service}: {message}") for line in read), read
    assert any(message in read[-1] for message in words.values())


def test_a_field_finds_just_the_errors_of_one_kind(
    enrolled: Site, failed_pull: dict[str, Any]
) -> None:
    generation = f"MONKY_GENERATION={failed_pull['generation']}"
    found = enrolled.entries("MONKY_ERROR_KIND=auth", generation)
    assert {entry["MONKY_SERVICE"] for entry in found} == {"web"}
    error = next(error for error in failed_pull["errors"] if error["service"] == "web")
    expected = {
        "MONKY_ENVIRONMENT": enrolled.world.slug,
        "MONKY_PHASE": "pull",
        "MONKY_IMAGE": error["image"],
        "MONKY_REGISTRY": error["registry"],
        "MONKY_REASON": "pull-failed",
        "PRIORITY": ERROR,
        "SYSLOG_IDENTIFIER": "monky-deployd",
    }
    assert {name: found[0].get(name) for name in expected} == expected


def test_what_went_well_is_no_error(enrolled: Site) -> None:
    since = enrolled.now()
    generation = enrolled.deploy()["generation"]
    priorities = {entry["MESSAGE"]: entry["PRIORITY"] for entry in enrolled.entries(since)}
    assert priorities[f"generation {generation} runs: 1 service good"] == INFO
    assert enrolled.entries(since, "--priority=warning") == []


def test_a_long_message_of_many_lines_is_one_entry(enrolled: Site) -> None:
    since = enrolled.now()
    enrolled.host.run(["tee", "/srv/speak.py"], input=SPEAK_AS_THE_AGENT.format(lines=LONG_LINES))
    python = "/opt/monky-deployd/current/bin/python"
    with enrolled.drop_in(f"ExecStart=\nExecStart={python} /srv/speak.py"):
        enrolled.systemctl("restart", UNIT)
        found = enrolled.entries(since, "MONKY_ENVIRONMENT=env-of-test", "--all")
    assert [entry["MESSAGE"] for entry in found] == [
        "\n".join(f"line {n}" for n in range(LONG_LINES))
    ]
    assert (found[0]["MONKY_PHASE"], found[0]["PRIORITY"]) == ("pull", ERROR)


def test_without_journalds_socket_the_priorities_still_arrive(enrolled: Site) -> None:
    since = enrolled.now()
    with enrolled.drop_in("InaccessiblePaths=/run/systemd/journal/socket"):
        enrolled.systemctl("restart", UNIT)
        generation = enrolled.publish({"web": {"image": "127.0.0.1:1/shop/web:1"}})
        enrolled.wait_for_report("pull-failed", generation)
        found = enrolled.entries(since, "_TRANSPORT=stdout", "--priority=err")
    assert [entry["MESSAGE"].partition(":")[0] for entry in found][:1] == ["web"]
    assert "connection refused" in found[0]["MESSAGE"]
    assert f"generation={generation} phase=pull service=web" in found[0]["MESSAGE"]


def test_lines_on_a_file_begin_with_their_priority(enrolled: Site) -> None:
    with enrolled.drop_in("StandardError=truncate:/root/stderr"):
        enrolled.systemctl("restart", UNIT)
        generation = enrolled.publish({"web": {"image": "127.0.0.1:1/shop/web:1"}})
        enrolled.wait_for_report("pull-failed", generation)
        lines = enrolled.host.read("/root/stderr").splitlines()
    assert any(line.startswith("<6>using grant ") for line in lines)
    assert any(line.startswith("<3>web: ") for line in lines)
