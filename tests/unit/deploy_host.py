"""A host on which whole passes are made: what they touch is real files, and stand-ins."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monky_deployd.agent.memory import Memory
from monky_deployd.agent.reconcile import Reconciler
from monky_deployd.agent.tools import Tools
from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.demo.fake_openbao import FakeBao
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.domain.report import Outcome, Phase
from monky_deployd.domain.secret import Scrubber, Secret
from monky_deployd.errors import Reason
from monky_deployd.host.releases import Releases
from monky_deployd.host.store import Store
from tests.unit.agent_fakes import ENV, FakeCompose, FakeEngine, config

NEW_WEB = "reg.example/shop/web:2"
CANARY = "c4n4ry-passw0rd"

BEFORE_PULL = [Phase.RESOLVE, Phase.RENDER, Phase.ADMIT]
ROLLOUT = [Phase.SWITCH, Phase.UP, Phase.VERIFY]
DEPLOY = [*BEFORE_PULL, Phase.PULL, *ROLLOUT]

EXITED = {"state": "exited", "exit_code": 1}


@dataclass
class Bao:
    """An OpenBao, and a grant that it takes."""

    openbao: FakeBao
    grant: Secret


@contextmanager
def serving_openbao() -> Iterator[Bao]:
    """A stand-in for OpenBao as long as the block lasts."""
    issuer = GrantIssuer()
    with FakeBao.serving(issuer.public_key_pem) as openbao:
        yield Bao(openbao, Secret(issuer.issue(ENV)))


@dataclass
class Host:
    """A host on which passes are made, one after the other, and remembered."""

    base: Path
    bao: Bao
    store: Store
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.openbao, self.grant = self.bao.openbao, self.bao.grant
        self.config = config(self.base, openbao={"url": self.openbao.url}, **self.settings)
        self.scrubber = Scrubber()
        self.engine = FakeEngine()
        self.compose = FakeCompose(self.config, self.engine, self.scrubber)
        self.releases = Releases(Path(self.config.state_dir))
        self.memory = Memory(self.store, self.releases, 300.0)
        self.phases: list[Phase] = []
        self.tools = Tools(
            config=self.config,
            releases=self.releases,
            compose=self.compose,
            engine=self.engine,
            scrubber=self.scrubber,
            open_openbao=lambda: OpenBaoClient(self.config.openbao, self.config.overlay),
            key=b"k" * 32,
            on_phase=self.phases.append,
        )
        self.reconciler = Reconciler(self.tools)

    async def run(self, body: bytes, *, forced: bool = False) -> Outcome:
        """One pass, recorded. Phases and calls are those of this pass."""
        self.phases.clear()
        self.compose.calls.clear()
        passed = await self.reconciler.run(body, self.grant, self.memory.history(), forced=forced)
        return self.memory.record(passed)

    async def deploy(self, body: bytes) -> Outcome:
        """One pass that has to converge."""
        done = await self.run(body)
        assert done.reason is Reason.CONVERGED, done.sentence
        return done

    @property
    def touched(self) -> list[str]:
        """The commands of the last pass that touch what runs."""
        return [call for call in self.compose.calls if call in ("up", "stop")]

    @property
    def what_runs(self) -> tuple[str | None, list[str]]:
        """Which release is current, and which containers there are."""
        return self.releases.current(), [c.id for c in self.engine.containers_now]

    def password(self) -> dict[str, Any]:
        """An entry whose value, the canary, is in OpenBao."""
        self.openbao.put(f"{ENV}/db", {"password": CANARY})
        return {"name": "DB_PASSWORD", "path": f"{ENV}/db", "key": "password"}

    def file(self, name: str) -> Path:
        return self.releases.current_link / name


@contextmanager
def host_in(base: Path, bao: Bao, **settings: Any) -> Iterator[Host]:
    """A host that has nothing deployed, below `base`."""
    with Store(base / "state.db") as store:
        yield Host(base, bao, store, settings)
