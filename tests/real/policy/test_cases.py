"""Every escape is refused by the rule that it is about; ordinary files are admitted."""

import re
import socket

import pytest

from monky_deployd.clients.compose import Project
from monky_deployd.domain.policy_rules import Rule
from monky_deployd.errors import ComposeError
from tests.real.policy.cases import MAIN_FILE, Case, Site, cases

pytestmark = pytest.mark.real

ESCAPES = cases("escapes")
ORDINARY = cases("ordinary")


def named(case: Case) -> str:
    return case.name


def test_there_are_escapes_for_every_rule() -> None:
    assert len(ESCAPES) >= 50
    assert {rule for case in ESCAPES for rule in case.rules} == set(Rule)


def test_there_are_enough_ordinary_files() -> None:
    assert len(ORDINARY) >= 30


@pytest.mark.parametrize("case", ESCAPES, ids=named)
async def test_an_escape_is_refused(case: Case, site: Site) -> None:
    violations = await site.judge(case)
    assert {item.rule for item in violations} == case.rules
    for item in violations:
        assert f"(rule {item.rule})" in item.message
        assert item.path in item.message
        assert item.remedy
        if match := re.search(r"services\.([\w-]+)", item.path):
            assert item.service == match[1]


@pytest.mark.parametrize("case", [c for c in ESCAPES if not c.needs_new_compose], ids=named)
async def test_an_escape_is_refused_with_the_oldest_compose(case: Case, old_site: Site) -> None:
    violations = await old_site.judge(case)
    assert {item.rule for item in violations} == case.rules


@pytest.mark.parametrize("case", [c for c in ESCAPES if c.needs_new_compose], ids=named)
async def test_the_oldest_compose_refuses_what_it_does_not_know(case: Case, old_site: Site) -> None:
    with pytest.raises(ComposeError):
        await old_site.judge(case)


@pytest.mark.parametrize("case", ORDINARY, ids=named)
async def test_an_ordinary_file_is_admitted(case: Case, site: Site, old_site: Site) -> None:
    for where in (site, old_site):
        assert await where.judge(case) == ()


@pytest.mark.parametrize("address", ["http://{}/parts.git", "oci://{}/parts:1"])
async def test_compose_fetches_nothing_even_if_it_is_asked_to(
    address: str, site: Site, old_site: Site
) -> None:
    """The second lock: what the check of the files should ever miss."""
    for where in (site, old_site):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            url = address.format(f"127.0.0.1:{listener.getsockname()[1]}")
            where.release.mkdir(parents=True, exist_ok=True)
            (where.release / ".env").touch()
            (where.release / MAIN_FILE).write_text(f'include: ["{url}"]\n')
            with pytest.raises(ComposeError, match="REMOTE"):
                await where.compose.model(Project("shop", where.release, (MAIN_FILE,)))
            with pytest.raises(BlockingIOError):
                listener.accept()
