"""One URL of a model server: JSON out, JSON in; every failure becomes a ModelError with a kind and a message.

All HTTP providers share this module. A request is sent once; redirects are not followed; `timeout_seconds` starts when
it is sent, because the caller limits how many are in flight. Invariant: no error message holds a secret (the API key,
credentials in headers or in the URL). A proxy is taken from the environment.

One model behind several URLs.

A request goes to the server that its affinity used before, so that the prompt cache helps with the turns of a
conversation and the repeats of a sample; otherwise to the server with the fewest requests in flight. A server that is
unreachable, overloaded, timed out or failing (5xx) is paused for a while, and its requests go to the others: a server
that fails fast would otherwise attract all of them. Nothing is sent twice here: a retry comes from the retry layer and
is routed again. If all servers are paused, the one whose pause ends first is used.
"""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import msgspec
from multidict import CIMultiDict
from yarl import URL

from holdfast.errors import describe_error
from holdfast.models.http.bodies import SseEvent, decode, parse_events
from holdfast.models.http.connection import BadResponseError, ConnectionPool, Response
from holdfast.models.http.proxy import ProxyError, basic, proxy_for
from holdfast.models.http.statuses import detail_of, kind_of, retry_after_seconds, retry_delay_seconds, shorten
from holdfast.models.likelihood import likelihood_texts
from holdfast.models.provider import (
    BadConnectionError,
    Connection,
    Kind,
    Listing,
    ModelError,
    Provider,
    Request,
    describe_models,
)
from holdfast.records import Answer, redact

_CREDENTIAL_NAMES = ("auth", "key", "token", "secret", "password", "cookie")

_ACCEPTED = {False: "application/json", True: "text/event-stream, application/json"}
_LISTING_SECONDS = 5.0
"""How long to wait for a list of models that only improves an error message."""
UNSUPPORTED_ADVICE = (
    "use a completion server that returns them, such as vLLM or SGLang, or score a chat model with the solver `chat` "
    "and the scorer `choice`"
)
_ADVICE: dict[Kind, str] = {
    "auth": "check the key in {variable} and what it may do",
    "billing": "the account has no credit left, or has reached its limit: add credit, then resume",
    "unknown_model": "check the model's name and base_url",
    "unsupported": UNSUPPORTED_ADVICE,
    "connection": "check base_url, and that the server is up",
    "timeout": "raise timeout_seconds if the model needs longer",
}


class ApiKey(msgspec.Struct, frozen=True):
    """An API key and the variable that it came from; both empty if none is used."""

    variable: str
    value: str


class Endpoint:
    """One URL of one server. It belongs to the event loop that first uses it; close it there."""

    def __init__(self, connection: Connection, url: URL, key: ApiKey, headers: Mapping[str, str]) -> None:
        """`headers`: those of the protocol; the user's own win, in any letter case."""
        _check_limits(connection)
        self._connection = connection
        self._shown_url = str(url.with_query(None).with_user(None))
        self._key = key
        self._secrets = secrets_of(connection, key.value, url)
        self._headers = CIMultiDict({"User-Agent": "holdfast", "Accept": _ACCEPTED[connection.stream], **headers})
        self._headers.update(connection.headers)
        try:
            self.proxy = proxy_for(url)  # None: connect directly
            self._wire = ConnectionPool(url, self._headers, connection.timeout_seconds, proxy=self.proxy)
        except (BadConnectionError, ValueError) as error:
            raise BadConnectionError(f"model {connection.model!r}: {error}") from None
        if self.proxy is not None:
            self._secrets |= self.proxy.secrets

    async def post(self, body: Mapping[str, Any], *, streams: bool = False) -> Response:
        """Send once. Returns a success whose content type is JSON, or with `streams` also an event stream. Raises
        ModelError, and nothing else but a cancellation.
        """
        encoded = self.encode(body)
        try:
            response = await self._wire.send(encoded, streams=streams)
        except TimeoutError:
            silent = "no more data for" if streams else "no response within"
            self.fail("timeout", f"{silent} {self._connection.timeout_seconds:g} s")
        except (BadResponseError, OSError) as error:
            self.raise_lost(error)
        self._connection.listen(response.status, response.headers)
        if not 200 <= response.status < 300:
            self.refuse(response)
        content_type = response.header(b"content-type")
        media_type = content_type.lower()
        if content_type and "json" not in media_type and not (streams and "event-stream" in media_type):
            detail = detail_of(response.body.decode(errors="replace"))
            self.fail("malformed", f"the response is {content_type}, not JSON: {detail}")
        return response

    async def get(self, url: URL, seconds: float) -> Response:
        """GET another URL of the server, once. ModelError if it is unreachable or rejects the key."""
        wire = ConnectionPool(url, self._headers, seconds, "GET", self.proxy)
        try:
            response = await wire.send()
        except TimeoutError:
            self.fail("connection", f"no response within {seconds:g} s")
        except (BadResponseError, OSError) as error:
            self.raise_lost(error)
        finally:
            await wire.close()
        if response.status in (401, 403, 407) or response.status // 100 in (1, 3, 5):
            self.refuse(response)
        return response

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of every request."""
        return self._headers

    async def close(self) -> None:
        """Abort requests in flight. Idempotent; a later request connects again."""
        await self._wire.close()

    def refuse(self, response: Response) -> NoReturn:
        """Raise the ModelError that an unsuccessful response means."""
        text = response.body.decode(errors="replace")
        status = response.status
        detail = detail_of(text)
        if status < 400:
            detail = f"redirected to {response.header(b'location') or 'nowhere'}: set base_url to the new address"
        headers = CIMultiDict((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers)
        wait = retry_after_seconds(headers, time.time())
        if wait is None:
            wait = retry_delay_seconds(text)
        self.fail(kind_of(status, text), f"HTTP {status}: {detail}", status, wait)

    def fail(self, kind: Kind, what: str, status: int | None = None, retry_after: float | None = None) -> NoReturn:
        """Raise a ModelError with secrets redacted. `from None`: another library's error may hold secrets."""
        through = f" through the proxy {self.proxy.name}" if self.proxy is not None else ""
        where = f" ({self._connection.model} at {self._shown_url}{through})"
        advice = self._advice(kind, status)
        text = self.redact(what) + redact(where, self._secrets)
        raise ModelError(kind, f"{text}; {advice}" if advice else text, retry_after, status) from None

    def redact(self, text: str) -> str:
        """A text of the server, shortened and without secrets."""
        return shorten(redact(text, self._secrets))

    def encode(self, body: Mapping[str, Any]) -> bytes:
        try:
            return msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            self.fail("bad_request", f"the request cannot be written as JSON ({error}); nothing was sent")

    def raise_lost(self, error: Exception) -> NoReturn:
        """Raise the ModelError that a connection without a response means."""
        if isinstance(error, BadResponseError):
            self.fail("malformed", str(error))
        if isinstance(error, ProxyError):
            self.fail("auth" if error.status == 407 else "connection", str(error), error.status)
        # The system's short words: asyncio adds the address, which the failure has already.
        errno = error.errno if isinstance(error, ConnectionError) else None
        why = os.strerror(errno).lower() if errno else describe_error(error)
        self.fail("connection", f"the connection failed ({why})")

    def _advice(self, kind: Kind, status: int | None) -> str:
        if self.proxy is not None and status == 407:
            return f"check the user and password in {self.proxy.variable}"
        if self.proxy is not None and kind == "connection":
            return f"check base_url, {self.proxy.variable} and NO_PROXY, and that server and proxy are up"
        return _ADVICE.get(kind, "").format(variable=self._key.variable or "api_key_env (none is set)")


def parse_url(text: str) -> URL:
    """Parse a base URL. BadConnectionError if it is unusable."""
    try:
        url = URL(text)
    except ValueError as error:
        raise BadConnectionError(f"base_url is not a URL ({error}): use http://host:port/v1 or similar") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise BadConnectionError("base_url must begin with http:// or https:// and name a host")
    return url


def read_key(connection: Connection, *defaults: str) -> ApiKey:
    """The key from the variable that the connection names. `defaults`, the provider's own variables, are read only for
    the provider's own URL: no other server ever receives that key.
    """
    variable = connection.api_key_env
    if not variable and not connection.base_url:
        variable = next((each for each in defaults if os.environ.get(each)), defaults[0] if defaults else "")
    key = os.environ.get(variable, "").strip() if variable else ""
    if not key.isascii() or not key.isprintable():
        raise BadConnectionError(f"the key in {variable} has characters that an HTTP header cannot hold: set it again")
    return ApiKey(variable, key)


def _check_limits(connection: Connection) -> None:
    if connection.max_connections < 1:
        raise BadConnectionError(f"model {connection.model!r}: max_connections must be at least 1")
    if not connection.timeout_seconds > 0:
        raise BadConnectionError(f"model {connection.model!r}: timeout_seconds must be greater than 0")


def secrets_of(connection: Connection, key: str, url: URL | None = None) -> set[str]:
    """The values that no message may show."""
    secrets = {key, *connection.secrets}
    if url is not None:
        secrets |= {url.password or "", url.raw_password or "", basic(url).removeprefix("Basic ")}
    for name, value in (*connection.headers.items(), *(url.query.items() if url is not None else ())):
        if any(word in name.lower() for word in _CREDENTIAL_NAMES):
            secrets |= {value, value.split(" ")[-1]}
    return secrets - {""}


class Dialect(Protocol):
    """The protocol of one kind of server, without I/O."""

    def url(self, base: URL, model: str, *, stream: bool) -> URL: ...

    def models_url(self, base: URL) -> URL:
        """Where the server lists its models."""
        ...

    def headers(self, key: str) -> Mapping[str, str]:
        """`key`: empty if there is none."""
        ...

    def body(self, model: str, request: Request, *, stream: bool) -> dict[str, Any]:
        """The JSON body. ModelError (`bad_request`) for what the protocol cannot express: nothing was sent."""
        ...

    def answer(self, body: Any) -> Answer:
        """The answer in a decoded response body. ModelError if there is none."""
        ...

    def joined(self, events: Sequence[SseEvent]) -> Any:
        """The body that the events of a stream add up to. ModelError if the end is missing or a failure is reported."""
        ...

    def models(self, body: bytes) -> list[str] | None:
        """The names in a list of models; None if it is not such a list."""
        ...


def build(dialect: Dialect, model: str, request: Request, *, stream: bool) -> dict[str, Any]:
    """The body of a request. Messages come from user code: invalid ones are a `bad_request`. Protocols for chats
    have no likelihood requests (`unsupported`).
    """
    if likelihood_texts(request.messages) is not None:
        raise ModelError("unsupported", "this protocol has no log-probabilities of a prompt; nothing was sent")
    try:
        return dialect.body(model, request, stream=stream)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            "bad_request", f"the messages cannot be understood ({describe_error(error)}); nothing was sent"
        ) from None


class HttpProvider:
    """One model behind one URL. It belongs to the event loop that first uses it; close it there."""

    def __init__(self, connection: Connection, dialect: Dialect, base: URL, key: ApiKey) -> None:
        self._model = connection.model
        self._stream = connection.stream
        self._keeps_raw = connection.record_raw
        self._dialect = dialect
        self._models_url = dialect.models_url(base).update_query(base.query)
        url = dialect.url(base, connection.model, stream=connection.stream)
        headers = {"Content-Type": "application/json", **dialect.headers(key.value)}
        self._endpoint = Endpoint(connection, url.update_query(base.query), key, headers)
        self._listing = asyncio.Lock()
        self._hint: str | None = None
        """Which models the server has instead of an unknown one; empty if it does not say, None before it was asked."""

    async def generate(self, request: Request) -> Answer:
        """Send once. Raises ModelError, and nothing else but a cancellation."""
        try:
            body = build(self._dialect, self._model, request, stream=self._stream)
        except ModelError as error:
            self._endpoint.fail(error.kind, error.message)
        try:
            response = await self._endpoint.post(body, streams=self._stream)
        except ModelError as error:
            if error.kind != "unknown_model":
                raise
            hint = await self.models_hint()
            message = f"{error.message}; {hint}" if hint else error.message
            raise ModelError(error.kind, message, error.retry_after, error.status) from None
        try:
            return self._read(response)
        except ModelError as error:
            self._endpoint.fail(error.kind, error.message, error.status)

    async def served(self, seconds: float) -> list[str] | None:
        """The names of the server's models; None if it does not list them. ModelError if it is unreachable or rejects
        the key.
        """
        response = await self._endpoint.get(self._models_url, seconds)
        return self._dialect.models(response.body) if response.status == 200 else None

    async def models_hint(self) -> str:
        """Which models the server has instead of this one; empty if it has this one, or does not say. Sends one
        request for all that the server refuses together.
        """
        async with self._listing:
            if self._hint is None:
                try:
                    names = await self.served(_LISTING_SECONDS)
                except ModelError:
                    names = None  # the refusal itself is the error to report
                listed = names is not None and self._model not in names
                self._hint = self._endpoint.redact(describe_models(self._model, names or ())) if listed else ""
        return self._hint

    async def close(self) -> None:
        """Abort requests in flight. Idempotent; a later request connects again."""
        await self._endpoint.close()

    def _read(self, response: Response) -> Answer:
        if not self._stream or "event-stream" not in response.header(b"content-type").lower():
            body = raw = decode(response.body)
        else:
            events = list(parse_events(response.body))
            body = self._dialect.joined(events)
            raw = [{"event": each.name, "data": each.data} for each in events] if self._keeps_raw else None
        answer = self._dialect.answer(body)
        return msgspec.structs.replace(answer, raw=raw) if self._keeps_raw else answer


_PAUSE_SECONDS = 1.0
_PAUSE_SECONDS_MAX = 30.0
_PINS_MAX = 100_000
"""How many affinities are remembered; the least recently used is forgotten."""
_PAUSED_AFTER = ("connection", "overload", "server", "timeout")


def make_routing(
    connection: Connection, urls: Sequence[str], make: Callable[[Connection], Provider]
) -> "RoutingProvider":
    """BadConnectionError if there is no URL, or one of them is listed twice."""
    if not urls:
        raise BadConnectionError("base_url is an empty list: list at least one URL, or remove it")
    if len(set(urls)) < len(urls):
        raise BadConnectionError("base_url lists a URL twice: list each of them once")
    shown = [str(parse_url(url).with_query(None).with_user(None)) for url in urls]
    made = [make(msgspec.structs.replace(connection, base_url=url)) for url in urls]
    return RoutingProvider(list(map(RoutedServer, shown, made)), connection.tell)


class RoutedServer:
    """One URL: its provider, its load and its failures."""

    def __init__(self, url: str, provider: Provider) -> None:
        self.url = url
        self.provider = provider
        self.in_flight = 0
        self.paused_until = 0.0
        self.failures = 0
        """Failures in a row."""


class RoutingProvider:
    """Several providers of one model as one. It belongs to the event loop that first uses it; close it there."""

    def __init__(
        self,
        servers: Sequence[RoutedServer],
        tell: Callable[[str, str], None] = lambda event, message: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = list(servers)
        self._tell = tell
        self._clock = clock
        self._pins: OrderedDict[str, RoutedServer] = OrderedDict()

    async def generate(self, request: Request) -> Answer:
        """Send once, to one of the servers. Its errors are raised unchanged."""
        server = self._choose(request.affinity)
        server.in_flight += 1
        try:
            answer = await server.provider.generate(request)
        except ModelError as error:
            if error.kind in _PAUSED_AFTER:
                self._pause(server, error)
            raise
        finally:
            server.in_flight -= 1
        if server.failures:
            server.failures, server.paused_until = 0, 0.0
            self._tell("model.back", f"{server.url} responds again")
        return answer

    async def served(self, seconds: float) -> list[str] | None:
        """The names of the models that all servers have; None if one of them does not list its models."""
        found: list[str] | None = None
        for server in self._servers:
            names = await server.provider.served(seconds) if isinstance(server.provider, Listing) else None
            if names is None:
                return None
            found = names if found is None else [name for name in found if name in names]
        return found

    async def close(self) -> None:
        for server in self._servers:
            await server.provider.close()

    def _choose(self, affinity: str) -> RoutedServer:
        now = self._clock()
        pinned = self._pins.get(affinity) if affinity else None
        if pinned is not None and pinned.paused_until <= now:
            self._pins.move_to_end(affinity)
            return pinned
        available = [server for server in self._servers if server.paused_until <= now]
        if available:
            chosen = min(available, key=lambda server: server.in_flight)
        else:
            chosen = min(self._servers, key=lambda server: server.paused_until)
        if affinity:
            self._pins[affinity] = chosen
            self._pins.move_to_end(affinity)
            if len(self._pins) > _PINS_MAX:
                self._pins.popitem(last=False)
        return chosen

    def _pause(self, server: RoutedServer, error: ModelError) -> None:
        """Pause a server. Requests in flight fail together with the first: that counts as one failure."""
        now = self._clock()
        if server.paused_until > now:
            return
        server.failures += 1
        seconds = min(_PAUSE_SECONDS * 2.0 ** min(server.failures - 1, 10), _PAUSE_SECONDS_MAX)
        seconds = max(seconds, error.retry_after or 0.0)
        server.paused_until = now + seconds
        others = sum(each.paused_until <= now for each in self._servers)
        self._tell("model.rests", f"{server.url} is paused for {seconds:g} s, {others} other(s) continue: {error}")
