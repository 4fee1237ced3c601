"""A certificate authority for tests, made on the spot, and a small server that takes notes."""

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class KeyPair:
    """The paths of a certificate and its private key (PEM)."""

    certfile: Path
    keyfile: Path


class Authority:
    """A CA below `directory`; `ca_file` is its certificate."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test CA")])
        now = datetime.now(UTC)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = (
            _builder(self._name, self._key, self._name, self._key, now - DAY, now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, *names: str, start: timedelta = -DAY, end: timedelta = DAY, self_signed: bool = False
    ) -> KeyPair:
        """A certificate for host names or addresses, valid from now + `start` to now + `end`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test server")])
        now = datetime.now(UTC)
        issuer, signer = (subject, key) if self_signed else (self._name, self._key)
        certificate = (
            _builder(issuer, signer, subject, key, now + start, now + end)
            .add_extension(x509.SubjectAlternativeName(map(_alternative, names)), False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
            .sign(signer, hashes.SHA256())
        )
        serial = f"{certificate.serial_number:x}"
        pair = KeyPair(self._directory / f"{serial}.pem", self._directory / f"{serial}.key")
        pair.certfile.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.keyfile.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair


def _builder(
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(key_id, critical=False)
        .add_extension(signer_id, critical=False)
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass
class Notes:
    """What a server saw: the port it got, the names in SNI, and the heads of the requests."""

    port: int = 0
    sni: list[str | None] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    def header(self, name: str) -> str | None:
        """The value of a header in the last request."""
        for line in self.heads[-1].split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name.lower():
                return value
        return None


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def raw_server(
    answer: bytes | Handler, *, pair: KeyPair | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Notes]:
    """A server that answers each connection's first request with `answer`, as it stands.

    What is still going on at the end of the block is cut off.
    """
    notes = Notes()
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        connections[task] = writer
        # A client that refuses the certificate or the answer hangs up: that is its good right.
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            notes.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            if callable(answer):
                await answer(reader, writer)
            else:
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, host, 0, ssl=_server_tls(pair, notes))
    notes.port = server.sockets[0].getsockname()[1]
    try:
        yield notes
    finally:
        server.close()
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)


def _server_tls(pair: KeyPair | None, notes: Notes) -> ssl.SSLContext | None:
    if pair is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certfile, pair.keyfile)
    context.sni_callback = lambda _socket, name, _context: notes.sni.append(name)
    return context


def http_answer(body: bytes = b"", *headers: str, status: str = "200 OK") -> bytes:
    """The bytes of an HTTP/1.1 answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
