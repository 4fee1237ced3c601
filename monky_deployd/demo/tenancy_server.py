"""The reference tenancy server: PROTOCOL.md's contract in memory, for the demo and the tests.

Agents get one listener; what steers the server (`/admin/…`) has another, always on loopback.
`python -m monky_deployd.demo.tenancy_server --help` says how to start it.
"""

import argparse
import asyncio
import hashlib
import json
import re
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jwt
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from monky_deployd.demo.grants import ENVIRONMENT_CLAIM, GrantIssuer
from monky_deployd.demo.longpoll import Bell
from monky_deployd.demo.serving import LOOPBACK, Served, serve

# Where tenancy listens inside its pod. Agents never dial it: they dial the overlay's intercept.
IN_POD_PORT = 8081

_MAX_WAIT = 600
_MAX_BODY = 4 * 1024 * 1024
_PREFER_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)


@dataclass(frozen=True)
class CannedAnswer:
    """An answer that is given once in place of the real one.

    `endpoint` ("manifest" or "reports") says which request gets it; None means the next one.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    endpoint: str | None = None


@dataclass(frozen=True)
class SeenRequest:
    """A request as it came in. The grant is left out of `headers` (lower-case names)."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class _Manifest:
    body: bytes
    etag: str


class _Refused(Exception):  # noqa: N818 - an answer on its way out, not an error of this server's
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class FakeTenancy:
    """The whole state of a tenancy service. Its methods may be called from any thread.

    `app` is what agents speak to, `admin` what steers the server. `answers` is a queue of
    canned answers; `honours_wait` set to False makes a server that ignores `Prefer: wait`.
    """

    def __init__(self, issuer: GrantIssuer | None = None) -> None:
        self.issuer = issuer or GrantIssuer()
        self.superseded_jtis: set[str] = set()
        self.decommissioned: set[str] = set()
        self.answers: deque[CannedAnswer] = deque()
        self.honours_wait = True
        self.requests: list[SeenRequest] = []
        self._manifests: dict[str, _Manifest] = {}
        self._reports: dict[str, list[dict[str, Any]]] = {}
        self._received: dict[str, list[dict[str, Any]]] = {}
        self._issued_jtis: dict[str, list[str]] = {}
        self._bell = Bell()
        self.app: ASGIApp = _agent_app(self)
        self.admin: ASGIApp = _admin_app(self)

    def publish(self, environment: str, manifest: Mapping[str, Any]) -> str:
        """Make `manifest` the environment's own, wake held requests; its ETag is returned."""
        body = json.dumps(manifest, sort_keys=True).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        self._manifests[environment] = _Manifest(body, etag)
        self._bell.ring()
        return etag

    def grant(self, environment: str) -> str:
        """A new grant, as a kit's reveal gives it: it supersedes those revealed before."""
        grant = self.issuer.issue(environment)
        jtis = self._issued_jtis.setdefault(environment, [])
        self.superseded_jtis.update(jtis)
        jtis.append(self.issuer.verify(grant)["jti"])
        self._bell.ring()
        return grant

    def supersede(self, jti: str) -> None:
        """Refuse the grant with this `jti` from now on, in held requests too."""
        self.superseded_jtis.add(jti)
        self._bell.ring()

    def decommission(self, environment: str) -> None:
        """Answer 410 for this environment from now on, to held requests too."""
        self.decommissioned.add(environment)
        self._bell.ring()

    def reports(self, environment: str) -> list[dict[str, Any]]:
        """The reports of an environment in the order of arrival, each `report_id` once."""
        return list(self._reports.get(environment, ()))

    def received(self, environment: str) -> list[dict[str, Any]]:
        """Every report that came in, repeats too."""
        return list(self._received.get(environment, ()))

    def end_waits(self) -> None:
        """Answer every held request now, as on shutdown."""
        self._bell.ring(last=True)

    def serve(
        self,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        certfile: str | None = None,
        keyfile: str | None = None,
    ) -> AbstractContextManager[Served]:
        """Serve `app`, as `serving.serve` does; held requests end when the server stops."""
        return serve(
            self.app,
            host=host,
            port=port,
            certfile=certfile,
            keyfile=keyfile,
            on_stop=self.end_waits,
        )

    async def answer_manifest(self, request: Request) -> Response:
        """GET …/manifest: at once, or when the manifest or the right to see it changes."""
        wait = self._granted_wait(request)
        deadline = asyncio.get_running_loop().time() + wait
        with self._bell.listen() as waiter:
            while True:
                response = self._manifest_now(request)
                left = deadline - asyncio.get_running_loop().time()
                if response.status_code != 304 or left <= 0 or waiter.ended:
                    break
                await waiter.wait(left)
        if wait:
            response.headers["Preference-Applied"] = f"wait={wait}"
        return response

    async def answer_reports(self, request: Request) -> Response:
        """POST …/reports: takes what is new, drops repeats."""
        environment = self._admitted(request)
        incoming = _parse_reports(await _limited_body(request))
        known = self._reports.setdefault(environment, [])
        ids = {report["report_id"] for report in known}
        for report in incoming:
            self._received.setdefault(environment, []).append(report)
            if report["report_id"] not in ids:
                ids.add(report["report_id"])
                known.append(report)
        return JSONResponse({"accepted": len(incoming)}, status_code=202)

    def _granted_wait(self, request: Request) -> int:
        found = _PREFER_WAIT.search(",".join(request.headers.getlist("prefer")))
        return min(int(found.group(1)), _MAX_WAIT) if found and self.honours_wait else 0

    def _manifest_now(self, request: Request) -> Response:
        manifest = self._manifests.get(self._admitted(request))
        if manifest is None:
            raise _Refused(404, "unknown_environment", "this environment has no manifest")
        headers = {"ETag": manifest.etag}
        if _matches(request.headers.get("if-none-match", ""), manifest.etag):
            return Response(status_code=304, headers=headers)
        return Response(manifest.body, media_type="application/json", headers=headers)

    def _admitted(self, request: Request) -> str:
        """The environment of the path, if the request's grant is good for it."""
        environment = str(request.path_params["slug"])
        if self._claims(request)[ENVIRONMENT_CLAIM] != environment:
            raise _Refused(403, "wrong_environment", "this grant is for another environment")
        if environment in self.decommissioned:
            raise _Refused(410, "decommissioned", "this environment is decommissioned")
        if environment not in self._manifests:
            raise _Refused(404, "unknown_environment", "there is no such environment")
        return environment

    def _claims(self, request: Request) -> dict[str, Any]:
        scheme, _, grant = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise _Refused(401, "grant_missing", "a bearer grant is expected")
        try:
            claims = self.issuer.verify(grant.strip())
        except jwt.ExpiredSignatureError:
            raise _Refused(401, "grant_expired", "the grant has expired") from None
        except jwt.ImmatureSignatureError:
            raise _Refused(401, "grant_not_yet_valid", "the grant is not yet valid") from None
        except jwt.InvalidTokenError:
            raise _Refused(401, "grant_invalid", "this is no grant of this tenancy's") from None
        if claims["jti"] in self.superseded_jtis:
            raise _Refused(401, "grant_superseded", "a later reveal superseded the grant")
        return claims


def _agent_app(tenancy: FakeTenancy) -> Starlette:
    routes = [
        Route(
            "/v1/environments/{slug}/manifest",
            _endpoint(tenancy, "manifest", tenancy.answer_manifest),
            methods=["GET"],
        ),
        Route(
            "/v1/environments/{slug}/reports",
            _endpoint(tenancy, "reports", tenancy.answer_reports),
            methods=["POST"],
        ),
    ]
    return Starlette(routes=routes)


_Handler = Callable[[Request], Awaitable[Response]]


def _endpoint(tenancy: FakeTenancy, name: str, handler: _Handler) -> _Handler:
    """`handler`, with the request noted, canned answers first, and refusals as JSON."""

    async def endpoint(request: Request) -> Response:
        tenancy.requests.append(_seen(request))
        canned = _next_canned(tenancy.answers, name)
        if canned:
            return Response(canned.body, canned.status, headers=dict(canned.headers))
        return await _or_refusal(handler, request)

    return endpoint


async def _or_refusal(handler: _Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except ClientDisconnect:
        # An agent that is stopped while it sends; nobody is left to read this.
        return Response(status_code=400)
    except _Refused as refused:
        headers = {}
        if refused.status == 401:
            challenge = f'error="invalid_token", error_description="{refused.message}"'
            headers["WWW-Authenticate"] = f"Bearer {challenge}"
        document = {"error": refused.code, "message": refused.message}
        return JSONResponse(document, refused.status, headers=headers)


def _next_canned(answers: deque[CannedAnswer], endpoint: str) -> CannedAnswer | None:
    for canned in answers:
        if canned.endpoint in (None, endpoint):
            answers.remove(canned)
            return canned
    return None


def _seen(request: Request) -> SeenRequest:
    headers = {name: value for name, value in request.headers.items() if name != "authorization"}
    return SeenRequest(request.method, request.url.path, headers)


def _matches(if_none_match: str, etag: str) -> bool:
    """Weak comparison, as RFC 9110 (section 13.1.2) wants it for If-None-Match."""
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags


async def _limited_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY:
            raise _Refused(413, "too_large", f"a request may hold {_MAX_BODY} bytes at most")
    return bytes(body)


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        raise _Refused(400, "not_json", "the body is not JSON") from None
    if not isinstance(document, dict):
        raise _Refused(422, "invalid", "a JSON object is expected")
    return document


def _parse_reports(body: bytes) -> list[dict[str, Any]]:
    reports = _parse_object(body).get("reports")
    if not isinstance(reports, list) or not all(map(_is_report, reports)):
        raise _Refused(422, "invalid_reports", "`reports` must list objects with a `report_id`")
    return reports


def _is_report(report: object) -> bool:
    return isinstance(report, dict) and isinstance(report.get("report_id"), str)


def _admin_app(tenancy: FakeTenancy) -> Starlette:
    """What the demo's script calls: publish a manifest, read reports, reveal a grant."""

    async def put_manifest(request: Request) -> Response:
        manifest = _parse_object(await _limited_body(request))
        etag = tenancy.publish(request.path_params["slug"], manifest)
        return JSONResponse({"etag": etag})

    async def get_reports(request: Request) -> Response:
        return JSONResponse({"reports": tenancy.reports(request.path_params["slug"])})

    async def post_grant(request: Request) -> Response:
        grant = tenancy.grant(request.path_params["slug"])
        return JSONResponse({"grant": grant}, 201, headers={"Cache-Control": "no-store"})

    async def get_public_key(request: Request) -> Response:
        return PlainTextResponse(tenancy.issuer.public_key_pem)

    def route(path: str, method: str, handler: _Handler) -> Route:
        return Route(path, partial(_or_refusal, handler), methods=[method])

    environment = "/admin/environments/{slug}"
    return Starlette(
        routes=[
            route(f"{environment}/manifest", "PUT", put_manifest),
            route(f"{environment}/reports", "GET", get_reports),
            route(f"{environment}/grants", "POST", post_grant),
            route("/admin/public-key", "GET", get_public_key),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; prints the two addresses, and never a grant."""
    options = _parser().parse_args(argv)
    tenancy = FakeTenancy()
    # Blocked before any thread starts, so that only sigwait below gets them.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    agents = tenancy.serve(
        host=options.host, port=options.port, certfile=options.certfile, keyfile=options.keyfile
    )
    with agents as public, serve(tenancy.admin, port=options.admin_port) as admin:
        print(f"tenancy {public.url}", flush=True)  # noqa: T201
        print(f"admin {admin.url}", flush=True)  # noqa: T201
        signal.sigwait(signals)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tenancy_server", description="reference tenancy server")
    parser.add_argument("--host", default=LOOPBACK, help="where agents are listened for")
    parser.add_argument("--port", type=int, default=IN_POD_PORT, help="0: any free port")
    parser.add_argument("--admin-port", type=int, default=0, help="on loopback; 0: any free port")
    parser.add_argument("--certfile", help="serve agents over TLS with this certificate (PEM)")
    parser.add_argument("--keyfile", help="the certificate's private key (PEM)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
