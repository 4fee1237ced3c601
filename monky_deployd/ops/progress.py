"""How far a pull or an up is, gathered from Compose's events: what the live view draws."""

from dataclasses import dataclass, field

from monky_deployd.domain.compose_events import ComposeEvent
from monky_deployd.domain.report import Phase

_DOWNLOADING = "Downloading"
_FETCHED = {"Download complete", "Extracting", "Pull complete", "Already exists"}


@dataclass
class Layer:
    """One layer of an image: bytes fetched, and in all where that is known."""

    current: int = 0
    total: int = 0


@dataclass
class Row:
    """One service (during the pull) or container, network, volume (during up)."""

    text: str = ""
    layers: dict[str, Layer] = field(default_factory=dict)

    @property
    def fetched(self) -> int:
        """Bytes fetched so far."""
        return sum(layer.current for layer in self.layers.values())

    @property
    def total(self) -> int:
        """Bytes to fetch, as far as they are known."""
        return sum(layer.total for layer in self.layers.values())


@dataclass
class Progress:
    """The state of the phase under way; rows begin anew with the pull and with the up."""

    phase: Phase = Phase.FETCH
    rows: dict[str, Row] = field(default_factory=dict)

    def enter(self, phase: Phase) -> None:
        """A phase begins."""
        self.phase = phase
        if phase in {Phase.PULL, Phase.UP}:
            self.rows.clear()

    def take(self, event: ComposeEvent) -> None:
        """Take in one event; those that are about nothing in particular are passed over."""
        if not event.id:
            return
        if event.parent:
            self._take_layer(event)
            return
        row = self.rows.setdefault(event.id, Row())
        row.text = " ".join(part for part in (event.text, event.status) if part)

    def _take_layer(self, event: ComposeEvent) -> None:
        layer = self.rows.setdefault(event.parent, Row()).layers.setdefault(event.id, Layer())
        if event.text == _DOWNLOADING and event.total:
            layer.total = event.total
            layer.current = min(event.current or 0, event.total)
        elif event.text in _FETCHED:
            layer.current = layer.total
