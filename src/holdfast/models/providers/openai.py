"""OpenAI and compatible servers: chat completions, or the Responses API with `options: {api: responses}`.
Likelihood requests go to completions (`providers.completions`), whatever the options.

For the Responses API messages become items, and items an answer:

- Reasoning items are kept in the message, as `reasoning_items`, and sent back before it: without them a reasoning model
  starts its reasoning again after every tool call.
- Where chat completions cannot express the items or their order (a thought between two calls, a search on the server),
  the message keeps all of them as `output_items`. They are sent back unchanged, because the server rejects a reasoning
  item without the item that followed it; but not if the message's text or tool calls were changed since.
- `max_tokens`, `response_format`, `reasoning_effort`, `logprobs`, `tools` and `tool_choice` are written as for chat
  completions; everything else is sent unchanged. There is no `seed`: it is dropped.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from yarl import URL

from holdfast.models.http.bodies import (
    SseEvent,
    Values,
    check_tool_calls,
    cut_off,
    decode,
    failure_in_success,
    filtered,
    malformed,
    objects,
    texts,
)
from holdfast.models.http.endpoint import ApiKey, Dialect, HttpProvider, parse_url, read_key
from holdfast.models.likelihood import likelihood_texts
from holdfast.models.provider import BadConnectionError, Connection, ModelError, Request
from holdfast.models.providers.chat_completions import answer_of, join_chunks, parse_models
from holdfast.models.providers.completions import CompletionEndpoint
from holdfast.records import Answer, Message, Usage
from holdfast.spec import PROVIDERS, described

INFO = PROVIDERS["openai"]


class OpenAIOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the provider."""

    api: Annotated[
        Literal["chat", "responses"],
        described("Chat completions, which every compatible server has, or OpenAI's newer Responses API."),
    ] = "chat"


def make_openai(connection: Connection) -> "OpenAIProvider":
    dialect = make_dialect(connection)
    base = parse_url(str(connection.base_url or INFO.base_url))
    return OpenAIProvider(connection, dialect, base, read_key(connection, *INFO.key_variables))


class OpenAIProvider(HttpProvider):
    """Chats by the protocol that the options select, and likelihood requests to the server's completion URL."""

    def __init__(self, connection: Connection, dialect: Dialect, base: URL, key: ApiKey) -> None:
        super().__init__(connection, dialect, base, key)
        self._completions = CompletionEndpoint(connection, base, key, dialect.headers(key.value))

    async def generate(self, request: Request) -> Answer:
        texts = likelihood_texts(request.messages)
        if texts is None:
            return await super().generate(request)
        try:
            return await self._completions.score(request, texts)
        except ModelError as error:
            if error.kind != "unknown_model":
                raise
            # A 404 means an unknown model, or a server without this URL.
            hint = await self.models_hint()
            if not hint:
                self._completions.refuse(error.message)
            raise ModelError(error.kind, f"{error.message}; {hint}", error.retry_after, error.status) from None

    async def close(self) -> None:
        await super().close()
        await self._completions.close()


def make_dialect(connection: Connection) -> Dialect:
    """The protocol that the options select. BadConnectionError if they are invalid."""
    try:
        options = msgspec.convert(connection.options, OpenAIOptions)
    except msgspec.ValidationError as error:
        raise BadConnectionError(
            f"bad options for the openai provider: {error}; the only option is api: chat or responses; fields of "
            "a request belong in `params`"
        ) from None
    return Chat() if options.api == "chat" else Responses()


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


_RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
_LOGPROBS = "message.output_text.logprobs"
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_CUT = {"max_output_tokens": "length", "content_filter": "content_filter"}
_ORDER = {"reasoning": 0, "message": 1, "function_call": 2}
"""The order of items that chat completions can express."""


class Responses:
    """`POST …/responses`."""

    def url(self, base: URL, model: str, *, stream: bool) -> URL:
        return base / "responses"

    def models_url(self, base: URL) -> URL:
        return base / "models"

    def headers(self, key: str) -> Mapping[str, str]:
        return bearer(key)

    def body(self, model: str, request: Request, *, stream: bool) -> dict[str, Any]:
        items = [item for message in request.messages for item in _items(message)]
        body: dict[str, Any] = {"model": model, "input": items, **_params(request.params)}
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if stream:
            body["stream"] = True
        return body

    def answer(self, body: Any) -> Answer:
        if not isinstance(body, dict):
            raise malformed("the body is not an object", body)
        if body.get("error"):
            raise failure_in_success(body["error"])
        if not isinstance(body.get("output"), list):
            raise malformed("the body has no output", body)
        return _answer(body, objects(body["output"]))

    def joined(self, events: Sequence[SseEvent]) -> Any:
        """The last event holds the whole response."""
        for event in events:
            data = decode(event.data.encode())
            kind = data.get("type") if isinstance(data, dict) else None
            if kind in _ENDS:
                return data.get("response")
            if kind == "error":
                return {"error": data.get("error") or data}
        raise cut_off("response.completed")

    def models(self, body: bytes) -> list[str] | None:
        return parse_models(body)


def _items(message: Message) -> Iterator[dict[str, Any]]:
    is_own = message.get("role") == "assistant"
    given = texts(message.get("content"))
    parts = [_part(part, is_own) for part in given]
    if message.get("role") == "tool":
        is_text = all(part.get("type") == "text" for part in given)
        output = "".join(str(part.get("text") or "") for part in given) if is_text else parts
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": output}
        return
    whole = objects(message.get("output_items"))
    if whole and (_text(whole), _calls(whole)) == (message.get("content") or "", message.get("tool_calls") or []):
        yield from whole
        return
    yield from objects(message.get("reasoning_items"))
    if parts:
        yield {"type": "message", "role": message.get("role", "user"), "content": parts}
    for call in objects(message.get("tool_calls")):
        function = call.get("function") or {}
        named = {"name": function.get("name", ""), "arguments": function.get("arguments") or "{}"}
        yield {"type": "function_call", "call_id": call.get("id", ""), **named}


def _part(part: dict[str, Any], is_own: bool) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "output_text" if is_own else "input_text", "text": part.get("text", "")}
    image = part.get("image_url")
    if part.get("type") != "image_url" or not isinstance(image, dict):
        return part
    return {"type": "input_image", "image_url": image.get("url", ""), "detail": image.get("detail", "auto")}


def _params(params: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in params.items():
        if name == "response_format":
            made["text"] = {**made.get("text", {}), "format": _format(value)}
        elif name == "verbosity":
            made["text"] = {**made.get("text", {}), "verbosity": value}
        elif name == "reasoning_effort":
            made["reasoning"] = {**made.get("reasoning", {}), "effort": value}
        elif name == "logprobs":
            made |= {"include": [*params.get("include", []), _LOGPROBS]} if value else {}
        elif name == "tool_choice" and isinstance(value, dict) and isinstance(value.get("function"), dict):
            made[name] = {"type": "function", "name": value["function"].get("name")}
        elif name not in ("seed", "include") or (name == "include" and not params.get("logprobs")):
            made[_RENAMED.get(name, name)] = value
    return made


def _format(response_format: Any) -> Any:
    schema = response_format.get("json_schema") if isinstance(response_format, dict) else None
    return {"type": "json_schema", **schema} if isinstance(schema, dict) else response_format


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A function is strict by default in this API, and not strict in chat completions: keep the latter."""
    function = tool.get("function")
    return {"type": "function", "strict": False, **function} if isinstance(function, dict) else tool


def _answer(body: dict[str, Any], output: list[dict[str, Any]]) -> Answer:
    text, calls, values = _text(output), _calls(output), Values()
    check_tool_calls(len(calls))
    reason = _reason(body, calls, values)
    if reason == "content_filter" and not text and not calls:
        raise filtered("incomplete_details")
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    kept = [{name: value for name, value in item.items() if value is not None} for item in output]
    thoughts = [item for item in kept if item.get("type") == "reasoning"]
    if thoughts:
        reasoning = [
            part for item in thoughts for part in (*objects(item.get("summary")), *objects(item.get("content")))
        ]
        message["reasoning_content"] = "\n\n".join(str(part.get("text") or "") for part in reasoning)
        message["reasoning_items"] = thoughts
    if calls:
        message["tool_calls"] = calls
    places = [-1 if "phase" in item else _ORDER.get(str(item.get("type")), -1) for item in kept]
    if -1 in places or places != sorted(places):
        message["output_items"] = kept
    logprobs = [each for part in _parts(output) for each in objects(part.get("logprobs"))]
    usage = _usage(body.get("usage"), values)
    return Answer(text, message, calls, reason, usage, logprobs, dropped=values.dropped)


def _parts(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for item in output if item.get("type") == "message" for part in objects(item.get("content"))]


def _text(output: list[dict[str, Any]]) -> str:
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in _parts(output))


def _calls(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_call(item) for item in output if item.get("type") == "function_call"]


def _call(item: dict[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name", ""), "arguments": item.get("arguments", "")}
    return {"id": item.get("call_id", ""), "type": "function", "function": function}


def _reason(body: dict[str, Any], calls: list[dict[str, Any]], values: Values) -> str:
    status, details = body.get("status"), body.get("incomplete_details")
    if status == "incomplete":
        why = values.word(details, "reason") if isinstance(details, dict) else ""
        return _CUT.get(why, why or "length")
    if status not in ("completed", None):
        raise malformed(f"the response is {status}, not completed", body)
    return "tool_calls" if calls else "stop"


def _usage(usage: Any, values: Values) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    count, details = values.count, usage.get("input_tokens_details")
    return Usage(
        count(usage, "input_tokens"),
        count(usage, "output_tokens"),
        count(details, "cached_tokens"),
        count(usage.get("output_tokens_details"), "reasoning_tokens"),
        count(details, "cache_write_tokens"),
    )
