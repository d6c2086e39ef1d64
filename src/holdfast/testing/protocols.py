"""The interface between the test server and its protocols: parse requests, write answers and failures.

Every protocol serves the same answers and faults in its own format. Requests are rejected where the real servers
reject them, so that a client that works here also works there.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import msgspec

from holdfast.errors import HoldfastError
from holdfast.records.samples import Answer, Message

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
