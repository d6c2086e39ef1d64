"""HTTP/1.1 to one server: whole requests out, whole responses in, connections kept alive and reused.

Every request to a model passes here, so it does only what that needs (60-90 us of CPU per request). It sends once,
follows no redirect, keeps no cookies and requests no compression (a compressed response is decompressed all the same).
llhttp parses the bytes. Invariants: a connection carries one request at a time; a connection in any doubt (cancelled,
timed out, out of step) is never reused. A response is held in memory, so its size is bounded.
"""

import asyncio
import functools
import ipaddress
import re
import ssl
import time
import zlib
from collections.abc import Mapping
from typing import Any, cast

import httptools
import msgspec
from yarl import URL

from holdfast.errors import HoldfastError
from holdfast.models.call import current_call
from holdfast.models.http.proxy import Proxy, basic, connect_through

BODY_BYTES_MAX = 64 * 1024 * 1024
"""A longer response could not be saved anyway."""
_HEAD_BYTES_MAX = 256 * 1024
_HEADERS_MAX = 2000
"""Including trailers after the body, which the bound on the head does not cover."""
_CONNECT_SECONDS_MAX = 30.0
_CLOSING_ROUNDS = 20
_IDLE_SECONDS_MAX = 15.0
"""Servers close idle connections: after this long, a connection is not trusted with a request that costs money."""
_EYEBALLS_SECONDS = 0.25
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class BadResponseError(HoldfastError):
    """The server sent something that is not a usable HTTP response."""


class Response(msgspec.Struct, frozen=True):
    """One whole response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    """With names in lower case."""
    body: bytes

    def header(self, name: bytes) -> str:
        """The first header with a lower-case name; empty if there is none."""
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return ""


class ConnectionPool:
    """The connections to one URL. It belongs to the event loop that first uses it."""

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
        # An IP address has no alternatives to race.
        self._eyeballs_seconds = None if _is_address(url.host) else _EYEBALLS_SECONDS
        self._free: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._waiting: dict[_Connection, float] = {}  # since when each waits for a response, the longest first
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, body: bytes = b"", *, streams: bool = False) -> Response:
        """Send one request, once. TimeoutError if no response came in time; OSError or BadResponseError otherwise.

        The timeout is for the whole response; with `streams`, for the time between any two pieces of it.
        """
        connection = self._take() or await self._connect_timed()
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        answer = connection.ask(request, streams)
        if self._timer is None:
            self._timer = connection.loop.call_later(self._timeout_seconds, self._check_timeouts, connection.loop)
        try:
            response = await answer
        except BaseException:
            connection.drop()
            raise
        if (call := current_call.get()) is not None:
            call.first = connection.first_seconds
        if connection.is_reusable:
            connection.idle_since = connection.loop.time()
            self._free.append(connection)
        else:
            connection.drop()
        return response

    async def close(self) -> None:
        """Abort requests in flight. Idempotent; a later request connects again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._free.clear()
        for _ in range(_CLOSING_ROUNDS):  # transports report their end in the next round of the loop
            if not self._all:
                return
            for connection in list(self._all):  # again: a connection that was being made may have come
                connection.drop()
            await asyncio.sleep(0)
        # uvloop closes a connection whose making was cancelled, and never reports its end.
        self._all.clear()

    def _check_timeouts(self, loop: asyncio.AbstractEventLoop) -> None:
        """Time out requests that have waited too long. One timer serves all: they share the same timeout."""
        self._timer = None
        for connection, since in list(self._waiting.items()):
            left = since + self._timeout_seconds - loop.time()
            if left > 0:
                self._timer = loop.call_later(left, self._check_timeouts, loop)
                return
            connection.time_out()

    def _take(self) -> "_Connection | None":
        while self._free:
            connection = self._free.pop()
            if connection.is_reusable and connection.loop.time() - connection.idle_since < _IDLE_SECONDS_MAX:
                return connection
            connection.drop()
        return None

    async def _connect_timed(self) -> "_Connection":
        began = time.monotonic()  # uvloop's own clock counts whole milliseconds, and near servers answer sooner
        connection = await self._connect()
        if (call := current_call.get()) is not None:
            call.connect = time.monotonic() - began
        return connection

    def _make_connection(self) -> "_Connection":
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
                    return await connect_through(self._proxy, url, tls, self._make_connection)
                loop, options = asyncio.get_running_loop(), dict[str, Any]()
                # uvloop has no such option: it tries one address after the other.
                if self._eyeballs_seconds is not None and isinstance(loop, asyncio.BaseEventLoop):
                    options["happy_eyeballs_delay"] = self._eyeballs_seconds
                _, connection = await loop.create_connection(
                    self._make_connection, url.host, url.port, ssl=tls, **options
                )
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {seconds:g} s") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection: a request, its response, and perhaps the next request."""

    def __init__(self, every: "set[_Connection]", waiting: "dict[_Connection, float]") -> None:
        """It adds itself to `every` while it is open, and to `waiting` while a response is due."""
        self.loop = asyncio.get_running_loop()
        self.idle_since = 0.0
        self.first_seconds = 0.0
        """Seconds from the last request to the first byte of its response."""
        self._asked_at = 0.0
        self._every = every
        self._waiting = waiting
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Response] | None = None
        self._is_kept_alive = True
        self._streams = False
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        self._length = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    @property
    def is_reusable(self) -> bool:
        return self._is_kept_alive and self._transport is not None

    def ask(self, request: bytes, streams: bool) -> "asyncio.Future[Response]":
        answer = self._answer = self.loop.create_future()
        self._streams = streams
        self.first_seconds, self._asked_at = 0.0, self.loop.time()
        self._waiting[self] = self._asked_at
        if self._transport is None:  # closed by the server just now
            self._fail(ConnectionResetError("the server closed the connection"))
        else:
            self._transport.write(request)
        return answer

    def drop(self) -> None:
        self._is_kept_alive = False
        self._waiting.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def time_out(self) -> None:
        """The timeout of the response has passed."""
        self._fail(TimeoutError())

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # those of uvloop are no subclass of it
        self._every.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._every.discard(self)
        if self._answer is None:
            return
        has_length = any(name in (b"content-length", b"transfer-encoding") for name, _ in self._headers)
        if error is None and self._status and not has_length:
            self._end()  # without a length, the end of the connection ends the response
            return
        problem = (
            "the server disconnected" if not self._status else "the server disconnected in the middle of its response"
        )
        self._fail(error if isinstance(error, OSError) else ConnectionResetError(problem))

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.drop()  # unexpected bytes: no request is in flight
            return
        if not self._length and not self.first_seconds:  # a 1xx response in between does not count
            self.first_seconds = self.loop.time() - self._asked_at
        self._length += len(data)
        if self._streams:
            self._waiting.pop(self, None)
            self._waiting[self] = self.loop.time()  # restart its timeout, as the last in the order
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BadResponseError("the server wants to upgrade to another protocol"))
        except httptools.HttpParserError as error:
            self._is_kept_alive = False  # also after a whole response: then the server sent too much
            self._fail(BadResponseError(f"the response is not HTTP ({error})"))
        if self._length > BODY_BYTES_MAX or (not self._status and self._length > _HEAD_BYTES_MAX):
            self._fail(BadResponseError(f"the response has more than {self._length >> 20} MiB"))

    # Callbacks of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        if len(self._headers) > _HEADERS_MAX:
            self._fail(BadResponseError(f"the response has more than {_HEADERS_MAX} headers"))

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._is_kept_alive = self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        if self._status < 200:
            self._begin()  # 1xx informational response: the real one follows
        else:
            self._end()

    def _end(self) -> None:
        answer, self._answer = self._answer, None
        self._waiting.pop(self, None)
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        response = Response(self._status, self._headers, body)
        self._begin()
        if answer is None:
            self._is_kept_alive = False  # a second response to one request: the next one could be mismatched
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
    """The request head up to the value of Content-Length. The user's headers win, in any letter case."""
    lines = {"host": ("Host", url.host_port_subcomponent or ""), "accept-encoding": ("Accept-Encoding", "identity")}
    origin, own = "", basic_auth(url)
    if (
        proxy is not None and url.scheme == "http"
    ):  # the proxy reads the request, so it needs the whole URL and its credentials
        origin, own = str(url.origin()), {**own, **proxy.headers}
    lines |= {name.lower(): (name, value) for name, value in (*own.items(), *headers.items())}
    for name, value in lines.values():
        if not _TOKEN.fullmatch(name) or any(mark in value for mark in "\r\n\0"):
            raise ValueError(f"the header {name!r} has characters that are not allowed in a header")
    written = "".join(f"{name}: {value}\r\n" for name, value in lines.values())
    return f"{method} {origin}{url.raw_path_qs} HTTP/1.1\r\n{written}Content-Length: ".encode()


def basic_auth(url: URL) -> dict[str, str]:
    """The Authorization header for the credentials in a URL; empty if it has none."""
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
    """The response with its body decompressed. BadResponseError if that fails."""
    encoding = response.header(b"content-encoding").strip().lower()
    if encoding in ("", "identity") or not response.body:
        return response
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadResponseError(f"the response is compressed with {encoding!r}, which was not requested")
    # Some servers send deflate without the zlib header.
    bits = 47 if encoding != "deflate" or response.body[0] & 0x0F == 8 else -15
    unpacking = zlib.decompressobj(bits)
    try:
        body = unpacking.decompress(response.body, BODY_BYTES_MAX)
    except zlib.error as error:
        raise BadResponseError(f"the response cannot be decompressed ({error})") from None
    if unpacking.unconsumed_tail or not unpacking.eof:
        raise BadResponseError("the compressed response is truncated, or too large")
    return msgspec.structs.replace(response, body=body)
