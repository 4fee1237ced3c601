"""HTTP for the clients: TLS, the overlay's proxy mapping, size limits, and errors in plain words.

Nothing here follows a redirect, reads proxy settings from the environment or turns off the
certificate check: the grant goes to the configured host or nowhere.
"""

import importlib.util
import os
import socket
import ssl
import sys
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping

import httpx

from monky_deployd.domain.config import is_loopback
from monky_deployd.errors import ConfigError

MAX_BODY = 4 * 1024 * 1024

_DEFAULT_PORTS = {"https": 443, "http": 80}
_MAX_PORT = 65535
# The request extension under which the transport notes where it dialled, for `describe`.
_DIALLED = "monky_dialled"
# zlib's window size for "a gzip header and the largest window".
_GZIP_WINDOW = 16 + zlib.MAX_WBITS

# httpcore asks for it at each request. Where it is not installed the whole import path would be
# searched for it each time: a quarter of what an idle long poll costs.
if importlib.util.find_spec("sniffio") is None:
    sys.modules["sniffio"] = None  # type: ignore[assignment]

_Address = tuple[str, int]


class BodyTooLargeError(httpx.RequestError):
    """The other side sent more than the limit."""


def build_client(
    *,
    base_url: str,
    proxy: Mapping[str, str],
    ca_file: str | None,
    timeout: float,
    max_body: int = MAX_BODY,
) -> httpx.AsyncClient:
    """A client for `base_url`, certificates checked against the host's own store and `ca_file`.

    `proxy` maps `host:port` to the `host:port` that is dialled in its place; the Host header,
    SNI and certificate check stay those of `base_url`. `timeout` (seconds) bounds each of
    connect, read and write; `max_body` is the most bytes taken from the wire for one answer.
    Raises ConfigError for an unusable URL, mapping or `ca_file`.
    """
    url = _parse_url(base_url)
    target = _dial_target(url, proxy)
    if target and url.scheme == "http" and is_loopback(url.host) and not is_loopback(target[0]):
        raise ConfigError(
            f"overlay.proxy sends plain http for {_show(_origin(url))} to {_show(target)}, "
            "which is not this machine",
            remedy="use https, or map to a loopback address",
        )
    transport = httpx.AsyncHTTPTransport(verify=_tls_context(ca_file), trust_env=False)
    return httpx.AsyncClient(
        base_url=url,
        transport=_Transport(transport, target, max_body),
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
        headers={"Accept-Encoding": "identity"},
    )


async def read_limited(response: httpx.Response, limit: int) -> bytes:
    """The whole body of a streamed response, at most `limit` bytes once decompressed.

    Raises BodyTooLargeError over the limit (never holding much more than that in memory),
    httpx.DecodingError for a body that doesn't decompress, other httpx.HTTPError for the wire.
    """
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise httpx.DecodingError("unsupported content encoding", request=response.request)
    body = bytearray()
    chunks = response.aiter_bytes()
    if encoding == "gzip" and not response.is_stream_consumed:
        chunks = _inflate(response, limit)
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise BodyTooLargeError(_too_large(limit), request=response.request)
    return bytes(body)


async def _inflate(response: httpx.Response, limit: int) -> AsyncIterator[bytes]:
    """The gunzipped body in pieces of at most `limit` + 1 bytes, so that no bomb unfolds."""
    decoder = zlib.decompressobj(_GZIP_WINDOW)
    try:
        async for chunk in response.aiter_raw():
            yield decoder.decompress(chunk, limit + 1)
            while decoder.unconsumed_tail:
                yield decoder.decompress(decoder.unconsumed_tail, limit + 1)
    except zlib.error:
        raise httpx.DecodingError("broken gzip", request=response.request) from None
    if not decoder.eof:
        raise httpx.DecodingError("gzip ends too early", request=response.request)


def describe(error: httpx.HTTPError) -> str:
    """What went wrong, and with which `host:port`, in one phrase without any header or body."""
    return f"{_where(error)}: {_what(error)}"


class _Transport(httpx.AsyncBaseTransport):
    """Dials `target` in the place of a request's own host, and caps every answer's size.

    One client talks to one origin, so that a pooled connection always fits the request.
    """

    def __init__(
        self, inner: httpx.AsyncBaseTransport, target: _Address | None, max_body: int
    ) -> None:
        self._inner = inner
        self._target = target
        self._max_body = max_body

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        outgoing = _redial(request, self._target) if self._target else request
        response = await self._inner.handle_async_request(outgoing)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _CappedStream(response.stream, self._max_body)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _CappedStream(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, limit: int) -> None:
        self._inner = inner
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if size > self._limit:
                raise BodyTooLargeError(_too_large(self._limit))
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def _redial(request: httpx.Request, target: _Address) -> httpx.Request:
    """The same request with another address to dial; headers keep the Host of the original.

    `sni_hostname` is httpx's documented extension for the name in SNI and certificate check.
    """
    host, port = target
    request.extensions[_DIALLED] = _show(target)
    name = request.url.raw_host.decode("ascii")
    return httpx.Request(
        request.method,
        request.url.copy_with(host=host, port=port),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": name},
    )


def _parse_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{text!r} is not a usable URL: {error}") from None
    if url.scheme not in _DEFAULT_PORTS or not url.host:
        raise ConfigError(f"{text!r} is not a usable URL: http:// or https:// and a host expected")
    if url.port is not None and not 1 <= url.port <= _MAX_PORT:
        raise ConfigError(f"{text!r} is not a usable URL: the port must be 1 to {_MAX_PORT}")
    return url


def _origin(url: httpx.URL) -> _Address:
    return url.host.lower(), url.port or _DEFAULT_PORTS[url.scheme]


def _dial_target(url: httpx.URL, proxy: Mapping[str, str]) -> _Address | None:
    mapping = {_parse_address(key): _parse_address(value) for key, value in proxy.items()}
    return mapping.get(_origin(url))


def _parse_address(text: str) -> _Address:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    if not (host and port.isdecimal() and 1 <= int(port) <= _MAX_PORT):
        raise ConfigError(f"overlay.proxy: {text!r} is not a host:port with a port up to 65535")
    return host, int(port)


def _show(address: _Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is None:
        return context
    try:
        context.load_verify_locations(cafile=ca_file)
    except ssl.SSLError:
        raise ConfigError(f"ca_file {ca_file}: no certificate in PEM form in it") from None
    except OSError as error:
        raise ConfigError(f"ca_file {ca_file}: {error.strerror}") from None
    return context


def _too_large(limit: int) -> str:
    return f"the answer is larger than {limit} bytes"


def _where(error: httpx.HTTPError) -> str:
    address = _show(_origin(error.request.url))
    dialled = error.request.extensions.get(_DIALLED)
    return f"{address} (dialled at {dialled})" if dialled else address


def _what(error: httpx.HTTPError) -> str:
    if isinstance(error, BodyTooLargeError):
        return str(error)
    if isinstance(error, httpx.TimeoutException):
        return _timeout(error)
    for cause in _causes(error):
        if phrase := _system_phrase(cause):
            return phrase
    return _protocol_phrase(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and all that stands behind it, through groups of failed connection attempts."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _causes(member)
        error = error.__cause__ or error.__context__


def _timeout(error: httpx.TimeoutException) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection within the time allowed"
    if isinstance(error, httpx.ReadTimeout):
        return "no answer within the time allowed"
    if isinstance(error, httpx.WriteTimeout):
        return "the request could not be sent within the time allowed"
    return "all connections stayed busy for the time allowed"


def _system_phrase(cause: BaseException) -> str | None:
    if isinstance(cause, socket.gaierror):
        return f"the host name can't be resolved ({cause.strerror})"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _certificate_phrase(cause)
    if isinstance(cause, ssl.SSLError):
        return _tls_phrase(cause)
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(cause, ConnectionResetError | BrokenPipeError):
        return "connection reset by the other side"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return None


# OpenSSL's X509_V_ERR_… numbers (x509_vfy.h).
_CERTIFICATE_PHRASES = {
    9: "its certificate is not valid yet",
    10: "its certificate has expired",
    18: "its certificate is self-signed and not trusted",
    19: "its certificate is signed by an unknown CA",
    20: "its certificate is signed by an unknown CA",
    21: "its certificate is signed by an unknown CA",
    62: "its certificate is for another host name",
    64: "its certificate is for another address",
}


def _certificate_phrase(error: ssl.SSLCertVerificationError) -> str:
    phrase = _CERTIFICATE_PHRASES.get(error.verify_code, "its certificate is refused")
    return f"{phrase} ({error.verify_message})"


def _tls_phrase(error: ssl.SSLError) -> str:
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
        return "what listens there does not speak TLS"
    if error.reason is None or error.reason == "UNEXPECTED_EOF_WHILE_READING":
        return "the connection was closed in the middle of TLS"
    return f"TLS failed ({error.reason})"


def _protocol_phrase(error: httpx.HTTPError) -> str:
    """For errors that the protocol library found; its texts may quote headers, so none is used."""
    if isinstance(error, httpx.ConnectError):
        return "the connection was closed while it was being set up"
    if isinstance(error, httpx.NetworkError):
        return "the connection was lost"
    if isinstance(error, httpx.RemoteProtocolError):
        if "without sending" in str(error):
            return "the connection ended before the whole answer had come"
        return "the answer is not valid HTTP"
    if isinstance(error, httpx.DecodingError):
        return "the answer's content encoding can't be decoded"
    if isinstance(error, httpx.HTTPStatusError):
        return f"answered with status {error.response.status_code}"
    return f"the request could not be made ({type(error).__name__})"
