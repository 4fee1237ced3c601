"""The policy on networks and published ports."""

import ipaddress

from monky_deployd.domain.config import PolicyCfg
from monky_deployd.domain.policy_findings import Part, matches, shown
from monky_deployd.domain.policy_rules import Rule

_NETWORK = {
    "name",
    "driver",
    "driver_opts",
    "ipam",
    "external",
    "internal",
    "attachable",
    "enable_ipv4",
    "enable_ipv6",
    "labels",
}
_IPAM = {"driver", "config", "options"}
_IPAM_CONFIG = {"subnet", "ip_range", "gateway", "aux_addresses"}
_ATTACHMENT = {
    "aliases",
    "ipv4_address",
    "ipv6_address",
    "link_local_ips",
    "mac_address",
    "priority",
    "gw_priority",
    "interface_name",
    "driver_opts",
}
_PORT = {"name", "mode", "host_ip", "target", "published", "protocol", "app_protocol"}
# Other options name a bridge of the host, publish ports past the rules for them, or set sysctls.
_DRIVER_OPTIONS = {
    "com.docker.network.driver.mtu",
    "com.docker.network.bridge.enable_icc",
    "com.docker.network.bridge.enable_ip_masquerade",
}
_EVERY_ADDRESS = "0.0.0.0"


def check_network(key: str, network: Part, project: str, policy: PolicyCfg) -> None:
    """A network of the project."""
    known = network.fields(_NETWORK)
    name = known["name"].text() if "name" in known else f"{project}_{key}"
    external = "external" in known and known["external"].value is not False
    foreign = external or not name.startswith(f"{project}_")
    if foreign and not matches(policy.external_networks, name):
        network.refuse(
            Rule.EXTERNAL_NETWORK, f"network {shown(name)} is not one of this project's own"
        )
    driver = known["driver"].text() if "driver" in known else ""
    if driver and not matches(policy.network_drivers, driver):
        known["driver"].refuse(Rule.NETWORK_DRIVER, f"network driver {shown(driver)}")
    if "driver_opts" in known:
        for option, part in known["driver_opts"].pairs():
            if option not in _DRIVER_OPTIONS:
                part.refuse(Rule.NETWORK_OPTIONS, "this option reaches beyond the network itself")
    if "ipam" in known:
        _check_ipam(known["ipam"], policy)


def check_attachments(networks: Part) -> None:
    """A service's `networks`."""
    for _, attachment in networks.pairs():
        if "driver_opts" in (known := attachment.fields(_ATTACHMENT)):
            for _, part in known["driver_opts"].pairs():
                part.refuse(Rule.NETWORK_OPTIONS, "this option reaches beyond the network itself")


def check_network_mode(mode: Part, policy: PolicyCfg) -> None:
    """A service's `network_mode`: a namespace, or a network by name."""
    text = mode.text()
    if text == "host":
        mode.refuse(Rule.HOST_NAMESPACE, "the host's own network")
    elif text.startswith("container:"):
        mode.refuse(Rule.FOREIGN_CONTAINER, f"{shown(text)} is not a service of this project")
    elif text.startswith("service:") or text in {"", "none", "bridge", "default"}:
        return
    elif not matches(policy.external_networks, text):
        mode.refuse(
            Rule.EXTERNAL_NETWORK, f"network {shown(text)} is not one of this project's own"
        )


def check_ports(ports: Part, policy: PolicyCfg) -> None:
    """A service's `ports`. One without `published` gets a free high port from the engine."""
    for entry in ports.items():
        known = entry.fields(_PORT)
        published = known["published"].text() if "published" in known else ""
        if published:
            _check_published(known["published"], published, policy.lowest_port)
        address = known["host_ip"].text() if "host_ip" in known else ""
        if not matches(policy.port_addresses, _address(address)):
            entry.refuse(
                Rule.PORT_ADDRESS, f"publishes on {_address(address)}, not an allowed address"
            )


def _check_published(part: Part, published: str, lowest: int) -> None:
    first = published.partition("-")[0]
    if not (first.isascii() and first.isdecimal()):
        part.refuse(Rule.PORT, f"{shown(published)} is not a port or a range of ports", setting="")
    # 0 alone asks for a free high port.
    elif int(first[:9]) < lowest and published != "0":
        part.refuse(Rule.PORT, f"port {first} is below {lowest}, the lowest that is allowed")


def _address(text: str) -> str:
    """The address in its one usual form; every way to say "all of them" is 0.0.0.0."""
    try:
        address = ipaddress.ip_address(text.strip("[]") or _EVERY_ADDRESS)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return _EVERY_ADDRESS if address.is_unspecified else str(address)


def _check_ipam(ipam: Part, policy: PolicyCfg) -> None:
    known = ipam.fields(_IPAM)
    driver = known["driver"].text() if "driver" in known else ""
    if driver not in {"", "default"}:
        known["driver"].refuse(Rule.NETWORK_OPTIONS, f"address driver {shown(driver)}")
    if "options" in known:
        for _, part in known["options"].pairs():
            part.refuse(Rule.NETWORK_OPTIONS, "this option reaches beyond the network itself")
    if "config" in known:
        for entry in known["config"].items():
            if "subnet" in (fields := entry.fields(_IPAM_CONFIG)):
                _check_subnet(fields["subnet"], policy)


def _check_subnet(subnet: Part, policy: PolicyCfg) -> None:
    """The host routes a network's subnet to its bridge: it must not be somebody else's."""
    try:
        wanted = ipaddress.ip_network(subnet.text(), strict=False)
    except ValueError:
        subnet.refuse(Rule.SUBNET, f"{shown(subnet.text())} is not a subnet")
        return
    first, last = int(wanted.network_address), int(wanted.broadcast_address)
    for allowed in map(ipaddress.ip_network, policy.subnets):
        inside = int(allowed.network_address) <= first and last <= int(allowed.broadcast_address)
        if inside and allowed.version == wanted.version:
            return
    subnet.refuse(Rule.SUBNET, f"{shown(subnet.text())} lies outside of the allowed subnets")
