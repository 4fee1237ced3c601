"""What each bench needs: one environment on real parts, with a daemon that has deployed it."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.grants import GrantIssuer
from monky_deployd.demo.images import LABEL, cleanup, make_image
from monky_deployd.demo.openbao import OpenBao
from monky_deployd.demo.registry import Registry
from tests.real.world import Daemon, World, open_world


@dataclass(frozen=True)
class Stage:
    """The world, the daemon in it, and how often the daemon ran `docker`."""

    world: World
    daemon: Daemon
    runs: Path

    @property
    def processes(self) -> int:
        """How many processes the daemon has started: `docker` is all that it ever starts."""
        return len(self.runs.read_text().splitlines())


@contextmanager
def deployed(services: int = 3) -> Iterator[Stage]:
    """A daemon that has deployed so many services and waits for something to happen."""
    with ExitStack() as stack:
        base = Path(stack.enter_context(TemporaryDirectory(prefix="monky-bench-")))
        engine = Engine.ensure(base)
        stack.callback(engine.stop)
        for part in ("registry", "openbao", "world"):
            (base / part).mkdir()
        registry = Registry.start(base / "registry")
        stack.callback(registry.stop)
        openbao = OpenBao.start(base / "openbao")
        stack.callback(openbao.stop)
        label = f"{LABEL}={uuid.uuid4().hex[:12]}"
        stack.callback(cleanup, engine, label)
        image = make_image(engine, registry, "bench/idle", "1", label=label)
        world = stack.enter_context(
            open_world(base / "world", engine, registry, openbao, GrantIssuer())
        )
        runs = _count_runs(world)
        web = {"image": image, "stop_grace_period": "1s"}
        world.publish(1, {f"web{number}": web for number in range(services)})
        daemon = stack.enter_context(world.daemon())
        daemon.wait_for("generation 1 runs")
        world.wait_for_report(1)
        yield Stage(world, daemon, runs)


def _count_runs(world: World) -> Path:
    """Put a wrapper in the place of `docker` that notes each run; the file of its notes."""
    runs, wrapper = world.base / "runs", world.base / "docker"
    runs.touch()
    wrapper.write_text(f'#!/bin/sh\necho run >>{runs}\nexec docker "$@"\n')
    wrapper.chmod(0o755)
    world.configure(docker={"binary": str(wrapper)})
    return runs
