"""Stand-ins for what the agent works with, with the same signatures, and builders of its words."""

import asyncio
import itertools
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from monky_deployd.agent.journey import Passed
from monky_deployd.clients.compose import ComposeCli, OnEvent, Project, Ran
from monky_deployd.clients.engine import EngineClient
from monky_deployd.clients.tenancy import ManifestAnswer, TenancyClient
from monky_deployd.domain.compose_events import ComposeEvent
from monky_deployd.domain.config import Config
from monky_deployd.domain.report import Fault, Outcome, Phase
from monky_deployd.domain.secret import Secret
from monky_deployd.domain.verify import Container
from monky_deployd.errors import MonkyError, Reason
from monky_deployd.host.sdnotify import Notifier

T = TypeVar("T")

ENV = "env-a"
NOW = datetime(2026, 12, 1, 3, 0, 0, tzinfo=UTC)
WEB, DB = "reg.example/shop/web:1", "reg.example/shop/db:1"


def config(base: Path, **settings: Any) -> Config:
    """A config whose files all lie below `base`; nothing in it answers unless `settings` say so."""
    document: dict[str, Any] = {
        "environment": ENV,
        "tenancy": {"host": "127.0.0.1", "port": 1, "scheme": "http"},
        "openbao": {"url": "http://127.0.0.1:1"},
        "docker": {"settle_time": 0, "socket": str(base / "no-engine.sock")},
        "state_dir": str(base / "state"),
        "grant_file": str(base / "grant"),
    }
    for section, value in settings.items():
        if isinstance(value, dict):
            document.setdefault(section, {}).update(value)
        else:
            document[section] = value
    return Config.model_validate(document)


def outcome(reason: Reason = Reason.CONVERGED, **fields: Any) -> Outcome:
    return Outcome(
        reason=reason,
        sentence=fields.pop("sentence", f"it is {reason}"),
        phase=fields.pop("phase", Phase.VERIFY),
        generation=fields.pop("generation", 1),
        started_at=fields.pop("started_at", NOW),
        finished_at=fields.pop("finished_at", NOW),
        **fields,
    )


def good(release_id: str = "1-aaaaaaaaaaaa", **fields: Any) -> Passed:
    """A pass that brought a release up."""
    return Passed(outcome(release=release_id, **fields), release_id, digest=release_id, good=True)


def failed(reason: Reason = Reason.PULL_FAILED, message: str = "no", **fields: Any) -> Passed:
    """A pass that came to nothing; it is worth another try."""
    what = outcome(reason, faults=(Fault(message, service="web"),), **fields)
    return Passed(what, digest="the manifest's digest")


async def turns() -> None:
    """Let every task that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


class Clock:
    """Stands for `time`: its monotonic seconds pass only where a test says so."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class HeldSleeps:
    """Stands for `asyncio`: each sleep is noted, and lasts until the test ends it."""

    def __init__(self) -> None:
        self.begun: Record[float] = Record()
        self._ends = asyncio.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        self.begun.append(seconds)
        await self._ends.acquire()

    def end(self) -> None:
        self._ends.release()


class Record(list[T]):
    """A list that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._grew = asyncio.Event()

    def append(self, item: T) -> None:
        super().append(item)
        self._grew.set()

    async def number(self, count: int) -> T:
        """The item with this number, counted from 1, as soon as it is there."""
        async with asyncio.timeout(5):
            while len(self) < count:
                self._grew.clear()
                await self._grew.wait()
        return self[count - 1]

    async def first(self, matching: Callable[[T], object]) -> T:
        """The first item that matches, as soon as it is there."""
        count = 1
        while not matching(await self.number(count)):
            count += 1
        return self[count - 1]


@asynccontextmanager
async def running(coroutine: Any) -> AsyncIterator["asyncio.Task[None]"]:
    """`coroutine` as a task beside the test, cancelled at the end; its error is the test's."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class RecordingNotifier(Notifier):
    """Keeps what the service manager would be told."""

    def __init__(self) -> None:
        super().__init__(None)
        self.said: Record[str] = Record()

    def ready(self) -> None:
        self.said.append("READY=1")

    def reloading(self) -> None:
        self.said.append("RELOADING=1")

    def stopping(self) -> None:
        self.said.append("STOPPING=1")

    def watchdog(self) -> None:
        self.said.append("WATCHDOG=1")

    def status(self, text: str) -> None:
        self.said.append(f"STATUS={text}")

    @property
    def states(self) -> list[str]:
        """Everything but STATUS and WATCHDOG."""
        return [m for m in self.said if not m.startswith(("STATUS=", "WATCHDOG="))]

    @property
    def shown(self) -> str:
        """The last STATUS."""
        return next(m for m in reversed(self.said) if m.startswith("STATUS=")).removeprefix(
            "STATUS="
        )


@dataclass(frozen=True)
class Fetch:
    """A fetch as it was asked for."""

    token: str
    etag: str | None
    wait: float


class ScriptedTenancy(TenancyClient):
    """Gives `answers` one by one: an answer, or an error. When they are out it holds requests.

    `sent` are the report bodies of each call that was taken; `refusals` are raised first.
    """

    def __init__(self, *answers: ManifestAnswer | MonkyError) -> None:
        self.answers = deque(answers)
        self.fetches: Record[Fetch] = Record()
        self.sent: Record[list[Mapping[str, Any]]] = Record()
        self.refusals: deque[MonkyError] = deque()

    async def fetch_manifest(
        self, token: Secret, *, etag: str | None, wait: float
    ) -> ManifestAnswer:
        self.fetches.append(Fetch(token.reveal(), etag, wait))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.popleft()
        if isinstance(answer, MonkyError):
            raise answer
        return answer

    async def send_reports(self, token: Secret, reports: Sequence[Mapping[str, Any]]) -> None:
        if self.refusals:
            raise self.refusals.popleft()
        self.sent.append(list(reports))


def changed(
    body: bytes = b"{}", etag: str | None = '"1"', *, waited: bool = False
) -> ManifestAnswer:
    return ManifestAnswer(True, body, etag, waited, None)


def unchanged(etag: str = '"1"', *, waited: bool = True) -> ManifestAnswer:
    return ManifestAnswer(False, b"", etag, waited, None)


def manifest(
    generation: int = 1,
    services: Mapping[str, str] | None = None,
    *,
    entries: Sequence[Mapping[str, Any]] = (),
    deploy: Mapping[str, Any] | None = None,
    **fields: Any,
) -> bytes:
    """A manifest whose one compose file (JSON is YAML) has these services: name to image."""
    model = {
        "services": {name: {"image": image} for name, image in (services or {"web": WEB}).items()}
    }
    document = {
        "schema": 1,
        "environment": ENV,
        "generation": generation,
        "project": "shop",
        "compose": {"files": [{"name": "compose.yaml", "content": json.dumps(model)}]},
        "entries": list(entries),
        "deploy": {"wait_timeout": 1, **(deploy or {})},
    }
    return json.dumps({**document, **fields}).encode()


@dataclass
class FakeEngine(EngineClient):
    """An engine of dictionaries. `images` are ids by reference, `containers_now` the project's."""

    images: dict[str, str] = field(default_factory=dict)
    containers_now: list[Container] = field(default_factory=list)
    error: MonkyError | None = None
    unpaused: list[str] = field(default_factory=list)

    async def unpause(self, container_id: str) -> None:
        self.unpaused.append(container_id)

    async def containers(self, project: str) -> tuple[Container, ...]:
        if self.error:
            raise self.error
        return tuple(self.containers_now)

    async def image_id(self, reference: str) -> str:
        if self.error:
            raise self.error
        if reference in self.images.values():
            return reference
        return self.images.get(reference, "")

    def remove(self, service: str) -> None:
        """Remove a service's container, as somebody does by hand."""
        self.containers_now = [c for c in self.containers_now if c.service != service]


class FakeCompose(ComposeCli):
    """A Compose that works on `engine`. What a test sets makes it fail.

    `errors` are raised by the command of that name; `pull_says` are the events of a service that
    isn't pulled; `up_says` those of an `up`, which then ends with 1; `comes_up_as` changes the
    containers of a service, by its image.
    """

    def __init__(self, cfg: Config, engine: FakeEngine, scrub: Any) -> None:
        super().__init__(cfg.docker, Path(cfg.state_dir), scrub)
        self.engine = engine
        self.calls: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.pull_says: dict[str, ComposeEvent] = {}
        self.alone_says: dict[str, ComposeEvent] = {}
        self.timed_out: set[str] = set()
        self.up_says: tuple[ComposeEvent, ...] = ()
        self.up_code: int | None = None
        self.stop_code = 0
        self.comes_up_as: dict[str, dict[str, Any]] = {}
        self.reads_env_as: dict[str, str] = {}
        self.on_up: Callable[[], Any] | None = None
        self._ids = itertools.count(1)

    async def version(self) -> tuple[int, ...]:
        return (2, 40, 3)

    async def model(self, project: Project, *, stdin: str | None = None) -> dict[str, Any]:
        self._begin("readback" if stdin else "model")
        if stdin:
            return self._readback(project, json.loads(stdin))
        return self._model(project)

    async def pull(
        self,
        project: Project,
        services: Collection[str],
        *,
        keep_going: bool,
        on_event: OnEvent | None = None,
    ) -> Ran:
        self._begin("pull" if keep_going else "pull-alone", *sorted(services))
        says = self.pull_says if keep_going else self.alone_says
        images = {name: s["image"] for name, s in self._model(project)["services"].items()}
        events = []
        for service in services:
            event = says.get(service, ComposeEvent(id=service, text="Pulled"))
            events.append(event)
            if event.text == "Pulled":
                self.engine.images.setdefault(images[service], f"sha256:{images[service]}")
        timed_out = self.calls[-1].split()[0] in self.timed_out
        return Ran(0 if keep_going else 1, tuple(events), timed_out)

    async def up(
        self,
        project: Project,
        *,
        wait_timeout: int,
        remove_orphans: bool,
        on_event: OnEvent | None = None,
    ) -> Ran:
        self._begin("up")
        if self.on_up:
            await self.on_up()
        self.engine.containers_now = [
            self._container(name, service["image"])
            for name, service in self._model(project)["services"].items()
            if service["image"] in self.engine.images or service["image"].startswith("sha256:")
        ]
        code = self.up_code if self.up_code is not None else int(bool(self.up_says))
        return Ran(code, self.up_says)

    async def recreate(self, project: Project, services: Collection[str]) -> Ran:
        self._begin("recreate", *sorted(services))
        return Ran(0, ())

    async def stop(self, project: Project) -> Ran:
        self._begin("stop")
        if self.stop_code == 0:
            self.engine.containers_now = [
                replace(c, state="exited", exit_code=143) for c in self.engine.containers_now
            ]
        return Ran(self.stop_code, ())

    async def down(self, project: Project) -> Ran:
        self._begin("down", project.name)
        return Ran(0, ())

    def _begin(self, command: str, *services: str) -> None:
        self.calls.append(" ".join((command, *services)))
        if command in self.errors:
            raise self.errors[command]

    def _model(self, project: Project) -> dict[str, Any]:
        services: dict[str, Any] = {}
        for name in project.files:
            document = json.loads((project.directory / name).read_text())
            for service, settings in document["services"].items():
                services.setdefault(service, {}).update(settings)
        return {"services": services}

    def _readback(self, project: Project, probe: dict[str, Any]) -> dict[str, Any]:
        """The probe as Compose resolves it, for values that need no escape."""
        text = (project.directory / ".env").read_text()
        env = dict(re.findall(r'^(.+?)="(.*)"$', text, re.MULTILINE)) | self.reads_env_as
        for service in probe["services"].values():
            names = service.pop("environment", env)
            service["environment"] = {name: env[name] for name in names}
        return probe

    def _container(self, service: str, image: str) -> Container:
        image_id = self.engine.images.get(image, image)
        container = Container(
            id=f"c{next(self._ids)}",
            name=f"shop-{service}-1",
            service=service,
            image_id=image_id,
            state="running",
        )
        return replace(container, **self.comes_up_as.get(image, {}))
