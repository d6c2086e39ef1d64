"""HTTP proxies: which one the environment names for a server, and a connection through it.

`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` work as in Python's standard library. In addition, `NO_PROXY`
may name networks (`10.0.0.0/8`), and servers on this machine are never reached through a proxy: it would look for them
on its own loopback interface. For a server with TLS, the proxy opens a tunnel and sees only the server's name.
Invariant: a proxy's credentials are sent to that proxy only and appear in no message.
"""

import asyncio
import base64
import ipaddress
import os
import re
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from yarl import URL

from holdfast.errors import describe_error
from holdfast.models.provider import BadConnectionError

_HEAD_BYTES_MAX = 64 * 1024
_REASON_CHARACTERS_MAX = 100
_EYEBALLS_SECONDS = 0.25
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] +(\d{3})([^\r\n]*)")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)

P = TypeVar("P", bound=asyncio.Protocol)


class ProxyError(ConnectionError):
    """The proxy failed; nothing was sent to the server. `status`: the proxy's HTTP status, if it responded."""

    def __init__(self, what: str, status: int | None = None) -> None:
        super().__init__(what)
        self.status = status


class Proxy(msgspec.Struct, frozen=True):
    """A proxy, and the variable that names it."""

    variable: str
    url: URL
    """Without credentials."""
    headers: dict[str, str]
    """The credentials; empty if there are none."""
    secrets: frozenset[str]
    """Values that no message may show."""

    @property
    def name(self) -> str:
        """`host:port`, for messages."""
        return f"{self.url.host_subcomponent}:{self.url.port}"


def proxy_for(url: URL) -> Proxy | None:
    """The proxy for a server; None to connect directly. BadConnectionError if the proxy cannot be used."""
    if not any(name[-6:].lower() == "_proxy" for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass  # slow to import, and seldom needed

    given = getproxies_environment()
    kind = next((each for each in (url.scheme, "all") if each in given), None)
    if kind is None or _is_here(url) or _is_within(url, given.get("no", "")):
        return None
    if proxy_bypass(f"{url.host_subcomponent}:{url.port}"):
        return None
    return _parse(f"{kind.upper()}_PROXY", given[kind], url)


async def connect_through(proxy: Proxy, url: URL, tls: ssl.SSLContext | None, make: Callable[[], P]) -> P:
    """A connection to a TLS server through a tunnel; without TLS, to the proxy itself, which expects whole URLs in
    requests. OSError if it fails. A failure or a cancellation leaves no connection open.
    """
    if tls is None:
        return (await _reach(proxy, make))[1]
    transport, asking = await _reach(proxy, _TunnelRequest)
    try:
        await asking.ask(transport, _request(proxy, url))
        protocol = make()
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(transport, protocol, tls, server_hostname=url.host)
    except BaseException:
        transport.abort()
        raise
    assert secured is not None
    protocol.connection_made(secured)
    return protocol


def basic(url: URL) -> str:
    """The credentials in a URL as the value of a header; empty if it has none."""
    if url.user is None and url.password is None:
        return ""
    pair = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
    return f"Basic {pair}"


class _TunnelRequest(asyncio.Protocol):
    """One CONNECT request to a proxy, and the head of its response."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, transport: asyncio.Transport, request: bytes) -> None:
        """Request the tunnel. ProxyError if it is not opened."""
        transport.write(request)
        await self._done
        head, end, more = bytes(self._received).partition(b"\r\n\r\n")
        line = _STATUS_LINE.match(head)
        if line is None or not end:
            raise ProxyError("the proxy's response is not HTTP")
        status, reason = int(line[1]), line[2].decode("latin-1")[:_REASON_CHARACTERS_MAX]
        if not 200 <= status < 300:
            raise ProxyError(f"the proxy refuses to connect: HTTP {status}{reason.rstrip()}", status)
        if more or transport.is_closing():  # with TLS the client sends first: these bytes come from the proxy
            raise ProxyError("the proxy closed the tunnel, or sent data into it")

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" in self._received or len(self._received) > _HEAD_BYTES_MAX:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ProxyError("the proxy closed the connection before it opened a tunnel"))

    def _end(self, error: ProxyError | None = None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


async def _reach(proxy: Proxy, make: Callable[[], P]) -> tuple[asyncio.Transport, P]:
    host, port = proxy.url.host, proxy.url.port
    assert host is not None
    assert port is not None
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {}
    if isinstance(loop, asyncio.BaseEventLoop):  # uvloop has no such option: it tries one address after the other
        options["happy_eyeballs_delay"] = _EYEBALLS_SECONDS
    try:
        return await loop.create_connection(make, host, port, **options)
    except OSError as error:
        raise ProxyError(f"the proxy cannot be reached ({describe_error(error)})") from error


def _request(proxy: Proxy, url: URL) -> bytes:
    server = f"{url.host_subcomponent}:{url.port}"
    headers = "".join(f"{name}: {value}\r\n" for name, value in {"Host": server, **proxy.headers}.items())
    return f"CONNECT {server} HTTP/1.1\r\n{headers}\r\n".encode()


def _parse(variable: str, given: str, server: URL) -> Proxy:
    """Parse the value of a proxy variable. Errors do not show the value: it may hold a password."""
    instead = f"use http://host:port, or add {server.host} to NO_PROXY to connect directly; nothing was sent"
    scheme = _SCHEME.match(given)
    if scheme is not None and scheme[1].lower() != "http":
        raise BadConnectionError(f"{variable} names a {scheme[1]}:// proxy, which is not supported: {instead}")
    try:
        url = URL(given if scheme is not None else f"http://{given}")
        place = url.origin()
    except ValueError:
        raise BadConnectionError(f"{variable} is not a URL: {instead}") from None
    credentials = basic(url)
    secrets = {url.password or "", url.raw_password or "", credentials.removeprefix("Basic ")} - {""}
    headers = {"Proxy-Authorization": credentials} if credentials else {}
    return Proxy(variable, place, headers, frozenset(secrets))


def _is_here(url: URL) -> bool:
    """Whether the server is on this machine."""
    address = _address(url)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    host = (url.host or "").rstrip(".").lower()
    return host == "localhost" or host.endswith(".localhost")


def _is_within(url: URL, unproxied: str) -> bool:
    """Whether the host is an IP address in one of the networks of NO_PROXY."""
    address = _address(url)
    return address is not None and any(address in each for each in _networks(unproxied))


def _networks(unproxied: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    found = []
    for each in unproxied.split(","):
        try:
            found.append(ipaddress.ip_network(each.strip().strip("[]"), strict=False))
        except ValueError:
            continue  # a host name
    return found


def _address(url: URL) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(url.host or "")
    except ValueError:
        return None
