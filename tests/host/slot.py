"""What a lab host holds on the machine that it shares: a number, a network, control groups."""

import fcntl
import ipaddress
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CGROUPS = Path("/sys/fs/cgroup")
# RFC 2544: for benchmarks, so that no real network of the machine is hidden.
_ALL_NETWORKS = ipaddress.ip_network("198.18.0.0/15")
_SLOT_PREFIX = 20
_RELEASE_SECONDS = 10.0
_RELEASE_POLL_SECONDS = 0.1


class NoSlotError(Exception):
    """Every slot is taken by a running lab host."""


@dataclass(frozen=True)
class Slot:
    """A number that no other running lab host has, and what is named after it.

    The hosts share one network namespace with each other and with the machine's own Docker.
    Hence each has a bridge and a range of addresses of its own, and its dockerd writes no
    firewall rules: two of them would flush each other's chains.
    """

    number: int
    network: ipaddress.IPv4Network
    _lock: IO[str]

    @classmethod
    def claim(cls, directory: Path) -> "Slot":
        """Take a free slot and remove what a killed run left in it.

        The lock files are in `directory`. NoSlotError if none is free.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for number, network in enumerate(_ALL_NETWORKS.subnets(new_prefix=_SLOT_PREFIX)):
            lock = (directory / str(number)).open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                slot = cls(number, ipaddress.IPv4Network(network), lock)
                slot.clear()
            except OSError:
                # Held by another run, or its host is still shutting down.
                lock.close()
                continue
            return slot
        raise NoSlotError(f"every lab slot in {directory} is taken by a running host")

    @property
    def name(self) -> str:
        """The host's name, and that of its control groups."""
        return f"monky-lab-{self.number}"

    @property
    def bridge(self) -> str:
        """The bridge behind Docker's default network."""
        return f"monkylab{self.number}"

    def docker_config(self) -> dict[str, object]:
        """The daemon.json of the host's dockerd.

        Published ports work through the userland proxy. `"bridge": "none"` is no alternative:
        a dockerd with it deletes docker0 when it starts, which is the machine's own.
        """
        _, projects = self.network.subnets(prefixlen_diff=1)
        return {
            "bridge": self.bridge,
            "default-address-pools": [{"base": str(projects), "size": 26}],
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
        }

    def add_network(self) -> None:
        """Make the bridge, and let the host's containers reach each other over bridges."""
        gateway = next(self.network.hosts())
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        _run("ip", "address", "add", f"{gateway}/24", "dev", self.bridge)
        _run("ip", "link", "set", self.bridge, "up")
        # Where br_netfilter is loaded, the machine's own Docker drops bridged packets.
        _run("iptables", "--wait", "--append", "FORWARD", *self._own_traffic())

    def clear(self) -> None:
        """Remove the networks, the firewall rule and the control groups.

        OSError if a process is left in one of the groups.
        """
        self._remove_cgroups()
        for link in self._links():
            _run("ip", "link", "delete", link)
        while _succeeds("iptables", "--wait", "--check", "FORWARD", *self._own_traffic()):
            _run("iptables", "--wait", "--delete", "FORWARD", *self._own_traffic())

    def release(self) -> None:
        """Clear the slot and give it up. OSError as `clear`, if that stays so for some seconds."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        with self._lock:
            while True:
                try:
                    return self.clear()
                except OSError:
                    # The kernel takes a moment to let go of a group whose last process ended.
                    if time.monotonic() > deadline:
                        raise
                time.sleep(_RELEASE_POLL_SECONDS)

    def _own_traffic(self) -> tuple[str, ...]:
        network = str(self.network)
        return ("--source", network, "--destination", network, "--jump", "ACCEPT")

    def _links(self) -> list[str]:
        """The bridge, and those that Compose projects made: by address, for their names vary."""
        links = json.loads(_run("ip", "-json", "-4", "address", "show", "type", "bridge"))
        return [
            link["ifname"]
            for link in links
            for address in link.get("addr_info", ())
            if ipaddress.ip_address(address["local"]) in self.network
        ]

    def _remove_cgroups(self) -> None:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, own = line.split(":", 2)
            hierarchy = controllers.removeprefix("name=") or "unified"
            group = CGROUPS / hierarchy / own.lstrip("/") / self.name
            for inner in sorted(group.glob("**/"), reverse=True):
                inner.rmdir()


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def _succeeds(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True).returncode == 0
