"""What Compose says while it pulls and starts: lines to events, events to each service's outcome.

Two forms are read: the JSON lines of `--progress json`, and the `--progress plain` text of
Compose 2.26, which does not know the former. Judge by events, never by the exit code.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

_DAEMON_PREFIX = "Error response from daemon: "
_CANCELLED = {"Interrupted", "context canceled"}
# The texts of a service's event that stand before words of the registry or the Engine.
_WORDED = {"Error", "Warning"}


@dataclass(frozen=True)
class ComposeEvent:
    """One line of Compose's output.

    `id` is a service ("web"), a layer (`parent` is its service, "" in the plain form) or a
    resource ("Container p-web-1"). `current` and `total` are bytes. `error` is a message that
    names no id. `log` is a `level`/`msg` record, a tail record, or a line that is none of these.
    `continues` marks a line of the plain form that may belong to the message before it.
    """

    id: str = ""
    parent: str = ""
    text: str = ""
    status: str = ""
    current: int | None = None
    total: int | None = None
    percent: int | None = None
    error: str = ""
    log: str = ""
    level: str = ""
    continues: bool = False


class ServicePull(StrEnum):
    """How the pull of one service ended. `unknown`: Compose did not say."""

    PULLED = "pulled"
    SKIPPED = "skipped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class PullResult:
    """Each service's state and message, and what was said without naming a service.

    The message is the registry's or Engine's own words. It is never empty for `failed`, and
    always for the other states.
    """

    services: Mapping[str, tuple[ServicePull, str]]
    general: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpError:
    """One thing that went wrong in `up`. `container` and `service_hint` are "" where not said."""

    message: str
    container: str = ""
    service_hint: str = ""


_TEXT_FIELDS = ("id", "parent_id", "text", "status", "message", "level", "msg")
_NUMBER_FIELDS = ("current", "total", "percent")


def parse_json_line(line: str) -> ComposeEvent | None:
    """The event of one line of `--progress json`; None for a blank line.

    Never raises: what is no JSON object of a known shape becomes a `log` event with the line.
    """
    line = line.strip()
    if not line:
        return None
    record = _json_object(line)
    event = _from_record(record) if _well_typed(record) else None
    return event or ComposeEvent(log=line)


def _json_object(line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _well_typed(record: Mapping[str, Any]) -> bool:
    texts = (record[name] for name in _TEXT_FIELDS if name in record)
    numbers = (record[name] for name in _NUMBER_FIELDS if name in record)
    # Not isinstance: true is an int for Python.
    return all(type(text) is str for text in texts) and all(type(n) is int for n in numbers)


def _from_record(record: Mapping[str, Any]) -> ComposeEvent | None:
    if record.get("error") is True and record.get("message"):
        return ComposeEvent(error=record["message"])
    if record.get("msg"):
        return ComposeEvent(log=record["msg"], level=record.get("level", ""))
    if record.get("tail") is True and record.get("text"):
        return ComposeEvent(log=record["text"])
    if not record.get("id"):
        return None
    return ComposeEvent(
        id=record["id"],
        parent=record.get("parent_id", ""),
        text=record.get("text", ""),
        status=record.get("status", ""),
        current=record.get("current"),
        total=record.get("total"),
        percent=record.get("percent"),
    )


# One space, then id, text and status, with a space between each two, even where one is empty.
_PLAIN_SERVICE = re.compile(
    r" (?P<id>\S+) (?P<text>Pulling|Pulled|Skipped(?: - .+)?|Error|Warning) ?(?P<status>.*)"
)
_PLAIN_LAYER = re.compile(
    r" (?P<id>[0-9a-f]{12}) (?P<text>Pulling fs layer|Waiting|Downloading|Verifying Checksum"
    r"|Download complete|Extracting|Pull complete|Already exists|Retrying in \d+ seconds?)"
    r" ?(?P<status>.*)"
)
_PLAIN_RESOURCE = re.compile(
    r" (?P<id>(?:Container|Network|Volume|Image|Service|Config|Secret) \S+) (?P<text>) "
    r"(?P<status>\S.*)"
)
_PLAIN_RECORD = re.compile(r'time="[^"]*" level=(?P<level>\w+) msg=(?P<msg>.*)')
_PLAIN_WARNING = "WARNING: "


def parse_plain_line(line: str, services: Collection[str]) -> ComposeEvent:
    """The event of one line of Compose 2.26's `--progress plain`. Never raises.

    `services` are the names known of the model: nothing else in a line tells a service.
    A message that holds line feeds arrives as several lines: those after the first are marked
    `continues`, and the functions below put them together again.
    """
    line = line.rstrip("\r\n")
    event = _plain_event(line, services) or _plain_record(line)
    if event:
        return event
    if line.startswith(_PLAIN_WARNING):
        return ComposeEvent(log=line)
    if line.startswith(_DAEMON_PREFIX):
        return ComposeEvent(error=line)
    if line.startswith(" "):
        return ComposeEvent(log=line, continues=True)
    return ComposeEvent(error=line, continues=True)


def _plain_event(line: str, services: Collection[str]) -> ComposeEvent | None:
    match = _PLAIN_SERVICE.fullmatch(line)
    if not match or match["id"] not in services:
        match = _PLAIN_LAYER.fullmatch(line) or _PLAIN_RESOURCE.fullmatch(line)
    if not match:
        return None
    return ComposeEvent(id=match["id"], text=match["text"].rstrip(), status=match["status"])


def _plain_record(line: str) -> ComposeEvent | None:
    match = _PLAIN_RECORD.fullmatch(line)
    return ComposeEvent(log=_unquoted(match["msg"]), level=match["level"]) if match else None


def _unquoted(text: str) -> str:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) else text


def _whole_messages(events: Iterable[ComposeEvent]) -> tuple[ComposeEvent, ...]:
    """The events, each message of several lines in one piece."""
    whole: list[ComposeEvent] = []
    for event in events:
        longer = _extended(whole[-1], event) if event.continues and whole else None
        if longer:
            whole[-1] = longer
        else:
            whole.append(event)
    return tuple(whole)


def _extended(event: ComposeEvent, line: ComposeEvent) -> ComposeEvent | None:
    """`event` with `line` added to its message; None where it has none that could go on."""
    more = "\n" + (line.error or line.log)
    if event.text in _WORDED and event.status and event.status not in _CANCELLED:
        return replace(event, status=event.status + more)
    if event.error:
        return replace(event, error=event.error + more)
    if event.log and line.log:
        return replace(event, log=event.log + more)
    return None


_NO_CAUSE = {"trace", "debug", "info", "warning"}
_SHARED = re.compile(r"Image is already being pulled by (\S+)")


def fold_pull(events: Iterable[ComposeEvent], services: Collection[str]) -> PullResult:
    """How each of `services` came out of a pull, whatever the exit code was.

    The last event of a service decides: only `Pulled` and `Skipped` are good, and a service
    that was left to another one of the same image shares that one's state and message.
    """
    whole = _whole_messages(events)
    last = _last_events(whole)
    results = {service: _state_of(_decider(service, last)) for service in services}
    said = {message for _, message in results.values()}
    errors = (_without_prefix(event.error) for event in whole if event.error)
    general = dict.fromkeys(message for message in errors if message not in said)
    return PullResult(services=results, general=tuple(general))


def message_of_single_pull(events: Iterable[ComposeEvent], service: str) -> str:
    """The own words of `service`, pulled alone and without the flag; "" where nothing was said.

    That is its error, else the messages without a service, else the log lines.
    """
    whole = _whole_messages(events)
    folded = fold_pull(whole, (service,))
    state, message = folded.services[service]
    if message or state in (ServicePull.PULLED, ServicePull.SKIPPED):
        return message
    return "\n".join(folded.general or _worth_telling(whole))


def _last_events(events: Iterable[ComposeEvent]) -> Mapping[str, ComposeEvent]:
    last: dict[str, ComposeEvent] = {}
    for event in events:
        # A failure stays: in the plain form, a line of a registry's message could pass for
        # a `Pulled` of the same service.
        if event.id and not event.parent and not _is_failure(last.get(event.id)):
            last[event.id] = event
    return last


def _decider(service: str, last: Mapping[str, ComposeEvent]) -> ComposeEvent | None:
    """The last event of `service`, or of the one that pulls the same image for it."""
    followed = set()
    while service not in followed:
        followed.add(service)
        event = last.get(service)
        shared = _SHARED.search(f"{event.text} {event.status}") if event else None
        if not shared:
            return event
        service = shared[1]
    return None


def _is_failure(event: ComposeEvent | None) -> bool:
    return _state_of(event)[0] is ServicePull.FAILED


def _state_of(event: ComposeEvent | None) -> tuple[ServicePull, str]:
    if event is None:
        return ServicePull.UNKNOWN, ""
    if event.text == "Pulled":
        return ServicePull.PULLED, ""
    if event.text.startswith("Skipped"):
        return ServicePull.SKIPPED, ""
    message = _without_prefix(event.status)
    if message in _CANCELLED:
        return ServicePull.INTERRUPTED, ""
    # A service that can be built gets `Warning`; nothing is built here, so it is as bad.
    if event.text in _WORDED and message:
        return ServicePull.FAILED, message
    return ServicePull.UNKNOWN, ""


def _without_prefix(message: str) -> str:
    return message.strip().removeprefix(_DAEMON_PREFIX).strip()


def _worth_telling(events: Iterable[ComposeEvent]) -> Iterable[str]:
    return dict.fromkeys(e.log for e in events if e.log and e.level not in _NO_CAUSE)


_CONTAINER = re.compile(r"\b(?:container|endpoint) (\S+) (?:exited|is unhealthy|has no|\()")
_SERVICE = re.compile(r'\bservice "([^"]+)"')
# Statuses of a resource that have several words and tell of no failure.
_HARMLESS = re.compile(r"Skipped: .*|Resource is still in use", re.DOTALL)
_CAME_UP = re.compile(r"container \S+ (exited \(\d+\)|is unhealthy)")
_EXITED_CLEANLY = re.compile(r"container (\S+) exited \(0\)")


def up_errors(events: Iterable[ComposeEvent]) -> tuple[UpError, ...]:
    """Every error of an `up`, each message once, in the order in which they came."""
    found: dict[str, UpError] = {}
    mute: list[str] = []
    for event in _whole_messages(events):
        if event.status == "Error" and not event.text:
            mute.append(event.id)
        elif error := _up_error(event):
            found[error.message] = _merged(found.get(error.message), error)
    return (*found.values(), *_unnamed(mute, found))


def exited_cleanly(message: str) -> str | None:
    """The container that `message` says ended with 0, else None.

    `--wait` calls that an error; for a one-shot it is not.
    """
    match = _EXITED_CLEANLY.fullmatch(message.strip())
    return match[1] if match else None


def is_about_what_came_up(message: str) -> bool:
    """Whether `message` says of a container that it ended or is ill: so it had been started.

    Whether `--wait` sees that in time, or only whoever looks afterwards, is chance.
    """
    return _CAME_UP.fullmatch(message.strip()) is not None


def _up_error(event: ComposeEvent) -> UpError | None:
    message = _without_prefix(event.error or (event.status if _is_up_failure(event) else ""))
    if not message or message in _CANCELLED:
        return None
    container, service = _CONTAINER.search(message), _SERVICE.search(message)
    return UpError(
        message=message,
        container=_container_of(event.id) or (container[1] if container else ""),
        service_hint=(event.id if event.text == "Error" else "") or (service[1] if service else ""),
    )


def _is_up_failure(event: ComposeEvent) -> bool:
    if event.text:
        return event.text == "Error"
    # A resource's ordinary statuses are one word; an error's status is its message.
    return " " in event.status and not _HARMLESS.fullmatch(event.status)


def _container_of(resource: str) -> str:
    kind, _, name = resource.partition(" ")
    return name if kind == "Container" else ""


def _merged(before: UpError | None, error: UpError) -> UpError:
    if before is None:
        return error
    return UpError(
        message=error.message,
        container=before.container or error.container,
        service_hint=before.service_hint or error.service_hint,
    )


def _unnamed(resources: Iterable[str], messages: Collection[str]) -> Iterator[UpError]:
    """The errors that came without a word, of `resources` that no message names."""
    for resource in dict.fromkeys(resources):
        name = re.escape(resource.rpartition(" ")[2])
        named = re.compile(rf"(?<![\w.-]){name}(?![\w.-])")
        if not any(named.search(message) for message in messages):
            yield UpError(f"{resource}: Error", container=_container_of(resource))


# Flags that every Compose v2 knows: without the plugin the docker CLI takes them for its own.
_NO_PLUGIN = re.compile(
    r"unknown shorthand flag: '[pf]' in -[pf]"
    r"|unknown flag: --(?:short|ansi|project-name|project-directory|env-file|file)\b"
    r"|docker: 'compose' is not a docker command"
    r"|unknown command: docker compose\b"
)


def missing_plugin(stderr: str) -> bool:
    """Whether the docker CLI says that it has no Compose plugin."""
    return _NO_PLUGIN.search(stderr) is not None
