"""HTTP/1.1 to one server: whole requests out, whole responses in, connections kept and used again.

Every sample passes here, so it does only what asking a model needs. It sends once, follows no redirect, keeps no cookie
and asks for no compression (what comes compressed all the same is undone). The bytes are parsed by llhttp. Invariant: a
connection carries one request at a time, and one that is in any doubt (cancelled, late, out of step) is never used
again. A response is held whole, so it is bounded. A proxy is `tunnel`'s business.
"""

import asyncio
import functools
import ipaddress
import re
import ssl
import zlib
from collections.abc import Mapping

import httptools
import msgspec
from yarl import URL

from holdfast.errors import HoldfastError
from holdfast.models.http.proxy import Proxy, basic, connect_through
from holdfast.models.timing import under_way

BODY_BYTES_MAX = 64 * 1024 * 1024
"""A longer answer could not be saved anyway."""
_HEAD_BYTES_MAX = 256 * 1024
_HEADERS_MAX = 2000
"""Trailers behind a body included: they are not bounded by the size of the head."""
_CONNECT_SECONDS_MAX = 30.0
_IDLE_SECONDS_MAX = 15.0
"""Servers close idle connections: one that was idle for longer is not trusted with a request that costs money."""
_EYEBALLS_SECONDS = 0.25
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class BadResponseError(HoldfastError):
    """What came back is no HTTP response that can be used."""


class Response(msgspec.Struct, frozen=True):
    """One response, whole."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """Their names are in lower case."""
    body: bytes

    def header(self, name: bytes) -> str:
        """The first header of a lower-case name; empty if there is none."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return ""


class Wire:
    """The connections to one URL. Belongs to the event loop that first uses it."""

    def __init__(
        self,
        url: URL,
        headers: Mapping[str, str],
        timeout_seconds: float,
        method: str = "POST",
        proxy: Proxy | None = None,
    ) -> None:
        """ValueError if a header cannot be sent."""
        self._url = url
        self._proxy = proxy
        self._head = _head_of(method, url, headers, proxy)
        self._timeout_seconds = timeout_seconds
        self._eyeballs_seconds = None if _is_address(url.host) else _EYEBALLS_SECONDS  # one address races with none
        self._free: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._waiting: dict[_Connection, float] = {}  # for an answer, since when; who waits longest comes first
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, body: bytes = b"", *, streams: bool = False) -> Response:
        """Send one request, once. TimeoutError if no answer came in time, else OSError or BadResponseError.

        The time is that of the whole response; one that `streams` may take that long between any two pieces of it.
        """
        connection = self._take() or await self._connect_timed()
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        answer = connection.ask(request, streams)
        if self._timer is None:
            self._timer = connection.loop.call_later(self._timeout_seconds, self._look_at_clock, connection.loop)
        try:
            response = await answer
        except BaseException:
            connection.drop()
            raise
        if (timer := under_way.get()) is not None:
            timer.first = connection.first_seconds
        if connection.is_reusable:
            connection.idle_since = connection.loop.time()
            self._free.append(connection)
        else:
            connection.drop()
        return response

    async def close(self) -> None:
        """Ends what is under way. Idempotent; a later request connects again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._all):
            connection.drop()
        self._free.clear()
        while self._all:  # noqa: ASYNC110 - transports tell of their end in the next round
            await asyncio.sleep(0)

    def _look_at_clock(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what has waited too long. One timer for all requests: each may wait as long as any other."""
        self._timer = None
        for connection, since in list(self._waiting.items()):
            left = since + self._timeout_seconds - loop.time()
            if left > 0:
                self._timer = loop.call_later(left, self._look_at_clock, loop)
                return
            connection.run_out()

    def _take(self) -> "_Connection | None":
        while self._free:
            connection = self._free.pop()
            if connection.is_reusable and connection.loop.time() - connection.idle_since < _IDLE_SECONDS_MAX:
                return connection
            connection.drop()
        return None

    async def _connect_timed(self) -> "_Connection":
        clock = asyncio.get_running_loop().time
        began = clock()
        connection = await self._connect()
        if (timer := under_way.get()) is not None:
            timer.connect = clock() - began
        return connection

    def _made(self) -> "_Connection":
        return _Connection(self._all, self._waiting)

    async def _connect(self) -> "_Connection":
        url = self._url
        assert url.host is not None
        assert url.port is not None
        seconds = min(self._timeout_seconds, _CONNECT_SECONDS_MAX)
        tls = _tls() if url.scheme == "https" else None
        try:
            async with asyncio.timeout(seconds):
                if self._proxy is not None:
                    return await connect_through(self._proxy, url, tls, self._made)
                _, connection = await asyncio.get_running_loop().create_connection(
                    self._made,
                    url.host,
                    url.port,
                    ssl=tls,
                    happy_eyeballs_delay=self._eyeballs_seconds,
                )
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {seconds:g} s") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection: a request, its response, and perhaps the next request."""

    def __init__(self, every: "set[_Connection]", waiting: "dict[_Connection, float]") -> None:
        """It keeps itself in both: in `every` while it is open, in `waiting` while an answer is to come."""
        self.loop = asyncio.get_running_loop()
        self.idle_since = 0.0
        self.first_seconds = 0.0
        """Of the last response: from the request to its first byte."""
        self._asked_at = 0.0
        self._every = every
        self._waiting = waiting
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._keeps = True
        self._streams = False
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        self._length = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    @property
    def is_reusable(self) -> bool:
        return self._keeps and self._transport is not None

    def ask(self, request: bytes, streams: bool) -> "asyncio.Future[Response]":
        answer = self._answer = self.loop.create_future()
        self._streams = streams
        self.first_seconds, self._asked_at = 0.0, self.loop.time()
        self._waiting[self] = self._asked_at
        if self._transport is None:  # closed by the server in this very moment
            self._fail(ConnectionResetError("the server closed the connection"))
        else:
            self._transport.write(request)
        return answer

    def drop(self) -> None:
        self._keeps = False
        self._waiting.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def run_out(self) -> None:
        """The time for the answer is up."""
        self._fail(TimeoutError())

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._every.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._every.discard(self)
        if self._answer is None:
            return
        if error is None and self._status and not self._has_length():
            self._end()  # the end of the connection is the end of such a response
            return
        told = (
            "the server disconnected" if not self._status else "the server disconnected in the middle of its response"
        )
        self._fail(error if isinstance(error, OSError) else ConnectionResetError(told))

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.drop()  # nothing was asked
            return
        if not self._length and not self.first_seconds:  # not behind a word in between
            self.first_seconds = self.loop.time() - self._asked_at
        self._length += len(data)
        if self._streams:
            self._waiting.pop(self, None)
            self._waiting[self] = self.loop.time()  # the pause begins anew, behind all others
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BadResponseError("the server wants to speak another protocol"))
        except httptools.HttpParserError as error:
            self._keeps = False  # after the answer: more came than was asked for
            self._fail(BadResponseError(f"the response is not HTTP ({error})"))
        if self._length > BODY_BYTES_MAX or (not self._status and self._length > _HEAD_BYTES_MAX):
            self._fail(BadResponseError(f"the response has more than {self._length >> 20} MiB"))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        if len(self._headers) > _HEADERS_MAX:
            self._fail(BadResponseError(f"the response has more than {_HEADERS_MAX} headers"))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._keeps = self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        if self._status < 200:
            self._begin()  # only a word in between
        else:
            self._end()

    def _has_length(self) -> bool:
        return any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)

    def _end(self) -> None:
        answer, self._answer = self._answer, None
        self._waiting.pop(self, None)
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        response = Response(self._status, self._headers, body)
        self._begin()
        if answer is None:
            self._keeps = False  # a second response to one request: whose would the next one be?
            return
        if answer.done():
            return
        try:
            answer.set_result(_plain(response))
        except BadResponseError as error:
            answer.set_exception(error)

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        self.drop()


def _head_of(method: str, url: URL, headers: Mapping[str, str], proxy: Proxy | None) -> bytes:
    """Everything before the length of the body. The user's own headers win, however they are spelled."""
    lines = {"host": ("Host", url.host_port_subcomponent or ""), "accept-encoding": ("Accept-Encoding", "identity")}
    origin, own = "", basic_auth(url)
    if proxy is not None and url.scheme == "http":  # the proxy reads the request
        origin, own = str(url.origin()), {**own, **proxy.headers}
    lines |= {name.lower(): (name, value) for name, value in (*own.items(), *headers.items())}
    for name, value in lines.values():
        if not _TOKEN.fullmatch(name) or any(mark in value for mark in "\r\n\0"):
            raise ValueError(f"the header {name!r} has characters that no header can hold")
    written = "".join(f"{name}: {value}\r\n" for name, value in lines.values())
    return f"{method} {origin}{url.raw_path_qs} HTTP/1.1\r\n{written}Content-Length: ".encode()


def basic_auth(url: URL) -> dict[str, str]:
    """The header that the credentials in a URL stand for; none if it has none."""
    credentials = basic(url)
    return {"Authorization": credentials} if credentials else {}


def _is_address(host: str | None) -> bool:
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _plain(response: Response) -> Response:
    """The body as it was before compression."""
    encoding = response.header(b"content-encoding").strip().lower()
    if encoding in ("", "identity") or not response.body:
        return response
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadResponseError(f"the response is compressed with {encoding!r}, which was not asked for")
    bits = 47 if encoding != "deflate" or response.body[0] & 0x0F == 8 else -15  # some send deflate without its header
    unpacking = zlib.decompressobj(bits)
    try:
        body = unpacking.decompress(response.body, BODY_BYTES_MAX)
    except zlib.error as error:
        raise BadResponseError(f"the response cannot be decompressed ({error})") from None
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise BadResponseError("the compressed response is cut off, or far too large")
    return msgspec.structs.replace(response, body=body)
