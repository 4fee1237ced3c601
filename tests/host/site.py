"""A booted host with an agent of its own, installed by install.sh as an operator does it."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monky_deployd.demo.engine import Engine
from monky_deployd.demo.images import make_image
from tests.host.bundle import Bundles
from tests.host.lab import BootedHost
from tests.real.services import STAY, sh
from tests.real.world import PATIENCE, World

UNIT = "monky-deployd"
CONFIG = "/etc/monky-deployd/config.yaml"
GRANT = "/etc/monky-deployd/grant"
STATE = "/var/lib/monky-deployd"
VERSIONS = "/opt/monky-deployd/versions"
DROPINS = "/run/systemd/system/monky-deployd.service.d"
IN_CONTACT = "in contact with tenancy"

# Each look costs the host a process.
_POLL_SECONDS = 0.2
# Everything of ours that install.sh may put on a host.
_OURS = (
    "/etc/monky-deployd",
    "/etc/sysusers.d/monky-deployd.conf",
    "/etc/systemd/system/monky-deployd.service",
    "/etc/systemd/system/monky-deployd.service.d",
    "/etc/systemd/system/multi-user.target.wants/monky-deployd.service",
    "/opt/monky-deployd",
    "/usr/local/bin/monky-deployd",
    STATE,
)


class Site:
    """One host, and the environment that it serves: `world`, whose servers it reaches."""

    def __init__(self, host: BootedHost, world: World, bundles: Bundles, label: str) -> None:
        self.host = host
        self.world = world
        self._bundles = bundles
        self._label = label
        self.generation = 0
        """The newest one that was published."""
        self._wheelhouse = self._push_wheelhouse()
        self.configure()

    def configure(self, **settings: Any) -> None:
        """Write the host's config to `world.config`, on the machine; `settings` as in World."""
        paths = {"docker": {"settle_time": 1}, "state_dir": STATE, "grant_file": GRANT}
        docker = {"socket": "/var/run/docker.sock", **settings.pop("docker", {})}
        self.world.configure(**{**paths, **settings, "docker": docker})

    def bundle(self, path: Path | None = None) -> str:
        """Where a bundle (default: this tree's) is in the host; pushed once."""
        path = path or self._bundles.bundle()
        target = f"/srv/{path.name}"
        if self.host.run(["test", "-e", target], check=False).returncode != 0:
            self.host.push(path, target)
        return target

    def install(
        self,
        *options: str,
        bundle: Path | None = None,
        script: str = "install.sh",
        check: bool = True,
        input: str | None = None,
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run install.sh in the host, with the dependencies from its wheelhouse."""
        command = [*prefix, "bash", f"{self.bundle(bundle)}/{script}"]
        offline = ["--offline", self._wheelhouse]
        return self.host.run([*command, *offline, *options], check=check, input=input, timeout=300)

    def push_config(self, name: str = "config.yaml") -> str:
        """Put the world's config on the host, beside the agent's own; its path there."""
        target = f"/root/{name}"
        self.host.push(self.world.config, target)
        return target

    def ensure_enrolled(self) -> None:
        """Have this tree's agent installed, enrolled and in contact; cheap where it is so."""
        if IN_CONTACT in self.show("StatusText") and self.show("ActiveState") == "active":
            return
        self.configure()
        self.publish()
        grant = self.world.tenancy.grant(self.world.slug)
        self.install("--config", self.push_config(), "--grant", "-", input=grant)
        self.wait_for_status(IN_CONTACT)

    def uninstall(self) -> None:
        """Remove all of the agent, and what it deployed."""
        self.install("--uninstall", "--purge")
        self.world.close()

    def show(self, name: str) -> str:
        """A property of the unit's, as `systemctl show` names it."""
        return self.systemctl("show", f"--property={name}", "--value", UNIT).strip()

    def systemctl(self, *args: str) -> str:
        return self.host.run(["systemctl", *args]).stdout

    def wait_for_status(self, words: str) -> str:
        """Wait until STATUS holds `words`; the whole STATUS."""
        self.eventually(lambda: words in self.show("StatusText"), f"STATUS with {words!r}")
        return self.show("StatusText")

    def eventually(self, condition: Callable[[], object], what: str) -> None:
        """Wait until `condition` holds; if it doesn't, show how the agent is."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                show = ["systemctl", "status", "--lines=30", "--full", UNIT]
                status = self.host.run(show, check=False).stdout
                raise AssertionError(f"{what} did not come about:\n{status}")
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def drop_in(self, text: str) -> Iterator[None]:
        """The unit with these lines of its [Service] section, restarted before and after."""
        content = f"[Service]\n{text}\n"
        self.host.run(["mkdir", "-p", DROPINS])
        self.host.run(["tee", f"{DROPINS}/test.conf"], input=content)
        self.systemctl("daemon-reload")
        try:
            yield
        finally:
            self.host.run(["rm", "-r", DROPINS])
            self.systemctl("daemon-reload")
            self.systemctl("restart", UNIT)
            self.wait_for_status(IN_CONTACT)

    def agent(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the installed agent's as root."""
        return self.host.run(["/usr/local/bin/monky-deployd", *args], check=check)

    def entries(self, *args: str) -> list[dict[str, Any]]:
        """The unit's journal entries that match `args`, oldest first."""
        printed = self.host.journal(UNIT, "--output=json", *args)
        return [json.loads(line) for line in printed.splitlines()]

    def now(self) -> str:
        """This moment of the journal's, as an argument for `entries`."""
        # Not --after-cursor: together with a match, systemd 252 skips the first entry.
        self.host.run(["journalctl", "--sync"])
        return self.host.run(["date", "+--since=@%s.%6N"]).stdout.strip()

    def engine(self) -> Engine:
        """The host's own engine, from outside; another one after a reboot."""
        socket = Path(f"/proc/{self.host.init_pid}/root/run/docker.sock")
        if self.world.engine.socket != socket:
            self.world.engine = Engine(socket)
        return self.world.engine

    def image(self, repository: str, tag: str, **options: Any) -> str:
        """An image in the registry, which the host has to pull; its reference."""
        world = self.world
        return make_image(
            self.engine(), world.registry, repository, tag, label=self._label, **options
        )

    def publish(self, services: Mapping[str, Any] | None = None, **manifest: Any) -> int:
        """Publish the next generation; without `services` with one, `web`. Its number."""
        self.generation += 1
        self.world.publish(self.generation, services or {"web": self.service()}, **manifest)
        return self.generation

    def deploy(self, services: Mapping[str, Any] | None = None, **manifest: Any) -> dict[str, Any]:
        """Publish the next generation and wait until it runs; the report."""
        return self.wait_for_report("converged", self.publish(services, **manifest))

    def service(self, tag: str = "1") -> dict[str, Any]:
        """A service that just runs."""
        return {"image": self.image("shop/web", tag), "command": sh(STAY), "restart": "always"}

    def wait_for_report(self, outcome: str, generation: int) -> dict[str, Any]:
        """Wait until the newest report is of `generation` with this outcome; the report."""

        def newest() -> dict[str, Any]:
            reports = self.world.tenancy.reports(self.world.slug)
            return reports[-1] if reports else {}

        def arrived() -> bool:
            report = newest()
            return (report.get("outcome"), report.get("generation")) == (outcome, generation)

        self.eventually(arrived, f"a report of {outcome} for generation {generation}")
        return newest()

    def traces(self) -> str:
        """Every file of ours on the host with its inode, owner, mode and time of change.

        The inside of the state directory and of a version is left out.
        """
        inner = ["(", "-path", f"{STATE}/*", "-o", "-path", f"{VERSIONS}/*/*", ")", "-prune"]
        listing = ["-o", "-printf", "%p %i %u:%g %m %T@ %l\\n"]
        found = self.host.run(["find", *_OURS, *inner, *listing], check=False).stdout
        account = self.host.run(["getent", "passwd", UNIT], check=False).stdout
        group = self.host.run(["getent", "group", UNIT], check=False).stdout
        return found + account + group

    def _push_wheelhouse(self) -> str:
        version = 'import sys; print("%d.%d" % sys.version_info[:2])'
        python = self.host.run(["/usr/bin/python3", "-c", version]).stdout.strip()
        self.host.push(self._bundles.wheelhouse(python), "/root/wheelhouse")
        return "/root/wheelhouse"
