"""What a person sees on a terminal, and what `config check` says."""

import os
import pty
import re
import subprocess
from collections.abc import Callable

import pytest

from tests.real.services import crashing
from tests.real.world import World

pytestmark = pytest.mark.real

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


def on_a_terminal(world: World, *args: str) -> tuple[int, str]:
    """The exit code of one command, and all that a terminal of 120 columns got, less colours."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        world.command(*args), stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = bytearray()
    try:
        while chunk := os.read(controller, 65536):
            shown += chunk
    except OSError:
        # The other end is closed: on Linux that is EIO, not an end of file.
        pass
    finally:
        os.close(controller)
    return process.wait(60), _ESCAPES.sub("", shown.decode())


def rows(shown: str, first: str) -> list[list[str]]:
    """The cells of each row of a table whose first cell is `first`."""
    cells = [[cell.strip() for cell in line.split("│")] for line in shown.splitlines()]
    return [row[1:-1] for row in cells if len(row) > 2 and row[1] == first]


def test_once_shows_the_pull_as_it_goes_and_ends_with_a_table(
    world: World, image: Callable[..., str]
) -> None:
    web = image(f"{world.slug}/web", "1", files={"large": os.urandom(24 * 1024 * 1024)})
    world.publish(1, {"web": {"image": web}})

    code, shown = on_a_terminal(world, "once")

    assert code == 0, shown
    live, _, end = shown.partition("┏")
    assert "phase: pull" in live
    assert re.search(r"web .*\d+ layers?, .* of 2\d\.\d MB", live)
    assert re.search(rf"Container {world.slug}-web-1 +(Creat|Start|Wait)", live)
    assert rows(end, "web") == [["web", "running", "", "0", web, f"{world.slug}-web-1"]]
    assert end.rstrip().endswith("converged: generation 1 runs: 1 service good")


@pytest.mark.usefixtures("watchful")
def test_once_shows_the_error_in_its_own_words(world: World, idle: str) -> None:
    world.publish(1, {"web": crashing(idle), "good": {"image": idle}})

    code, shown = on_a_terminal(world, "once")

    assert code == 1
    assert [row[1] for row in rows(shown, "web")] == ["exited (1)"]
    assert f"web: container {world.slug}-web-1 exited (1) [other]" in shown
    assert "unhealthy: generation 1 is not good" in shown


def test_once_without_a_terminal_shows_no_live_view(world: World, idle: str) -> None:
    world.publish(1, {"web": {"image": idle}})

    ran = world.agent("once")

    assert ran.code == 0
    assert "phase:" not in ran.stderr + ran.stdout
    assert "\x1b" not in ran.stderr + ran.stdout
    assert "converged: generation 1 runs: 1 service good" in ran.stdout


def test_config_check_says_that_a_config_is_valid(world: World) -> None:
    ran = world.agent("config", "check")
    assert ran.code == 0
    assert f"{world.config} is valid: environment {world.slug}" in ran.stdout


def test_config_check_names_every_mistake_by_its_place(world: World) -> None:
    world.configure(tenancy={"hots": "x", "port": 0}, docker={"settle_time": "soon"}, mode="fast")
    ran = world.agent("config", "check")
    assert ran.code == 2
    assert ran.stdout == ""
    for words in (
        f"{world.config}: ",
        "tenancy.hots: unknown setting; did you mean host?",
        "tenancy.port: ",
        "docker.settle_time: ",
        "mode: unknown setting",
    ):
        assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_config_that_is_missing_is_named(world: World) -> None:
    world.config.unlink()
    for command in (("config", "check"), ("run",), ("once",)):
        ran = world.agent(*command)
        assert ran.code == 2
        assert str(world.config) in ran.stderr
        assert "Traceback" not in ran.stderr
