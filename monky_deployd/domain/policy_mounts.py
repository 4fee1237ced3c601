"""The policy on what containers see of the host's file system: binds, volumes, secrets, configs."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from monky_deployd.domain.config import PolicyCfg
from monky_deployd.domain.policy_findings import Part, matches, shown
from monky_deployd.domain.policy_rules import Rule

# Who can write to one of these is root on the host.
_SOCKETS = (
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
)
_SOCKET_NAMES = {socket.rsplit("/", 1)[-1] for socket in _SOCKETS}
_PROPAGATION = {"", "private", "rprivate", "slave", "rslave"}
_TMPFS_OPTIONS = re.compile(
    r"(size|mode|uid|gid|nr_inodes|nr_blocks)=[0-9a-zA-Z%]+|ro|rw|noexec|nosuid|nodev|noatime"
)
_VOLUME_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")

_MOUNT = {
    "type",
    "source",
    "target",
    "read_only",
    "consistency",
    "bind",
    "volume",
    "tmpfs",
    "image",
}
_BIND = {"propagation", "create_host_path", "recursive", "selinux"}
_VOLUME = {"name", "driver", "driver_opts", "external", "labels"}
_FILE = {"name", "file", "environment", "content", "external", "labels"}


@dataclass(frozen=True)
class Host:
    """What the checks have to know of the host.

    `real_path` gives a path with every symbolic link resolved (what doesn't exist stays as it
    is), or None where the agent's user can't look. `own_files` are paths below
    `project_directory` that the agent reads again: no container may write them. `private` are
    the agent's own absolute paths, which no container may see.
    """

    project_directory: str
    real_path: Callable[[str], str | None]
    docker_socket: str = "/var/run/docker.sock"
    own_files: Collection[str] = ()
    private: Collection[str] = ()

    def real(self, path: str) -> str:
        """As `real_path`; the path itself where the agent can't look."""
        return self.real_path(path) or path


@dataclass(frozen=True)
class _Seen:
    part: Part
    path: str
    writable: bool


@dataclass
class Mounts:
    """Checks each mount by itself, and at the end all of them together."""

    policy: PolicyCfg
    host: Host
    project: str
    _seen: list[_Seen] = field(default_factory=list)

    def check_service(self, volumes: Part) -> None:
        """A service's `volumes`. An image mount is the caller's: see `image_sources`."""
        for entry in volumes.items():
            mount = entry.fields(_MOUNT)
            _check_target(entry, mount)
            kind = mount["type"].text() if "type" in mount else ""
            if kind == "bind":
                self._check_bind(entry, mount)
            elif kind == "volume":
                self._check_volume_source(mount)
            elif kind not in {"tmpfs", "image"}:
                entry.refuse(
                    Rule.UNKNOWN_KEY, f"this agent does not know mounts of type {shown(kind)}"
                )

    def check_volume(self, key: str, volume: Part) -> None:
        """A volume of the project."""
        known = volume.fields(_VOLUME)
        name = known["name"].text() if "name" in known else f"{self.project}_{key}"
        external = "external" in known and known["external"].value is not False
        if not _VOLUME_NAME.fullmatch(name):
            volume.refuse(Rule.EXTERNAL_VOLUME, f"{shown(name)} is no volume's name", setting="")
        foreign = external or not name.startswith(f"{self.project}_")
        if foreign and not matches(self.policy.external_volumes, name):
            volume.refuse(
                Rule.EXTERNAL_VOLUME, f"volume {shown(name)} is not one of this project's own"
            )
        if not external:
            self._check_driver(volume, known)

    def check_file(self, definition: Part) -> None:
        """A secret or a config of the project: Compose bind-mounts its file."""
        file = definition.fields(_FILE).get("file")
        if file is not None:
            self._check_host_path(file, file.text(), Rule.OUTSIDE_FILE, writable=False)

    def check_together(self) -> None:
        """What one mount can do to another.

        Who can write a directory can put a symbolic link in place of what lies below it, and
        the engine follows that when the other container is started again.
        """
        for inner in self._seen:
            for outer in self._seen:
                if outer.writable and outer.path != inner.path and _below(inner.path, outer.path):
                    inner.part.refuse(
                        Rule.BIND_NESTED,
                        f"this lies in {outer.part.path}, where a container can write and so lead "
                        "it elsewhere",
                    )

    def _check_bind(self, entry: Part, mount: dict[str, Part]) -> None:
        source = mount.get("source")
        path = source.text() if source else ""
        writable = not ("read_only" in mount and mount["read_only"].value is True)
        self._check_host_path(source or entry, path, Rule.BIND_MOUNT, writable=writable)
        options = mount["bind"].fields(_BIND) if "bind" in mount else {}
        if "propagation" in options and options["propagation"].text() not in _PROPAGATION:
            options["propagation"].refuse(
                Rule.BIND_PROPAGATION, "mounts that a container makes must not reach the host"
            )
        if "selinux" in options and options["selinux"].text() not in {"", "z", "Z"}:
            options["selinux"].refuse(Rule.UNKNOWN_KEY, "this agent knows z and Z only")

    def _check_volume_source(self, mount: dict[str, Part]) -> None:
        source = mount.get("source")
        if source is not None and not _VOLUME_NAME.fullmatch(source.text()):
            source.refuse(
                Rule.EXTERNAL_VOLUME, f"{shown(source.text())} is no volume's name", setting=""
            )

    def _check_driver(self, volume: Part, known: dict[str, Part]) -> None:
        driver = known["driver"].text() if "driver" in known else ""
        if driver not in {"", "local"}:
            if not matches(self.policy.volume_drivers, driver):
                known["driver"].refuse(Rule.VOLUME_DRIVER, f"volume driver {shown(driver)}")
            return
        if "driver_opts" in known:
            self._check_local(known["driver_opts"])

    def _check_local(self, options: Part) -> None:
        """Options of the driver `local`: what mount(8) would get."""
        values = {name.lower(): part for name, part in options.pairs()}
        kind = values["type"].text().strip() if "type" in values else ""
        words = values["o"].text().split(",") if "o" in values else []
        words = [word.strip() for word in words if word.strip()]
        if kind == "tmpfs" and all(_TMPFS_OPTIONS.fullmatch(word) for word in words):
            return
        if {"bind", "rbind"} & {word.lower() for word in words}:
            device = values.get("device")
            path = device.text() if device else ""
            writable = "ro" not in words
            self._check_host_path(device or options, path, Rule.BIND_MOUNT, writable=writable)
            if "shared" in ",".join(words):
                options.refuse(
                    Rule.BIND_PROPAGATION, "mounts that a container makes must not reach the host"
                )
        elif values.keys() - {"size"} and not (
            kind and matches(self.policy.volume_drivers, f"local:{kind}")
        ):
            options.refuse(
                Rule.VOLUME_DRIVER,
                f"the driver local would mount a file system of type {shown(kind)}; "
                "it is named local:TYPE there",
            )

    def _check_host_path(self, part: Part, source: str, rule: Rule, *, writable: bool) -> None:
        """`source` is what a container will see of the host; `rule` is for what lies outside."""
        if not _plain(source):
            part.refuse(rule, f"{shown(source)} is not an absolute path in plain form", setting="")
            return
        real = self._resolved(source)
        if real is None:
            part.refuse(
                rule, f"the agent can't look at {shown(source)}, so it can't say where that leads"
            )
            return
        if self._reaches_a_socket(part, source, real):
            return
        if _below(real, self.host.real(self.host.project_directory)):
            self._check_release_file(part, real, writable=writable)
        elif any(_overlap(real, self.host.real(path)) for path in self.host.private):
            part.refuse(Rule.AGENT_FILES, f"{shown(source)} holds the agent's own files")
            return
        elif not any(_below(real, self.host.real(root)) for root in self.policy.bind_roots):
            part.refuse(rule, f"{shown(source)} leads outside of the release and of bind_roots")
            return
        self._seen.append(_Seen(part, real, writable))

    def _resolved(self, source: str) -> str | None:
        real = self.host.real_path(source)
        # The host's owner named this very path, so it needs no looking at.
        return _clean(source) if real is None and source in self.policy.bind_roots else real

    def _reaches_a_socket(self, part: Part, source: str, real: str) -> bool:
        sockets = {self.host.real(path) for path in (*_SOCKETS, self.host.docker_socket)}
        exact = real in sockets or real.rsplit("/", 1)[-1] in _SOCKET_NAMES
        if exact or any(_below(socket, real) for socket in sockets):
            what = "is" if exact else "holds"
            part.refuse(
                Rule.DOCKER_SOCKET,
                f"{shown(source)} {what} the socket of a container engine, whose holder is root",
            )
            # With the rule allowed, a directory around the socket still has to be a bind root.
            return exact or not part.findings.allows(Rule.DOCKER_SOCKET)
        return False

    def _check_release_file(self, part: Part, real: str, *, writable: bool) -> None:
        root = self.host.real(self.host.project_directory)
        own = (f"{root}/{path}" for path in self.host.own_files)
        if writable and any(_overlap(real, path) for path in own):
            part.refuse(
                Rule.AGENT_FILES,
                "what the agent reads again (compose files, .env, .monky) must be read-only here",
            )


def image_sources(volumes: Part) -> list[Part]:
    """The images that a service's `volumes` mount."""
    found = []
    for entry in volumes.items():
        if isinstance(entry.value, dict) and entry.value.get("type") == "image":
            found += [part for name, part in entry.members() if name == "source"]
    return found


def _check_target(entry: Part, mount: dict[str, Part]) -> None:
    target = mount["target"].text() if "target" in mount else ""
    if not target.startswith("/") or ":" in target:
        # Compose joins source and target with a colon when it asks the engine.
        entry.refuse(
            Rule.BIND_MOUNT,
            f"target {shown(target)} is not an absolute path without a colon",
            setting="",
        )


def _plain(path: str) -> bool:
    return path.startswith("/") and path.isprintable() and ":" not in path and ".." not in _p(path)


def _p(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _clean(path: str) -> str:
    return "/" + "/".join(_p(path))


def _below(path: str, root: str) -> bool:
    """Whether `path` is `root` or lies below it."""
    return _p(path)[: len(_p(root))] == _p(root)


def _overlap(one: str, other: str) -> bool:
    return _below(one, other) or _below(other, one)
