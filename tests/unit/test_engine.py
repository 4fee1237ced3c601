"""The Engine API over a unix socket: what is asked, what the answers mean, and how it fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from monky_deployd.clients.engine import EngineClient, container_from_inspect
from monky_deployd.domain.drift import EngineEvent
from monky_deployd.domain.verify import Container
from monky_deployd.errors import EngineError, ExitCode, Reason

PROJECT = "shop"
WEB_ID, GONE_ID = "f3" * 32, "ab" * 32
IMAGE_ID = "sha256:468404e40946c239610282a49e53f1e3985181b0bc9ae1546e038f8eeaed73bf"

# As Docker Engine 20.10.24 answers, less what the agent doesn't read.
RUNNING = {
    "Status": "running",
    "Running": True,
    "Paused": False,
    "Restarting": False,
    "OOMKilled": False,
    "Dead": False,
    "Pid": 8706,
    "ExitCode": 0,
    "Error": "",
    "StartedAt": "2026-12-01T04:47:20.299999513Z",
    "FinishedAt": "0001-01-01T00:00:00Z",
}
EXITED = {**RUNNING, "Status": "exited", "Running": False, "Pid": 0}
HEALTHY = {
    "Status": "healthy",
    "FailingStreak": 0,
    "Log": [{"Start": "2026-12-01T04:47:21.306918592Z", "ExitCode": 0, "Output": "c4n4ry"}],
}
NOT_STARTED = {
    **EXITED,
    "Status": "created",
    "ExitCode": 127,
    "Error": 'failed to create shim task: exec: "/x": stat /x: no such file or directory: unknown',
    "StartedAt": "0001-01-01T00:00:00Z",
}


def inspected(state: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """An inspect document of the service web's container."""
    return {
        "Id": WEB_ID,
        "Created": "2026-12-01T04:47:20.1Z",
        "State": state or RUNNING,
        "Image": IMAGE_ID,
        "Name": "/shop-web-1",
        "RestartCount": 0,
        "HostConfig": {"RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}},
        "Config": {
            "Image": "reg.example/shop/web:1",
            "Env": ["PASSWORD=c4n4ry"],
            "Labels": {
                "com.docker.compose.oneoff": "False",
                "com.docker.compose.project": PROJECT,
                "com.docker.compose.service": "web",
            },
        },
        **changes,
    }


UP = Container(
    id=WEB_ID,
    name="shop-web-1",
    service="web",
    image_id=IMAGE_ID,
    state="running",
    started_at="2026-12-01T04:47:20.299999513Z",
    restart_policy="no",
)


class FakeEngine:
    """Answers by path; every request is kept."""

    def __init__(self) -> None:
        self.answers: dict[str, httpx.Response | Exception] = {}
        self.requests: list[httpx.Request] = []

    def put(self, path: str, document: Any, status: int = 200) -> None:
        self.answers[path] = httpx.Response(status, json=document)

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.get(request.url.path)
        if isinstance(answer, Exception):
            raise answer
        return answer or httpx.Response(404, json={"message": "No such thing"})


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def engine(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineClient]:
    def transport(uds: str) -> httpx.MockTransport:
        assert uds == "/run/engine.sock"
        return httpx.MockTransport(fake.handle)

    monkeypatch.setattr(httpx, "AsyncHTTPTransport", transport)
    async with EngineClient("/run/engine.sock") as client:
        yield client


# Inspect documents


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        (inspected(), {}),
        (inspected({**RUNNING, "Health": HEALTHY}), {"health": "healthy"}),
        (
            inspected({**RUNNING, "Health": {"Status": "starting", "Log": []}}),
            {"health": "starting"},
        ),
        (inspected({**RUNNING, "Health": {"Status": "none", "Log": None}}), {}),
        (inspected({**RUNNING, "Health": None}), {}),
        (inspected({**RUNNING, "Status": "paused", "Paused": True}), {"state": "paused"}),
        (
            inspected({**RUNNING, "Status": "restarting", "ExitCode": 3}, RestartCount=5),
            {"state": "restarting", "restarts": 5, "exit_code": 3},
        ),
        (
            inspected({**EXITED, "ExitCode": 137, "OOMKilled": True}),
            {"state": "exited", "exit_code": 137, "oom_killed": True},
        ),
        (
            inspected(NOT_STARTED),
            {
                "state": "created",
                "exit_code": 127,
                "error": NOT_STARTED["Error"],
                "started_at": "0001-01-01T00:00:00Z",
            },
        ),
        (
            inspected(HostConfig={"RestartPolicy": {"Name": "on-failure", "MaximumRetryCount": 3}}),
            {"restart_policy": "on-failure"},
        ),
        (inspected(HostConfig={"RestartPolicy": {"Name": ""}}), {"restart_policy": ""}),
        (inspected(HostConfig=None), {"restart_policy": ""}),
        (inspected(Config={"Labels": None}), {"service": ""}),
    ],
)
def test_a_container_is_what_its_inspect_document_says(
    document: dict[str, Any], fields: dict[str, Any]
) -> None:
    container = container_from_inspect(document)
    assert container == Container(**{**vars(UP), **fields})
    assert "c4n4ry" not in repr(container)


# What is asked, and what the answers mean


async def test_the_containers_of_a_project_come_by_name_with_all_their_states(
    fake: FakeEngine, engine: EngineClient
) -> None:
    other = inspected(EXITED, Id="c2", Name="/shop-db-1")
    fake.put("/containers/json", [{"Id": WEB_ID}, {"Id": "c2"}])
    fake.put(f"/containers/{WEB_ID}/json", inspected())
    fake.put("/containers/c2/json", other)

    assert await engine.containers(PROJECT) == (container_from_inspect(other), UP)

    asked = dict(fake.requests[0].url.params)
    assert asked["all"] == "1"
    assert json.loads(asked["filters"]) == {
        "label": ["com.docker.compose.project=shop", "com.docker.compose.oneoff=False"]
    }


async def test_a_container_that_goes_while_it_is_looked_at_is_left_out(
    fake: FakeEngine, engine: EngineClient
) -> None:
    fake.put("/containers/json", [{"Id": GONE_ID}, {"Id": WEB_ID}])
    fake.put(f"/containers/{WEB_ID}/json", inspected())
    assert await engine.containers(PROJECT) == (UP,)


async def test_a_project_without_containers_has_none(
    fake: FakeEngine, engine: EngineClient
) -> None:
    fake.put("/containers/json", [])
    assert await engine.containers(PROJECT) == ()


@pytest.mark.parametrize(
    ("reference", "path"),
    [
        ("web", "/images/web/json"),
        ("reg.example:5000/shop/web:1", "/images/reg.example:5000/shop/web:1/json"),
        (f"reg.example/web@{IMAGE_ID}", f"/images/reg.example/web@{IMAGE_ID}/json"),
        (IMAGE_ID, f"/images/{IMAGE_ID}/json"),
        ("[::1]:5000/web", "/images/%5B::1%5D:5000/web/json"),
        ("a b?c#d", "/images/a%20b%3Fc%23d/json"),
    ],
)
async def test_an_image_is_asked_for_by_its_reference(
    reference: str, path: str, fake: FakeEngine, engine: EngineClient
) -> None:
    assert await engine.image_id(reference) == ""
    assert fake.requests[0].url.raw_path.decode() == path


async def test_an_image_that_is_there_has_an_id(fake: FakeEngine, engine: EngineClient) -> None:
    fake.put("/images/web:1/json", {"Id": IMAGE_ID, "RepoTags": ["web:1"]})
    assert await engine.image_id("web:1") == IMAGE_ID


async def test_an_image_that_can_not_be_named_is_not_there(
    fake: FakeEngine, engine: EngineClient
) -> None:
    """The engine's words come from the pull, in which its service is known."""
    words = "invalid reference format: repository name must be lowercase"
    fake.put("/images/UPPER:1/json", {"message": words}, 400)
    assert await engine.image_id("UPPER:1") == ""


async def test_the_version_is_the_engines(fake: FakeEngine, engine: EngineClient) -> None:
    fake.put("/version", {"Version": "20.10.24+dfsg1", "ApiVersion": "1.41"})
    assert await engine.version() == "20.10.24+dfsg1"


# Events


def event(action: str, at: int, **attributes: str) -> bytes:
    labels = {"name": "shop-web-1", "com.docker.compose.project": PROJECT}
    actor = {"ID": WEB_ID, "Attributes": {**labels, **attributes}}
    return json.dumps(
        {"Type": "container", "Action": action, "Actor": actor, "timeNano": at}
    ).encode()


class Chunks(httpx.AsyncByteStream):
    """A body in pieces, which ends, or breaks off with an error."""

    def __init__(self, *chunks: bytes, error: Exception | None = None) -> None:
        self._chunks = chunks
        self._error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._error:
            raise self._error


async def test_events_come_one_by_one_however_the_stream_is_cut(
    fake: FakeEngine, engine: EngineClient
) -> None:
    stream = event("die", 1, exitCode="137") + b"\n" + b"not an event\n" + event("start", 2) + b"\n"
    fake.answers["/events"] = httpx.Response(200, stream=Chunks(stream[:30], stream[30:]))

    assert [found async for found in engine.events()] == [
        None,
        EngineEvent("die", "shop-web-1", "shop", "", 1, "137"),
        EngineEvent("start", "shop-web-1", "shop", "", 2),
    ]
    filters = json.loads(fake.requests[0].url.params["filters"])
    assert filters["type"] == ["container", "network"]
    assert "disconnect" in filters["event"]
    assert "label" not in filters, "events of networks have none"
    assert "exec_create" not in filters["event"]


async def test_events_may_stay_away_for_ever_but_not_the_answer(
    fake: FakeEngine, engine: EngineClient
) -> None:
    fake.answers["/events"] = httpx.Response(200, content=b"")
    assert [found async for found in engine.events()] == [None]
    timeout = fake.requests[0].extensions["timeout"]
    assert timeout["read"] is None
    assert timeout["connect"] == 30


async def test_an_engine_that_goes_while_it_is_listened_to_is_an_error(
    fake: FakeEngine, engine: EngineClient
) -> None:
    broken = Chunks(event("die", 1) + b"\n", error=httpx.ReadError("connection reset"))
    fake.answers["/events"] = httpx.Response(200, stream=broken)
    seen = []
    with pytest.raises(EngineError, match=r"at /run/engine\.sock: connection reset"):
        async for found in engine.events():
            seen.append(found and found.action)
    assert seen == [None, "die"]


async def test_a_refusal_to_tell_events_is_no_quiet_end(
    fake: FakeEngine, engine: EngineClient
) -> None:
    fake.put("/events", {"message": "invalid filter"}, 400)
    with pytest.raises(EngineError, match="answers 400: invalid filter"):
        [found async for found in engine.events()]


# Going on


@pytest.mark.parametrize("status", [204, 404, 409])
async def test_a_container_that_is_not_paused_any_more_needs_nothing(
    fake: FakeEngine, engine: EngineClient, status: int
) -> None:
    fake.put("/containers/c1/unpause", {"message": "not paused"}, status)
    await engine.unpause("c1")
    assert fake.requests[0].method == "POST"


async def test_an_engine_that_cannot_unpause_says_why(
    fake: FakeEngine, engine: EngineClient
) -> None:
    fake.put("/containers/c1/unpause", {"message": "cgroup is gone"}, 500)
    with pytest.raises(EngineError, match="answers 500: cgroup is gone"):
        await engine.unpause("c1")


# The socket


async def test_the_engine_is_reached_over_its_unix_socket(tmp_path: Path) -> None:
    asked = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"Version": "26.1.5"}')
        writer.close()
        await writer.wait_closed()

    socket = str(tmp_path / "engine.sock")
    async with await asyncio.start_unix_server(answer, socket), EngineClient(socket) as engine:
        assert await engine.version() == "26.1.5"
    assert asked[0].startswith(b"GET /version HTTP/1.1\r\nHost: engine\r\n")


# Failures

Ask = Callable[[EngineClient], Any]
ASKED: list[tuple[str, Ask]] = [
    ("/version", lambda engine: engine.version()),
    ("/containers/json", lambda engine: engine.containers(PROJECT)),
    (f"/containers/{WEB_ID}/json", lambda engine: engine.containers(PROJECT)),
    ("/images/web:1/json", lambda engine: engine.image_id("web:1")),
]
BAD_ANSWERS = [
    (httpx.Response(500, json={"message": "no space left"}), "answers 500: no space left"),
    (httpx.Response(500, text="<html>"), "answers 500: Internal Server Error"),
    (httpx.Response(500, json=["c4n4ry"]), "answers 500: Internal Server Error"),
    (httpx.Response(403, json={"error": "c4n4ry"}), "answers 403: Forbidden"),
    (httpx.Response(301, headers={"Location": "/elsewhere"}), "is not JSON"),
    (httpx.Response(200, text="<html>c4n4ry"), "is not JSON"),
    (httpx.Response(200, json="c4n4ry"), "is not of the right kind"),
    (httpx.Response(200, text="null"), "is not of the right kind"),
    (
        httpx.ReadError("connection reset"),
        r"does not answer at /run/engine\.sock: connection reset",
    ),
    (httpx.ReadTimeout(""), r"does not answer at /run/engine\.sock: ReadTimeout"),
    (httpx.RemoteProtocolError("garbage"), r"does not answer at /run/engine\.sock: garbage"),
]


@pytest.mark.parametrize(("path", "ask"), ASKED, ids=[path for path, _ in ASKED])
@pytest.mark.parametrize(("answer", "words"), BAD_ANSWERS, ids=range(len(BAD_ANSWERS)))
async def test_any_failure_is_an_engine_error_in_the_engines_words(
    path: str,
    ask: Ask,
    answer: httpx.Response | Exception,
    words: str,
    fake: FakeEngine,
    engine: EngineClient,
) -> None:
    fake.put("/containers/json", [{"Id": WEB_ID}])
    fake.answers[path] = answer
    with pytest.raises(EngineError, match=words) as caught:
        await ask(engine)
    assert "c4n4ry" not in str(caught.value)
    assert caught.value.reason is Reason.ENGINE_UNREACHABLE
    assert caught.value.exit_code is ExitCode.DEPLOY_FAILED


async def test_a_list_that_can_not_be_read_is_not_an_empty_one(
    fake: FakeEngine, engine: EngineClient
) -> None:
    with pytest.raises(EngineError, match="answers 404"):
        await engine.containers(PROJECT)


@pytest.mark.parametrize("there", [False, True], ids=["no-socket", "nobody-listens"])
async def test_an_engine_that_is_away_is_told_with_its_socket_and_the_remedy(
    there: bool, tmp_path: Path
) -> None:
    socket = tmp_path / "engine.sock"
    if there:
        socket.touch()
    async with EngineClient(str(socket)) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.version()
    assert caught.value.cause.startswith(f"the Docker Engine does not answer at {socket}: ")
    assert "is docker running" in caught.value.remedy
