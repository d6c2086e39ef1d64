"""The server side of chat completions: parse a client's request body, and write an answer as a response body. Pure.

Fields about the transport (`stream`, `stream_options`, `n: 1`) end here; every other field is a parameter of the
request. A null counts as missing. Invariant: nothing in a response depends on the clock or the process. So after a
crash, a client that copies parts of a response into its next request sends the same request again, and it is replayed.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from holdfast.errors import HoldfastError
from holdfast.records import Answer, Failure, Message, Usage

_encode = msgspec.json.Encoder().encode
_CREATED = 0
"""Always 0: the real time would make a replay differ, and it is in the journal."""
_OWN = {"model", "messages", "tools", "stream", "stream_options", "n"}

_STATUSES: dict[str, tuple[int, str]] = {
    "rate_limit": (429, "rate_limit_exceeded"),
    "overload": (503, "overloaded"),
    "timeout": (504, "timeout"),
    "connection": (502, "connection_error"),
    "server": (502, "server_error"),
    "malformed": (502, "malformed_answer"),
    "bad_request": (400, "invalid_request"),
    "unknown_model": (404, "model_not_found"),
    "content_filter": (400, "content_filter"),
    "auth": (401, "invalid_api_key"),
    "billing": (402, "insufficient_quota"),
    "context_too_long": (400, "context_length_exceeded"),
}


class BadBodyError(HoldfastError):
    """The client's request is invalid. Nothing was sent to the model."""


class ClientRequest(msgspec.Struct, frozen=True):
    """A parsed request of a client."""

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    params: dict[str, Any]
    stream: bool = False
    include_usage: bool = False
    before: list[Message] = []
    """Sent before all other messages, and not part of the conversation that later requests continue."""
    previous: str = ""
    """The id of the response in the same attempt that this request continues; empty if none."""


class ServedAnswer(msgspec.Struct, frozen=True):
    """An answer for a client: its id, and the model that the client named."""

    id: str
    model: str
    answer: Answer


def parse_request(body: bytes) -> ClientRequest:
    """Parse a chat completion request. BadBodyError, in one sentence, if it is not one."""
    fields = decode_body(body)
    if fields.get("n", 1) != 1:
        refuse("n: a request returns one answer; send it as often as you need answers")
    options = fields.get("stream_options", {})
    return ClientRequest(
        model=typed(fields, "model", str, ""),
        messages=objects(fields, "messages", required=True),
        tools=objects(fields, "tools"),
        params={name: value for name, value in fields.items() if name not in _OWN},
        stream=typed(fields, "stream", bool, False),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def completion_body(served: ServedAnswer) -> bytes:
    choice = {
        "index": 0,
        "message": message_of(served.answer),
        "finish_reason": _reason(served.answer),
        "logprobs": None,
    }
    return _encode({**_head(served, "chat.completion"), "choices": [choice], "usage": usage_of(served.answer.usage)})


def completion_chunks(served: ServedAnswer, request: ClientRequest) -> Iterator[bytes]:
    """The same as events of a stream: the role, the content, the tool calls, the finish reason."""
    message = message_of(served.answer)
    calls, content = message.pop("tool_calls", None) or [], message.pop("content", None)
    yield _chunk(served, {**message, "content": "" if content is not None else None})
    if content:
        yield _chunk(served, {"content": content})
    for index, call in enumerate(calls):
        yield _chunk(served, {"tool_calls": [{"index": index, **call}]})
    yield _chunk(served, {}, _reason(served.answer))
    if request.include_usage:
        yield encoded_event(
            {**_head(served, "chat.completion.chunk"), "choices": [], "usage": usage_of(served.answer.usage)}
        )
    yield b"data: [DONE]\n\n"


def models_body(names: list[str]) -> bytes:
    listed = [{"id": name, "object": "model", "created": _CREATED, "owned_by": "holdfast"} for name in names]
    return _encode({"object": "list", "data": listed})


def refusal_body(message: str, code: str) -> bytes:
    return _encode({"error": {"message": message, "type": "holdfast", "param": None, "code": code}})


def refusal_of(failure: Failure) -> tuple[int, bytes]:
    """A failed request as a status and a body. The codes are the ones that clients react to: agents that receive
    `context_length_exceeded` shorten their conversation.
    """
    status, code = _STATUSES.get(failure.kind, (500, failure.kind))
    return status, refusal_body(f"{failure.kind}: {failure.message}", code)


def message_of(answer: Answer) -> Message:
    """The provider's message; if it has none, one with the answer's text and tool calls."""
    if answer.message:
        return dict(answer.message)
    made: Message = {"role": "assistant", "content": answer.text}
    return {**made, "tool_calls": answer.tool_calls} if answer.tool_calls else made


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def decode_body(body: bytes) -> dict[str, Any]:
    """The fields of a JSON body that are not null. BadBodyError if it is not an object."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBodyError(f"the body is not JSON: {error}") from None
    if not isinstance(decoded, dict):
        refuse("the body must be an object")
    return {name: value for name, value in decoded.items() if value is not None}


def typed(fields: dict[str, Any], name: str, kind: type, missing: Any) -> Any:
    value = fields.get(name, missing)
    if not isinstance(value, kind):
        refuse(f"{name} must be a {kind.__name__}")
    return value


def objects(fields: dict[str, Any], name: str, *, required: bool = False) -> list[dict[str, Any]]:
    value = fields.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value) or (required and not value):
        refuse(f"{name} must be a list of objects{', at least one' if required else ''}")
    return value


def refuse(what: str) -> NoReturn:
    raise BadBodyError(f"{what}: nothing was sent to the model")


def encoded_event(data: dict[str, Any]) -> bytes:
    return b"data: " + _encode(data) + b"\n\n"


def _reason(answer: Answer) -> str:
    """Never empty: some clients wait for a finish reason for ever."""
    return answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")


def _head(served: ServedAnswer, kind: str) -> dict[str, Any]:
    return {"id": served.id, "object": kind, "created": _CREATED, "model": served.model}


def _chunk(served: ServedAnswer, delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return encoded_event({**_head(served, "chat.completion.chunk"), "choices": [choice]})
