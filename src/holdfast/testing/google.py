"""The test server's Gemini API, like Google's. It rejects what the real one rejects, above all unknown fields."""

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from holdfast.records import Message
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

_KNOWN = "contents systemInstruction generationConfig tools toolConfig safetySettings cachedContent labels"
_FIELDS = frozenset(_KNOWN.split())
_SETTINGS = """
temperature topP topK candidateCount maxOutputTokens stopSequences seed responseMimeType responseSchema
responseJsonSchema presencePenalty frequencyPenalty responseLogprobs logprobs thinkingConfig responseModalities
mediaResolution speechConfig
"""
_CONFIG = frozenset(_SETTINGS.split())
_UNDERSCORED = re.compile("_([a-z])")
_REASONS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_BLOCKED = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 3}}


class GenerateContentServer:
    """`POST …/models/MODEL:generateContent` and `:streamGenerateContent?alt=sse`."""

    empty_body = b'{"candidates":[]}'
    refusals: ClassVar[dict[str, Refusal]] = {
        "429-retry-after": Refusal(429, "You exceeded your current quota"),
        "context-too-long": Refusal(400, "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        "content-filter": Refusal(200, ""),
    }

    def read(self, raw: bytes, path: str) -> ServerRequest:
        given = msgspec.json.decode(raw)
        given = _camel(given) if isinstance(given, dict) else {}
        if not isinstance(given.get("contents"), list) or not given["contents"]:
            refuse("GenerateContentRequest.contents: contents is not specified")
        reject_unknown(given, _FIELDS, "Invalid JSON payload received. ")
        reject_unknown(
            _camel(given.get("generationConfig", {})), _CONFIG, "Invalid JSON payload received. generation_config."
        )
        system = given.get("systemInstruction")
        messages = [{"role": "system", "content": _text(system["parts"])}] if system else []
        calls: list[dict[str, Any]] = []
        for content in given["contents"]:
            read = list(_messages(content))
            results = [each for each in read if each["role"] == "tool"]
            if results and len(results) != len(calls):
                refuse("the number of function response parts must equal that of the function call parts")
            calls = [call for each in read for call in each.get("tool_calls", ())]
            messages += read
        model = path.rpartition("/models/")[2].partition(":")[0]
        return ServerRequest(model, messages, path.endswith(":streamGenerateContent"))

    def body(self, reply: ServerAnswer) -> dict[str, Any]:
        candidate: dict[str, Any] = {
            "content": {"role": "model", "parts": list(_parts(reply))},
            "finishReason": _REASONS[reply.answer.finish_reason],
            "index": 0,
        }
        if reply.answer.logprobs:
            candidate["logprobsResult"] = _logprobs(reply.answer.logprobs)
        return {**_head(reply), "candidates": [candidate], "usageMetadata": _usage(reply)}

    def events(self, reply: ServerAnswer) -> Iterator[bytes]:
        """There is no end marker: the last chunk is the one with a finish reason."""
        for part in _parts(reply):
            for piece in [{**part, "text": text} for text in pieces(part["text"])] if "text" in part else [part]:
                candidate = {"content": {"role": "model", "parts": [piece]}, "index": 0}
                yield event({**_head(reply), "candidates": [candidate], "usageMetadata": {"promptTokenCount": 1}})
        end = _REASONS[reply.answer.finish_reason]
        ended: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": end, "index": 0}
        if reply.answer.logprobs:
            ended["logprobsResult"] = _logprobs(reply.answer.logprobs)
        yield event({**_head(reply), "candidates": [ended], "usageMetadata": _usage(reply)})

    def error_event(self, refusal: Refusal) -> bytes:
        return event(_failure(refusal))

    def error_body(self, refusal: Refusal) -> bytes:
        return encode(_BLOCKED if refusal.status == 200 else _failure(refusal))


def _messages(content: dict[str, Any]) -> Iterator[Message]:
    role = {"user": "user", "model": "assistant"}.get(content.get("role", "user"))
    parts = content.get("parts")
    if role is None or not isinstance(parts, list) or not parts:
        refuse("GenerateContentRequest.contents: please use a valid role: user, model, with at least one part")
    parsed: Message = {"role": role, "content": []}
    for part in parts:
        if "functionResponse" in part:
            given = part["functionResponse"]
            if not isinstance(given.get("response"), dict) or not given.get("name"):
                refuse("function_response: name and response are required, and response is a struct")
            text = given["response"].get("result", encode(given["response"]).decode())
            yield {"role": "tool", "tool_call_id": given.get("id", ""), "content": text}
        else:
            _add_part(parsed, _camel(part))
    if parsed["content"] or role == "assistant":
        only_text = all(part["type"] == "text" for part in parsed["content"])
        yield {**parsed, "content": _text(parsed["content"]) if only_text else parsed["content"]}


def _camel(given: dict[str, Any]) -> dict[str, Any]:
    """Names in camelCase: the real server accepts both spellings."""
    return {_UNDERSCORED.sub(lambda match: match[1].upper(), name): value for name, value in given.items()}


def _add_part(parsed: Message, part: dict[str, Any]) -> None:
    if "text" in part:
        parsed["content"].append({"type": "text", "text": part["text"]})
    elif "inlineData" in part:
        blob = _camel(part["inlineData"])
        url = f"data:{blob['mimeType']};base64,{blob['data']}"
        parsed["content"].append({"type": "image_url", "image_url": {"url": url}})
    elif "fileData" in part:
        parsed["content"].append({"type": "image_url", "image_url": {"url": _camel(part["fileData"])["fileUri"]}})
    elif "functionCall" in part:
        if part.get("thoughtSignature", SIGNATURE) != SIGNATURE:
            refuse("Thought signature is not valid")
        call = part["functionCall"]
        called = {"name": call["name"], "arguments": encode(call.get("args", {})).decode()}
        parsed.setdefault("tool_calls", []).append({"id": call.get("id", ""), "type": "function", "function": called})
    else:
        refuse("contents.parts: required oneof field 'data' must have one initialized field")


def _text(parts: list[dict[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in parts)


def _parts(reply: ServerAnswer) -> Iterator[dict[str, Any]]:
    answer = reply.answer
    thought = reasoning_of(answer)
    signed = {"thoughtSignature": SIGNATURE} if thought else {}
    if thought:
        yield {"text": thought, "thought": True}
    if answer.text:
        yield {"text": answer.text, **({} if answer.tool_calls else signed)}
    for index, call in enumerate(answer.tool_calls):
        own = {"id": call["id"], "name": call["function"]["name"], "args": arguments_of(call)}
        yield {"functionCall": own, **({} if index else signed)}


def _head(reply: ServerAnswer) -> dict[str, Any]:
    return {"modelVersion": reply.model, "responseId": reply.id}


def _usage(reply: ServerAnswer) -> dict[str, Any]:
    usage = reply.answer.usage
    thought = {"thoughtsTokenCount": usage.reasoning_tokens} if usage.reasoning_tokens else {}
    return {
        "promptTokenCount": usage.input_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
        **thought,
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
    }


def _logprobs(logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    def candidate(each: dict[str, Any]) -> dict[str, Any]:
        return {"token": each["token"], "tokenId": 1, "logProbability": each["logprob"]}

    return {
        "chosenCandidates": [candidate(each) for each in logprobs],
        "topCandidates": [{"candidates": [candidate(top) for top in each["top_logprobs"]]} for each in logprobs],
    }


def _failure(refusal: Refusal) -> dict[str, Any]:
    status = _STATUSES.get(refusal.status, "INVALID_ARGUMENT" if refusal.status < 500 else "INTERNAL")
    failed: dict[str, Any] = {"code": refusal.status, "message": refusal.text, "status": status}
    if refusal.retry_after:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        failed["details"] = [{"@type": kind, "retryDelay": f"{refusal.retry_after}s"}]
    return {"error": failed}
