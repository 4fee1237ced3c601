"""TLS, the proxy mapping, limits and the words for errors, against real sockets on loopback."""

import asyncio
import gzip
import socket
import ssl
import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from monky_deployd.clients.http import BodyTooLargeError, build_client, describe, read_limited
from monky_deployd.errors import ConfigError
from tests.unit.pki import DAY, Authority, http_answer, raw_server

CANARY = "canary-in-a-header"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki") / "ca")


def client_for(base_url: str, authority: Authority | None = None, **options: Any) -> Any:
    settings: dict[str, Any] = {"proxy": {}, "timeout": 10.0, **options}
    settings.setdefault("ca_file", str(authority.ca_file) if authority else None)
    return build_client(base_url=base_url, **settings)


async def failure(client: httpx.AsyncClient) -> str:
    """How the failure of a GET is described."""
    async with client:
        with pytest.raises(httpx.HTTPError) as caught:
            await client.get("/", headers={"Authorization": f"Bearer {CANARY}"})
    text = describe(caught.value)
    assert CANARY not in text
    return text


async def read(base_url: str, limit: int, **options: Any) -> bytes:
    async with client_for(base_url, **options) as client, client.stream("GET", "/") as response:
        return await read_limited(response, limit)


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


# The proxy mapping


@pytest.mark.parametrize(
    ("base_url", "mapped", "host_header"),
    [
        ("https://tenancy.example:443", "tenancy.example:443", "tenancy.example"),
        ("https://tenancy.example", "tenancy.example:443", "tenancy.example"),
        ("https://tenancy.example:8443", "tenancy.example:8443", "tenancy.example:8443"),
        ("https://Tenancy.example", "TENANCY.example:443", "tenancy.example"),
    ],
)
async def test_mapping_changes_only_where_the_socket_is_dialled(
    authority: Authority, base_url: str, mapped: str, host_header: str
) -> None:
    async with raw_server(http_answer(b"ok"), pair=authority.issue("tenancy.example")) as notes:
        proxy = {mapped: f"127.0.0.1:{notes.port}"}
        async with client_for(base_url, authority, proxy=proxy) as client:
            response = await client.get("/v1/x?y=1")
    assert response.text == "ok"
    assert notes.sni == ["tenancy.example"]
    assert notes.header("host") == host_header
    assert notes.heads[0].startswith("GET /v1/x?y=1 HTTP/1.1\r\n")


async def test_mapping_carries_a_body(authority: Authority) -> None:
    received = b""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        received = await reader.readexactly(7)
        writer.write(http_answer())
        await writer.drain()

    async with raw_server(take, pair=authority.issue("tenancy.example")) as notes:
        proxy = {"tenancy.example:443": f"127.0.0.1:{notes.port}"}
        async with client_for("https://tenancy.example", authority, proxy=proxy) as client:
            assert (await client.post("/", content=b"content")).status_code == 200
    assert received == b"content"


async def test_certificate_of_the_dialled_address_does_not_do(authority: Authority) -> None:
    async with raw_server(http_answer(), pair=authority.issue("127.0.0.1")) as notes:
        dialled = f"127.0.0.1:{notes.port}"
        client = client_for(
            "https://tenancy.example", authority, proxy={"tenancy.example:443": dialled}
        )
        text = await failure(client)
    assert text.startswith(f"tenancy.example:443 (dialled at {dialled}): ")
    assert "its certificate is for another host name" in text


async def test_mapping_of_another_port_or_host_is_not_used(authority: Authority) -> None:
    async with raw_server(http_answer(b"direct"), pair=authority.issue("127.0.0.1")) as notes:
        proxy = {
            "127.0.0.1:443": f"127.0.0.1:{closed_port()}",
            f"tenancy.example:{notes.port}": f"127.0.0.1:{closed_port()}",
        }
        base_url = f"https://127.0.0.1:{notes.port}"
        async with client_for(base_url, authority, proxy=proxy) as client:
            assert (await client.get("/")).text == "direct"


async def test_intercept_that_is_an_address_is_checked_as_one(authority: Authority) -> None:
    async with raw_server(http_answer(), pair=authority.issue("100.64.0.7", "fd00::7")) as notes:
        dialled = f"127.0.0.1:{notes.port}"
        proxy = {"100.64.0.7:443": dialled, "[fd00::7]:8443": dialled, "100.64.0.8:443": dialled}
        for base_url, host in [
            ("https://100.64.0.7", "100.64.0.7"),
            ("https://[fd00::7]:8443", "[fd00::7]:8443"),
        ]:
            async with client_for(base_url, authority, proxy=proxy) as client:
                assert (await client.get("/")).status_code == 200
            assert notes.header("host") == host
        text = await failure(client_for("https://100.64.0.8", authority, proxy=proxy))
    assert "its certificate is for another address" in text


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_dials_ipv6_directly_and_by_mapping(authority: Authority) -> None:
    pair = authority.issue("::1", "tenancy.example")
    try:
        server = raw_server(http_answer(), pair=pair, host="::1")
        notes = await server.__aenter__()
    except OSError:
        pytest.skip("no IPv6 on loopback here")
    proxy = {"tenancy.example:443": f"[::1]:{notes.port}"}
    async with client_for(f"https://[::1]:{notes.port}", authority) as client:
        assert (await client.get("/")).status_code == 200
    async with client_for("https://tenancy.example", authority, proxy=proxy) as client:
        assert (await client.get("/")).status_code == 200
    await server.__aexit__(None, None, None)


async def test_mapping_works_for_plain_http_too() -> None:
    async with raw_server(http_answer(b"plain")) as notes:
        proxy = {"tenancy.example:80": f"127.0.0.1:{notes.port}"}
        async with client_for("http://tenancy.example", proxy=proxy) as client:
            assert (await client.get("/")).text == "plain"
    assert notes.header("host") == "tenancy.example"


def test_plain_http_to_loopback_may_not_be_mapped_away_from_this_machine() -> None:
    with pytest.raises(ConfigError, match="which is not this machine"):
        client_for("http://localhost:8200", proxy={"localhost:8200": "10.0.0.5:8200"})


@pytest.mark.parametrize("address", ["127.0.0.1:70000", "127.0.0.1:0", "127.0.0.1", ":443"])
def test_mapping_to_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"overlay\.proxy: '.*' is not a host:port"):
        client_for("https://tenancy.example", proxy={"tenancy.example:443": address})


@pytest.mark.parametrize("url", ["https://", "ftp://x", "https://x:99999", "tenancy.example"])
def test_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a usable URL"):
        client_for(url)


async def test_proxy_settings_of_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    async with raw_server(http_answer(b"direct")) as notes:
        assert await read(f"http://127.0.0.1:{notes.port}", 100) == b"direct"


async def test_redirect_is_not_followed() -> None:
    moved = http_answer(b"moved", "Location: /elsewhere", status="302 Found")
    async with raw_server(moved) as notes:
        assert await read(f"http://127.0.0.1:{notes.port}", 100) == b"moved"
    assert len(notes.heads) == 1


# Certificates


@pytest.mark.parametrize(
    ("names", "validity", "words"),
    [
        (("localhost",), (-DAY, DAY), "its certificate is for another address"),
        (("127.0.0.1",), (-2 * DAY, -DAY), "its certificate has expired"),
        (("127.0.0.1",), (DAY, 2 * DAY), "its certificate is not valid yet"),
    ],
)
async def test_unfit_certificate_is_refused_in_clear_words(
    authority: Authority, names: tuple[str], validity: tuple[timedelta, timedelta], words: str
) -> None:
    pair = authority.issue(*names, start=validity[0], end=validity[1])
    async with raw_server(http_answer(), pair=pair) as notes:
        text = await failure(client_for(f"https://127.0.0.1:{notes.port}", authority))
    assert text.startswith(f"127.0.0.1:{notes.port}: {words} (")
    assert notes.heads == []


async def test_unknown_ca_is_refused_in_clear_words(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    async with raw_server(http_answer(), pair=stranger.issue("127.0.0.1")) as notes:
        for trusted in (authority, None):
            text = await failure(client_for(f"https://127.0.0.1:{notes.port}", trusted))
            assert "its certificate is signed by an unknown CA" in text


async def test_self_signed_certificate_is_refused_in_clear_words(authority: Authority) -> None:
    pair = authority.issue("127.0.0.1", self_signed=True)
    async with raw_server(http_answer(), pair=pair) as notes:
        text = await failure(client_for(f"https://127.0.0.1:{notes.port}", authority))
    assert "its certificate is self-signed and not trusted" in text
    assert notes.heads == []


def test_private_ca_is_trusted_beside_the_default_store(authority: Authority) -> None:
    def trusted(client: Any) -> int:
        context: ssl.SSLContext = client._transport._inner._pool._ssl_context
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
        return len(context.get_ca_certs())

    url = "https://tenancy.example"
    assert trusted(client_for(url, authority)) == trusted(client_for(url)) + 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        ("directory", "."),
        (b"not a certificate", "no certificate in PEM form"),
        (b"", "no certificate in PEM form"),
        (b"\xff\xfe\x00", "no certificate in PEM form"),
    ],
)
def test_unusable_ca_file_is_named(tmp_path: Path, content: bytes | str | None, words: str) -> None:
    path = tmp_path / "ca.pem"
    if content == "directory":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        client_for("https://tenancy.example", ca_file=str(path))
    assert str(path) in str(caught.value)


def test_private_key_in_the_place_of_a_ca_is_named(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="no certificate in PEM form"):
        client_for("https://x", ca_file=str(authority.issue("x").keyfile))


# Words for errors


async def test_refused_connection_is_named_with_the_dialled_address() -> None:
    dialled = f"127.0.0.1:{closed_port()}"
    client = client_for("https://tenancy.example", proxy={"tenancy.example:443": dialled})
    text = await failure(client)
    assert text == f"tenancy.example:443 (dialled at {dialled}): connection refused"


async def test_refusal_by_every_address_of_a_name_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = closed_port()

    async def two(*_args: object, **_options: object) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, (f"127.0.0.{last}", port)) for last in (1, 2)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
    text = await failure(client_for(f"http://tenancy.example:{port}"))
    assert text == f"tenancy.example:{port}: connection refused"


async def test_unresolvable_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    text = await failure(client_for("https://tenancy.example"))
    assert text == (
        "tenancy.example:443: the host name can't be resolved (Name or service not known)"
    )


async def test_server_without_tls_is_named() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(http_answer(status="400 Bad Request"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        text = await failure(client_for(f"https://127.0.0.1:{port}"))
    assert text == f"127.0.0.1:{port}: what listens there does not speak TLS"


async def test_connection_closed_in_the_handshake_is_named() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5000)
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        text = await failure(client_for(f"https://127.0.0.1:{port}"))
    assert text == f"127.0.0.1:{port}: the connection was closed in the middle of TLS"


async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def test_reset_connection_is_named() -> None:
    async with raw_server(reset) as notes:
        text = await failure(client_for(f"http://127.0.0.1:{notes.port}"))
    assert text == f"127.0.0.1:{notes.port}: connection reset by the other side"


CUT_OFF = "the connection ended before the whole answer had come"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", CUT_OFF),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut", CUT_OFF),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ncut", CUT_OFF),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "the answer is not valid HTTP"),
        (http_answer(b"", "Location: http://x:y/", status="302 X"), "the answer is not valid HTTP"),
    ],
)
async def test_answer_that_is_none_or_cut_off_is_named(answer: bytes, words: str) -> None:
    async with raw_server(answer) as notes:
        text = await failure(client_for(f"http://127.0.0.1:{notes.port}"))
    assert text == f"127.0.0.1:{notes.port}: {words}"


async def test_silent_server_is_named() -> None:
    async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with raw_server(silent) as notes:
        text = await failure(client_for(f"http://127.0.0.1:{notes.port}", timeout=0.1))
    assert text == f"127.0.0.1:{notes.port}: no answer within the time allowed"


async def test_header_that_the_protocol_library_quotes_is_not_shown() -> None:
    async with (
        raw_server(http_answer()) as notes,
        client_for(f"http://127.0.0.1:{notes.port}") as client,
    ):
        with pytest.raises(httpx.LocalProtocolError, match=CANARY) as caught:
            await client.get("/", headers={"Authorization": f"{CANARY}\n"})
    assert CANARY not in describe(caught.value)


# Limits


async def test_body_of_exactly_the_limit_is_read() -> None:
    async with raw_server(http_answer(b"12345")) as notes:
        assert await read(f"http://127.0.0.1:{notes.port}", 5) == b"12345"
        with pytest.raises(BodyTooLargeError) as caught:
            await read(f"http://127.0.0.1:{notes.port}", 4)
    assert describe(caught.value) == (f"127.0.0.1:{notes.port}: the answer is larger than 4 bytes")


async def test_no_compression_is_asked_for_but_gzip_is_understood() -> None:
    answer = http_answer(gzip.compress(b"12345"), "Content-Encoding: gzip")
    async with raw_server(answer) as notes:
        assert await read(f"http://127.0.0.1:{notes.port}", 5) == b"12345"
    assert notes.header("accept-encoding") == "identity"


async def test_gzip_bomb_is_stopped_at_the_limit() -> None:
    bomb = http_answer(gzip.compress(bytes(50_000_000)), "Content-Encoding: gzip")
    async with raw_server(bomb) as notes:
        with pytest.raises(BodyTooLargeError):
            await read(f"http://127.0.0.1:{notes.port}", 1000)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(b"12345", mtime=0)[:-4], "gzip"),
        (b"no gzip at all", "gzip"),
        (b"whatever", "br"),
        (b"whatever", "gzip, gzip"),
    ],
    ids=["cut off", "not gzip", "unasked for", "twice"],
)
async def test_undecodable_body_is_named(body: bytes, encoding: str) -> None:
    async with raw_server(http_answer(body, f"Content-Encoding: {encoding}")) as notes:
        with pytest.raises(httpx.DecodingError) as caught:
            await read(f"http://127.0.0.1:{notes.port}", 1000)
    assert describe(caught.value).endswith(": the answer's content encoding can't be decoded")


async def test_body_read_without_care_is_capped_by_the_client() -> None:
    async with raw_server(http_answer(b"12345")) as notes:
        text = await failure(client_for(f"http://127.0.0.1:{notes.port}", max_body=4))
        async with client_for(f"http://127.0.0.1:{notes.port}", max_body=5) as client:
            assert (await client.get("/")).text == "12345"
    assert text.endswith("the answer is larger than 4 bytes")
