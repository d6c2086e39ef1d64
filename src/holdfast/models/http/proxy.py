"""The way to a server through a proxy: which one the environment names, and a connection through it.

`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` mean what they mean to Python's standard library; beside that,
`NO_PROXY` may name networks (`10.0.0.0/8`), and this machine is never asked through a proxy: one elsewhere would look
for our servers and bridges on its own loopback. To a server behind TLS the proxy opens a tunnel and sees only the
server's name. Invariant: credentials of a proxy go to that proxy and into no text.
"""

import asyncio
import base64
import ipaddress
import os
import re
import ssl
from collections.abc import Callable
from typing import TypeVar

import msgspec
from yarl import URL

from holdfast.errors import told
from holdfast.models.failures import BadConnectionError

_HEAD_BYTES_MAX = 64 * 1024
_REASON_CHARACTERS_MAX = 100
_EYEBALLS_SECONDS = 0.25
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] +(\d{3})([^\r\n]*)")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)

P = TypeVar("P", bound=asyncio.Protocol)


class ProxyError(ConnectionError):
    """No way through the proxy; nothing was sent to the server. `status`: what the proxy answered, if it did."""

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
    """What no text may hold."""

    @property
    def name(self) -> str:
        """For texts."""
        return f"{self.url.host_subcomponent}:{self.url.port}"


def proxy_for(url: URL) -> Proxy | None:
    """The proxy for a server; None if it is asked directly. BadConnectionError for one that cannot be used."""
    if not any(name[-6:].lower() == "_proxy" for name in os.environ):
        return None
    from urllib.request import getproxies_environment, proxy_bypass  # slow, and seldom needed

    given = getproxies_environment()
    kind = next((each for each in (url.scheme, "all") if each in given), None)
    if kind is None or _is_here(url) or _is_within(url, given.get("no", "")):
        return None
    if proxy_bypass(f"{url.host_subcomponent}:{url.port}"):
        return None
    return _parse(f"{kind.upper()}_PROXY", given[kind], url)


async def connect_through(proxy: Proxy, url: URL, tls: ssl.SSLContext | None, make: Callable[[], P]) -> P:
    """A connection to the server behind TLS, else to the proxy itself, which wants whole URLs in requests. OSError if
    there is none; a failure or a cancellation leaves no connection behind.
    """
    if tls is None:
        return (await _reach(proxy, make))[1]
    transport, asking = await _reach(proxy, _Asking)
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
    """The credentials in a URL, as a header says them; empty if it has none."""
    if url.user is None and url.password is None:
        return ""
    pair = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
    return f"Basic {pair}"


class _Asking(asyncio.Protocol):
    """Asks a proxy for a tunnel: a request, and the head of its response."""

    def __init__(self) -> None:
        self._said = bytearray()
        self._heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, transport: asyncio.Transport, request: bytes) -> None:
        """ProxyError if there is no tunnel."""
        transport.write(request)
        await self._heard
        head, end, more = bytes(self._said).partition(b"\r\n\r\n")
        line = _STATUS_LINE.match(head)
        if line is None or not end:
            raise ProxyError("what the proxy answers is not HTTP")
        status, reason = int(line[1]), line[2].decode("latin-1")[:_REASON_CHARACTERS_MAX]
        if not 200 <= status < 300:
            raise ProxyError(f"the proxy refuses to connect: HTTP {status}{reason.rstrip()}", status)
        if more or transport.is_closing():  # a server behind TLS does not speak first
            raise ProxyError("the proxy does not keep the tunnel that it opened")

    def data_received(self, data: bytes) -> None:
        self._said += data
        if b"\r\n\r\n" in self._said or len(self._said) > _HEAD_BYTES_MAX:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ProxyError("the proxy closed the connection before it opened a tunnel"))

    def _end(self, error: ProxyError | None = None) -> None:
        if self._heard.done():
            return
        if error is None:
            self._heard.set_result(None)
        else:
            self._heard.set_exception(error)


async def _reach(proxy: Proxy, make: Callable[[], P]) -> tuple[asyncio.Transport, P]:
    host, port = proxy.url.host, proxy.url.port
    assert host is not None
    assert port is not None
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_connection(make, host, port, happy_eyeballs_delay=_EYEBALLS_SECONDS)
    except OSError as error:
        raise ProxyError(f"the proxy cannot be reached ({told(error)})") from error


def _request(proxy: Proxy, url: URL) -> bytes:
    server = f"{url.host_subcomponent}:{url.port}"
    headers = "".join(f"{name}: {value}\r\n" for name, value in {"Host": server, **proxy.headers}.items())
    return f"CONNECT {server} HTTP/1.1\r\n{headers}\r\n".encode()


def _parse(variable: str, given: str, server: URL) -> Proxy:
    """No refusal repeats what is given: it may hold a password."""
    instead = f"give http://host:port, or put {server.host} into NO_PROXY to ask it directly; nothing was sent"
    scheme = _SCHEME.match(given)
    if scheme is not None and scheme[1].lower() != "http":
        raise BadConnectionError(f"{variable} names a proxy of the kind {scheme[1]}://, which is not spoken: {instead}")
    try:
        url = URL(given if scheme is not None else f"http://{given}")
        place = url.origin()
    except ValueError:
        raise BadConnectionError(f"{variable} cannot be read: {instead}") from None
    credentials = basic(url)
    secrets = {url.password or "", url.raw_password or "", credentials.removeprefix("Basic ")} - {""}
    headers = {"Proxy-Authorization": credentials} if credentials else {}
    return Proxy(variable, place, headers, frozenset(secrets))


def _is_here(url: URL) -> bool:
    """Whether it is a server on this machine."""
    address = _address(url)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    host = (url.host or "").rstrip(".").lower()
    return host == "localhost" or host.endswith(".localhost")


def _is_within(url: URL, unproxied: str) -> bool:
    """Whether it is an address, and in one of the networks in a list."""
    address = _address(url)
    return address is not None and any(address in each for each in _networks(unproxied))


def _networks(unproxied: str) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    found = []
    for each in unproxied.split(","):
        try:
            found.append(ipaddress.ip_network(each.strip().strip("[]"), strict=False))
        except ValueError:
            continue  # a name
    return found


def _address(url: URL) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(url.host or "")
    except ValueError:
        return None
