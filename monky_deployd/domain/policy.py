"""The host's policy on a resolved compose model (`docker compose config --format json`).

Anchors, merges, includes, interpolation and short syntax are gone there. Every key of the
Compose Specification has its place below, harmless, checked or refused; any other one is
refused by the rule unknown-key, so that a newer Compose opens no hole. What the model no longer
shows, `domain.policy_sources` checks in the files.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from monky_deployd.domain import policy_keys as keys
from monky_deployd.domain.config import PolicyCfg
from monky_deployd.domain.policy_findings import Findings, Part, Violation, matches, shown
from monky_deployd.domain.policy_mounts import Host, Mounts, image_sources
from monky_deployd.domain.policy_networks import (
    check_attachments,
    check_network,
    check_network_mode,
    check_ports,
)
from monky_deployd.domain.policy_rules import Rule
from monky_deployd.domain.registry_auth import registry_of_image
from monky_deployd.errors import PolicyError

_SHOWN = 3

_NO_NEW_PRIVILEGES = {"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}
_RESERVED_LABELS = ("com.docker.compose.", "dev.monky.")
# What each namespace may be besides unset and `service:…`.
_NAMESPACES = {
    "pid": set[str](),
    "ipc": {"none", "private", "shareable"},
    "uts": set[str](),
    "userns_mode": set[str](),
    "cgroup": {"private"},
}
_REFUSED = {
    "build": (Rule.BUILD, "nothing is built on a host; publish an image"),
    "annotations": (Rule.RUNTIME, "annotations steer the container runtime"),
    "runtime": (Rule.RUNTIME, "a container runtime other than the engine's own choice"),
    "cgroup_parent": (Rule.CGROUP_PARENT, "a control group of the host's"),
    "credential_spec": (Rule.CREDENTIAL_SPEC, "a credential of the host's"),
    "device_cgroup_rules": (Rule.DEVICE, "access to devices by number"),
    "external_links": (Rule.FOREIGN_CONTAINER, "containers outside of this project"),
    "gpus": (Rule.GPU, "the host's GPUs"),
    "models": (Rule.MODELS, "Compose would run a plugin of the host's for it"),
    "provider": (Rule.PROVIDER, "Compose would run a program of the host's for it"),
}


def check_model(
    model: Mapping[str, Any],
    policy: PolicyCfg,
    *,
    project_directory: str,
    real_path: Callable[[str], str | None],
    docker_socket: str = "/var/run/docker.sock",
    own_files: Collection[str] = (),
    private: Collection[str] = (),
) -> tuple[Violation, ...]:
    """Everything in the resolved `model` that `policy` refuses; never raises.

    `project_directory` is the release's, as it stands in the model. The other arguments are
    `policy_mounts.Host`'s. No message holds more of the model than names, images, paths and
    the refused settings themselves.
    """
    host = Host(project_directory, real_path, docker_socket, own_files, private)
    check = _Check(model, policy, host)
    check.run()
    return check.findings.all()


def refusal(violations: Sequence[Violation]) -> PolicyError:
    """The error for a release with `violations`: how many there are, and the first ones."""
    told = " | ".join(item.message for item in violations[:_SHOWN])
    more = f" | and {len(violations) - _SHOWN} more" if len(violations) > _SHOWN else ""
    count = "one thing" if len(violations) == 1 else f"{len(violations)} things"
    return PolicyError(
        f"the host's policy refuses {count}: {told}{more}",
        [(item.service, item.message, item.remedy) for item in violations],
    )


@dataclass
class _Check:
    model: Mapping[str, Any]
    policy: PolicyCfg
    host: Host
    findings: Findings = field(init=False)
    mounts: Mounts = field(init=False)

    def __post_init__(self) -> None:
        self.findings = Findings(self.policy)
        self._project = str(self.model.get("name") or "")
        self.mounts = Mounts(self.policy, self.host, self._project)
        self._keys: dict[str, Callable[[Part], None]] = {
            "cap_add": self._cap_add,
            "deploy": self._deploy,
            "devices": self._devices,
            "image": self._image,
            "isolation": self._isolation,
            "labels": _labels,
            "logging": self._logging,
            "network_mode": lambda part: check_network_mode(part, self.policy),
            "networks": check_attachments,
            "oom_kill_disable": _oom_kill_disable,
            "oom_score_adj": _oom_score_adj,
            "ports": lambda part: check_ports(part, self.policy),
            "post_start": _hooks,
            "pre_stop": _hooks,
            "privileged": _privileged,
            "pull_policy": _pull_policy,
            "security_opt": self._security_opt,
            "sysctls": self._sysctls,
            "use_api_socket": _use_api_socket,
            "volumes": self._volumes,
            "volumes_from": _volumes_from,
            **{name: partial(_namespace, name) for name in _NAMESPACES},
            **{name: partial(_refused, name) for name in _REFUSED},
        }

    def run(self) -> None:
        top = Part(dict(self.model), "", self.findings).fields(keys.TOP_LEVEL)
        if not matches(self.policy.projects, self._project):
            what = f"the project {shown(self._project)} is not one of this host's"
            self.findings.add(Rule.PROJECT, "name", what)
        for name, service in _named(top, "services"):
            self._service(name, service)
        for name, network in _named(top, "networks"):
            check_network(name, network, self._project, self.policy)
            _labels_in(network)
        for name, volume in _named(top, "volumes"):
            self.mounts.check_volume(name, volume)
            _labels_in(volume)
        for section in ("secrets", "configs"):
            for _, definition in _named(top, section):
                self.mounts.check_file(definition)
        for _, model in _named(top, "models"):
            _refused("models", model)
        self.mounts.check_together()

    def _service(self, name: str, service: Part) -> None:
        service = Part(service.value, service.path, self.findings, name)
        for key, part in service.fields(keys.HARMLESS | self._keys.keys()).items():
            if key in self._keys:
                self._keys[key](part)

    def _image(self, part: Part) -> None:
        image = part.text()
        registry = registry_of_image(image)
        repository = image.partition("@")[0].removeprefix(f"{registry}/")
        allowed = self.policy.registries
        hosts = [pattern for pattern in allowed if "/" not in pattern]
        paths = [pattern for pattern in allowed if "/" in pattern]
        if not matches(hosts, registry) and not matches(paths, f"{registry}/{repository}"):
            part.refuse(Rule.REGISTRY, f"image {shown(image)} is not from an allowed registry")
        if self.policy.require_digests and "@sha256:" not in image:
            part.refuse(Rule.DIGEST, f"image {shown(image)} is not named by digest")

    def _volumes(self, part: Part) -> None:
        self.mounts.check_service(part)
        for image in image_sources(part):
            self._image(image)

    def _cap_add(self, part: Part) -> None:
        allowed = {name.upper().removeprefix("CAP_") for name in self.policy.capabilities}
        for item in part.items():
            name = item.text().upper().removeprefix("CAP_")
            if name not in keys.DEFAULT_CAPABILITIES and not matches(allowed, name):
                what = f"capability {shown(item.text())} is not a default one"
                item.refuse(Rule.CAPABILITY, what)

    def _security_opt(self, part: Part) -> None:
        for item in part.items():
            option = item.text()
            if option not in _NO_NEW_PRIVILEGES and not matches(self.policy.security_opt, option):
                item.refuse(Rule.SECURITY_OPT, f"security option {shown(option)}")

    def _sysctls(self, part: Part) -> None:
        for name, item in part.pairs():
            words = name.replace("/", ".").split(".")
            plain = all(word.replace("_", "").replace("-", "").isalnum() for word in words)
            if not plain or not matches(self.policy.sysctls, ".".join(words)):
                item.refuse(Rule.SYSCTL, f"kernel parameter {shown(name)}")

    def _devices(self, part: Part) -> None:
        for item in part.items():
            if isinstance(item.value, dict):
                fields = item.fields(keys.DEVICE)
                source = fields["source"].text() if "source" in fields else ""
            else:
                source = item.text().partition(":")[0]
            if ".." in source.split("/") or not matches(self.policy.devices, source):
                item.refuse(Rule.DEVICE, f"device {shown(source)} of the host's")

    def _isolation(self, part: Part) -> None:
        if part.text() not in {"", "default"}:
            part.refuse(Rule.RUNTIME, f"isolation {shown(part.text())}")

    def _logging(self, part: Part) -> None:
        known = part.fields(keys.LOGGING)
        driver = known["driver"].text() if "driver" in known else ""
        if driver:
            if not matches(self.policy.log_drivers, driver):
                known["driver"].refuse(Rule.LOG_DRIVER, f"log driver {shown(driver)}")
        elif "options" in known:
            # These go to whatever driver the engine has as its default.
            for option, value in known["options"].pairs():
                if option not in keys.LOG_OPTIONS:
                    value.refuse(
                        Rule.LOG_DRIVER, "this option needs the log driver to be named with it"
                    )

    def _deploy(self, part: Part) -> None:
        known = part.fields(keys.DEPLOY)
        if "labels" in known:
            _labels(known["labels"])
        if "resources" in known:
            for amounts in known["resources"].fields(keys.RESOURCES).values():
                if "devices" in (fields := amounts.fields(keys.AMOUNTS)):
                    for item in fields["devices"].items():
                        item.refuse(Rule.GPU, "devices of the host's, such as its GPUs")


def _named(top: Mapping[str, Part], section: str) -> list[tuple[str, Part]]:
    """The members of a section, those that are null among them, with their names as they are."""
    part = top.get(section)
    if part is None:
        return []
    if not isinstance(part.value, dict):
        return list(part.members())
    return [
        (str(name), Part(value, f"{section}.{name}", part.findings))
        for name, value in part.value.items()
    ]


def _refused(name: str, part: Part) -> None:
    rule, what = _REFUSED[name]
    if part.value not in ([], {}, "", False):
        part.refuse(rule, what, setting="")


def _privileged(part: Part) -> None:
    if part.value is not False:
        part.refuse(Rule.PRIVILEGED, "a privileged container is root on the host")


def _use_api_socket(part: Part) -> None:
    if part.value is not False:
        part.refuse(Rule.DOCKER_SOCKET, "it mounts the engine's socket, whose holder is root")


def _hooks(part: Part) -> None:
    for hook in part.items():
        if "privileged" in (known := hook.fields(keys.HOOK)):
            _privileged(known["privileged"])


def _namespace(name: str, part: Part) -> None:
    text = part.text()
    if text.startswith("container:"):
        part.refuse(Rule.FOREIGN_CONTAINER, f"{shown(text)} is not a service of this project")
    elif text and not text.startswith("service:") and text not in _NAMESPACES[name]:
        part.refuse(Rule.HOST_NAMESPACE, f"{shown(text)} is not a namespace of the container's own")


def _volumes_from(part: Part) -> None:
    for item in part.items():
        if item.text().startswith("container:"):
            what = f"{shown(item.text())} is not a service of this project"
            item.refuse(Rule.FOREIGN_CONTAINER, what)


def _pull_policy(part: Part) -> None:
    if part.text() == "build":
        _refused("build", part)


def _oom_kill_disable(part: Part) -> None:
    if part.value is not False:
        part.refuse(Rule.OOM, "the kernel would kill the host's own processes in its place")


def _oom_score_adj(part: Part) -> None:
    if isinstance(part.value, bool) or not isinstance(part.value, int) or part.value < 0:
        part.refuse(Rule.OOM, "the kernel would kill the host's own processes in its place")


def _labels_in(part: Part) -> None:
    for name, labels in part.members() if isinstance(part.value, dict) else ():
        if name == "labels":
            _labels(labels)


def _labels(part: Part) -> None:
    for prefix in _RESERVED_LABELS:
        if any(name.startswith(prefix) for name, _ in part.pairs()):
            part.refuse(
                Rule.RESERVED_LABEL, f"labels {prefix}* are Compose's or the agent's to set"
            )
