"""Anthropic's Messages API: messages in OpenAI's format to its blocks, and its blocks to an answer.

- `max_tokens` (default 8192: the server requires one), `stop`, `response_format` with a schema, `tools`, `tool_choice`
  and `parallel_tool_calls` are written as for chat completions.
- Everything else (`thinking`, `top_k`, `output_config`, `cache_control` in a part or a tool) is sent unchanged.
  There is no `seed`: it is dropped.
- Thinking is kept in the message with its signature, as `thinking_blocks`, and sent back with it.
- Where OpenAI's format cannot express the blocks or their order (a thought between two calls, a search on the server),
  the message keeps all of them as `content_blocks`. They are sent back unchanged, unless the message's text or tool
  calls were changed since.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from yarl import URL

from holdfast.models.http.bodies import (
    SseEvent,
    Values,
    as_object,
    check_tool_calls,
    cut_off,
    decode,
    failure_in_success,
    filtered,
    malformed,
    mapping,
    objects,
    parse_names,
    split_data_url,
    texts,
)
from holdfast.models.http.endpoint import HttpProvider, parse_url, read_key
from holdfast.models.provider import BadConnectionError, Connection, ModelError, Request
from holdfast.records import COUNT_MAX, Answer, Message, Usage
from holdfast.spec import PROVIDERS

INFO = PROVIDERS["anthropic"]
MAX_TOKENS = 8192
_VERSION = "2023-06-01"
_PARTIAL_INPUT = "partial_json"
"""The field that collects the input of a tool call until it is complete."""
_THINKING = ("thinking", "redacted_thinking")
_LEFT_OUT = {"seed", "max_completion_tokens", "parallel_tool_calls"}
_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_ORDER = {"thinking": 0, "redacted_thinking": 0, "text": 1, "tool_use": 2}
"""The order of blocks that OpenAI's format can express."""


def make_anthropic(connection: Connection) -> HttpProvider:
    if connection.options:
        named = ", ".join(connection.options)
        raise BadConnectionError(f"anthropic has no options; fields of a request ({named}) belong in `params`")
    base = parse_url(str(connection.base_url or INFO.base_url))
    return HttpProvider(connection, Messages(), base, read_key(connection, *INFO.key_variables))


class Messages:
    """`POST …/messages`."""

    def url(self, base: URL, model: str, *, stream: bool) -> URL:
        return base / "messages"

    def models_url(self, base: URL) -> URL:
        return (base / "models").with_query(limit=1000)

    def headers(self, key: str) -> Mapping[str, str]:
        return {"anthropic-version": _VERSION, **({"x-api-key": key} if key else {})}

    def body(self, model: str, request: Request, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "messages": _turns(request.messages), **_params(request.params)}
        system = [part for each in request.messages if _is_system(each) for part in texts(each.get("content"))]
        if system:
            body["system"] = system[0]["text"] if len(system) == 1 and len(system[0]) == 2 else system
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if stream:
            body["stream"] = True
        return body

    def answer(self, body: Any) -> Answer:
        if not isinstance(body, dict):
            raise malformed("the body is not an object", body)
        if body.get("type") == "error" or body.get("error"):
            raise failure_in_success(body.get("error"))
        if not isinstance(body.get("content"), list):
            raise malformed("the body has no content", body)
        return _answer(body, objects(body["content"]))

    def joined(self, events: Sequence[SseEvent]) -> Any:
        body: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        for event in events:
            data = decode(event.data.encode())
            kind = data.get("type") if isinstance(data, dict) else None
            if kind == "error":
                return data
            if kind == "message_stop":
                return {**body, "content": [_ended(blocks[index]) for index in sorted(blocks)]}
            if kind == "message_start":
                body |= mapping(data.get("message"))
            elif kind == "message_delta":
                fields = _without_nulls(mapping(data.get("usage")))
                body |= {**mapping(data.get("delta")), "usage": {**mapping(body.get("usage")), **fields}}
            elif kind in ("content_block_start", "content_block_delta"):
                _add_piece(blocks, data)
        raise cut_off("message_stop")

    def models(self, body: bytes) -> list[str] | None:
        return parse_names(body, "data", "id")


def _is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


def _turns(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as alternating turns: tool results become part of the user's turn, and messages in a row are joined."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if _is_system(message):
            continue
        role = "assistant" if message.get("role") == "assistant" else "user"
        blocks = list(_blocks(message))
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    parts = [_part(part) for part in texts(message.get("content")) if part.get("text") != ""]
    if message.get("role") == "tool":
        content = parts[0]["text"] if len(parts) == 1 and parts[0].keys() == {"type", "text"} else parts
        yield {"type": "tool_result", "tool_use_id": message.get("tool_call_id", ""), "content": content}
        return
    whole = objects(message.get("content_blocks"))
    if whole and (_text(whole), _calls(whole)) == (message.get("content") or "", message.get("tool_calls") or []):
        yield from map(_sent_back, whole)
        return
    yield from objects(message.get("thinking_blocks"))
    yield from parts
    for call in objects(message.get("tool_calls")):
        function = call.get("function") or {}
        called = {"name": function.get("name", ""), "input": as_object(function.get("arguments"))}
        yield {"type": "tool_use", "id": call.get("id", ""), **called}


def _sent_back(block: dict[str, Any]) -> dict[str, Any]:
    """The block as the server accepts it: an `input` that `max_tokens` cut off is wrapped into an object."""
    return {**block, "input": as_object(block.get("input"))} if block.get("type") == "tool_use" else block


def _part(part: dict[str, Any]) -> dict[str, Any]:
    image = part.get("image_url")
    if part.get("type") != "image_url" or not isinstance(image, dict):
        return part
    url = str(image.get("url", ""))
    data = split_data_url(url)
    if data is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": data[0], "data": data[1]}}


def _params(params: Mapping[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"max_tokens": params.get("max_completion_tokens", MAX_TOKENS)}
    formatted = "response_format" in params
    for name, value in params.items():
        if name == "stop":
            body["stop_sequences"] = [value] if isinstance(value, str) else value
        elif name == "response_format":
            body["output_config"] = {**params.get("output_config", {}), **_format(value)}
        elif name == "tool_choice":
            body[name] = _choice(value)
        elif name not in _LEFT_OUT and not (formatted and name == "output_config"):
            body[name] = value
    if params.get("parallel_tool_calls") is False:
        body["tool_choice"] = {"type": "auto", **body.get("tool_choice", {}), "disable_parallel_tool_use": True}
    return body


def _format(response_format: Any) -> dict[str, Any]:
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "text":
        return {}
    schema = response_format.get("json_schema") if isinstance(response_format, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise ModelError(
            "bad_request", f"anthropic has no response_format of type {kind}: give a json_schema; nothing was sent"
        )
    return {"format": {"type": "json_schema", "schema": schema.get("schema", {})}}


def _choice(value: Any) -> Any:
    if isinstance(value, str):
        return {"type": _CHOICES.get(value, value)}
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        return {"type": "tool", "name": value["function"].get("name")}
    return value


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    body = {"name": function.get("name", ""), "input_schema": function.get("parameters") or {"type": "object"}}
    own = {name: value for name, value in tool.items() if name not in ("type", "function")}
    return body | {name: function[name] for name in ("description", "strict") if function.get(name) is not None} | own


def _add_piece(blocks: dict[int, dict[str, Any]], data: dict[str, Any]) -> None:
    """Add a piece of a stream to its block: every kind of piece is a text to append."""
    index, delta = data.get("index"), mapping(data.get("delta"))
    if not isinstance(index, int):
        raise malformed("a stream event has no block index", data)
    block = blocks.setdefault(index, {})
    block |= mapping(data.get("content_block"))
    for piece, whole in (("text", "text"), ("thinking", "thinking"), ("partial_json", _PARTIAL_INPUT)):
        if isinstance(delta.get(piece), str):
            block[whole] = str(block.get(whole) or "") + delta[piece]
    if "signature" in delta:
        block["signature"] = delta["signature"]


def _ended(block: dict[str, Any]) -> dict[str, Any]:
    """The finished block. An input that is not JSON stays a text: `max_tokens` may have cut it off."""
    written = block.pop(_PARTIAL_INPUT, "")
    if not written:
        return block
    try:
        return {**block, "input": decode(written.encode())}
    except ModelError:
        return {**block, "input": written}


def _answer(body: dict[str, Any], blocks: list[dict[str, Any]]) -> Answer:
    text, calls, values = _text(blocks), _calls(blocks), Values()
    check_tool_calls(len(calls))
    stop_reason = values.word(body, "stop_reason")
    reason = _REASONS.get(stop_reason, stop_reason)
    if reason == "content_filter" and not text and not calls:
        raise filtered("stop_reason: refusal")
    message: Message = {"role": "assistant", "content": text or (None if calls else "")}
    thoughts = [block for block in blocks if block.get("type") in _THINKING]
    if thoughts:
        message["reasoning_content"] = "\n\n".join(
            str(block["thinking"]) for block in thoughts if block.get("thinking")
        )
        message["thinking_blocks"] = thoughts
    if calls:
        message["tool_calls"] = calls
    places = [_ORDER.get(str(block.get("type")), -1) for block in blocks]
    if -1 in places or places != sorted(places):
        message["content_blocks"] = [_without_nulls(block) for block in blocks if block.get("text") != ""]
    usage = _usage(body.get("usage"), values)
    return Answer(text, message, calls, reason, usage, dropped=values.dropped)


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _text(blocks: list[dict[str, Any]]) -> str:
    return "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text")


def _calls(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_call(block) for block in blocks if block.get("type") == "tool_use"]


def _call(block: dict[str, Any]) -> dict[str, Any]:
    given = block.get("input")
    arguments = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
    function = {"name": block.get("name", ""), "arguments": arguments}
    return {"id": block.get("id", ""), "type": "function", "function": function}


def _usage(usage: Any, values: Values) -> Usage:
    """The server's `input_tokens` exclude tokens that were read from the cache or written to it: add them."""
    count = values.count
    read, written = count(usage, "cache_read_input_tokens"), count(usage, "cache_creation_input_tokens")
    details = usage.get("output_tokens_details") if isinstance(usage, dict) else None
    thought = count(details, "thinking_tokens")
    asked = min(count(usage, "input_tokens") + read + written, COUNT_MAX)
    return Usage(asked, count(usage, "output_tokens"), read, thought, written)
