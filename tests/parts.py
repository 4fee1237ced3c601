"""What a test needs of the machine: missing, it fails under CI and is skipped loudly elsewhere."""

import os

import pytest

MISSING: dict[str, str] = {}
"""Each part that a test asked for in vain, with what provides it."""


def require(part: str, condition: bool, remedy: str) -> None:
    """Go on if `condition` holds; else fail the test where CI=true, and skip it elsewhere."""
    if condition:
        return
    MISSING[part] = remedy
    message = f"{part} is missing: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
