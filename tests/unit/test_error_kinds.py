"""Each message of a registry, the Engine or Compose gets its kind, and a hint where one helps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monky_deployd.domain.error_kinds import classify, fault, hint_for
from monky_deployd.domain.report import ErrorKind

GET = 'Get "https://registry.example/v2/": '
HEAD = 'Head "https://registry.example/v2/team/web/manifests/1": '

MESSAGES = {
    ErrorKind.AUTH: [
        f"{HEAD}no basic auth credentials",
        f"{HEAD}unauthorized",
        f"{HEAD}denied: denied",
        "unauthorized: authentication required",
        "unauthorized: incorrect username or password",
        "unauthorized: unauthorized to access repository: team/web, action: pull: unauthorized to "
        "access repository: team/web, action: pull",
        "incorrect username or password",
        "error pulling image configuration: download failed after attempts=1: denied",
        "error parsing HTTP 403 response body: requested access to the resource is denied",
        "denied",
        "denied: requested access to the resource is denied",
        "error from registry: denied\ndenied",
        "pull access denied for team/web, repository does not exist or may require 'docker login'"
        ": denied: requested access to the resource is denied",
        "pull access denied, repository does not exist or may require authorization: server "
        "message: insufficient_scope: authorization failed",
        'failed to resolve reference "registry.example/team/web:1": failed to authorize: failed '
        "to fetch oauth token: unexpected status from GET request to "
        "https://registry.example/token: 401 Unauthorized",
        'failed to resolve reference "registry.example/team/web:1": unexpected status from HEAD '
        "request to https://registry.example/v2/team/web/manifests/1: 403 Forbidden",
        f"{GET}unauthorized: email must be verified before using account",
        "error getting credentials - err: exit status 1, out: `no such key`",
    ],
    ErrorKind.NOT_FOUND: [
        "manifest for registry.example/team/web:nope not found: manifest unknown: manifest unknown",
        "repository registry.example/x not found: name unknown: repository name not known",
        "manifest unknown",
        "name unknown",
        "unknown: artifact team/web:nope not found",
        "error pulling image configuration: download failed after attempts=1: manifest unknown",
        'failed to resolve reference "registry.example/team/web:1": unexpected status from HEAD '
        "request to https://registry.example/v2/team/web/manifests/1: 404 Not Found",
        "unknown: repository team/web not found",
        "No such image: registry.example/team/web:nope",
        "no such image: registry.example/team/web: No such image: registry.example/team/web",
        'failed to resolve reference "docker.io/team/web:nope": docker.io/team/web:nope: not found',
    ],
    ErrorKind.DNS: [
        f"{GET}dial tcp: lookup registry.example on 10.0.0.53:53: no such host",
        f"{GET}proxyconnect tcp: no such host",
        f"{GET}dial tcp: lookup registry.example: Temporary failure in name resolution",
        f"{GET}dial tcp: lookup registry.example on 10.0.0.53:53: server misbehaving",
        f"{GET}dial tcp: lookup registry.example on 10.0.0.53:53: read udp 10.0.0.2:53211->"
        "10.0.0.53:53: i/o timeout",
        f"{GET}dial tcp: lookup registry.example on [::1]:53: read udp [::1]:53211->[::1]:53: "
        "read: connection refused",
    ],
    ErrorKind.CONNECT: [
        f"{GET}dial tcp 10.0.0.9:443: connect: connection refused",
        f"{GET}dial tcp 10.0.0.9:443: connect: no route to host",
        f"{GET}dial tcp 10.0.0.9:443: connect: network is unreachable",
        f"{GET}read tcp 10.0.0.2:53211->10.0.0.9:443: read: connection reset by peer",
        f"{GET}EOF",
        "error pulling image configuration: download failed after attempts=6: unexpected EOF",
        "unable to get image 'registry.example/team/web:1': Cannot connect to the Docker daemon at "
        "unix:///var/run/docker.sock. Is the docker daemon running?",
        "permission denied while trying to connect to the Docker daemon socket at "
        'unix:///var/run/docker.sock: Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/info": dial '
        "unix /var/run/docker.sock: connect: permission denied",
    ],
    ErrorKind.TLS: [
        f"{GET}x509: certificate signed by unknown authority",
        f"{GET}tls: failed to verify certificate: x509: certificate has expired",
        f"{GET}remote error: tls: handshake failure",
        f"{GET}http: server gave HTTP response to HTTPS client",
    ],
    ErrorKind.TIMEOUT: [
        f"{GET}net/http: TLS handshake timeout",
        f"{GET}net/http: request canceled (Client.Timeout exceeded while awaiting headers)",
        f"{GET}net/http: request canceled while waiting for connection (Client.Timeout exceeded "
        "while awaiting headers)",
        f"{GET}dial tcp 10.0.0.9:443: i/o timeout",
        f"{GET}dial tcp 10.0.0.9:443: connect: connection timed out",
        f"{GET}context deadline exceeded",
        "received unexpected HTTP status: 504 Gateway Time-out",
    ],
    ErrorKind.RATE_LIMIT: [
        "toomanyrequests",
        "toomanyrequests: You have reached your pull rate limit. You may increase the limit by "
        "authenticating and upgrading.",
        "error pulling image configuration: download failed after attempts=1: toomanyrequests: "
        "retry later",
        'failed to resolve reference "docker.io/team/web:1": unexpected status from HEAD request '
        "to https://registry-1.docker.io/v2/team/web/manifests/1: 429 Too Many Requests",
        "pull access denied for team/web, repository does not exist or may require 'docker login'"
        ": denied: 10.0.0.2 request exceeded pull rate limit",
    ],
    ErrorKind.DISK: [
        "failed to register layer: Error processing tar file(exit status 1): write /bin/busybox: "
        "no space left on device",
        "write /var/lib/docker/tmp/GetImageBlob1317612780: no space left on device",
        "failed to register layer: write /bin/app: disk quota exceeded",
    ],
    ErrorKind.PLATFORM: [
        "no matching manifest for linux/amd64 in the manifest list entries",
        "no match for platform in manifest: not found",
        "image with reference web:1 was found but its platform (linux/arm64) does not match the "
        "specified platform (linux/amd64)",
        "image with reference web:1 was found but does not provide the specified platform "
        "(linux/amd64)",
        'image operating system "windows" cannot be used on this platform',
        'exec "/app": exec format error',
    ],
    ErrorKind.OTHER: [
        "",
        "received unexpected HTTP status: 500 Internal Server Error",
        "received unexpected HTTP status: 503 Service Unavailable",
        "error pulling image configuration: download failed after attempts=1: unknown blob",
        "filesystem layer verification failed for digest sha256:0000",
        "unable to get image 'UPPER/Case:1': Error response from daemon: no such image: "
        "UPPER/Case:1: invalid reference format: repository name must be lowercase",
        "container p-a-1 is unhealthy",
        "container p-a-1 exited (0)",
        'service "a" didn\'t complete successfully: exit 4',
        "driver failed programming external connectivity on endpoint p-a-1 (30c0): Error starting "
        "userland proxy: listen tcp4 127.0.0.1:5000: bind: address already in use",
        "error while creating mount source path '/srv/x': mkdir /srv/x: permission denied",
        "network x declared as external, but could not be found",
        "network x not found",
        "env file /srv/app/missing.env not found: stat /srv/app/missing.env: no such file",
        "no configuration file provided: not found",
        'external volume "x" not found',
    ],
}


@pytest.mark.parametrize(
    ("kind", "message"),
    [(kind, message) for kind, messages in MESSAGES.items() for message in messages],
)
def test_each_message_has_its_kind(kind, message):
    assert classify(message) is kind
    assert classify(f"Error response from daemon: {message}") is kind


MISLEADING = [
    "denied",
    "unauthorized",
    "timeout",
    "toomanyrequests",
    "x509",
    "no-such-host",
    "eof",
    "not-found",
    "lookup",
]


@pytest.mark.parametrize("word", MISLEADING)
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("manifest for h.example/{0}/{0}:{0} not found: manifest unknown", ErrorKind.NOT_FOUND),
        ("repository {0}/{0} not found: name unknown: no", ErrorKind.NOT_FOUND),
        ("unknown: artifact {0}/{0}:{0} not found", ErrorKind.NOT_FOUND),
        ("No such image: {0}:{0}", ErrorKind.NOT_FOUND),
        (
            'failed to resolve reference "{0}/{0}:{0}": {0}/{0}:{0}: not found',
            ErrorKind.NOT_FOUND,
        ),
        ("pull access denied for {0}/{0}, repository does not exist or may", ErrorKind.AUTH),
        ('Head "https://{0}/v2/{0}/manifests/{0}": no basic auth credentials', ErrorKind.AUTH),
        ("unauthorized to access repository: {0}/{0}, action: pull", ErrorKind.AUTH),
        ('Get "https://{0}.example/v2/": EOF', ErrorKind.CONNECT),
        (
            'Get "https://{0}.example/v2/": dial tcp: lookup {0}.example on [::1]:53: no such host',
            ErrorKind.DNS,
        ),
        (
            'Get "https://{0}/v2/{0}": dial tcp 10.0.0.9:443: connect: connection refused',
            ErrorKind.CONNECT,
        ),
        (
            "unable to get image '{0}/{0}:': Error response from daemon: no such image: {0}/{0}:: "
            "invalid reference format",
            ErrorKind.OTHER,
        ),
    ],
)
def test_a_misleading_image_name_does_not_change_the_kind(message, kind, word):
    assert classify(message.format(word)) is kind


@given(st.text())
def test_any_text_has_a_kind(message):
    assert isinstance(classify(message), ErrorKind)


class TestHint:
    """What stands beside a message."""

    def test_a_refusal_without_an_entry_says_that_a_login_on_the_host_does_not_count(self):
        hint = hint_for(ErrorKind.AUTH, registry="registry.example", has_credential=False)

        assert hint == (
            "the manifest has no registry-auth entry for host registry.example; "
            "a human's docker login on this host is not used"
        )

    def test_a_refusal_with_an_entry_names_what_may_be_wrong_with_the_robot(self):
        hint = hint_for(ErrorKind.AUTH, registry="registry.example", has_credential=True)

        assert "registry.example" in hint
        assert "expired, disabled or rotated, or lack pull permission" in hint

    @pytest.mark.parametrize("kind", [ErrorKind.AUTH, ErrorKind.RATE_LIMIT, ErrorKind.DNS])
    def test_without_a_registry_nothing_is_said_of_one(self, kind):
        assert hint_for(kind, registry="", has_credential=False) == ""

    @pytest.mark.parametrize(
        "kind", [ErrorKind.OTHER, ErrorKind.CONNECT, ErrorKind.TIMEOUT, ErrorKind.NOT_FOUND]
    )
    def test_where_the_message_says_all_there_is_no_hint(self, kind):
        assert hint_for(kind, registry="registry.example", has_credential=True) == ""

    def test_a_rate_limit_is_put_down_to_a_missing_entry_only_where_there_is_none(self):
        assert "anonymous" in hint_for(
            ErrorKind.RATE_LIMIT, registry="r.example", has_credential=False
        )
        assert hint_for(ErrorKind.RATE_LIMIT, registry="r.example", has_credential=True) == ""

    def test_a_tls_fault_says_where_the_engine_looks_for_the_authority(self):
        hint = hint_for(ErrorKind.TLS, registry="r.example:5000", has_credential=True)

        assert "/etc/docker/certs.d/r.example:5000/ca.crt" in hint

    @pytest.mark.parametrize(
        ("kind", "word"), [(ErrorKind.DISK, "disk"), (ErrorKind.PLATFORM, "architecture")]
    )
    def test_a_fault_of_the_host_has_a_hint_without_any_registry(self, kind, word):
        assert word in hint_for(kind, registry="", has_credential=False)


class TestFault:
    """A message as data."""

    def test_the_message_stays_verbatim_and_the_rest_is_found_out(self):
        message = 'unauthorized: "ü"\nline two '

        found = fault("web", "registry.example/team/web:1", message, lambda host: False)

        assert found.message == message
        assert (found.service, found.image) == ("web", "registry.example/team/web:1")
        assert (found.kind, found.registry) == (ErrorKind.AUTH, "registry.example")
        assert "no registry-auth entry for host registry.example" in found.hint

    def test_the_credential_is_looked_up_for_the_registry_of_the_image(self):
        asked = []

        def has_credential(host: str) -> bool:
            asked.append(host)
            return True

        found = fault("web", "registry.example:5000/team/web", "denied", has_credential)

        assert asked == ["registry.example:5000"]
        assert "was not enough" in found.hint

    def test_a_fault_without_an_image_has_no_registry(self):
        found = fault("web", "", "denied", lambda host: True)

        assert (found.registry, found.hint) == ("", "")
