"""What the test server says: sums computed, everything else echoed, in the shape of a chat completion. Pure."""

import re
from fractions import Fraction
from typing import Any

import msgspec

from holdfast.records.exchange import Message
from holdfast.testing.behaviour import Behaviour, is_wrong

_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
_SUM = re.compile(rf"-?{_NUMBER}(?:\s*[-+*/]\s*-?{_NUMBER})+")
_TOKEN = re.compile(rf"([-+*/])?\s*(-?{_NUMBER})\s*")


def completion(behaviour: Behaviour, model: str, messages: list[Message], digest: str) -> dict[str, Any]:
    """A whole answer. Nothing in it depends on when or how often it was asked."""
    said = behaviour.reply(messages) if behaviour.reply else _say(behaviour, messages, digest)
    message: Message = {"role": "assistant", "content": said} if isinstance(said, str) else {"role": "assistant"} | said
    asked, answered = sum(map(_words, messages)), _words(message)
    return {
        "id": f"chatcmpl-{digest}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop"}
        ],
        "usage": {"prompt_tokens": asked, "completion_tokens": answered, "total_tokens": asked + answered},
    }


def reshape(body: dict[str, Any], kind: str) -> dict[str, Any]:
    """The same answer, as other servers write it."""
    choice = body["choices"][0]
    message = choice["message"]
    if kind == "no-usage":
        return {name: value for name, value in body.items() if name != "usage"}
    if kind == "null-tool-calls":
        message = {**message, "tool_calls": None, "function_call": None, "x_unknown": {"a": [1]}}
    elif kind == "empty-answer":
        message = {**message, "content": ""}
    elif kind == "filtered":
        message, choice = {**message, "content": None}, {**choice, "finish_reason": "content_filter"}
    return {**body, "choices": [{**choice, "message": message}], "service_tier": None}


def compute(text: str) -> Fraction | None:
    """The value of the last sum in a text, products first; None if there is none, or it divides by zero."""
    sums = _SUM.findall(text)
    if not sums:
        return None
    terms: list[Fraction] = []
    for operator, digits in _TOKEN.findall(sums[-1]):
        number = Fraction(digits)
        if operator == "*":
            terms[-1] *= number
        elif operator == "/":
            if not number:
                return None
            terms[-1] /= number
        else:
            terms.append(-number if operator == "-" else number)
    return sum(terms, Fraction(0))


def _say(behaviour: Behaviour, messages: list[Message], digest: str) -> str:
    text = _last_user_text(messages)
    value = compute(text)
    if value is None:
        return text
    if is_wrong(behaviour, digest):
        value += 1
    return str(value.numerator) if value.denominator == 1 else repr(float(value))


def _last_user_text(messages: list[Message]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user":
            return _text(message)
    return ""


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _words(message: Message) -> int:
    text = _text(message)
    return text.count(" ") + 1 if text else 0


def error_body(status: int, message: str, code: str = "") -> bytes:
    """A failure in OpenAI's shape."""
    return msgspec.json.encode({"error": {"message": message, "type": "error", "code": code or str(status)}})
