"""The registry: an image that the engine pulls, and what the engine makes of it."""

from contextlib import closing

from tests.real.faults import proxy
from tests.real.faults.bench import Bench
from tests.real.faults.matrix import Case, Group
from tests.real.faults.proxy import Fault, FaultProxy
from tests.real.faults.tenancy_faults import NOWHERE
from tests.unit.pki import Authority


def _pull(fault: Fault, what: str, *, times: int = 1) -> Case:
    """The manifest or the layer of a new image suffers it. The engine has a patience of its own:
    what it does not mend itself, the agent tells, and tries again."""

    def play(bench: Bench) -> str:
        prefix = f"/v2/{bench.world.slug}/part/{what}s/"
        order = bench.registry.next(fault, times=times, prefix=prefix)
        bench.publish(part=bench.image(f"{fault.name}-{what}".replace(" ", "-").lower()))
        order.wait_to_the_end()
        if fault is proxy.TIMEOUT:
            # The engine has no time limit for this. The agent has, and its next pull would join
            # the one that hangs: something has to break the connection off.
            bench.told("pull-failed")
            order.end()
        return f"{what} of an image"

    return Case("pull", f"{fault.name}, {what}", play)


def _dns(bench: Bench) -> str:
    bench.publish(part=f"{NOWHERE}/part:1")
    [error] = bench.told("pull-failed")["errors"]
    bench.publish(part=bench.image("dns"))
    return str(error["kind"])


def _tls_expired(bench: Bench) -> str:
    authority = Authority(bench.world.base / "registry-ca")
    with (
        # On a loopback address the engine would take any certificate.
        bench.gateway() as address,
        closing(FaultProxy(bench.registry.host, authority, address=address)) as registry,
    ):
        order = registry.next(proxy.TLS_EXPIRED, times=1_000_000)
        bench.publish(part=f"{registry.host}/part:1")
        [error] = bench.told("pull-failed")["errors"]
        order.wait()
    assert "certificate has expired" in error["message"], error
    bench.publish(part=bench.image("tls"))
    return str(error["kind"])


def _busy_for_long(fault: Fault) -> Case:
    def play(bench: Bench) -> str:
        part = bench.image(f"long-{fault.name[:3]}")
        with bench.registry.suffering(fault):
            bench.publish(part=part)
            errors = bench.told("pull-failed")["errors"]
        return ", ".join(sorted({error["kind"] for error in errors}))

    return Case("pull", f"{fault.name}, everything", play)


GROUPS = [
    Group(
        "pull",
        [
            _busy_for_long(proxy.RATE_LIMITED),
            _busy_for_long(proxy.BUSY),
            _pull(proxy.TRUNCATED, "manifest"),
            _pull(proxy.WRONG_TYPE, "manifest"),
        ],
    ),
    Group(
        "pull-too",
        [
            _pull(proxy.RESET, "manifest"),
            _pull(proxy.OVERSIZED, "manifest"),
            _pull(proxy.TIMEOUT, "manifest"),
            Case("pull", "DNS gone", _dns),
            Case("pull", proxy.TLS_EXPIRED.name, _tls_expired),
        ],
    ),
    Group(
        "pull-three",
        [
            _pull(proxy.STORM, "manifest", times=3),
            _pull(proxy.RESET_MID_BODY, "blob"),
            _pull(proxy.TRUNCATED, "blob"),
        ],
    ),
    Group(
        "pull-four",
        [
            _pull(proxy.TIMEOUT, "blob"),
            _pull(proxy.WRONG_TYPE, "blob"),
            _pull(proxy.SLOW_LORIS, "blob"),
        ],
    ),
]
