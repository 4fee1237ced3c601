"""The agent around a poller: its grant file, and what it is told."""

from pathlib import Path
from typing import Any

from monky_deployd.agent.contact import Contact, Poller
from monky_deployd.agent.grants import GrantKeeper
from monky_deployd.clients.tenancy import TenancyClient
from monky_deployd.domain.config import TenancyCfg
from monky_deployd.domain.secret import Scrubber
from monky_deployd.errors import Reason
from monky_deployd.host.grant import GrantFile
from tests.unit.agent_fakes import ENV, Record

WAIT = 55


class Agent:
    """A poller, and everything that it speaks to but tenancy."""

    def __init__(self, base: Path, tenancy: TenancyClient, **settings: Any) -> None:
        self.grant_file = base / "grant"
        self.manifests: Record[bytes] = Record()
        self.contacts: Record[Contact] = Record()
        self.promises: list[float] = []
        self.grants = GrantKeeper(GrantFile(self.grant_file), ENV, Scrubber())
        self.cfg = TenancyCfg(host="x", **{"wait": WAIT, **settings})
        self.poller = Poller(
            self.cfg,
            tenancy,
            self.grants,
            on_manifest=self.manifests.append,
            on_contact=self.contacts.append,
            expect=self.promises.append,
        )

    def install(self, grant: str) -> None:
        fresh = self.grant_file.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(grant)
        fresh.replace(self.grant_file)

    @property
    def reasons(self) -> list[Reason | None]:
        return [c.problem.reason if c.problem else None for c in self.contacts]
