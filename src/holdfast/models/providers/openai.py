"""OpenAI and compatible servers: chat completions, or the Responses API with `options: {api: responses}`.

| option | meaning |
|---|---|
| `api` | `chat` (default): chat completions, which every compatible server has; `responses`: OpenAI's newer API |
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from yarl import URL

from holdfast.models.http.bodies import SseEvent
from holdfast.models.http.endpoint import Dialect, HttpProvider, parse_url, read_key
from holdfast.models.provider import BadConnectionError, Connection, Request
from holdfast.models.providers.chat_completions import answer_of, join_chunks, parse_models
from holdfast.records import Answer
from holdfast.spec import PROVIDERS

INFO = PROVIDERS["openai"]


class OpenAIOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the provider: see the module's docstring."""

    api: Literal["chat", "responses"] = "chat"


def make_openai(connection: Connection) -> HttpProvider:
    dialect = make_dialect(connection)
    base = parse_url(str(connection.base_url or INFO.base_url))
    return HttpProvider(connection, dialect, base, read_key(connection, *INFO.key_variables))


def make_dialect(connection: Connection) -> Dialect:
    """The protocol that the options select. BadConnectionError if they are invalid."""
    try:
        options = msgspec.convert(connection.options, OpenAIOptions)
    except msgspec.ValidationError as error:
        raise BadConnectionError(
            f"bad options for the openai provider: {error}; the only option is api: chat or responses; fields of "
            "a request belong in `params`"
        ) from None
    if options.api == "chat":
        return Chat()
    from holdfast.models.providers.responses import Responses

    return Responses()


def bearer(key: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


class Chat:
    """`POST …/chat/completions`. Messages, parameters and tools are sent unchanged: Holdfast uses this format."""

    def url(self, base: URL, model: str, *, stream: bool) -> URL:
        return base / "chat" / "completions"

    def models_url(self, base: URL) -> URL:
        return base / "models"

    def headers(self, key: str) -> Mapping[str, str]:
        return bearer(key)

    def body(self, model: str, request: Request, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "messages": request.messages, **request.params}
        if request.tools:
            body["tools"] = request.tools
        if stream:
            body = {"stream_options": {"include_usage": True}, **body, "stream": True}
        # An explicit null removes them: Mistral's server rejects `stream_options`, and sends the usage anyway.
        if body.get("stream_options", ...) is None:
            del body["stream_options"]
        return body

    def answer(self, body: Any) -> Answer:
        return answer_of(body)

    def joined(self, events: Sequence[SseEvent]) -> Any:
        return join_chunks(events)

    def models(self, body: bytes) -> list[str] | None:
        return parse_models(body)
