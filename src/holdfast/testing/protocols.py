"""The interface between the test server and its protocols: parse requests, write answers and failures.

Every protocol serves the same answers and faults in its own format. Requests are rejected where the real servers
reject them, so that a client that works here also works there.

The answers of the test server: sums are computed, everything else is echoed. Pure, and equal in every protocol.
"""

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NoReturn, Protocol

import msgspec
import xxhash

from holdfast.errors import HoldfastError
from holdfast.records import Answer, Message, Usage
from holdfast.testing.behaviour import ENDINGS, SHAPES, Behaviour, is_wrong, lasting_fault

SIGNATURE = "c2lnbmVkLWJ5LXRoZS10ZXN0LXNlcnZlcg=="
"""The signature of reasoning, where a protocol has one."""


class ServerRequest(msgspec.Struct, frozen=True):
    """A parsed request, with messages in OpenAI's format."""

    model: str
    messages: list[Message]
    stream: bool = False


class ServerAnswer(msgspec.Struct, frozen=True):
    """An answer to be written."""

    id: str
    model: str
    answer: Answer


class Refusal(msgspec.Struct, frozen=True):
    """A failure to be written: a status, a sentence, and the protocol's error code if it has one."""

    status: int
    text: str
    code: str = ""
    retry_after: str = ""


class BadRequestError(HoldfastError):
    """The real server would reject this request."""


class ServerProtocol(Protocol):
    """The server side of one protocol."""

    @property
    def empty_body(self) -> bytes:
        """A response body without an answer."""
        ...

    @property
    def refusals(self) -> dict[str, Refusal]:
        """The real server's failures, by fault."""
        ...

    def read(self, raw: bytes, path: str) -> ServerRequest:
        """Parse a request. BadRequestError or msgspec.DecodeError if it is invalid."""
        ...

    def body(self, reply: ServerAnswer) -> dict[str, Any]: ...

    def events(self, reply: ServerAnswer) -> Iterator[bytes]:
        """The events of a stream; the last one is the end marker."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """A stream event that reports a failure."""
        ...

    def error_body(self, refusal: Refusal) -> bytes:
        """The response body of a failure."""
        ...


encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def refuse(what: str) -> NoReturn:
    raise BadRequestError(what)


def event(data: Any, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + encode(data) + b"\n\n"


def pieces(text: str) -> list[str]:
    """A text in the pieces of a stream: two, if it is long enough."""
    middle = (len(text) + 1) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def reasoning_of(answer: Answer) -> str:
    return str(answer.message.get("reasoning_content") or "")


def arguments_of(call: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a tool call as an object, for protocols that need one."""
    text = call["function"].get("arguments") or "{}"
    decoded = json.loads(text)
    assert isinstance(decoded, dict), text
    return decoded


def reject_unknown(given: dict[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        refuse(f"{where}{unknown[0]}: unknown field")


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
    text = next((_text(each) for each in reversed(messages) if each.get("role") == "user"), "")
    value = compute(text)
    if value is None:
        return text
    if is_wrong(behaviour, digest):
        value += 1
    return str(value.numerator) if value.denominator == 1 else repr(float(value))


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
