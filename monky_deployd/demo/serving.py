"""Runs an ASGI app on a socket of this machine, in a thread, for the demo and the tests."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

LOOPBACK = "127.0.0.1"

# How long (seconds) open connections may hold up the stop of a server.
_STOP_TIMEOUT = 2


@dataclass(frozen=True)
class Served:
    """Where an app is being served."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """Scheme, host and port, without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@contextmanager
def serve(
    app: ASGIApp,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    certfile: str | None = None,
    keyfile: str | None = None,
    on_stop: Callable[[], None] | None = None,
) -> Iterator[Served]:
    """Serve `app` inside the `with` block; it listens when the block begins. Port 0: a free one.

    `on_stop` is called first when the block ends: there an app ends the requests it holds.
    Raises OSError if the address can't be had or the certificate can't be loaded.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        timeout_graceful_shutdown=_STOP_TIMEOUT,
    )
    config.load()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    server = _Server(config, on_stop)
    thread = threading.Thread(target=server.run_on, args=(listener,), daemon=True)
    thread.start()
    server.settled.wait()
    try:
        yield Served("https" if certfile else "http", host, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None] | None) -> None:
        super().__init__(config)
        self.settled = threading.Event()
        self._on_stop = on_stop

    def run_on(self, listener: socket.socket) -> None:
        try:
            self.run(sockets=[listener])
        finally:
            self.settled.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_stop:
            self._on_stop()
        await super().shutdown(sockets)
