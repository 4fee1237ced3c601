"""The host's policy on compose files as they stand, before Compose reads them.

Compose follows `include`, `extends`, `env_file` and `label_file` while it resolves a model, and
the model no longer shows them. So what they name is checked here: a file of the release, and
nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from monky_deployd.domain.config import PolicyCfg
from monky_deployd.domain.policy_findings import Findings, Violation, shown
from monky_deployd.domain.policy_rules import Rule

_MAX_BYTES = 1024 * 1024
_MAX_DEPTH = 64
# How many nodes a file may have, each alias counted as often as it is used.
_MAX_NODES = 100_000
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "<<"
_YAML = "tag:yaml.org,2002:"
# Not `!!binary`, which Compose decodes, also in a key: nothing here would see that key.
_TAGS = {
    *(_YAML + name for name in ("null", "bool", "int", "float", "str", "map", "seq")),
    *(_YAML + name for name in ("timestamp", "merge", "value")),
    "!reset",
    "!override",
}


class Sources(NamedTuple):
    """What came of the check: the violations, and every release file that is compose source."""

    violations: tuple[Violation, ...]
    names: frozenset[str]


@dataclass(frozen=True)
class _Reference:
    """A path that a compose file names. `source`: what it names is compose source itself."""

    text: str
    path: str
    service: str = ""
    source: bool = False


def check_sources(
    files: Mapping[str, bytes], compose_files: Sequence[str], policy: PolicyCfg
) -> Sources:
    """What `policy` refuses in the `compose_files` and in the files that they pull in.

    `files` are the release's by path. Never raises.
    """
    findings = Findings(policy)
    seen: set[str] = set()
    pending = list(compose_files)
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        documents = _documents(name, files.get(name, b""), findings)
        for number, document in enumerate(documents):
            where = name if len(documents) == 1 else f"{name}, document {number + 1}"
            for reference in _references(document):
                pending += _follow(reference, where, files, findings)
    return Sources(findings.all(), frozenset(seen))


def _follow(
    reference: _Reference, where: str, files: Mapping[str, bytes], findings: Findings
) -> list[str]:
    """Check one reference; the release files that are compose source through it."""

    def refuse(rule: Rule, what: str) -> None:
        place = f"{where}: {reference.path}"
        findings.add(rule, place, what, service=reference.service, setting="")

    text = reference.text
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if "$" in text:
        refuse(Rule.OUTSIDE_FILE, f"{shown(text)} is put together by interpolation; write it out")
    elif reference.source and _remote(text):
        refuse(
            Rule.REMOTE_SOURCE,
            f"{shown(text)} may be remote; a file of the release can be written with ./ before it",
        )
    elif text.startswith(("/", "~")) or ".." in parts or not text.isprintable():
        refuse(Rule.OUTSIDE_FILE, f"{shown(text)} may lie outside of the release")
    elif reference.source:
        # Which directory Compose counts from depends on where the reference stands: take all.
        path = "/".join(parts)
        found = [name for name in files if name == path or name.endswith(f"/{path}")]
        if not found:
            refuse(Rule.OUTSIDE_FILE, f"{shown(text)} is not a file of the release")
        return found
    return []


def _remote(text: str) -> bool:
    """Whether Compose may take `text` for a URL, a git repository or an OCI artifact.

    Git's short forms are `user@host:path` and `github.com/…`, without a scheme.
    """
    first, slash, _ = text.partition("/")
    named = bool(slash) and "." in first.strip(".")
    return any(sign in text for sign in ":@#?%\\") or named


def _references(document: yaml.Node) -> Iterator[_Reference]:
    for number, entry in enumerate(_entries(document, "include")):
        place = f"include[{number}]"
        if isinstance(entry, yaml.ScalarNode):
            yield _Reference(entry.value, place, source=True)
        for key in ("path", "env_file", "project_directory"):
            for item in _entries(entry, key):
                # A directory isn't read itself.
                source = key == "path"
                yield from _scalar(item, f"{place}.{key}", "", source=source)
    for services in _values(document, "services"):
        for name, service in _pairs(services):
            yield from _service_references(name, service)


def _service_references(name: str, service: yaml.Node) -> Iterator[_Reference]:
    place = f"services.{name}"
    for extends in _values(service, "extends"):
        for file in _values(extends, "file"):
            yield from _scalar(file, f"{place}.extends.file", name, source=True)
    for key in ("env_file", "label_file"):
        for item in _entries(service, key):
            yield from _scalar(item, f"{place}.{key}", name)
            for path in _values(item, "path"):
                yield from _scalar(path, f"{place}.{key}.path", name)


def _scalar(
    node: yaml.Node, place: str, service: str, *, source: bool = False
) -> Iterator[_Reference]:
    if isinstance(node, yaml.ScalarNode) and node.tag != f"{_YAML}null":
        yield _Reference(node.value, place, service, source)


def _entries(node: yaml.Node, key: str) -> Iterator[yaml.Node]:
    """The items of the lists at `key`, and what stands there without a list around it."""
    for value in _values(node, key):
        if isinstance(value, yaml.SequenceNode):
            yield from value.value
        else:
            yield value


def _values(node: yaml.Node, key: str) -> list[yaml.Node]:
    """Every value that `key` may come to have, by the mapping itself or by a merge."""
    return [value for name, value in _pairs(node) if name == key]


def _pairs(node: yaml.Node, merging: frozenset[int] = frozenset()) -> Iterator[Any]:
    """The members of a mapping by name, and those of what is merged into it."""
    if not isinstance(node, yaml.MappingNode) or id(node) in merging:
        return
    for key, value in node.value:
        if key.value == _MERGE:
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for other in merged:
                yield from _pairs(other, merging | {id(node)})
        else:
            yield key.value, value


def _documents(name: str, content: bytes, findings: Findings) -> list[yaml.Node]:
    """The documents in a file; none where it is not fit to be read, which is a violation."""
    try:
        if len(content) > _MAX_BYTES:
            raise ValueError("is larger than 1 MiB")
        documents = [node for node in yaml.compose_all(content.decode(), Loader=_LOADER) if node]
        _check_nodes(documents)
    except UnicodeDecodeError:
        findings.add(Rule.UNREADABLE_SOURCE, name, "is not UTF-8")
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        findings.add(Rule.UNREADABLE_SOURCE, name, f"is not YAML as this agent reads it{line}")
    except ValueError as error:
        findings.add(Rule.UNREADABLE_SOURCE, name, str(error))
    else:
        return documents
    return []


def _check_nodes(documents: Iterable[yaml.Node]) -> None:
    """Raise ValueError for a tag that could hide something, or for too much to expand."""
    sizes: dict[int, int] = {}
    if sum(_size(document, 0, sizes) for document in documents) > _MAX_NODES:
        raise ValueError(f"has more than {_MAX_NODES} values, with each alias written out")


def _size(node: yaml.Node, depth: int, sizes: dict[int, int]) -> int:
    """How many nodes `node` is, with each alias written out."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"is nested deeper than {_MAX_DEPTH} levels, or holds itself")
    if node.tag not in _TAGS:
        raise ValueError(f"has the YAML tag {shown(node.tag)} (line {node.start_mark.line + 1})")
    if id(node) not in sizes:
        sizes[id(node)] = 1 + sum(_size(child, depth + 1, sizes) for child in _children(node))
    return sizes[id(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"has a key that is not text (line {key.start_mark.line + 1})")
            yield key
            yield value
