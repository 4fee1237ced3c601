"""What the agent remembers: read from its database, beside a running agent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monky_deployd.domain.config import Config
from monky_deployd.errors import ExitCode, exit_code
from monky_deployd.host.store import AgentState, read_state


@dataclass(frozen=True)
class StatusView:
    """The agent's state as people and programs ask for it."""

    environment: str
    state: AgentState

    @property
    def exit_code(self) -> ExitCode:
        """That of the last outcome, or where that is good, of what keeps tenancy away."""
        outcome, contact = self.state.last_outcome, self.state.contact
        if outcome and not outcome.good:
            return outcome.exit_code
        return exit_code(contact.reason) if contact else ExitCode.CONVERGED

    def as_json(self) -> dict[str, Any]:
        """The state for `--json`."""
        state = self.state
        return {
            "environment": self.environment,
            "applied_generation": state.applied_generation,
            "good_release": state.good_release,
            "held_release": state.held_release,
            "decommissioned": state.decommissioned,
            "contact": state.contact.as_json() if state.contact else None,
            "failures": state.failures,
            "reports_pending": state.reports_pending,
            "reports_dropped": state.reports_dropped,
            "last_outcome": state.last_outcome.as_json() if state.last_outcome else None,
        }


def read_status(config: Config) -> StatusView:
    """The state of the agent with this configuration. Raises StateError where it never ran."""
    return StatusView(config.environment, read_state(Path(config.state_dir) / "state.db"))
