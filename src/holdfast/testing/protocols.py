"""What the test server needs of a protocol: how requests are read, and how answers and failures are written.

Every protocol gets the same answers and the same faults; only their shapes differ. Requests are refused where the real
servers refuse them, so that a client that passes here does not fail there.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import msgspec

from holdfast.errors import HoldfastError
from holdfast.records.samples import Answer, Message

SIGNATURE = "c2lnbmVkLWJ5LXRoZS10ZXN0LXNlcnZlcg=="
"""What stands for the signature of reasoning, where a protocol has one."""


class ServerRequest(msgspec.Struct, frozen=True):
    """A request, its messages in OpenAI's shape."""

    model: str
    messages: list[Message]
    stream: bool = False


class ServerAnswer(msgspec.Struct, frozen=True):
    """An answer on its way out."""

    id: str
    model: str
    answer: Answer


class Refusal(msgspec.Struct, frozen=True):
    """A failure on its way out: a status, a sentence, and the protocol's own word for it if it has one."""

    status: int
    text: str
    code: str = ""
    retry_after: str = ""


class BadRequestError(HoldfastError):
    """A request that the real server would refuse."""


class ServerProtocol(Protocol):
    """One protocol, as a server speaks it."""

    @property
    def empty_body(self) -> bytes:
        """A body in which there is no answer."""
        ...

    @property
    def refusals(self) -> dict[str, Refusal]:
        """By fault: what the real server says."""
        ...

    def read(self, raw: bytes, path: str) -> ServerRequest:
        """BadRequestError or msgspec.DecodeError for what is no request."""
        ...

    def body(self, reply: ServerAnswer) -> dict[str, Any]: ...

    def events(self, reply: ServerAnswer) -> Iterator[bytes]:
        """A stream; without the last of them it has no end."""
        ...

    def error_event(self, refusal: Refusal) -> bytes:
        """An event that tells of a failure."""
        ...

    def error_body(self, refusal: Refusal) -> bytes:
        """The body of a failure."""
        ...


encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def refuse(what: str) -> NoReturn:
    raise BadRequestError(what)


def event(data: Any, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + encode(data) + b"\n\n"


def pieces(text: str) -> list[str]:
    """A text as a stream brings it: in more than one piece, if it can be."""
    middle = (len(text) + 1) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def reasoning_of(answer: Answer) -> str:
    return str(answer.message.get("reasoning_content") or "")


def arguments_of(call: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, where a protocol has them as an object."""
    text = call["function"].get("arguments") or "{}"
    decoded = json.loads(text)
    assert isinstance(decoded, dict), text
    return decoded


def reject_unknown(given: dict[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        refuse(f"{where}{unknown[0]}: unknown field")
