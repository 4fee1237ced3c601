"""The rules of the host's policy: each one's name, and how the host's owner allows what it refuses.

OPERATIONS.md, "Host policy", explains each; a test holds the list whole.
"""

from enum import StrEnum


class Rule(StrEnum):
    """What the policy can refuse. The name stands in messages and in `policy.allow`."""

    UNREADABLE_SOURCE = "unreadable-source"
    REMOTE_SOURCE = "remote-source"
    OUTSIDE_FILE = "outside-file"
    UNKNOWN_KEY = "unknown-key"
    PROJECT = "project"

    REGISTRY = "registry"
    DIGEST = "digest"
    BUILD = "build"

    PRIVILEGED = "privileged"
    CAPABILITY = "capability"
    SECURITY_OPT = "security-opt"
    SYSCTL = "sysctl"
    DEVICE = "device"
    GPU = "gpu"
    RUNTIME = "runtime"
    HOST_NAMESPACE = "host-namespace"
    FOREIGN_CONTAINER = "foreign-container"
    CGROUP_PARENT = "cgroup-parent"
    OOM = "oom"
    CREDENTIAL_SPEC = "credential-spec"
    LOG_DRIVER = "log-driver"
    RESERVED_LABEL = "reserved-label"

    DOCKER_SOCKET = "docker-socket"
    BIND_MOUNT = "bind-mount"
    BIND_NESTED = "bind-nested"
    BIND_PROPAGATION = "bind-propagation"
    AGENT_FILES = "agent-files"
    VOLUME_DRIVER = "volume-driver"
    EXTERNAL_VOLUME = "external-volume"

    PORT = "port"
    PORT_ADDRESS = "port-address"
    EXTERNAL_NETWORK = "external-network"
    NETWORK_DRIVER = "network-driver"
    NETWORK_OPTIONS = "network-options"
    SUBNET = "subnet"

    PROVIDER = "provider"
    MODELS = "models"


# What no setting allows: without these rules nothing else could be checked.
FIXED = {
    Rule.UNREADABLE_SOURCE: "publish plain YAML under 1 MiB, with Compose's own tags only",
    Rule.REMOTE_SOURCE: "publish the file in the manifest; no setting allows this",
    Rule.AGENT_FILES: "mount something else, or read-only; no setting allows this",
}

# The setting that allows one thing, where there is one; else the rule is named in policy.allow.
SETTINGS = {
    Rule.PROJECT: "projects",
    Rule.REGISTRY: "registries",
    Rule.DIGEST: "require_digests",
    Rule.CAPABILITY: "capabilities",
    Rule.SECURITY_OPT: "security_opt",
    Rule.SYSCTL: "sysctls",
    Rule.DEVICE: "devices",
    Rule.LOG_DRIVER: "log_drivers",
    Rule.OUTSIDE_FILE: "bind_roots",
    Rule.BIND_MOUNT: "bind_roots",
    Rule.VOLUME_DRIVER: "volume_drivers",
    Rule.EXTERNAL_VOLUME: "external_volumes",
    Rule.PORT: "lowest_port",
    Rule.PORT_ADDRESS: "port_addresses",
    Rule.EXTERNAL_NETWORK: "external_networks",
    Rule.NETWORK_DRIVER: "network_drivers",
    Rule.SUBNET: "subnets",
}


def remedy(rule: Rule, setting: str | None = None) -> str:
    """How what `rule` refuses is allowed, for an operator; `setting` where it is another one."""
    if rule in FIXED:
        return FIXED[rule]
    setting = setting if setting is not None else SETTINGS.get(rule, "")
    if setting:
        return f"the host's owner allows it with policy.{setting} in the configuration"
    return f"the host's owner allows it with {rule.value} in policy.allow in the configuration"
