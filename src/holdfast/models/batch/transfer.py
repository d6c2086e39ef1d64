"""HTTP for batch APIs: large bodies are sent from a file, results are read line by line; neither is held in memory.

It opens a connection per exchange, because minutes pass between them (`http/connection.py` is for fast single
requests). Errors get their kinds and messages from the endpoint, so they hold no secrets.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Annotated, Any, Generic, Protocol, TypeVar

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from holdfast.models.http.bodies import decode
from holdfast.models.http.connection import Response, basic_auth
from holdfast.models.http.endpoint import Endpoint, parse_url
from holdfast.models.http.proxy import ProxyError
from holdfast.models.provider import BadConnectionError, Connection, ModelError

LINE_BYTES_MAX = 64 * 1024 * 1024
"""A longer line could not be recorded anyway: it is skipped."""
_REPLY_BYTES_MAX = 16 * 1024 * 1024
_CHUNK_BYTES = 256 * 1024
_LIMITS = aiohttp.ClientTimeout(total=None, connect=30.0, sock_connect=30.0, sock_read=120.0)
"""Nothing here waits for a model: a server that sends no byte for this long is not responding."""

SKEW_SECONDS = 3600.0
"""Tolerated clock difference: jobs created more than this before the announcement cannot be ours."""
_PAGE = 100
_PAGES_MAX = 50

_NAME = r"(?!.*\.\.)[^\s/?#\x00-\x1f][^\s?#\x00-\x1f]{0,499}"
JobName = Annotated[str, msgspec.Meta(pattern=rf"\A{_NAME}\Z")]
"""The id of a job or of a file. It becomes part of a URL, and is recorded."""
FileName = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{_NAME})?\Z")]
"""The same, or empty: there is no such file."""
T = TypeVar("T")


class ListedJob(Protocol):
    """A job in a list."""

    @property
    def id(self) -> str: ...

    @property
    def created(self) -> float:
        """Seconds since 1970; infinite if it cannot be parsed: it may be of any time."""


J = TypeVar("J", bound=ListedJob)


class JobPage(msgspec.Struct, Generic[J], frozen=True):
    """One page of a list of jobs, the newest first."""

    data: list[J]
    has_more: bool = False


class BatchTransport:
    """HTTP exchanges with the server of an endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def get(self, url: URL, kind: type[T]) -> T | None:
        """The decoded body; None after a 404."""
        async with self._exchange("GET", url) as response:
            if response.status == 404:
                return None
            return self._decode(await self._success(response), kind)

    async def post(self, url: URL, body: Mapping[str, Any], kind: type[T]) -> T:
        headers = {"Content-Type": "application/json"}
        async with self._exchange("POST", url, data=msgspec.json.encode(body), headers=headers) as response:
            return self._decode(await self._success(response), kind)

    async def send(self, url: URL, parts: AsyncIterator[bytes], content_type: str, size: int, kind: type[T]) -> T:
        """POST a body that comes in parts, with `size` bytes in total."""
        headers = {"Content-Type": content_type, "Content-Length": str(size)}
        async with self._exchange("POST", url, data=parts, headers=headers) as response:
            return self._decode(await self._success(response), kind)

    async def jobs(self, url: URL, after: str, kind: type[JobPage[J]], since: float) -> AsyncGenerator[J]:
        """The newest jobs, back to about `since`. `after`: the query parameter for the next page."""
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
        """The body line by line, without newlines. A truncated body raises; a line over LINE_BYTES_MAX is empty."""
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
            if url.scheme == "http":  # the proxy reads the request, so it needs its credentials there
                headers.update(proxy.headers)
        plain = url.with_user(None)
        try:
            async with (
                aiohttp.ClientSession(timeout=_LIMITS, auto_decompress=True) as session,
                session.request(method, plain, headers=headers, allow_redirects=False, **more) as response,
            ):
                yield response
        except TimeoutError:
            self._endpoint.fail("timeout", "the batch API did not respond in time")
        except aiohttp.ClientHttpProxyError as error:
            self._endpoint.raise_lost(ProxyError(f"the proxy refuses to connect: HTTP {error.status}", error.status))
        except (aiohttp.ClientError, OSError) as error:
            self._endpoint.raise_lost(error)

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
            self._endpoint.fail("malformed", f"the batch API's response cannot be parsed ({error})")


def url_of(connection: Connection, default: str) -> URL:
    """The base URL. BadConnectionError for several: a job belongs to one server."""
    given = connection.base_url or default
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if not isinstance(given, str):
        raise BadConnectionError("batch: a job belongs to one server: give one base_url, or remove `batch`")
    return parse_url(given)


def decode_line(line: bytes, decoder: "msgspec.json.Decoder[T]") -> T | None:
    """One line of results; None if it is invalid. Lone surrogates and NaN are tolerated: the answer was paid for."""
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return decoder.decode(msgspec.json.encode(decode(line)))
    except (msgspec.DecodeError, ModelError, RecursionError):
        return None


async def chunks(lines: Any) -> AsyncIterator[bytes]:
    """A file from its beginning, in chunks."""
    lines.seek(0)
    while part := lines.read(_CHUNK_BYTES):
        yield part
