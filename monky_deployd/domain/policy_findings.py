"""What the policy's checks work with: what they found, and a careful way to read a model.

A model has many shapes and a newer Compose may add some. What isn't in a known shape is a
finding itself, so that a check never passes because it didn't understand.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from monky_deployd.domain.config import PolicyCfg
from monky_deployd.domain.policy_rules import Rule, remedy

_LONGEST_SHOWN = 200


@dataclass(frozen=True)
class Violation:
    """One thing that the policy refuses.

    `path` is the key path in the model or in the named file; `message` is whole and names path
    and rule; `remedy` says how the host's owner would allow it.
    """

    rule: Rule
    service: str
    path: str
    message: str
    remedy: str


class Findings:
    """The violations so far; a rule that the host's owner allows adds none."""

    def __init__(self, policy: PolicyCfg) -> None:
        self._allowed = frozenset(policy.allow)
        self._found: dict[Violation, None] = {}

    def add(
        self, rule: Rule, path: str, what: str, *, service: str = "", setting: str | None = None
    ) -> None:
        """`what` goes on from "services.web.x: ". `setting` is named in place of the rule's own."""
        if rule in self._allowed:
            return
        message = f"{path}: {what} (rule {rule.value})"
        self._found[Violation(rule, service, path, message, remedy(rule, setting))] = None

    def allows(self, rule: Rule) -> bool:
        """Whether the host's owner switched `rule` off."""
        return rule in self._allowed

    def all(self) -> tuple[Violation, ...]:
        """Every violation once, in the order in which they were found."""
        return tuple(self._found)


@dataclass(frozen=True)
class Part:
    """A value of the model with its key path, and the service that it belongs to, if any."""

    value: Any
    path: str
    findings: Findings
    service: str = ""

    def refuse(self, rule: Rule, what: str, *, setting: str | None = None) -> None:
        """Note a violation here."""
        self.findings.add(rule, self.path, what, service=self.service, setting=setting)

    def members(self) -> "Iterator[tuple[str, Part]]":
        """The members of a mapping by name, less nulls and extensions (`x-…`)."""
        if self.value is None:
            return
        if not isinstance(self.value, dict):
            self._odd()
            return
        for key, value in self.value.items():
            name = str(key)
            if value is not None and not name.startswith("x-"):
                yield name, self._below(value, f"{self.path}.{name}" if self.path else name)

    def fields(self, known: Collection[str]) -> "dict[str, Part]":
        """The members that are `known`; each other one is a violation."""
        found = {}
        for name, part in self.members():
            if name in known:
                found[name] = part
            else:
                part.refuse(Rule.UNKNOWN_KEY, "this agent does not know this key")
        return found

    def items(self) -> "Iterator[Part]":
        """The items of a list; a single scalar counts as a list of one."""
        value = self.value
        if value is None:
            return
        if isinstance(value, list):
            for number, item in enumerate(value):
                yield self._below(item, f"{self.path}[{number}]")
        elif isinstance(value, dict):
            self._odd()
        else:
            yield self

    def pairs(self) -> "Iterator[tuple[str, Part]]":
        """The names and values of a mapping, or of a list of `name=value`."""
        if isinstance(self.value, list):
            for item in self.items():
                name, _, value = item.text().partition("=")
                yield name, self._below(value, item.path)
        elif isinstance(self.value, dict):
            for key, value in self.value.items():
                yield str(key), self._below(value, f"{self.path}.{key}")
        elif self.value is not None:
            self._odd()

    def text(self) -> str:
        """A scalar as text; "" for null."""
        value = self.value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            return str(value)
        if value is not None:
            self._odd()
        return ""

    def _below(self, value: Any, path: str) -> "Part":
        return Part(value, path, self.findings, self.service)

    def _odd(self) -> None:
        self.refuse(Rule.UNKNOWN_KEY, "this agent does not know this form of the key")


def matches(patterns: Iterable[str], text: str) -> bool:
    """Whether a pattern fits the whole of `text`; `*` stands for any characters, also none."""
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL)
        for pattern in patterns
    )


def shown(text: str) -> str:
    """A value out of the model for a message: whole and escaped as in JSON, or not at all.

    It may hold a secret, which is masked later: a part of one, or one in another spelling, would
    not be recognised.
    """
    if len(text) > _LONGEST_SHOWN:
        return f"a text of {len(text)} characters"
    return json.dumps(text)
