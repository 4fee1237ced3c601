"""OpenBao: the login with the grant, and the secrets that are read."""

from tests.real.faults import proxy
from tests.real.faults.bench import Bench
from tests.real.faults.matrix import Case, Group
from tests.real.faults.proxy import Fault
from tests.real.faults.tenancy_faults import NOWHERE

_PATHS = {"login": "/v1/auth/", "read": "/v1/secret/"}


def _secrets(phase: str, fault: Fault, outcome: str, times: int = 1) -> Case:
    """One exchange of a pass suffers it; the pass is made again by itself, some ten seconds on."""

    def play(bench: Bench) -> None:
        order = bench.openbao.next(fault, times=times, prefix=_PATHS[phase])
        bench.publish()
        bench.told(outcome)
        order.wait_to_the_end()

    return Case(phase, fault.name, play)


def _tls(phase: str, spared: int) -> Case:
    def play(bench: Bench) -> None:
        bench.openbao.next(proxy.TLS_EXPIRED, spared=spared)
        bench.publish()
        assert "certificate has expired" in bench.told("openbao-unreachable")["message"]

    return Case(phase, "TLS expired", play)


def _dns(bench: Bench) -> str:
    bench.configure(openbao={"url": f"https://{NOWHERE}"})
    bench.reload()
    bench.says("configuration reloaded")
    bench.publish()
    assert "can't be resolved" in bench.told("openbao-unreachable")["message"]
    bench.configure()
    bench.reload()
    return "reloaded with a good name"


GROUPS = [
    Group(
        "login",
        [
            _secrets("login", proxy.TIMEOUT, "openbao-unreachable"),
            _secrets("login", proxy.RESET, "openbao-unreachable"),
            _secrets("login", proxy.RESET_MID_BODY, "openbao-unreachable"),
            _secrets("login", proxy.TRUNCATED, "openbao-error"),
        ],
    ),
    Group(
        "login-too",
        [
            _secrets("login", proxy.STORM, "openbao-error"),
            _secrets("login", proxy.WRONG_TYPE, "openbao-error"),
            _secrets("login", proxy.OVERSIZED, "openbao-unreachable"),
            _tls("login", 0),
        ],
    ),
    Group(
        "login-three",
        [
            _secrets("login", proxy.BOMB, "openbao-unreachable"),
            Case("login", "DNS gone", _dns),
            _tls("read", 1),
            _secrets("login", proxy.SLOW_LORIS, "openbao-unreachable"),
        ],
    ),
    Group(
        "read",
        [
            _secrets("read", proxy.TIMEOUT, "openbao-unreachable"),
            _secrets("read", proxy.RESET_MID_BODY, "openbao-unreachable"),
            _secrets("read", proxy.TRUNCATED, "openbao-error"),
            _secrets("read", proxy.OVERSIZED, "openbao-unreachable"),
        ],
    ),
    Group(
        "read-too",
        [
            _secrets("read", proxy.STORM, "openbao-error"),
            _secrets("read", proxy.WRONG_TYPE, "openbao-error"),
            _secrets("read", proxy.BUSY, "openbao-error"),
            _secrets("read", proxy.SLOW_LORIS, "openbao-unreachable"),
        ],
    ),
]
