"""The answers of the test server: sums are computed, everything else is echoed. Pure, and equal in every protocol."""

import re
from fractions import Fraction

import msgspec
import xxhash

from holdfast.records.samples import Answer, Message, Usage
from holdfast.testing.behaviour import ENDINGS, SHAPES, Behaviour, is_wrong, lasting_fault

_CUT_SHORT = {"truncated": "length", "half-filtered": "content_filter"}
_NUMBER = r"\d{1,15}(?:\.\d{1,15})?"
_SUM = re.compile(rf"-?{_NUMBER}(?:\s*[-+*/]\s*-?{_NUMBER})+")
_TOKEN = re.compile(rf"([-+*/])?\s*(-?{_NUMBER})\s*")


def answer_for(behaviour: Behaviour, messages: list[Message], digest: str) -> Answer:
    """The whole answer to a request. It does not depend on when or how often the request is sent."""
    reply = behaviour.reply(messages) if behaviour.reply else _compute_or_echo(behaviour, messages, digest)
    if isinstance(reply, Answer):
        return reply if reply.message else msgspec.structs.replace(reply, message={"content": reply.text})
    message: Message = {"content": reply} if isinstance(reply, str) else reply
    calls = message.get("tool_calls") or []
    usage = Usage(sum(map(_words, messages)), _words(message))
    return Answer(_text(message), message, calls, "tool_calls" if calls else "stop", usage)


def reshape(answer: Answer, kind: str) -> Answer:
    """The answer as a fault changes it."""
    if kind == "filtered":
        return Answer("", {"content": None}, [], "content_filter", answer.usage)
    if kind == "empty-answer":
        return Answer("", {"content": ""}, [], "stop", answer.usage)
    if kind in _CUT_SHORT:
        text = answer.text[: (len(answer.text) + 1) // 2]
        return Answer(text, {"content": text}, [], _CUT_SHORT[kind], answer.usage)
    return answer


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


def _compute_or_echo(behaviour: Behaviour, messages: list[Message], digest: str) -> str:
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


_canonical = msgspec.json.Encoder(order="deterministic")


def digest_of(model: str, messages: list[Message]) -> str:
    """The digest that a request is counted under: equal in every protocol."""
    return xxhash.xxh3_64_hexdigest(_canonical.encode([model, messages]))


def foretell(behaviour: Behaviour, model: str, messages: list[Message]) -> Answer | str:
    """The final outcome of a request: its answer, or the kind of the fault that it always meets."""
    digest = digest_of(model, messages)
    fault = lasting_fault(behaviour, digest)
    answer = answer_for(behaviour, messages, digest)
    if fault is None:
        return answer
    return reshape(answer, fault.kind) if fault.kind in SHAPES or fault.kind in ENDINGS else fault.kind
