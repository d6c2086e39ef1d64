"""The test server's chat completions. Benchmarks use this protocol, so it is fast."""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from holdfast.records.samples import Message, Usage
from holdfast.testing.protocols import Refusal, ServerAnswer, ServerRequest, encode, event, pieces

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
