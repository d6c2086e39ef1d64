"""A model behind HTTP, in whatever dialect its server speaks.

A dialect is pure: it says where a request goes and what it holds, and what a body means. A stream is put together to
the body that the server would have sent whole, so that an answer is read in one way only; a stream without its end is
a lost connection, never an answer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from yarl import URL

from holdfast.errors import told
from holdfast.models.bodies import decode
from holdfast.models.endpoint import Endpoint, Key
from holdfast.models.failures import ModelError
from holdfast.models.provider import Connection, Request
from holdfast.models.sse import Event, parse_events
from holdfast.models.wire import Response
from holdfast.records.exchange import Answer


class Dialect(Protocol):
    """How one kind of server is spoken to."""

    def url(self, base: URL, model: str, *, stream: bool) -> URL: ...

    def models_url(self, base: URL) -> URL:
        """Where the server lists its models."""
        ...

    def headers(self, key: str) -> Mapping[str, str]:
        """`key` is empty if there is none."""
        ...

    def body(self, model: str, request: Request, *, stream: bool) -> dict[str, Any]:
        """ModelError (`bad_request`) for what cannot be said in this dialect: nothing was sent."""
        ...

    def answer(self, body: Any) -> Answer:
        """From a decoded body. ModelError if it is none."""
        ...

    def joined(self, events: Sequence[Event]) -> Any:
        """The body that the events of a stream amount to. ModelError if they have no end, or tell of a failure."""
        ...

    def models(self, body: bytes) -> list[str] | None:
        """The names in a list of models; None if it is no such list."""
        ...


def build(dialect: Dialect, model: str, request: Request, *, stream: bool) -> dict[str, Any]:
    """The body of a request. Messages come from anybody's code: those that are none are a bad request."""
    try:
        return dialect.body(model, request, stream=stream)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            "bad_request", f"the messages cannot be understood ({told(error)}); nothing was sent"
        ) from None


class HttpProvider:
    """One model behind one URL. Belongs to the event loop that first asks; close it there."""

    def __init__(self, connection: Connection, dialect: Dialect, base: URL, key: Key) -> None:
        self._model = connection.model
        self._stream = connection.stream
        self._keeps_raw = connection.record_raw
        self._dialect = dialect
        self._models_url = dialect.models_url(base).update_query(base.query)
        url = dialect.url(base, connection.model, stream=connection.stream)
        headers = {"Content-Type": "application/json", **dialect.headers(key.value)}
        self._endpoint = Endpoint(connection, url.update_query(base.query), key, headers)

    async def generate(self, request: Request) -> Answer:
        """Ask once. Raises ModelError, and nothing else but a cancellation."""
        try:
            body = build(self._dialect, self._model, request, stream=self._stream)
        except ModelError as error:
            self._endpoint.fail(error.kind, error.message)
        response = await self._endpoint.post(body, streams=self._stream)
        try:
            return self._read(response)
        except ModelError as error:
            self._endpoint.fail(error.kind, error.message, error.status)

    async def served(self, seconds: float) -> list[str] | None:
        """The names of the models that the server has, asked for once; None if it is there and does not list them.
        Raises ModelError if it is not there, or refuses the key.
        """
        response = await self._endpoint.look(self._models_url, seconds)
        return self._dialect.models(response.body) if response.status == 200 else None

    async def close(self) -> None:
        """Ends what is under way. Idempotent; a later request connects again."""
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
