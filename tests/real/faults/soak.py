"""A soak: random faults for a while, and an observer that sees every moment between them."""

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monky_deployd.demo.registry import Registry
from monky_deployd.domain.manifest import ENV_FILE
from monky_deployd.domain.rendering import METADATA_FILE
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import MonkyError
from tests.real.canaries import Canaries, mark
from tests.real.faults import proxy
from tests.real.faults.bench import GOOD, Bench
from tests.real.services import unhealthy

SUMMARIES: list[str] = []
"""What the soaks of this run came to, for the end of its output."""

_PAUSES = (0.0, 0.5, 1.0, 2.5)
_LOOK_INTERVAL = 0.05
_CONVERGED_WITHIN = 180
_WHOLE = ("compose.yaml", ENV_FILE, METADATA_FILE)
_FAULTS = [
    proxy.TIMEOUT,
    proxy.RESET,
    proxy.RESET_MID_BODY,
    proxy.TRUNCATED,
    proxy.WRONG_TYPE,
    proxy.OVERSIZED,
    proxy.STORM,
    proxy.BUSY,
    proxy.TLS_EXPIRED,
]
_BY_HAND = (["rm", "--force"], ["stop"], ["kill"], ["pause"])


class Observer:
    """Looks at the host all the time, and notes what must never be."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._stopped = threading.Event()
        self._web = bench.world.incarnation("web")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.violations: list[str] = []
        self.looks = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()

    def note(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_INTERVAL):
            try:
                self._look_at_current()
                self._look_at_web()
            except Exception as error:  # noqa: BLE001 - an observer that died would see no violation
                self.note(f"the observer could not look: {error!r}")
            self.looks += 1

    def _look_at_current(self) -> None:
        link = self._bench.world.state / "current"
        target = link.readlink()
        problem = _what_is_missing(link.parent / target)
        # It may have been switched, and the old one removed, between two looks.
        if problem and link.readlink() == target:
            self.note(f"current is {target.name}: {problem}")

    def _look_at_web(self) -> None:
        path = f"/containers/{self._bench.world.slug}-web-1/json"
        try:
            container = self._bench.world.engine.request("GET", path).json()
        except MonkyError as error:
            self.note(f"web is gone: {error}")
            return
        if (container["Id"], container["State"]["StartedAt"]) != self._web:
            self.note("web was made anew or started again")
        if not container["State"]["Running"]:
            self.note("web is down")


def _what_is_missing(release: Path) -> str:
    for name in _WHOLE:
        try:
            content = (release / name).read_bytes()
            if name != ENV_FILE:
                json.loads(content)
        except OSError as error:
            return f"{name}: {error.strerror}"
        except ValueError:
            return f"{name} is torn"
    return ""


class Soak:
    """Random faults for the agent of `bench`, whose registry is its own; `seed` decides them."""

    def __init__(self, bench: Bench, registry: Registry, seed: int) -> None:
        self._bench = bench
        self._registry = registry
        self._random = random.Random(seed)
        self._bag: list[Callable[[], None]] = []
        self._secrets = {"the first password": registry.password.reveal()}
        self._logs: list[str] = []
        self._observer = Observer(bench)
        self.done: Counter[str] = Counter()
        self.timeline: list[str] = []
        self._rename_level()

    @property
    def violations(self) -> list[str]:
        return self._observer.violations

    @property
    def looks(self) -> int:
        """How often the observer looked."""
        return self._observer.looks

    def run(self, seconds: float) -> None:
        """Let faults come for `seconds`, let the agent converge, and look at what it left."""
        with self._observer.watching():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                self._act()
                time.sleep(self._random.choice(_PAUSES))
            self._converge()
        self._check_reports()
        self._keep_log()
        self._check_secrets()

    def _act(self) -> None:
        if not self._bag:
            # Each comes about as often as it stands here, and none is forgotten.
            self._bag = [
                *[self._publish_good] * 4,
                self._publish_bad_tag,
                self._publish_unhealthy,
                *[self._break_an_exchange] * 6,
                *[self._kill] * 2,
                self._terminate,
                self._reload,
                *[self._by_hand] * 2,
                self._rotate,
                self._rename_level,
            ]
            self._random.shuffle(self._bag)
        action = self._bag.pop()
        name = action.__name__.strip("_").replace("_", " ")
        self.done[name] += 1
        self._tell(name)
        action()

    def _tell(self, what: str) -> None:
        self.timeline.append(
            f"{time.strftime('%H:%M:%S')} generation {self._bench.generation}: {what}"
        )

    def _publish_good(self) -> None:
        image = self._bench.idle
        if self._random.random() < 0.3:
            image = self._bench.image(f"new-{self._bench.generation}")
        self._bench.publish(part=image)

    def _publish_bad_tag(self) -> None:
        self._bench.publish(part=f"{self._bench.idle.rpartition(':')[0]}:nowhere")

    def _publish_unhealthy(self) -> None:
        self._bench.publish({"ill": unhealthy(self._bench.idle)})

    def _break_an_exchange(self) -> None:
        bench = self._bench
        where = self._random.choice(["tenancy", "tenancy", "openbao", "registry"])
        fault = self._random.choice(_FAULTS)
        if where == "registry" and fault is proxy.TIMEOUT:
            # The engine would wait for ever, and let every later pull wait with it.
            fault = proxy.RESET
        times = self._random.randint(1, 2)
        self._tell(f"{where}: {times} × {fault.name}")
        {"tenancy": bench.tenancy, "openbao": bench.openbao, "registry": bench.registry}[
            where
        ].next(fault, times=times)

    def _kill(self) -> None:
        self._restart(signal.SIGKILL)

    def _terminate(self) -> None:
        self._restart(signal.SIGTERM)

    def _restart(self, number: signal.Signals) -> None:
        self._keep_log()
        code = self._bench.end(number)
        # While Python starts, SIGTERM ends it as it ends any program.
        if code not in ((-signal.SIGKILL,) if number == signal.SIGKILL else (0, -signal.SIGTERM)):
            self._observer.note(f"the agent ended with {code} on {number.name}")
        time.sleep(self._random.choice(_PAUSES) / 2)
        self._bench.start()

    def _reload(self) -> None:
        assert self._bench.daemon
        # The service manager reloads only what is ready.
        self._bench.daemon.wait_for("using grant")
        self._bench.reload()

    def _by_hand(self) -> None:
        deed = self._random.choice(_BY_HAND)
        self._tell(f"docker {' '.join(deed)} part")
        try:
            self._bench.world.docker(*deed, f"{self._bench.world.slug}-part-1")
        except Exception as error:  # noqa: BLE001 - it may just be made anew
            self._tell(f"not done: {type(error).__name__}")

    def _rotate(self) -> None:
        """The registry has the new password, and OpenBao a moment later."""
        password = mark("robot")
        self._secrets[f"password {len(self._secrets)}"] = password
        self._registry.rotate(Secret(password))
        time.sleep(self._random.choice(_PAUSES))
        self._bench.world.put("robot", {"username": self._registry.username, "password": password})

    def _rename_level(self) -> None:
        value = mark("level")
        self._secrets[f"level {len(self._secrets)}"] = value
        self._bench.world.put("settings", {"level": value})

    def _converge(self) -> None:
        bench = self._bench
        for broken in (bench.tenancy, bench.openbao, bench.registry):
            broken.calm()
        self._tell("the faults end")
        generation = bench.publish()
        deadline = time.monotonic() + _CONVERGED_WITHIN
        while time.monotonic() < deadline:
            last = bench.reports[-1] if bench.reports else {}
            if (last.get("generation"), last.get("outcome") in GOOD) == (generation, True):
                bench.check_host()
                return
            time.sleep(0.1)
        self._observer.note(f"generation {generation} did not converge: {bench.reports[-1]}")

    def _sound_reports(self) -> list[dict[str, Any]]:
        return [report for report in self._bench.reports if report["phase"] != "heartbeat"]

    def _check_reports(self) -> None:
        numbers = [report["seq"] for report in self._sound_reports()]
        if numbers != list(range(1, len(numbers) + 1)):
            self._observer.note(f"reports came as {numbers}")

    def _keep_log(self) -> None:
        if self._bench.daemon:
            self._logs.append(self._bench.daemon.log)

    def _check_secrets(self) -> None:
        canaries = Canaries(self._secrets)
        told = json.dumps(self._bench.world.tenancy.received(self._bench.world.slug))
        places = {"a report": told.encode(), "the log": "\n".join(self._logs).encode()}
        state = self._bench.world.state
        for path in state.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            if path.stat().st_mode & 0o077 and path.parent.stat().st_mode & 0o077:
                self._observer.note(f"{path.relative_to(state)} may be read by others")
            if path.name != ENV_FILE and path != state / "docker/config.json":
                places[str(path.relative_to(state))] = path.read_bytes()
        for place, content in places.items():
            for found in canaries.found_in(content):
                self._observer.note(f"{found} stands in {place}")
