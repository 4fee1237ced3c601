"""Compose's model check cuts values up and quotes the parts: none of a secret's comes through."""

import asyncio
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from monky_deployd.clients.compose import ComposeCli, Project
from monky_deployd.domain.config import DockerCfg
from monky_deployd.domain.dotenv import render_dotenv
from monky_deployd.domain.secret import MASK, Scrubber, Secret
from monky_deployd.errors import ComposeError
from tests.real.world import World

pytestmark = pytest.mark.real

V = "${VALUE}"

# What a service takes whose values Compose checks.
SERVICE: dict[str, Mapping[str, Any]] = {
    "ports": {"ports": [V]},
    "ports-host": {"ports": [f"{V}:80:80"]},
    "ports-published": {"ports": [f"127.0.0.1:{V}:80"]},
    "ports-target": {"ports": [f"80:{V}"]},
    "ports-long-target": {"ports": [{"target": V}]},
    "ports-long-address": {"ports": [{"target": 80, "host_ip": V}]},
    "expose": {"expose": [V]},
    "volumes": {"volumes": [V]},
    "volumes-source": {"volumes": [f"{V}:/data"]},
    "volumes-mode": {"volumes": [f"/data:/data:{V}"]},
    "volumes-tmpfs": {
        "volumes": [{"type": "tmpfs", "target": "/data", "tmpfs": {"size": V, "mode": V}}]
    },
    "volumes-from": {"volumes_from": [V]},
    "tmpfs": {"tmpfs": V},
    "devices": {"devices": [V]},
    "mem-limit": {"mem_limit": V},
    "memswap-limit": {"memswap_limit": V},
    "shm-size": {"shm_size": V},
    "cpus": {"cpus": V},
    "cpu-shares": {"cpu_shares": V},
    "pids-limit": {"pids_limit": V},
    "oom-score-adj": {"oom_score_adj": V},
    "blkio-weight": {"blkio_config": {"weight": V}},
    "blkio-rate": {"blkio_config": {"device_read_bps": [{"path": "/dev/sda", "rate": V}]}},
    "ulimits": {"ulimits": {"nofile": V}},
    "ulimits-soft": {"ulimits": {"nofile": {"soft": V, "hard": 5}}},
    "extra-hosts": {"extra_hosts": [V]},
    "extra-hosts-map": {"extra_hosts": {"db": V}},
    "dns": {"dns": [V]},
    "sysctls": {"sysctls": [V]},
    "sysctls-map": {"sysctls": {"net.ipv4.ip_forward": V}},
    "user": {"user": V},
    "group-add": {"group_add": [V]},
    "healthcheck-interval": {"healthcheck": {"test": ["CMD", "true"], "interval": V}},
    "healthcheck-retries": {"healthcheck": {"test": ["CMD", "true"], "retries": V}},
    "healthcheck-test": {"healthcheck": {"test": [V]}},
    "healthcheck-disable": {"healthcheck": {"disable": V}},
    "stop-grace-period": {"stop_grace_period": V},
    "stop-signal": {"stop_signal": V},
    "restart": {"restart": V},
    "pull-policy": {"pull_policy": V},
    "platform": {"platform": V},
    "image": {"image": V},
    "image-tag": {"image": f"app:{V}"},
    "logging-driver": {"logging": {"driver": V}},
    "logging-options": {"logging": {"driver": "json-file", "options": {"max-size": V}}},
    "deploy-memory": {"deploy": {"resources": {"limits": {"memory": V}}}},
    "deploy-cpus": {"deploy": {"resources": {"limits": {"cpus": V}}}},
    "deploy-pids": {"deploy": {"resources": {"limits": {"pids": V}}}},
    "deploy-replicas": {"deploy": {"replicas": V}},
    "deploy-delay": {"deploy": {"restart_policy": {"delay": V}}},
    "scale": {"scale": V},
    "privileged": {"privileged": V},
    "init": {"init": V},
    "network-mode": {"network_mode": V},
    "networks": {"networks": [V]},
    "network-address": {"networks": {"back": {"ipv4_address": V}}},
    "mac-address": {"mac_address": V},
    "depends-on": {"depends_on": [V]},
    "links": {"links": [V]},
    "env-file": {"env_file": [V]},
    "secrets": {"secrets": [V]},
    "configs": {"configs": [V]},
    "secret-mode": {"secrets": [{"source": "known", "mode": V}]},
    "command": {"command": f"{V} 'open"},
    "extends": {"extends": {"service": V}},
    "extends-file": {"extends": {"file": V, "service": "web"}},
}
# And what stands beside the services.
BESIDE: dict[str, Mapping[str, Any]] = {
    "external-network": {"networks": {"back": {"external": V}}},
    "subnet": {"networks": {"back": {"ipam": {"config": [{"subnet": V}]}}}},
    "external-volume": {"volumes": {"data": {"external": V}}},
    "required": {"x-note": f"${{NOT_THERE:?{V}}}"},
    "include": {"include": [V]},
}

# Cut at each separator, before the last letter, and in lower case.
VALUES = {
    "address": "Qx7kWv9z:Jq8mZt4y/xK3vwq",
    "size": "Qx7kWv9z Jq8m;Zt4y|xk",
    "quoted": 'qx7k"wv9z\\jq8m\'zt4y"xk3v',
    "no-separator": "Qx7kWv9zJq8mZt4yxkvw",
}
LONGEST_PART = 3


def parts_in(text: str, secret: str) -> set[str]:
    """Each part of `secret` that is longer than may be seen, and stands in `text`."""
    size = LONGEST_PART + 1
    parts = {secret[start : start + size] for start in range(len(secret) - size + 1)}
    return {part for part in parts if part.lower() in text.lower()}


def models() -> dict[str, dict[str, Any]]:
    rest = {"networks": {"back": {}}, "secrets": {"known": {"environment": "VALUE"}}}
    of_services = {
        name: {"services": {"web": {"image": "app", **service}}, **rest}
        for name, service in SERVICE.items()
    }
    beside = {
        name: {"services": {"web": {"image": "app"}}, **part} for name, part in BESIDE.items()
    }
    return {**of_services, **beside}


async def refusals(directory: Path, compose: ComposeCli, secret: str) -> dict[str, str]:
    """Compose's words on each model that it refuses, with `secret` as the value."""
    (directory / ".env").write_bytes(render_dotenv({"VALUE": Secret(secret)}))
    at_once = asyncio.Semaphore(4)
    found = {}

    async def check(name: str, model: Mapping[str, Any]) -> None:
        (directory / f"{name}.json").write_text(json.dumps(model))
        async with at_once:
            try:
                await compose.model(Project("shop", directory, (f"{name}.json",)))
            except ComposeError as error:
                found[name] = str(error)

    await compose.version()
    await asyncio.gather(*(check(name, model) for name, model in models().items()))
    return found


@pytest.fixture(params=["installed", "2.26.1"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A state directory whose DOCKER_CONFIG gives one of the two Composes."""
    plugins = tmp_path / "state/docker/cli-plugins"
    plugins.mkdir(parents=True)
    if request.param == "2.26.1":
        (plugins / "docker-compose").symlink_to(request.getfixturevalue("compose_226"))
    return tmp_path / "state"


@pytest.mark.usefixtures("docker_env")
@pytest.mark.parametrize("secret", VALUES.values(), ids=VALUES)
async def test_no_part_of_a_secret_is_in_what_compose_says_of_a_model(
    secret: str, state: Path, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    release = state / "release"
    release.mkdir()
    compose = ComposeCli(DockerCfg(socket=str(engine.socket)), state, Scrubber([Secret(secret)]))

    found = await refusals(release, compose, secret)

    assert len(found) > 30
    assert {name: cut for name, words in found.items() if (cut := parts_in(words, secret))} == {}
    assert parts_in(caplog.text, secret) == set()
    # The rest is still Compose's own words.
    assert "'services[web].mem_limit'" in found["mem-limit"]
    assert MASK in found["mem-limit"]


@pytest.mark.usefixtures("docker_env")
async def test_a_value_like_one_of_composes_own_words_does_not_break_its_lines(
    engine: Any, tmp_path: Path
) -> None:
    (tmp_path / ".env").touch()
    model = {"services": {"web": {"image": "app", "mem_limit": "x1y"}}}
    (tmp_path / "model.json").write_text(json.dumps(model))
    scrubber = Scrubber([Secret("true"), Secret("error")])
    compose = ComposeCli(DockerCfg(socket=str(engine.socket)), tmp_path, scrubber)
    with pytest.raises(ComposeError, match="compose files: decoding failed"):
        await compose.model(Project("shop", tmp_path, ("model.json",)))


@pytest.mark.parametrize(
    ("value", "service", "outcome"),
    [
        ("Qx7k:wv9z", {"ports": [V]}, "compose-invalid"),
        ("Qx7k:wv9z", {"volumes": [V]}, "compose-invalid"),
        ("Qx7kWv9zjq", {"mem_limit": V}, "compose-invalid"),
        ("/qx7k/wv9z:/jq8m", {"volumes": [V]}, "policy-refused"),
        ("10.99.88.77:812:80", {"ports": [V]}, "policy-refused"),
        ("/dev/qx7k:/dev/wv9z", {"devices": [V]}, "policy-refused"),
    ],
    ids=["ports", "volumes", "mem-limit", "bind-mount", "port-address", "device"],
)
def test_no_part_of_a_secret_leaves_the_agent(
    world: World, value: str, service: dict[str, Any], outcome: str
) -> None:
    policy = {"port_addresses": ["127.0.0.1"], "lowest_port": 60000}
    world.configure(log={"level": "debug"}, policy=policy)
    path = world.put("cut", {"value": value})
    web = {"image": "app", **service}
    world.publish(1, {"web": web}, entries=[{"name": "VALUE", "path": path}])

    ran = world.once()

    assert ran.json["outcome"] == outcome
    database = b"".join(file.read_bytes() for file in world.state.glob("state.db*"))
    seen = ran.stdout + ran.stderr + json.dumps(world.tenancy.received(world.slug))
    # The time of day may well have four digits and colons in common with an address.
    timeless = re.sub(r"\d\d:\d\d:\d\d(\.\d+)?", "", seen + database.decode("latin-1"))
    assert parts_in(timeless, value) == set()
