"""The test server's two protocols of OpenAI: chat completions (fast, for benchmarks) and the Responses API."""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from holdfast.bridge import BadBodyError, parse_response_request
from holdfast.records import Message, Usage
from holdfast.testing.protocols import (
    SIGNATURE,
    Refusal,
    ServerAnswer,
    ServerRequest,
    encode,
    event,
    pieces,
    reasoning_of,
    refuse,
)

_decoder = msgspec.json.Decoder(ServerRequest)


class ChatServer:
    """OpenAI's `POST …/chat/completions`."""

    empty_body = b'{"object":"chat.completion","choices":[]}'
    refusals: ClassVar[dict[str, Refusal]] = {
        "429-retry-after": Refusal(429, "Rate limit reached", "rate_limit_exceeded"),
        "context-too-long": Refusal(
            400, "This model's maximum context length is 8 tokens, your messages have more", "context_length_exceeded"
        ),
        "content-filter": Refusal(400, "The prompt was refused by the content management policy", "content_filter"),
    }

    def read(self, raw: bytes, path: str) -> ServerRequest:
        return _decoder.decode(raw)

    def body(self, reply: ServerAnswer) -> dict[str, Any]:
        answer = reply.answer
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant"} | answer.message,
            "finish_reason": answer.finish_reason,
        }
        if answer.logprobs:
            choice["logprobs"] = {"content": answer.logprobs}
        return {
            "id": f"chatcmpl-{reply.id}",
            "object": "chat.completion",
            "created": 0,
            "model": reply.model,
            "choices": [choice],
            "usage": _usage(answer.usage),
        }

    def events(self, reply: ServerAnswer) -> Iterator[bytes]:
        answer = reply.answer
        message: Message = {"role": "assistant"} | answer.message
        texts = {name: message.pop(name, None) for name in ("reasoning_content", "reasoning", "content", "refusal")}
        calls: list[Any] = message.pop("tool_calls", None) or []
        yield _chunk(reply, {**message, "content": "" if texts["content"] is not None else None})
        for name, text in texts.items():
            for piece in pieces(text or ""):
                yield _chunk(reply, {name: piece})
        for index, call in enumerate(calls):
            function = call["function"]
            first = {**call, "function": {**function, "arguments": ""}}
            yield _chunk(reply, {"tool_calls": [{"index": index, **first}]})
            for piece in pieces(function.get("arguments") or ""):
                yield _chunk(reply, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        for each in answer.logprobs:
            yield _chunk(reply, {}, logprobs={"content": [each]})
        yield _chunk(reply, {}, finish_reason=answer.finish_reason)
        yield event({**_head(reply), "choices": [], "usage": _usage(answer.usage)})
        yield b"data: [DONE]\n\n"

    def error_event(self, refusal: Refusal) -> bytes:
        return event({"error": {"message": refusal.text, "type": "error", "code": refusal.status}})

    def error_body(self, refusal: Refusal) -> bytes:
        code = refusal.code or str(refusal.status)
        return encode({"error": {"message": refusal.text, "type": "error", "code": code}})


def _usage(usage: Usage) -> dict[str, Any]:
    asked, answered = usage.input_tokens, usage.output_tokens
    counts: dict[str, Any] = {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered}
    if usage.cached_tokens or usage.cache_write_tokens:
        counts["prompt_tokens_details"] = {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        }
    if usage.reasoning_tokens:
        counts["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return counts


def _head(reply: ServerAnswer) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": "chat.completion.chunk", "created": 0, "model": reply.model}


def _chunk(reply: ServerAnswer, delta: Message, **more: Any) -> bytes:
    return event({**_head(reply), "choices": [{"index": 0, "delta": delta, "finish_reason": None, **more}]})


_UNKNOWN = ("messages", "max_tokens", "max_completion_tokens", "response_format", "stop", "seed", "n", "logprobs")
"""Parameters of chat completions that the real server rejects here."""
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesServer:
    """OpenAI's `POST …/responses`."""

    empty_body = b'{"object":"response","status":"completed"}'
    refusals: ClassVar[dict[str, Refusal]] = ChatServer.refusals

    def read(self, raw: bytes, path: str) -> ServerRequest:
        try:
            parsed = parse_response_request(raw)
        except BadBodyError as error:
            refuse(str(error))
        for name in _UNKNOWN:
            if name in parsed.params and f'"{name}"'.encode() in raw:
                refuse(f"Unknown parameter: '{name}'.")
        return ServerRequest(parsed.model, [*parsed.before, *parsed.messages], parsed.stream)

    def body(self, reply: ServerAnswer) -> dict[str, Any]:
        return _response(reply, _items(reply), "completed")

    def events(self, reply: ServerAnswer) -> Iterator[bytes]:
        number = -1

        def numbered(kind: str, **fields: Any) -> bytes:
            nonlocal number
            number += 1
            return event({"type": kind, "sequence_number": number, **fields}, kind)

        yield numbered("response.created", response=_response(reply, [], "in_progress"))
        items = _items(reply)
        for index, item in enumerate(items):
            empty = {"status": "in_progress", "content": [], "arguments": "", "summary": []}
            begun = {name: empty.get(name, value) for name, value in item.items()}
            yield numbered("response.output_item.added", output_index=index, item=begun)
            where = {"item_id": item["id"], "output_index": index}
            for kind, fields in _filling(item):
                yield numbered(f"response.{kind}", **where, **fields)
            yield numbered("response.output_item.done", output_index=index, item=item)
        ended = _response(reply, items, "completed")
        yield numbered(f"response.{ended['status']}", response=ended)

    def error_event(self, refusal: Refusal) -> bytes:
        error = {"type": "error", "code": "server_is_overloaded", "message": refusal.text, "param": None}
        return event({**error, "sequence_number": 9}, "error")

    def error_body(self, refusal: Refusal) -> bytes:
        code = refusal.code or str(refusal.status)
        return encode({"error": {"message": refusal.text, "type": "error", "code": code, "param": None}})


def _items(reply: ServerAnswer) -> list[dict[str, Any]]:
    answer = reply.answer
    items: list[dict[str, Any]] = []
    thought = reasoning_of(answer)
    if thought:
        summary = [{"type": "summary_text", "text": thought}]
        items.append({"id": f"rs_{reply.id}", "type": "reasoning", "summary": summary, "encrypted_content": SIGNATURE})
    if answer.text or not answer.tool_calls:
        part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": answer.logprobs}
        own = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**own, "content": [part] if answer.text else []})
    for index, call in enumerate(answer.tool_calls):
        own = {"id": f"fc_{reply.id}_{index}", "type": "function_call", "call_id": call["id"], "status": "completed"}
        items.append({**own, "name": call["function"]["name"], "arguments": call["function"]["arguments"]})
    return items


def _filling(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events between the beginning of an item and its end."""
    if item["type"] == "function_call":
        for piece in pieces(item["arguments"]):
            yield "function_call_arguments.delta", {"delta": piece}
        yield "function_call_arguments.done", {"name": item["name"], "arguments": item["arguments"]}
        return
    kind, name, number = (
        ("output_text", "content", "content_index")
        if item["type"] == "message"
        else ("reasoning_summary_text", "summary", "summary_index")
    )
    parts = "content_part" if name == "content" else "reasoning_summary_part"
    more: dict[str, Any] = {"logprobs": []} if name == "content" else {}
    for index, part in enumerate(item[name]):
        where = {number: index}
        yield f"{parts}.added", {**where, "part": {**part, "text": ""}}
        for piece in pieces(part["text"]):
            yield f"{kind}.delta", {**where, "delta": piece, **more}
        yield f"{kind}.done", {**where, "text": part["text"], **more}
        yield f"{parts}.done", {**where, "part": part}


def _response(reply: ServerAnswer, items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    cut = _CUT.get(reply.answer.finish_reason) if items else None
    given = reply.answer.usage
    usage = {
        "input_tokens": given.input_tokens,
        "input_tokens_details": {
            "cached_tokens": given.cached_tokens,
            "cache_write_tokens": given.cache_write_tokens,
        },
        "output_tokens": given.output_tokens,
        "output_tokens_details": {"reasoning_tokens": given.reasoning_tokens},
        "total_tokens": given.input_tokens + given.output_tokens,
    }
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if cut else status,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "model": reply.model,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if items else None,
    }
