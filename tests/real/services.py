"""Services as the tests need them: good ones, and ones that fail in a certain way."""

from typing import Any


def sh(script: str) -> list[str]:
    """A command that runs `script`, and ends at once when it is told to stop."""
    return ["sh", "-c", f"trap 'exit 0' TERM; {script}"]


STAY = "sleep 2147483647 & wait"


def crashing(image: str) -> dict[str, Any]:
    """Runs for a second, then exits with 1; it has no healthcheck."""
    return {"image": image, "command": sh("sleep 1; exit 1")}


def looping(image: str) -> dict[str, Any]:
    """Exits again and again, and is started again each time; it has no healthcheck."""
    # Compose looks twice a second whether it runs: it waited in vain for one that never does then.
    return {"image": image, "command": sh("sleep 0.7; exit 3"), "restart": "always"}


def unhealthy(image: str) -> dict[str, Any]:
    """Runs, but its healthcheck fails."""
    check = {"test": ["CMD", "false"], "interval": "1s", "retries": 1}
    return {"image": image, "healthcheck": check}


def never_ready(image: str) -> dict[str, Any]:
    """Runs, and its healthcheck is neither passed nor failed for an hour."""
    check = {"test": ["CMD", "false"], "interval": "1s", "retries": 3600, "start_period": "1h"}
    return {"image": image, "healthcheck": check}


def one_shot(image: str, code: int) -> dict[str, Any]:
    """Does its work and exits with `code`; it is not started again."""
    return {"image": image, "command": sh(f"exit {code}"), "restart": "no"}
