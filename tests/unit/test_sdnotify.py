"""sd_notify: what the service manager's end of the socket receives."""

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from monky_deployd.host.sdnotify import Notifier, watchdog_interval

SYSTEMD_BUFFER = 4096


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(5)
        yield receiver


@pytest.fixture
def notifier(manager: socket.socket) -> Notifier:
    return Notifier(manager.getsockname())


def received(manager: socket.socket) -> str:
    return manager.recv(65536).decode()


def test_each_message_has_its_documented_form(manager: socket.socket, notifier: Notifier) -> None:
    notifier.ready()
    notifier.stopping()
    notifier.watchdog()
    notifier.extend_timeout(1.5)

    assert [received(manager) for _ in range(4)] == [
        "READY=1",
        "STOPPING=1",
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=1500000",
    ]


def test_a_barrier_waits_until_the_service_manager_has_read_everything(
    manager: socket.socket, notifier: Notifier
) -> None:
    order = []

    def pass_the_barrier() -> None:
        notifier.barrier()
        order.append("passed")

    waiting = threading.Thread(target=pass_the_barrier)
    waiting.start()
    message, descriptors, _, _ = socket.recv_fds(manager, 100, 1)
    assert message == b"BARRIER=1"
    order.append("read")
    os.close(descriptors[0])
    waiting.join()
    assert order == ["read", "passed"]


def test_without_a_service_manager_a_barrier_holds_nobody_up() -> None:
    Notifier(None).barrier()


def test_reloading_carries_the_monotonic_clock_in_microseconds(
    manager: socket.socket, notifier: Notifier
) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    first, second = received(manager).split("\n")
    assert first == "RELOADING=1"
    name, _, stamp = second.partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(stamp) <= after


def test_a_status_of_several_lines_cannot_smuggle_in_another_assignment(
    manager: socket.socket, notifier: Notifier
) -> None:
    notifier.status("pull failed: denied\nMAINPID=1\r\nthe end")
    assert received(manager) == "STATUS=pull failed: denied MAINPID=1 the end"


@pytest.mark.parametrize("text", ["x" * 10_000, "é" * 5_000, "a" + "€" * 5_000])
def test_a_long_status_is_cut_because_systemd_ignores_what_it_cannot_read_whole(
    manager: socket.socket, notifier: Notifier, text: str
) -> None:
    notifier.status(text)

    datagram = manager.recv(65536)
    assert len(datagram) <= SYSTEMD_BUFFER
    assert datagram.decode().endswith("…")
    assert text.startswith(datagram.decode().removeprefix("STATUS=").removesuffix("…"))


def test_text_that_is_not_valid_unicode_is_still_sent(
    manager: socket.socket, notifier: Notifier
) -> None:
    notifier.status("bad \udc80 byte")
    assert received(manager) == "STATUS=bad ? byte"


def test_an_abstract_socket_is_reached() -> None:
    name = f"monky-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(5)
        Notifier(f"@{name}").ready()
        assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize("path", [None, "", "/nowhere/notify", "vsock:2:1234", "/" + "x" * 200])
def test_without_a_usable_socket_nothing_happens(path: str | None) -> None:
    notifier = Notifier(path)
    notifier.ready()
    notifier.status("still running")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "42"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "43"}, None),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": ""}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "30s"}, None),
        ({"WATCHDOG_USEC": "³"}, None),
        ({"WATCHDOG_PID": "42"}, None),
    ],
)
def test_the_watchdog_is_fed_at_half_of_what_the_unit_allows(
    environ: dict[str, str], expected: float | None
) -> None:
    assert watchdog_interval(environ, pid=42) == expected
