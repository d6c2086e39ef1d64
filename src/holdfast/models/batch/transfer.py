"""HTTP for batch APIs: large bodies out from a file, results in line by line; neither is ever held whole.

Single requests have a wire of their own, made for speed; here a connection is opened for each exchange, because
minutes lie between them. Errors have the kinds and texts of the endpoint, so no secret is in them.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Annotated, Any, Generic, Protocol, TypeVar

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from holdfast.models.failures import BadConnectionError, ModelError
from holdfast.models.http.bodies import decode
from holdfast.models.http.connection import Response, basic_auth
from holdfast.models.http.endpoint import Endpoint, parse_url
from holdfast.models.http.proxy import ProxyError
from holdfast.models.provider import Connection

LINE_BYTES_MAX = 64 * 1024 * 1024
"""A longer line could not be recorded anyway: it is passed over."""
_REPLY_BYTES_MAX = 16 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_LIMITS = aiohttp.ClientTimeout(total=None, connect=30.0, sock_connect=30.0, sock_read=120.0)
"""Nothing here waits for a model: a server that sends no byte for so long is not answering."""

SKEW_SECONDS = 3600.0
"""Servers' clocks differ from ours: jobs that are older than this before the announcement cannot be ours."""
_PAGE = 100
_PAGES_MAX = 50

_NAME = r"(?!.*\.\.)[^\s/?#\x00-\x1f][^\s?#\x00-\x1f]{0,499}"
JobName = Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}\Z")]
"""The id of a job or of a file. It becomes part of a URL, and is recorded."""
FileName = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{_NAME})?\Z")]
"""The same, or nothing: there is no such file."""
T = TypeVar("T")


class Listed(Protocol):
    """A job in a list."""

    @property
    def id(self) -> str: ...

    @property
    def created(self) -> float:
        """In seconds since 1970; infinite if it cannot be read: it may be of any time."""


J = TypeVar("J", bound=Listed)


class Page(msgspec.Struct, Generic[J], frozen=True):
    """Some of the jobs, the newest first."""

    data: list[J]
    has_more: bool = False


class BatchWire:
    """Exchanges with one server, as an endpoint knows it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def get(self, url: URL, kind: type[T]) -> T | None:
        """None if there is no such thing."""
        async with self._exchange("GET", url) as response:
            if response.status == 404:
                return None
            return self._decode(await self._success(response), kind)

    async def post(self, url: URL, body: Mapping[str, Any], kind: type[T]) -> T:
        headers = {"Content-Type": "application/json"}
        async with self._exchange("POST", url, data=msgspec.json.encode(body), headers=headers) as response:
            return self._decode(await self._success(response), kind)

    async def send(self, url: URL, parts: AsyncIterator[bytes], content_type: str, size: int, kind: type[T]) -> T:
        """POST a body that comes in parts, of so many bytes in all."""
        headers = {"Content-Type": content_type, "Content-Length": str(size)}
        async with self._exchange("POST", url, data=parts, headers=headers) as response:
            return self._decode(await self._success(response), kind)

    async def jobs(self, url: URL, after: str, kind: type[Page[J]], since: float) -> AsyncGenerator[J]:
        """The newest jobs of a list, about as far back as then. `after`: what the list calls where it goes on."""
        at: dict[str, str] = {}
        for _ in range(_PAGES_MAX):
            page = await self.get(url.update_query(limit=_PAGE, **at), kind)
            if page is None:
                return
            for each in page.data:
                yield each
            if not page.has_more or not page.data or page.data[-1].created < since - SKEW_SECONDS:
                return
            at = {after: page.data[-1].id}

    async def lines(self, url: URL) -> AsyncGenerator[bytes]:
        """The body line by line, without the newlines. A body that is cut off raises; a line that is far too long is an
        empty one.
        """
        async with self._exchange("GET", url) as response:
            if response.status != 200:
                await self._success(response)
            rest, skipping = b"", False
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                first, *more = chunk.split(b"\n")
                rest += first
                for following in more:
                    yield b"" if skipping else rest
                    rest, skipping = following, False
                if len(rest) > LINE_BYTES_MAX:
                    rest, skipping = b"", True
            if rest:
                yield rest

    @contextlib.asynccontextmanager
    async def _exchange(self, method: str, url: URL, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = CIMultiDict(basic_auth(url))
        headers.update(self._endpoint.headers, **more.pop("headers", {}))
        if (proxy := self._endpoint.proxy) is not None:
            more |= {"proxy": proxy.url, "proxy_headers": proxy.headers}
            if url.scheme == "http":  # the proxy reads the request
                headers.update(proxy.headers)
        plain = url.with_user(None)
        try:
            async with (
                aiohttp.ClientSession(timeout=_LIMITS, auto_decompress=True) as session,
                session.request(method, plain, headers=headers, allow_redirects=False, **more) as response,
            ):
                yield response
        except TimeoutError:
            self._endpoint.fail("timeout", "the batch API did not answer in time")
        except aiohttp.ClientHttpProxyError as error:
            self._endpoint.lose(ProxyError(f"the proxy refuses to connect: HTTP {error.status}", error.status))
        except (aiohttp.ClientError, OSError) as error:
            self._endpoint.lose(error)

    async def _success(self, response: aiohttp.ClientResponse) -> bytes:
        body = await response.content.read(_REPLY_BYTES_MAX)
        while len(body) < _REPLY_BYTES_MAX and (more := await response.content.read(_REPLY_BYTES_MAX)):
            body += more
        if not 200 <= response.status < 300:
            headers = [(name.lower(), value) for name, value in response.raw_headers]
            self._endpoint.refuse(Response(response.status, headers, body))
        return body

    def _decode(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._endpoint.fail("malformed", f"the batch API's reply cannot be read ({error})")


def url_of(connection: Connection, usual: str) -> URL:
    """The base URL. A job is with one server."""
    given = connection.base_url or usual
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if not isinstance(given, str):
        raise BadConnectionError("batch: a job belongs to one server: give one base_url, or remove `batch`")
    return parse_url(given)


def decode_line(line: bytes, decoder: "msgspec.json.Decoder[T]") -> T | None:
    """One line of results; None if it is none. Half a character or NaN somewhere in it is no reason to ask again."""
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return decoder.decode(msgspec.json.encode(decode(line)))
    except (msgspec.DecodeError, ModelError, RecursionError):
        return None


async def chunks(lines: Any) -> AsyncIterator[bytes]:
    """A file from its beginning, in parts."""
    lines.seek(0)
    while part := lines.read(_CHUNK_BYTES):
        yield part
