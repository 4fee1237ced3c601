"""A proxy that breaks what passes through it: the next exchanges of a path suffer a fault.

Each exchange has a connection of its own. A fault is played where the answer is due, also to a
request that was held at the server when the fault was ordered.
"""

import gzip
import http.client
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.unit.pki import Authority, KeyPair

PATIENCE = 60
_TLS_HANDSHAKE = 0x16
_FLOOD = 128 * 1024 * 1024
_CHUNK = 64 * 1024
_DRIP = 0.2
_DRIPS = 75
_OWN_HEADERS = {"connection", "content-length", "transfer-encoding", "date", "server"}


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")


class Exchange:
    """One request of a client's, and the way back to it."""

    def __init__(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        self._handler = handler
        self.socket = handler.connection
        self.answer = answer

    def head(self, answer: Answer, length: int | None) -> None:
        """Send the head of an answer whose body has `length` bytes; None says nothing of it."""
        handler = self._handler
        handler.send_response_only(answer.status)
        for name, value in answer.headers:
            if name.lower() not in _OWN_HEADERS:
                handler.send_header(name, value)
        if length is not None:
            handler.send_header("Content-Length", str(length))
        handler.send_header("Connection", "close")
        handler.end_headers()

    def send(self, data: bytes) -> None:
        self._handler.wfile.write(data)

    def whole(self, answer: Answer) -> None:
        """Send an answer as it is."""
        length: int | None = len(answer.body)
        if self._handler.command == "HEAD":
            length = int(answer.header("content-length") or 0)
        elif answer.status == 304:
            length = None
        self.head(answer, length)
        self.send(answer.body)

    def until_gone(self) -> None:
        """Wait until the client hangs up."""
        while self.socket.recv(_CHUNK):
            pass

    def reset(self) -> None:
        """Break the connection off, so that the client gets an RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@dataclass(frozen=True)
class Fault:
    """What is done in the place of an answer.

    `reaches_server`: the server gets the request, and only its answer suffers. `in_tls`: it is
    the handshake that suffers, before any path is known.
    """

    name: str
    play: Callable[[Exchange], None]
    reaches_server: bool = True
    in_tls: bool = False


def _nothing(exchange: Exchange) -> None:
    exchange.whole(exchange.answer)


def _silence(exchange: Exchange) -> None:
    exchange.until_gone()


def _reset_mid_body(exchange: Exchange) -> None:
    answer = exchange.answer
    body = answer.body or b"{}"
    exchange.head(answer, len(body))
    exchange.send(body[: len(body) // 2])
    exchange.reset()


def _reset(exchange: Exchange) -> None:
    exchange.reset()


def _truncated(exchange: Exchange) -> None:
    """A whole answer as HTTP sees it, with half of a document in it."""
    answer = exchange.answer
    half = answer.body[: len(answer.body) // 2] or b'{"half'
    exchange.whole(Answer(_with_body(answer.status), answer.headers, half))


def _slow(exchange: Exchange) -> None:
    """A few bytes now and then: no single read ever takes long."""
    answer = exchange.answer
    body = answer.body or b"{}"
    exchange.head(Answer(_with_body(answer.status), answer.headers, body), len(body))
    step = len(body) // _DRIPS + 1
    for start in range(0, len(body), step):
        exchange.send(body[start : start + step])
        time.sleep(_DRIP)


def _wrong_type(exchange: Exchange) -> None:
    """What a login page of somebody else's network looks like."""
    page = b"<!doctype html><title>Welcome</title><p>Please sign in to go on."
    exchange.whole(Answer(200, (("Content-Type", "text/html; charset=utf-8"),), page))


def _flood(exchange: Exchange) -> None:
    exchange.head(Answer(200, (("Content-Type", "application/json"),), b""), None)
    chunk = b'"' + b"x" * (_CHUNK - 1)
    for _ in range(_FLOOD // _CHUNK):
        exchange.send(chunk)


def _bomb(exchange: Exchange) -> None:
    """Small on the wire, and large once it is unpacked."""
    headers = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
    exchange.whole(Answer(200, headers, _packed()))


@cache
def _packed() -> bytes:
    return gzip.compress(b'"' + b"x" * _FLOOD, compresslevel=1)


def _status(status: int, **headers: str) -> Callable[[Exchange], None]:
    fields = (
        ("Content-Type", "text/html"),
        *((k.replace("_", "-"), v) for k, v in headers.items()),
    )
    return lambda exchange: exchange.whole(Answer(status, fields, b"<h1>try again later</h1>"))


def _with_body(status: int) -> int:
    """A status whose answers have a body."""
    return 200 if status in (204, 304) else status


NONE = Fault("none", _nothing)
TIMEOUT = Fault("timeout", _silence)
RESET_MID_BODY = Fault("reset mid-body", _reset_mid_body)
RESET = Fault("reset before the answer", _reset)
TRUNCATED = Fault("truncated JSON", _truncated)
SLOW_LORIS = Fault("slow-loris", _slow)
WRONG_TYPE = Fault("wrong content type", _wrong_type, reaches_server=False)
OVERSIZED = Fault("oversized body", _flood)
BOMB = Fault("oversized when unpacked", _bomb)
STORM = Fault("5xx storm", _status(503), reaches_server=False)
BAD_GATEWAY = Fault("502", _status(502), reaches_server=False)
BUSY = Fault("503 with Retry-After", _status(503, Retry_After="2"), reaches_server=False)
RATE_LIMITED = Fault("429 with Retry-After", _status(429, Retry_After="2"), reaches_server=False)
TLS_EXPIRED = Fault("TLS expired", _reset, in_tls=True)


class Ordered:
    """A fault that was ordered: how often it is left, and how often it was played."""

    def __init__(self, fault: Fault, prefix: str, times: int, spared: int) -> None:
        self.fault = fault
        self._prefix = prefix
        self._left = times
        self._spared = spared
        self._played = 0
        self._changed = threading.Condition()
        self._suffering: set[socket.socket] = set()

    def take(self, path: str) -> bool:
        """Whether this exchange is one that suffers it."""
        with self._changed:
            if self._left == 0 or not path.startswith(self._prefix):
                return False
            if self._spared:
                self._spared -= 1
                return False
            self._left -= 1
            self._played += 1
            self._changed.notify_all()
            return True

    def wait(self, times: int = 1) -> None:
        """Wait until it was played so often."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._played >= times, PATIENCE)
            assert done, f"{self.fault.name} was played {self._played} times, not {times}"

    def wait_to_the_end(self) -> None:
        """Wait until none is left."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._left == 0, PATIENCE)
            assert done, f"{self.fault.name} has {self._left} times to go"

    def play(self, exchange: Exchange) -> None:
        """Let this exchange suffer it."""
        with self._changed:
            self._suffering.add(exchange.socket)
        try:
            self.fault.play(exchange)
        finally:
            with self._changed:
                self._suffering.discard(exchange.socket)

    def end(self) -> None:
        """Play it no more, and break off the exchanges that suffer it."""
        with self._changed:
            self._left = 0
            for connection in self._suffering:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class FaultProxy:
    """Passes HTTP on to `upstream` (host:port), over TLS where it has `authority`'s word."""

    def __init__(
        self, upstream: str, authority: Authority | None = None, *, address: str = "127.0.0.1"
    ) -> None:
        self._upstream = upstream
        self._orders: list[Ordered] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._tls = self._expired = None
        if authority:
            self._tls = _context(authority.issue(address))
            self._expired = _context(authority.issue(address, end=-timedelta(seconds=5)))
        self._server = _Server(self, address)
        self.port: int = self._server.server_address[1]
        self.host = f"{address}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def next(self, fault: Fault, *, times: int = 1, prefix: str = "/", spared: int = 0) -> Ordered:
        """Let the next exchanges of paths that begin with `prefix` suffer `fault`.

        The first `spared` of them get through.
        """
        order = Ordered(fault, prefix, times, spared)
        with self._lock:
            self._orders.append(order)
        return order

    @contextmanager
    def suffering(self, fault: Fault, *, prefix: str = "/") -> Iterator[Ordered]:
        """All exchanges inside the block suffer `fault`."""
        order = self.next(fault, times=1_000_000, prefix=prefix)
        try:
            yield order
        finally:
            order.end()

    def calm(self) -> None:
        """Take back whatever is still ordered."""
        with self._lock:
            orders, self._orders = self._orders, []
        for order in orders:
            order.end()

    def close(self) -> None:
        """Stop it, and break off what is going on."""
        self.calm()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def secured(self, connection: socket.socket) -> socket.socket | None:
        """The connection as its requests come over it; None where that came to nothing."""
        if self._tls is None:
            # The engine tries TLS first, everywhere.
            first = connection.recv(1, socket.MSG_PEEK)
            return None if not first or first[0] == _TLS_HANDSHAKE else connection
        order = self._order(lambda each: each.fault.in_tls and each.take("/"))
        context = self._expired if order else self._tls
        assert context
        # A client that refuses the certificate hangs up.
        with suppress(OSError):
            return context.wrap_socket(connection, server_side=True)
        return None

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        with self._lock:
            self._open.add(handler.connection)
        try:
            self._answer(handler)
        finally:
            with self._lock:
                self._open.discard(handler.connection)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        order = self._order(lambda each: _keeps_away(each) and each.take(handler.path))
        if order:
            order.play(Exchange(handler, Answer(0, (), b"")))
            return
        answer = self._ask(handler, body)
        exchange = Exchange(handler, answer)
        order = self._order(lambda each: not each.fault.in_tls and each.take(handler.path))
        if order:
            order.play(exchange)
        else:
            exchange.whole(answer)

    def _order(self, takes: Callable[[Ordered], bool]) -> Ordered | None:
        with self._lock:
            return next((order for order in self._orders if takes(order)), None)

    def _ask(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        headers = {k: v for k, v in handler.headers.items() if k.lower() != "connection"}
        with _connected(self._upstream) as upstream:
            upstream.request(handler.command, handler.path, body or None, headers)
            response = upstream.getresponse()
            fields = tuple(response.getheaders())
            return Answer(response.status, fields, response.read())


def _keeps_away(order: Ordered) -> bool:
    return not order.fault.in_tls and not order.fault.reaches_server


@contextmanager
def _connected(address: str) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        yield connection
    finally:
        connection.close()


def _context(pair: KeyPair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certfile, pair.keyfile)
    return context


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, proxy: FaultProxy, address: str) -> None:
        self._proxy = proxy

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                proxy.serve(self)

            do_GET = do_HEAD = do_POST = do_PUT = do  # noqa: N815 - the library's names

            def log_message(self, *args: object) -> None:
                del args

        super().__init__((address, 0), Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        connection = self._proxy.secured(request)
        if connection is not None:
            try:
                super().finish_request(connection, client_address)
            finally:
                connection.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is what this is for."""
