"""One agent with a proxy before each service that it talks to, and what must hold at any time."""

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.openbao import OpenBao
from monky_deployd.demo.registry import Registry
from monky_deployd.domain.manifest import ENV_FILE
from monky_deployd.domain.rendering import IMAGES_FILE, METADATA_FILE, OVERRIDE_FILE
from tests.real.faults.gate import Gate, GatedDocker
from tests.real.faults.proxy import FaultProxy
from tests.real.world import Daemon, World, eventually, open_world
from tests.unit.pki import Authority

# Measured: 55 MiB after some passes, and each answer may take 4 MiB, twice at worst.
PEAK_BOUND = 96 * 1024
WHOLE = ("compose.yaml", ENV_FILE, METADATA_FILE, OVERRIDE_FILE, IMAGES_FILE)
GOOD = ("converged", "up-to-date")
_SHIM = Path(__file__).with_name("clock_shim.py")


@dataclass(frozen=True)
class Parts:
    """What all benches share. `image` makes one in the registry and gives its reference there."""

    engine: Engine
    registry: Registry
    openbao: OpenBao
    issuer: GrantIssuer
    image: Callable[..., str]


@dataclass
class Bench:
    """One agent. `generation` was published last, `web` is a service that no case changes.

    `clock` is the file by which the agent's clock is put forward or back, `restart` what the
    services say of restarts.
    """

    world: World
    tenancy: FaultProxy
    openbao: FaultProxy
    registry: FaultProxy
    docker: GatedDocker
    image: Callable[..., str]
    idle: str
    entries: list[dict[str, Any]]
    settings: dict[str, dict[str, Any]]
    generation: int = 0
    daemon: Daemon | None = None
    peak: int = 0
    clock: Path | None = None
    restart: str = "no"
    _web: tuple[str, str] | None = None
    _lines: int = 0

    def configure(self, **settings: Mapping[str, Any]) -> None:
        """Write the config, with `settings` laid over what the bench has."""
        merged = {name: {**value} for name, value in self.settings.items()}
        for name, value in settings.items():
            merged.setdefault(name, {}).update(value)
        self.world.configure(**merged)

    def publish(self, more: Mapping[str, Any] | None = None, *, part: str = "") -> int:
        """Publish a new generation, which changes service `part` and not `web`; its number.

        `part` is another image for it, `more` are more services.
        """
        self.generation += 1
        changed = {
            "image": part or self.idle,
            "environment": {"N": str(self.generation), "LEVEL": "${LEVEL}"},
        }
        services = {
            "web": {"image": self.idle, "restart": self.restart},
            "part": {**changed, "restart": self.restart},
            **(more or {}),
        }
        # Each pull that is not needed would take the time of another case.
        deploy = {"pull": "missing"}
        self.world.publish(self.generation, services, entries=self.entries, deploy=deploy)
        return self.generation

    def start(self) -> Daemon:
        """Start the agent."""
        assert self.daemon is None
        command = self.world.command("run")
        if self.clock:
            command = [sys.executable, str(_SHIM), str(self.clock), *command[3:]]
        self._lines = 0
        self.daemon = Daemon(command)
        return self.daemon

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the agent by a signal; its exit code."""
        assert self.daemon
        self._note_peak()
        self.daemon.send(number)
        code = self.daemon.wait()
        self.daemon = None
        return code

    def reload(self) -> None:
        """Let the agent read its config again."""
        assert self.daemon
        self.daemon.send(signal.SIGHUP)

    def says(self, text: str) -> None:
        """Wait until the agent says so, once more since the last time that it was asked for."""
        assert self.daemon
        self._lines = self.daemon.wait_for(text, since=self._lines)

    def heard(self) -> None:
        """Forget what the agent said so far."""
        assert self.daemon
        self._lines = len(self.daemon.log.splitlines())

    @property
    def reports(self) -> list[dict[str, Any]]:
        return self.world.tenancy.reports(self.world.slug)

    def told(self, outcome: str, generation: int | None = None) -> dict[str, Any]:
        """The report with this outcome on a generation (the newest), as soon as it is there."""
        generation = generation or self.generation

        def found() -> list[dict[str, Any]]:
            return [
                report
                for report in self.reports
                if (report["generation"], report["outcome"]) == (generation, outcome)
            ]

        eventually(found, f"a report on generation {generation} that says {outcome}")
        return found()[0]

    def converged(self) -> None:
        """Wait until the newest generation runs, and tenancy knows."""

        def done() -> bool:
            last = self.reports[-1] if self.reports else {}
            return last.get("generation") == self.generation and last.get("outcome") in GOOD

        eventually(done, f"generation {self.generation}")
        self.check()

    def check(self) -> None:
        """What must hold whenever the agent has converged."""
        self._check_reports()
        self.check_host()

    def check_host(self) -> None:
        """What must hold of the host then."""
        self._check_release()
        self._check_containers()
        self._note_peak()
        assert self.peak < PEAK_BOUND, f"the agent took {self.peak} KiB"

    def settled(self) -> None:
        """From now on `web` must not be touched."""
        self._web = self.world.incarnation("web")

    def _check_reports(self) -> None:
        """Each came, in order, and counts once, however often it was sent."""
        numbers = [report["seq"] for report in self.reports]
        assert numbers == list(range(1, len(numbers) + 1)), numbers

    def _check_release(self) -> None:
        current = self.world.state / "current"
        assert current.readlink().name.startswith(f"{self.generation}-")
        assert all((current / name).is_file() for name in WHOLE)
        leftovers = [path.name for path in self.world.state.rglob(".*-*") if path.is_dir()]
        assert leftovers == []

    def _check_containers(self) -> None:
        if self._web:
            assert self.world.incarnation("web") == self._web, "web was touched"
        assert self.world.container("web")["State"]["Running"]
        part = self.world.container("part")
        assert part["State"]["Running"]
        assert f"N={self.generation}" in part["Config"]["Env"]

    def _note_peak(self) -> None:
        if self.daemon and self.daemon.is_running:
            status = Path(f"/proc/{self.daemon.pid}/status").read_text()
            self.peak = max(self.peak, int(status.split("VmHWM:")[1].split()[0]))

    @contextmanager
    def gateway(self) -> Iterator[str]:
        """An address of this machine's that is no loopback address: that of a network."""
        network, path = f"{self.world.slug}_side", "{{(index .IPAM.Config 0).Gateway}}"
        self.world.docker("network", "create", network)
        try:
            yield self.world.docker("network", "inspect", "--format", path, network).strip()
        finally:
            self.world.docker("network", "rm", network)

    @contextmanager
    def gate(self, name: str) -> Iterator[Gate]:
        """A gate before or after a command of Compose's: see GatedDocker."""
        with self.docker.gate(name) as gate:
            yield gate


@contextmanager
def open_bench(base: Path, parts: Parts, *, clock: bool = False) -> Iterator[Bench]:
    """A bench in a working order, whose agent has not been started yet."""
    with ExitStack() as stack:
        base.mkdir(parents=True, exist_ok=True)
        world = stack.enter_context(
            open_world(base, parts.engine, parts.registry, parts.openbao, parts.issuer)
        )
        authority = Authority(base / "pki")
        tenancy = FaultProxy(f"127.0.0.1:{world.tenancy_port}", authority)
        stack.callback(tenancy.close)
        openbao = FaultProxy(parts.openbao.url.removeprefix("http://"), authority)
        stack.callback(openbao.close)
        registry = FaultProxy(parts.registry.host)
        stack.callback(registry.close)
        docker = GatedDocker(base)
        ca_file = str(authority.ca_file)

        def image(tag: str) -> str:
            """A new image, which the engine has to pull through the proxy."""
            name = f"{world.slug}/part"
            parts.image(name, tag, files={"whose": name.encode(), "tag": tag.encode()})
            return f"{registry.host}/{name}:{tag}"

        bench = Bench(
            world,
            tenancy,
            openbao,
            registry,
            docker,
            image,
            idle=image("idle"),
            entries=[
                {**world.robot_entry(), "registry_host": registry.host},
                {"name": "LEVEL", "path": world.put("settings", {"level": "high"}), "key": "level"},
            ],
            settings={
                "tenancy": {
                    "port": tenancy.port,
                    "scheme": "https",
                    "ca_file": ca_file,
                    "wait": 2,
                    "request_timeout": 2,
                    "poll_interval": 1,
                },
                "openbao": {
                    "url": f"https://{openbao.host}",
                    "ca_file": ca_file,
                    "request_timeout": 2,
                },
                "docker": {"binary": str(docker.binary), "pull_timeout": 8},
            },
            clock=base / "clock" if clock else None,
        )
        bench.configure()
        stack.callback(lambda: bench.daemon and bench.daemon.stop())
        yield bench
