"""The keys of the Compose Specification (of Compose 2.26 to 2.40) that the policy knows.

A key that stands neither here nor among the checks of `domain.policy` is refused.
"""

TOP_LEVEL = {"name", "version", "services", "networks", "volumes", "secrets", "configs", "models"}

# Keys of a service that change nothing outside of its container, or that `up` ignores
# (`develop`). A group (`group_add`) gives a container's root nothing that it doesn't have.
HARMLESS = frozenset(
    {
        "attach",
        "blkio_config",
        "cap_drop",
        "command",
        "configs",
        "container_name",
        "cpu_count",
        "cpu_percent",
        "cpu_period",
        "cpu_quota",
        "cpu_rt_period",
        "cpu_rt_runtime",
        "cpu_shares",
        "cpus",
        "cpuset",
        "depends_on",
        "develop",
        "dns",
        "dns_opt",
        "dns_search",
        "domainname",
        "entrypoint",
        "env_file",
        "environment",
        "expose",
        "extra_hosts",
        "group_add",
        "healthcheck",
        "hostname",
        "init",
        "label_file",
        "links",
        "mac_address",
        "mem_limit",
        "mem_reservation",
        "mem_swappiness",
        "memswap_limit",
        "pids_limit",
        "platform",
        "profiles",
        "pull_refresh_after",
        "read_only",
        "restart",
        "scale",
        "secrets",
        "shm_size",
        "stdin_open",
        "stop_grace_period",
        "stop_signal",
        "storage_opt",
        "tmpfs",
        "tty",
        "ulimits",
        "user",
        "working_dir",
    }
)

DEPLOY = {
    "mode",
    "endpoint_mode",
    "replicas",
    "labels",
    "rollback_config",
    "update_config",
    "resources",
    "restart_policy",
    "placement",
}
RESOURCES = {"limits", "reservations"}
AMOUNTS = {"cpus", "memory", "pids", "devices", "generic_resources"}
DEVICE = {"source", "target", "permissions"}
HOOK = {"command", "user", "privileged", "working_dir", "environment"}
LOGGING = {"driver", "options"}

# Options that mean no more with any log driver than how its files or lines look.
LOG_OPTIONS = {"max-size", "max-file", "compress", "mode", "max-buffer-size", "tag", "labels"}

# What a container has without asking, so that `cap_drop: ALL` and a few of these are ordinary.
DEFAULT_CAPABILITIES = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "NET_RAW",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
