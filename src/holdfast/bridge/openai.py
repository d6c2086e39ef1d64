"""The server side of OpenAI's protocols: chat completions and the Responses API. Parses a client's request body, and
writes an answer as a response body. Pure.

Fields about the transport (`stream`, `stream_options`, `n: 1`) end here; every other field is a parameter of the
request. A null counts as missing. Invariant: nothing in a response depends on the clock or the process. So after a
crash, a client that copies parts of a response into its next request sends the same request again, and it is replayed.

Newer SDKs and agents use the Responses API, but few model servers have it. So the request that is sent, recorded and
replayed is a chat request: items become chat messages, and an answer becomes items. Fields without a counterpart there
are rejected with a sentence. Fields about OpenAI's own storage (`store`, `include`, `metadata`) and reasoning items are
dropped.
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
    "unsupported": (400, "unsupported"),
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


_LEFT_OUT = {"store", "include", "metadata", "truncation", "background", "prompt_cache_key", "service_tier", "user"}
_RESPONSES_OWN = {"model", "input", "instructions", "tools", "stream", "stream_options", "previous_response_id"}
_RENAMED = {"max_output_tokens": "max_tokens"}
_REFUSED = {"conversation": "send the items", "prompt": "send the instructions"}
_TEXT_PARTS = {"input_text", "output_text", "text", "refusal"}


def parse_response_request(body: bytes) -> ClientRequest:
    """Parse a request. BadBodyError, in one sentence, if it cannot be sent as a chat request."""
    fields = decode_body(body)
    for name, instead in _REFUSED.items():
        if name in fields:
            refuse(f"{name}: not supported here; {instead}")
    if fields.get("background") is True:
        refuse("background: not supported here; wait for the response")
    given_input = fields.get("input", [])
    items = [{"role": "user", "content": given_input}] if isinstance(given_input, str) else objects(fields, "input")
    instructions, previous = typed(fields, "instructions", str, ""), typed(fields, "previous_response_id", str, "")
    if not items and not previous:
        refuse("input must be a text or a list of objects, at least one")
    return ClientRequest(
        model=typed(fields, "model", str, ""),
        messages=_messages(items),
        tools=[_tool(each) for each in objects(fields, "tools")],
        params=_params(fields),
        stream=typed(fields, "stream", bool, False),
        before=[{"role": "system", "content": instructions}] if instructions else [],
        previous=previous,
    )


def response_body(served: ServedAnswer) -> bytes:
    return msgspec.json.encode(_response(served, _items(served), "completed"))


def response_events(served: ServedAnswer, request: ClientRequest) -> Iterator[bytes]:
    """The same as events of a stream: each item is added, filled and completed."""
    number = -1

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return b"event: %b\n" % kind.encode() + encoded_event({"type": kind, "sequence_number": number, **fields})

    begun = _response(served, [], "in_progress")
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    items = _items(served)
    for index, item in enumerate(items):
        where = {"item_id": item["id"], "output_index": index}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield event("response.output_item.added", output_index=index, item={**item, **empty, "status": "in_progress"})
        if item["type"] == "message":
            (part,) = item["content"]
            where["content_index"] = 0
            yield event("response.content_part.added", **where, part={**part, "text": ""})
            yield event("response.output_text.delta", **where, delta=part["text"], logprobs=[])
            yield event("response.output_text.done", **where, text=part["text"], logprobs=[])
            yield event("response.content_part.done", **where, part=part)
        else:
            name, arguments = item["name"], item["arguments"]
            yield event("response.function_call_arguments.delta", **where, delta=arguments)
            yield event("response.function_call_arguments.done", **where, name=name, arguments=arguments)
        yield event("response.output_item.done", output_index=index, item=item)
    ended = _response(served, items, "completed")
    yield event(f"response.{ended['status']}", response=ended)


def _messages(items: list[dict[str, Any]]) -> list[Message]:
    """Items as chat messages. Function calls become part of the assistant message that they follow."""
    made: list[Message] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            made.append({"role": item.get("role", "user"), "content": _content(item.get("content"))})
        elif kind == "function_call":
            if not made or made[-1]["role"] != "assistant":
                made.append({"role": "assistant", "content": None})
            called = {"name": item.get("name", ""), "arguments": item.get("arguments", "")}
            call = {"id": item.get("call_id", ""), "type": "function", "function": called}
            made[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _content(item.get("output"))
            made.append({"role": "tool", "tool_call_id": item.get("call_id", ""), "content": content})
        elif kind != "reasoning":
            refuse(f"input: there is no {kind} in a chat request")
    return made


def _content(content: Any) -> Any:
    """One text if all parts are texts; otherwise a list of parts."""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content if isinstance(part, dict)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": str(part.get("text") or part.get("refusal") or "")}
    if kind != "input_image" or not isinstance(part.get("image_url"), str):
        refuse(f"input: a part {kind} cannot be part of a chat request")
    detail = {"detail": part["detail"]} if part.get("detail") else {}
    return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        refuse(f"tools: {tool.get('type')} is not supported here; only functions are")
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _params(fields: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _RESPONSES_OWN or name in _LEFT_OUT:
            continue
        if name == "reasoning" and isinstance(value, dict):
            params |= {"reasoning_effort": value["effort"]} if value.get("effort") else {}
        elif name == "text" and isinstance(value, dict):
            params |= _format(value)
        elif name == "tool_choice" and isinstance(value, dict) and "name" in value:
            params[name] = {"type": "function", "function": {"name": value["name"]}}
        else:
            params[_RENAMED.get(name, name)] = value
    return params


def _format(text: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"verbosity": text["verbosity"]} if text.get("verbosity") else {}
    form = text.get("format")
    if not isinstance(form, dict) or form.get("type") == "text":
        return kept
    if form.get("type") != "json_schema":
        return {**kept, "response_format": form}
    schema = {name: value for name, value in form.items() if name != "type"}
    return {**kept, "response_format": {"type": "json_schema", "json_schema": schema}}


def _items(served: ServedAnswer) -> list[dict[str, Any]]:
    """The answer as output items: its text, then its tool calls."""
    message = message_of(served.answer)
    calls = message.get("tool_calls") or []
    items: list[dict[str, Any]] = []
    if served.answer.text or not calls:
        part = {"type": "output_text", "text": served.answer.text, "annotations": [], "logprobs": []}
        own = {"id": f"msg_{served.id}", "type": "message", "role": "assistant", "content": [part]}
        items.append({**own, "status": "completed"})
    for index, call in enumerate(calls):
        function = call.get("function") or {}
        named = {"name": function.get("name", ""), "arguments": function.get("arguments", "")}
        own = {"id": f"fc_{served.id}_{index}", "type": "function_call", "call_id": call.get("id", "")}
        items.append({**own, **named, "status": "completed"})
    return items


def _response(served: ServedAnswer, items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    usage, why = served.answer.usage, served.answer.finish_reason
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(why) if items else None
    return {
        "id": served.id,
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if cut else status,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "model": served.model,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        }
        if items
        else None,
    }
