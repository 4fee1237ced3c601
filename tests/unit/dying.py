"""A process that dies, or a disk that fails, at any one of its file system calls."""

import os
from collections.abc import Callable
from typing import Any

import pytest

CALLS = (
    "open",
    "write",
    "fchmod",
    "fsync",
    "mkdir",
    "chmod",
    "rename",
    "unlink",
    "rmdir",
    "symlink",
)


class Crash(BaseException):
    """The process is dead from here on: it cleans up nothing either."""


def dies_at(monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], object]) -> bool:
    """Run `action`, whose `step`-th call and all later ones never happen. Whether it got there.

    A write that dies has written half.
    """
    count = 0

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count < step:
                return real(*args, **kwargs)
            if name == "write" and count == step:
                real(args[0], args[1][: len(args[1]) // 2])
            raise Crash

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, dying(name, getattr(os, name)))
        try:
            action()
        except Crash:
            return True
    return False


def fails_with(
    monkeypatch: pytest.MonkeyPatch, call: str, code: int, action: Callable[[], object]
) -> int:
    """Run `action` while one kind of call fails with this errno. How often it was called."""
    count = 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        action()
    return count
