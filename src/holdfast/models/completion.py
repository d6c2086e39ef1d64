"""From the body of a chat completion to an answer. Pure.

Tolerant in what has no bearing on the answer: null or missing tool calls, missing usage, content as text, parts or
null, unknown fields. Strict in what has: a body without a choice is no answer.

The kept message can be sent back as it is: it has a role and a content, its unknown fields (`reasoning_content`), and
none of the nulls and empty lists that servers write but do not accept.
"""

from typing import Any

import msgspec

from holdfast.models.failures import ModelError
from holdfast.models.statuses import detail_of, kind_of, shorten
from holdfast.records.exchange import Answer, Message, Usage


def parse_completion(body: bytes) -> Answer:
    """The first choice, or ModelError. A server that wraps its failure in a 200 has failed all the same."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = body.decode(errors="replace")
        raise ModelError("malformed", f"the body is not JSON ({error}): {shorten(detail_of(text))}") from None
    choice = _choice(decoded)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _malformed("the choice has no message", choice)
    tool_calls = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
    text = _text(message)
    reason = choice.get("finish_reason")
    finish_reason = reason if isinstance(reason, str) else ""
    if finish_reason == "content_filter" and not text and not tool_calls:
        raise ModelError("content_filter", "the server's content filter took the whole answer (finish_reason)")
    return Answer(text, _kept(message, tool_calls), tool_calls, finish_reason, _usage(decoded.get("usage")))


def parse_models(body: bytes) -> list[str] | None:
    """The names in a list of models; None if it is no such list, which is no failure: few servers have to list them."""
    try:
        listed = msgspec.json.decode(body, type=_Models)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [each.id for each in listed.data]


class _Model(msgspec.Struct, frozen=True):
    """One entry of a list of models."""

    id: str


class _Models(msgspec.Struct, frozen=True):
    """What `GET …/models` answers."""

    data: list[_Model]


def _choice(decoded: Any) -> dict[str, Any]:
    if not isinstance(decoded, dict):
        raise _malformed("the body is not an object", decoded)
    choices = decoded.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    failed = first if isinstance(first, dict) and first.get("error") else decoded
    if failed.get("error"):
        raise _failure_in_success(failed)
    if not isinstance(first, dict):
        raise _malformed("the body has no choices", decoded)
    return first


def _failure_in_success(body: dict[str, Any]) -> ModelError:
    """Gateways answer 200 and put the status that they got into error.code."""
    error = body["error"]
    code = error.get("code") if isinstance(error, dict) else None
    text = msgspec.json.encode({"error": error}).decode()
    detail = f"status 200, but the body says: {shorten(detail_of(text))}"
    if isinstance(code, int) and 400 <= code <= 599:
        return ModelError(kind_of(code, text), detail, status=code)
    return ModelError("malformed", detail)


def _malformed(what: str, body: Any) -> ModelError:
    return ModelError("malformed", f"{what}: {shorten(msgspec.json.encode(body).decode())}")


def _text(message: Message) -> str:
    """A refusal is what the model said, when it said nothing else."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(map(_part_text, content))
    if content is not None and not isinstance(content, str):
        raise _malformed("the message's content is neither text nor parts", message)
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


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    return Usage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        _count(usage.get("prompt_tokens_details"), "cached_tokens"),
        _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: Any, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return int(value) if isinstance(value, int | float) and value > 0 else 0
