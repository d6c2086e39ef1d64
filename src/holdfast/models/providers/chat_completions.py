"""From the body of a chat completion to an answer. Pure.

Tolerant where it does not affect the answer: null or missing tool calls, missing usage, content as text, parts or null,
unknown fields. Strict where it does: a body without a choice is not an answer.

The kept message can be sent back unchanged: it has a role, a content and its unknown fields (`reasoning_content`), and
none of the nulls and empty lists that servers send but do not accept.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.models.http.bodies import (
    END,
    SseEvent,
    Values,
    check_tool_calls,
    cut_off,
    decode,
    failure_in_success,
    filtered,
    malformed,
    mapping,
    objects,
    parse_names,
    texts,
)
from holdfast.models.provider import Kind, ModelError
from holdfast.records import Answer, Message, Usage

_JOINED = ("content", "reasoning_content", "reasoning", "refusal")
"""Texts of a message that a stream sends in pieces."""
_PART_TEXTS = ("text", "thinking", "summary")
"""Texts of a content part that a stream sends in pieces."""
_BROKEN_OFF: dict[str, Kind] = {"error": "server", "abort": "server", "insufficient_system_resource": "overload"}
"""Finish reasons that mean a failure of the server: the text until then is not an answer."""


def answer_of(decoded: Any) -> Answer:
    """The first choice as an answer. ModelError if there is none, or the body of a 200 reports a failure."""
    choice = _choice(decoded)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise malformed("the choice has no message", choice)
    tool_calls = objects(message.get("tool_calls"))
    check_tool_calls(len(tool_calls))
    text, values = _text(message), Values()
    finish_reason = values.word(choice, "finish_reason")
    if finish_reason in _BROKEN_OFF:
        raise ModelError(_BROKEN_OFF[finish_reason], f"the server aborted its answer (finish_reason {finish_reason})")
    if finish_reason == "content_filter" and not text and not tool_calls:
        raise filtered("finish_reason")
    usage, logprobs = usage_of(decoded.get("usage"), values), _logprobs(choice.get("logprobs"))
    kept = _kept(message, tool_calls)
    return Answer(text, kept, tool_calls, finish_reason, usage, logprobs, dropped=values.dropped)


def join_chunks(events: Sequence[SseEvent]) -> dict[str, Any]:
    """The completion that the chunks of a stream add up to. ModelError if its end marker is missing.

    Texts and arguments of tool calls come in pieces; of every other field the last value counts.
    """
    body: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    message: Message = {"role": "assistant", "content": None}
    calls: list[_Call] = []
    logprobs: list[Any] = []
    for event in events:
        if event.data.strip() == END:
            break
        chunk = decode(event.data.encode())
        if not isinstance(chunk, dict) or chunk.get("error"):
            return chunk if isinstance(chunk, dict) else {}
        body |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        for part in _first(chunk.get("choices")):
            choice |= {"index": 0} | {
                name: value for name, value in part.items() if name != "delta" and value is not None
            }
            logprobs += _logprobs(part.get("logprobs"))
            _add_delta(message, calls, part.get("delta"))
    else:
        raise cut_off(f"its last line, {END}")
    if calls:
        message["tool_calls"] = [call.fields for call in sorted(calls, key=lambda call: call.index)]
    if not choice:
        return body
    return {**body, "choices": [{**choice, "message": message, "logprobs": {"content": logprobs}}]}


def _first(choices: Any) -> list[dict[str, Any]]:
    """The first choice of a chunk, if there is one."""
    return [each for each in objects(choices) if not each.get("index")]


def _add_delta(message: Message, calls: "list[_Call]", delta: Any) -> None:
    if not isinstance(delta, dict):
        return
    for name, value in delta.items():
        if name == "tool_calls":
            for call in objects(value):
                _add_call(calls, call)
        elif isinstance(value, list) or (name in _JOINED and isinstance(value, str)):
            message[name] = _joined(message.get(name), value)
        elif value is not None:
            message[name] = value


def _joined(before: Any, piece: Any) -> Any:
    """Append a piece. Texts are concatenated, and so are the texts of parts (Mistral's content, OpenRouter's
    `reasoning_details`) of the same type and index.
    """
    if not before or not isinstance(before, str | list):
        return piece
    if isinstance(before, str) and isinstance(piece, str):
        return before + piece
    parts = texts(before)
    for part in texts(piece):
        last = parts[-1]
        if _continues(last, part):
            joined = {name: last[name] + part[name] for name in _PART_TEXTS if name in last and name in part}
            parts[-1] = {**last, **{name: value for name, value in part.items() if value is not None}, **joined}
        else:
            parts.append(part)
    return parts


def _continues(last: Any, part: Any) -> bool:
    if not isinstance(last, dict) or not isinstance(part, dict):
        return False
    is_same = all(last.get(name) == part.get(name) for name in ("type", "index"))
    fit = all(type(last[name]) is type(part[name]) for name in _PART_TEXTS if name in last and name in part)
    return is_same and fit and any(isinstance(last.get(name), str | list) for name in _PART_TEXTS)


class _Call(msgspec.Struct):
    """A tool call that comes in pieces. Some servers give all calls the same index."""

    index: int
    fields: dict[str, Any]


def _add_call(calls: list[_Call], piece: dict[str, Any]) -> None:
    """Add a piece. The id and the name come once; some servers repeat them with every piece, or send them empty. A new
    id and name under a known index (Ollama's are all 0) start another call.
    """
    function = mapping(piece.get("function"))
    given, name = piece.get("id") or "", function.get("name") or ""
    index = piece.get("index")
    number = index if isinstance(index, int) else len(calls)
    found = next((call for call in reversed(calls) if call.index == number), None)
    if found is None or (name and given and found.fields["id"] not in ("", given)):
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        found = _Call(number, empty)
        calls.append(found)
    call = found.fields
    call["id"] = call["id"] or given
    call["function"]["name"] = name or call["function"]["name"]
    arguments = function.get("arguments")
    call["function"]["arguments"] += arguments if isinstance(arguments, str) else ""
    known = {"index", "id", "type", "function"}
    call |= {name: value for name, value in piece.items() if name not in known and value is not None}


def _logprobs(logprobs: Any) -> list[dict[str, Any]]:
    return objects(logprobs.get("content")) if isinstance(logprobs, dict) else []


def parse_models(body: bytes) -> list[str] | None:
    return parse_names(body, "data", "id")


def _choice(decoded: Any) -> dict[str, Any]:
    if not isinstance(decoded, dict):
        raise malformed("the body is not an object", decoded)
    choices = decoded.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    failed = first if isinstance(first, dict) and first.get("error") else decoded
    if failed.get("error"):
        raise failure_in_success(failed["error"])
    if not isinstance(first, dict):
        raise malformed("the body has no choices", decoded)
    return first


def _text(message: Message) -> str:
    """The text of a message; its refusal if there is no other text."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(map(_part_text, content))
    if content is not None and not isinstance(content, str):
        raise malformed("the message's content is neither text nor parts", message)
    refusal = message.get("refusal")
    return content or (refusal if isinstance(refusal, str) else "")


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def _kept(message: Message, tool_calls: list[dict[str, Any]]) -> Message:
    kept = {name: value for name, value in message.items() if value is not None and value != []}
    if tool_calls:
        kept["tool_calls"] = tool_calls
    else:
        kept.pop("tool_calls", None)
    kept.setdefault("role", "assistant")
    kept.setdefault("content", None if tool_calls else "")
    return kept


def usage_of(usage: Any, values: Values) -> Usage:
    """xAI and Google count reasoning tokens only in the total, not in the completion tokens: use the difference."""
    if not isinstance(usage, dict):
        return Usage()
    count = values.count
    prompt, output = count(usage, "prompt_tokens"), count(usage, "completion_tokens")
    if prompt:
        output = max(output, count(usage, "total_tokens") - prompt)
    read, written = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    if not read and not written and "prompt_cache_hit_tokens" not in usage:
        return Usage(prompt, output)
    cached = count(read, "cached_tokens") or count(usage, "prompt_cache_hit_tokens")
    return Usage(prompt, output, cached, count(written, "reasoning_tokens"), count(read, "cache_write_tokens"))
