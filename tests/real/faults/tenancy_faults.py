"""Tenancy: the manifest that is fetched, and the reports that are delivered."""

from tests.real.faults import proxy
from tests.real.faults.bench import Bench
from tests.real.faults.matrix import Case, Group
from tests.real.faults.proxy import Fault

NOWHERE = "nowhere.invalid"
_UNREACHABLE = "tenancy can't be reached"
_UNUSABLE = "tenancy's answer can't be used"


def _path(bench: Bench, resource: str) -> str:
    return f"/v1/environments/{bench.world.slug}/{resource}"


def _fetch(fault: Fault, words: str, times: int = 1) -> Case:
    """The manifest of a new generation suffers it on its way."""

    def play(bench: Bench) -> str:
        # Once a request that may be held works, earlier failures no longer count.
        bench.tenancy.next(proxy.NONE, prefix=_path(bench, "manifest")).wait()
        order = bench.tenancy.next(fault, times=times, prefix=_path(bench, "manifest"))
        bench.publish()
        order.wait_to_the_end()
        bench.says(words)
        return words

    return Case("fetch", fault.name, play)


def _fetch_tls(bench: Bench) -> str:
    words = "its certificate has expired"
    with bench.tenancy.suffering(proxy.TLS_EXPIRED):
        bench.says(words)
        bench.publish()
    return words


def _fetch_dns(bench: Bench) -> str:
    words = "the host name can't be resolved"
    bench.configure(tenancy={"host": NOWHERE})
    bench.reload()
    bench.says(words)
    bench.publish()
    bench.configure()
    bench.reload()
    return words


def _report(fault: Fault, *, times: int = 1, sent_again: bool = True) -> Case:
    """The answer to a report suffers it. `sent_again`: the agent can't know that it was taken."""

    def play(bench: Bench) -> str:
        path = _path(bench, "reports")
        order = bench.tenancy.next(fault, times=times, prefix=path)
        again = bench.tenancy.next(proxy.NONE, prefix=path) if sent_again else order
        bench.publish()
        order.wait_to_the_end()
        again.wait()
        if not sent_again:
            return "taken by its status"
        bench.says("reports wait in the outbox")
        bench.says("reports reach tenancy again")
        return "sent again"

    return Case("report", fault.name, play)


def _report_tls(bench: Bench) -> str:
    words = "its certificate has expired"
    with bench.gate("after-up") as gate:
        bench.publish()
        gate.reached()
        with bench.tenancy.suffering(proxy.TLS_EXPIRED):
            gate.open()
            bench.says("reports wait in the outbox")
    return words


def _report_dns(bench: Bench) -> str:
    order = bench.tenancy.next(proxy.TIMEOUT, prefix=_path(bench, "reports"))
    bench.publish()
    order.wait()
    bench.configure(tenancy={"host": NOWHERE})
    bench.reload()
    bench.says("reports wait in the outbox: tenancy can't be reached: " + NOWHERE)
    bench.configure()
    bench.reload()
    return "the host name can't be resolved"


GROUPS = [
    Group(
        "fetch",
        [
            _fetch(proxy.TIMEOUT, _UNREACHABLE),
            _fetch(proxy.RESET, _UNREACHABLE),
            _fetch(proxy.RESET_MID_BODY, _UNREACHABLE),
            _fetch(proxy.SLOW_LORIS, "did not finish its answer"),
            _fetch(proxy.WRONG_TYPE, "text/html"),
            _fetch(proxy.TRUNCATED, "only a part of one"),
        ],
    ),
    Group(
        "fetch-too",
        [
            _fetch(proxy.OVERSIZED, _UNUSABLE),
            _fetch(proxy.BOMB, _UNUSABLE),
            _fetch(proxy.STORM, "not available", times=3),
            _fetch(proxy.BUSY, "not available"),
            _fetch(proxy.RATE_LIMITED, "asks for fewer requests"),
            Case("fetch", "TLS expired", _fetch_tls),
            Case("fetch", "DNS gone", _fetch_dns),
        ],
    ),
    Group(
        "report",
        [
            _report(proxy.TIMEOUT),
            _report(proxy.RESET),
            _report(proxy.RESET_MID_BODY, sent_again=False),
            _report(proxy.TRUNCATED, sent_again=False),
            _report(proxy.SLOW_LORIS, sent_again=False),
            _report(proxy.WRONG_TYPE),
        ],
    ),
    Group(
        "report-too",
        [
            _report(proxy.OVERSIZED),
            _report(proxy.STORM, times=3),
            _report(proxy.BUSY),
            _report(proxy.RATE_LIMITED),
            Case("report", "TLS expired", _report_tls),
            Case("report", "DNS gone", _report_dns),
        ],
    ),
]
