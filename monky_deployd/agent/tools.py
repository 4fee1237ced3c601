"""What a pass works with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from monky_deployd.agent.journey import OnPhase
from monky_deployd.clients.compose import ComposeCli, OnEvent
from monky_deployd.clients.engine import EngineClient
from monky_deployd.clients.openbao import OpenBaoClient
from monky_deployd.domain.config import Config
from monky_deployd.domain.secret import Scrubber
from monky_deployd.host.releases import Releases


@dataclass(frozen=True)
class Tools:
    """The tools of one agent; `agent.wiring` makes them. `key` keys every hash of secrets."""

    config: Config
    releases: Releases
    compose: ComposeCli
    engine: EngineClient
    scrubber: Scrubber
    open_openbao: Callable[[], OpenBaoClient]
    key: bytes = field(repr=False)
    on_event: OnEvent | None = None
    on_phase: OnPhase | None = None
