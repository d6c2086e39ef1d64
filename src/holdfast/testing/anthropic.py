"""The test server's Messages API, like Anthropic's. It rejects what the real one rejects."""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from holdfast.records import Message, Usage
from holdfast.testing.protocols import (
    SIGNATURE,
    Refusal,
    ServerAnswer,
    ServerRequest,
    arguments_of,
    encode,
    event,
    pieces,
    reasoning_of,
    refuse,
    reject_unknown,
)

_KNOWN = """
model messages max_tokens system stream temperature top_p top_k stop_sequences tools tool_choice thinking
metadata output_config service_tier cache_control container
"""
_FIELDS = frozenset(_KNOWN.split())
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")


class MessagesServer:
    """`POST …/messages`."""

    empty_body = b'{"type":"message","role":"assistant"}'
    refusals: ClassVar[dict[str, Refusal]] = {
        "429-retry-after": Refusal(429, "This request would exceed your rate limit"),
        "context-too-long": Refusal(400, "prompt is too long: 9 tokens > 8 maximum"),
        "content-filter": Refusal(400, "Output blocked by content filtering policy"),
    }

    def read(self, raw: bytes, path: str) -> ServerRequest:
        given = msgspec.json.decode(raw)
        if not isinstance(given, dict) or not isinstance(given.get("messages"), list) or not given["messages"]:
            refuse("messages: Field required")
        reject_unknown(given, _FIELDS, "")
        if not isinstance(given.get("max_tokens"), int) or given["max_tokens"] < 1:
            refuse("max_tokens: Field required")
        messages = [{"role": "system", "content": _text(given["system"])}] if given.get("system") else []
        waiting: list[str] = []
        for index, message in enumerate(given["messages"]):
            read = list(_message(message, f"messages.{index}"))
            _check_results(waiting, read)
            waiting = [call["id"] for each in read for call in each.get("tool_calls", ())]
            messages += read
        return ServerRequest(given.get("model", ""), messages, bool(given.get("stream")))

    def body(self, reply: ServerAnswer) -> dict[str, Any]:
        return {**_head(reply), "content": _blocks(reply), "stop_reason": _reason(reply), "usage": _usage(reply)}

    def events(self, reply: ServerAnswer) -> Iterator[bytes]:
        begun = {**_head(reply), "content": [], "stop_reason": None, "usage": {**_usage(reply), "output_tokens": 1}}
        yield event({"type": "message_start", "message": begun}, "message_start")
        yield event({"type": "ping"}, "ping")
        for index, block in enumerate(_blocks(reply)):
            empty = {"text": "", "thinking": "", "signature": "", "input": {}}
            started = {name: empty.get(name, value) for name, value in block.items()}
            yield event(
                {"type": "content_block_start", "index": index, "content_block": started}, "content_block_start"
            )
            for delta in _deltas(block):
                yield event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
            yield event({"type": "content_block_stop", "index": index}, "content_block_stop")
        ended = {"stop_reason": _reason(reply), "stop_sequence": None}
        yield event({"type": "message_delta", "delta": ended, "usage": _usage(reply)}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def error_event(self, refusal: Refusal) -> bytes:
        return event(_failure(refusal), "error")

    def error_body(self, refusal: Refusal) -> bytes:
        return encode(_failure(refusal))


def _message(message: dict[str, Any], where: str) -> Iterator[Message]:
    """One message in OpenAI's format, where tool results are separate messages."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        refuse(f"{where}.role: Input should be 'user' or 'assistant'")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not blocks:
        refuse(f"{where}: all messages must have non-empty content")
    parsed: Message = {"role": role, "content": []}
    for block in blocks:
        if block.get("type") == "tool_result":
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _text(block.get("content", ""))}
        else:
            _add_block(parsed, block, where)
    if parsed["content"] or role == "assistant":
        only_text = all(part["type"] == "text" for part in parsed["content"])
        yield {**parsed, "content": _text(parsed["content"]) if only_text else parsed["content"]}


def _add_block(parsed: Message, block: dict[str, Any], where: str) -> None:
    kind = block.get("type")
    if kind == "text":
        if not block["text"]:
            refuse(f"{where}: text content blocks must be non-empty")
        parsed["content"].append({"type": "text", "text": block["text"]})
    elif kind == "image":
        parsed["content"].append({"type": "image_url", "image_url": {"url": _image(block["source"], where)}})
    elif kind == "tool_use":
        called = {"name": block["name"], "arguments": encode(block["input"]).decode()}
        parsed.setdefault("tool_calls", []).append({"id": block["id"], "type": "function", "function": called})
    elif kind in ("thinking", "redacted_thinking"):
        if kind == "thinking" and block.get("signature") != SIGNATURE:
            refuse(f"{where}: Invalid `signature` in `thinking` block")
        parsed.setdefault("thinking_blocks", []).append(block)
    else:
        refuse(f"{where}: Input tag '{kind}' found using 'type' does not match any of the expected tags")


def _check_results(waiting: list[str], read: list[Message]) -> None:
    """Reject unless the next message has the results of all tool calls, and no others."""
    results = [each["tool_call_id"] for each in read if each["role"] == "tool"]
    missing = sorted(set(waiting) - set(results))
    if missing:
        refuse(f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}")
    if set(results) - set(waiting):
        refuse("unexpected `tool_use_id` found in `tool_result` blocks")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _image(source: dict[str, Any], where: str) -> str:
    if source.get("type") == "url":
        return str(source["url"])
    if source.get("type") != "base64" or source.get("media_type") not in _MEDIA:
        refuse(f"{where}: image.source: this is no image")
    return f"data:{source['media_type']};base64,{source['data']}"


def _blocks(reply: ServerAnswer) -> list[dict[str, Any]]:
    answer = reply.answer
    thought = reasoning_of(answer)
    blocks: list[dict[str, Any]] = []
    if thought:
        blocks.append({"type": "thinking", "thinking": thought, "signature": SIGNATURE})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    for call in answer.tool_calls:
        own = {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}
        blocks.append({**own, "input": arguments_of(call)})
    return blocks


def _deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
    elif block["type"] == "thinking":
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"]))
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        written = encode(block["input"]).decode()
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces(written)))


def _head(reply: ServerAnswer) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "stop_sequence": None,
    }


def _reason(reply: ServerAnswer) -> str:
    return _REASONS[reply.answer.finish_reason]


def _usage(reply: ServerAnswer) -> dict[str, Any]:
    usage: Usage = reply.answer.usage
    return {
        "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _failure(refusal: Refusal) -> dict[str, Any]:
    kind = _TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.text}, "request_id": "req_test"}
