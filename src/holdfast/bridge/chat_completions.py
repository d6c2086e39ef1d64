"""The other side of a chat completion: from the body that a client sends to what it asks, and from an answer to what a
server says. Pure.

What only concerns the way (`stream`, `stream_options`, `n: 1`) ends here; every other field is a parameter of the
request. A null means "not said". Nothing in what is said depends on the clock or the process, so a client that puts a
part of it into its next request asks the same thing again after a crash.
"""

from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from holdfast.errors import HoldfastError
from holdfast.records.facts import Failure
from holdfast.records.samples import Answer, Message, Usage

_encode = msgspec.json.Encoder().encode
_CREATED = 0
"""The time of an answer is in the journal; here it would make a replay differ."""
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
    """A request that cannot be understood. Nothing was asked."""


class Wanted(msgspec.Struct, frozen=True):
    """What a client asks for."""

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    params: dict[str, Any]
    stream: bool = False
    include_usage: bool = False
    before: list[Message] = []
    """Comes before everything, and is not kept for a request that follows."""
    previous: str = ""
    """The id of an answer in the same attempt that this request goes on from."""


class Said(msgspec.Struct, frozen=True):
    """An answer on its way to a client: its id, and the model that the client named."""

    id: str
    model: str
    answer: Answer


def parse_request(body: bytes) -> Wanted:
    """BadBodyError, in one sentence, for what is no chat request."""
    given = decode_body(body)
    if given.get("n", 1) != 1:
        refuse("n: one answer a request; ask as often as you want answers")
    options = given.get("stream_options", {})
    return Wanted(
        model=typed(given, "model", str, ""),
        messages=objects(given, "messages", required=True),
        tools=objects(given, "tools"),
        params={name: value for name, value in given.items() if name not in _OWN},
        stream=typed(given, "stream", bool, False),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def completion_body(said: Said) -> bytes:
    choice = {"index": 0, "message": message_of(said.answer), "finish_reason": _reason(said.answer), "logprobs": None}
    return _encode({**_head(said, "chat.completion"), "choices": [choice], "usage": usage_of(said.answer.usage)})


def completion_chunks(said: Said, wanted: Wanted) -> Iterator[bytes]:
    """The same as events of a stream: who speaks, what it says, the calls, why it ended."""
    message = message_of(said.answer)
    calls, content = message.pop("tool_calls", None) or [], message.pop("content", None)
    yield _chunk(said, {**message, "content": "" if content is not None else None})
    if content:
        yield _chunk(said, {"content": content})
    for index, call in enumerate(calls):
        yield _chunk(said, {"tool_calls": [{"index": index, **call}]})
    yield _chunk(said, {}, _reason(said.answer))
    if wanted.include_usage:
        yield encoded_event(
            {**_head(said, "chat.completion.chunk"), "choices": [], "usage": usage_of(said.answer.usage)}
        )
    yield b"data: [DONE]\n\n"


def models_body(names: list[str]) -> bytes:
    listed = [{"id": name, "object": "model", "created": _CREATED, "owned_by": "holdfast"} for name in names]
    return _encode({"object": "list", "data": listed})


def refusal_body(message: str, code: str) -> bytes:
    return _encode({"error": {"message": message, "type": "holdfast", "param": None, "code": code}})


def refusal_of(failure: Failure) -> tuple[int, bytes]:
    """A failed request as a status and a body. The codes are those that clients act on: agents that get
    `context_length_exceeded` shorten what they say.
    """
    status, code = _STATUSES.get(failure.kind, (500, failure.kind))
    return status, refusal_body(f"{failure.kind}: {failure.message}", code)


def message_of(answer: Answer) -> Message:
    """As the provider had it; made from its text if it had none."""
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
    """The fields that are said. BadBodyError if it is no object."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBodyError(f"the body is not JSON: {error}") from None
    if not isinstance(decoded, dict):
        refuse("the body must be an object")
    return {name: value for name, value in decoded.items() if value is not None}


def typed(given: dict[str, Any], name: str, kind: type, missing: Any) -> Any:
    value = given.get(name, missing)
    if not isinstance(value, kind):
        refuse(f"{name} must be a {kind.__name__}")
    return value


def objects(given: dict[str, Any], name: str, *, required: bool = False) -> list[dict[str, Any]]:
    value = given.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value) or (required and not value):
        refuse(f"{name} must be a list of objects{', at least one' if required else ''}")
    return value


def refuse(what: str) -> NoReturn:
    raise BadBodyError(f"{what}: nothing was asked")


def encoded_event(data: dict[str, Any]) -> bytes:
    return b"data: " + _encode(data) + b"\n\n"


def _reason(answer: Answer) -> str:
    """A client may wait for one for ever."""
    return answer.finish_reason or ("tool_calls" if answer.tool_calls else "stop")


def _head(said: Said, kind: str) -> dict[str, Any]:
    return {"id": said.id, "object": kind, "created": _CREATED, "model": said.model}


def _chunk(said: Said, delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return encoded_event({**_head(said, "chat.completion.chunk"), "choices": [choice]})
