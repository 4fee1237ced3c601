"""What sort of fault a message of a registry, the Engine or Compose is about, and a hint beside it.

The message itself is never changed here. Wordings are those of the Docker Engine 20.10 to 28 with
and without the containerd store, of the distribution registry and of Harbor.
"""

import re
from collections.abc import Callable

from monky_deployd.domain.registry_auth import registry_of_image
from monky_deployd.domain.report import ErrorKind, Fault

# What stands before the error proper: who passed it on, and what was asked for.
_PREAMBLE = re.compile(
    r"(?:Error response from daemon: |error from registry: |unable to get image '[^']*': "
    r"|failed to (?:resolve reference|pull and unpack image|copy) \"[^\"]*\": "
    r"|(?:Get|Head|Post) \"?https?://[^\s\"]+\"?: )+"
)

# Decided by how the error begins. Image references come later in these, so that a repository
# called "denied" or "timeout" can't mislead.
_BEGINNINGS = (
    (ErrorKind.RATE_LIMIT, r"toomanyrequests(?::? |:?$)|.*\bpull rate limit\b"),
    (ErrorKind.AUTH, r"(?:unauthorized|denied)(?::? |\s|:?$)|pull access denied\b"),
    (ErrorKind.OTHER, r".*invalid reference format"),
    (ErrorKind.NOT_FOUND, r"no such image: |\S+: not found$"),
    (ErrorKind.NOT_FOUND, r"(?:unknown: )?(?:artifact|repository|manifest for) \S+ not found"),
    (ErrorKind.NOT_FOUND, r"(?:manifest|name) unknown\b"),
)

# Else by a phrase anywhere, the first that fits. Most have a space or a colon with a space, which
# no image reference has. A lookup that times out is a fault of DNS, a handshake that does is none
# of TLS: hence the order.
_PHRASES = (
    (ErrorKind.DISK, r"no space left on device|disk quota exceeded"),
    (ErrorKind.PLATFORM, r"no matching manifest for |no match for platform in manifest"),
    (ErrorKind.PLATFORM, r"does not (?:match|provide) the (?:specified|detected host) platform"),
    (ErrorKind.PLATFORM, r"exec format error|cannot be used on this platform"),
    (ErrorKind.DNS, r"(?:^|: )lookup \S+(?: on \S+)?: "),
    (ErrorKind.DNS, r"(?:^|: )no such host\b|temporary failure in name resolution"),
    (ErrorKind.TIMEOUT, r"TLS handshake timeout|i/o timeout|connection timed out"),
    (ErrorKind.TIMEOUT, r"Client\.Timeout exceeded|deadline exceeded|504 Gateway Time-?out"),
    (ErrorKind.TLS, r"(?:^|: )(?:x509|tls): |server gave HTTP response to HTTPS client"),
    (ErrorKind.CONNECT, r"connection refused|no route to host|connection reset by peer"),
    (ErrorKind.CONNECT, r"(?:network|host) is unreachable|(?:^|: |unexpected )EOF$"),
    (ErrorKind.CONNECT, r"connect to the Docker daemon (?:at|socket at) "),
    (ErrorKind.RATE_LIMIT, r": toomanyrequests(?:: |$)|: 429 Too Many Requests"),
    (ErrorKind.AUTH, r"no basic auth credentials|authentication required|insufficient_scope"),
    (ErrorKind.AUTH, r"incorrect username or password|authorization failed|failed to authorize"),
    (ErrorKind.AUTH, r": (?:unauthorized|denied)(?::|$)|access to the resource is denied"),
    (ErrorKind.AUTH, r": 401 Unauthorized|: 403 Forbidden|error getting credentials"),
    (ErrorKind.NOT_FOUND, r": (?:manifest|name) unknown\b|: 404 Not Found"),
)

_ENGINE_GONE = re.compile(
    r"cannot connect to the docker daemon|error during connect: |(?:unexpected )?EOF$",
    re.IGNORECASE,
)


def _compiled(
    table: tuple[tuple[ErrorKind, str], ...],
) -> tuple[tuple[ErrorKind, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in table)


_BY_BEGINNING = _compiled(_BEGINNINGS)
_BY_PHRASE = _compiled(_PHRASES)


def classify(message: str) -> ErrorKind:
    """The kind of the fault that `message` tells of; `other` where it fits none."""
    preamble = _PREAMBLE.match(message)
    error = message[preamble.end() :] if preamble else message
    for kind, beginning in _BY_BEGINNING:
        if beginning.match(error):
            return kind
    for kind, phrase in _BY_PHRASE:
        if phrase.search(error):
            return kind
    return ErrorKind.OTHER


def hint_for(kind: ErrorKind, *, registry: str, has_credential: bool) -> str:
    """One short sentence to stand beside a message; "" where nothing useful can be said.

    `registry` is the host of the image, "" where no image is meant; `has_credential` says
    whether the manifest has a registry-auth entry for it.
    """
    if kind is ErrorKind.DISK:
        return "`docker system df` shows what fills the Engine's disk"
    if kind is ErrorKind.PLATFORM:
        return "the image is not built for this host's architecture"
    return _registry_hint(kind, registry, has_credential) if registry else ""


def _registry_hint(kind: ErrorKind, registry: str, has_credential: bool) -> str:
    if kind is ErrorKind.AUTH and has_credential:
        return (
            f"the manifest's credential for host {registry} was not enough: the robot may be "
            "expired, disabled or rotated, or lack pull permission"
        )
    if kind is ErrorKind.AUTH:
        return (
            f"the manifest has no registry-auth entry for host {registry}; "
            "a human's docker login on this host is not used"
        )
    if kind is ErrorKind.RATE_LIMIT and not has_credential:
        return f"the pull was anonymous: the manifest has no registry-auth entry for {registry}"
    if kind is ErrorKind.DNS:
        return f"check this host's resolver, the overlay, and the spelling of {registry}"
    if kind is ErrorKind.TLS:
        return (
            f"the Engine, not the agent, must trust {registry}: "
            f"/etc/docker/certs.d/{registry}/ca.crt, or insecure-registries for plain HTTP"
        )
    return ""


def fault(
    service: str, image: str, message: str, has_credential_for: Callable[[str], bool]
) -> Fault:
    """The Fault of `message`, said about `service` and its `image` ("" where none is meant).

    `has_credential_for` tells whether the manifest has a credential for a registry host.
    """
    registry = registry_of_image(image) if image else ""
    kind = classify(message)
    hint = hint_for(
        kind,
        registry=registry,
        has_credential=bool(registry) and has_credential_for(registry),
    )
    return Fault(message, kind, service=service, image=image, registry=registry, hint=hint)


def engine_is_gone(message: str) -> bool:
    """Whether Compose says with this that the engine itself went away under it."""
    return bool(_ENGINE_GONE.match(message))
