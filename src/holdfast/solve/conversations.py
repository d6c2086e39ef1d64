"""What one attempt has said to models: a later request records, digests and copies only what is new in it.

Invariant: what comes out is what it would be if every request were looked at alone. A solver may change its messages
in place, so that they are the same as before is never assumed: all of them are written as JSON once for each request,
and only the end of that text, behind a beginning whose digest is known, is looked at further.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.errors import BadRecordError
from holdfast.records.facts import Asked, Step
from holdfast.records.samples import Message

_KEPT = 64
"""So many conversations that may go on are remembered; one that was forgotten costs time, and changes nothing."""
_WORTH_BYTES = 40
"""Shorter parameters and tools stay in their own record, where a person sees them."""

_canonical = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.json.Encoder().encode
_messages = msgspec.json.Decoder(list[Message])


class Said(msgspec.Struct, eq=False):
    """The messages of one request as they were when it was made, and what is known of them.

    Nobody changes `messages`: the next request of the same conversation holds the same ones.
    """

    messages: list[Message]
    head: bytes
    """What stands before the messages in the request: the model and its parameters."""
    state: xxhash.xxh3_128
    """The digest of the head and the messages so far; more can be added to a copy."""
    beginnings: list[bytes] = []
    """A digest of the first message, of the first two, and so on; empty until it is needed."""

    def digest(self, tools: bytes) -> str:
        """Of the whole request: the canonical JSON of [model, parameters, messages, tools]."""
        whole = self.state.copy()
        whole.update(b"]," + tools + b"]")
        return whole.hexdigest()

    def all_beginnings(self) -> list[bytes]:
        if len(self.beginnings) < len(self.messages):
            self.beginnings = _beginnings(self.messages, [])
        return self.beginnings


class Conversations:
    """All that was said in one attempt."""

    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[int, bytes], Said] = OrderedDict()  # by length and digest of its text
        self._told: list[tuple[int, Said, Message]] = []  # not yet in `_held`: most samples ask once and never need it
        self._held: dict[bytes, tuple[int, int]] = {}  # beginnings of conversations, and the step that holds each
        self._holders: dict[bytes, int] = {}  # parameters and tools, and the step that holds each

    def take(self, messages: Sequence[Message], identity: dict[str, Any], params: dict[str, Any]) -> Said:
        """As they are now: what is recorded must not change when the solver goes on with its own."""
        try:
            text = _encode(messages)
            place, before = self._find(text) if self._recent else (0, None)
            new = _messages.decode(text if before is None else b"[" + text[place:] if place < len(text) else b"[]")
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRecordError(f"the messages cannot be written as JSON: {error}") from error
        head = _canonical([identity, params])[:-1] + b","
        said = _first(new, head) if before is None else _next(before, new, head)
        self._recent[len(text), xxhash.xxh3_128_digest(memoryview(text)[:-1])] = said
        if len(self._recent) > _KEPT:
            self._recent.popitem(last=False)
        return said

    def asked(self, said: Said, role: str, params: dict[str, Any], tools: list[dict[str, Any]]) -> Asked:
        """The request, without what an earlier step of this sample already holds."""
        self._hold_told()
        n = keep = 0
        for length in range(len(said.messages) if self._held else 0, 0, -1):
            found = self._held.get(said.all_beginnings()[length - 1])
            if found is not None:
                n, keep = found
                break
        params_of, tools_of = self._holder(params), self._holder(tools)
        return Asked(
            new=said.messages[keep:],
            after=n,
            keep=keep,
            role=role,
            params={} if params_of else params,
            params_of=params_of,
            tools=[] if tools_of else tools,
            tools_of=tools_of,
        )

    def answered(self, n: int, step: Step, said: Said) -> None:
        """Step `n` is recorded: later requests may refer to it, and to what it refers to."""
        assert step.answer is not None
        self._told.append((n, said, step.answer.message))
        if step.asked is not None:
            self._note(step.asked.params, n)
            self._note(step.asked.tools, n)

    def _find(self, text: bytes) -> tuple[int, Said | None]:
        """The longest conversation that this one goes on from, or is, and where in the text the rest begins. What it
        goes on from is forgotten, in its favour.
        """
        seen = memoryview(text)
        for length, digest in sorted(self._recent, reverse=True):
            goes_on = length < len(text) and text[length - 1] == b","[0]
            if (goes_on or length == len(text)) and xxhash.xxh3_128_digest(seen[: length - 1]) == digest:
                return length, self._recent.pop((length, digest))
        return 0, None

    def _hold_told(self) -> None:
        """Whoever holds a beginning holds all shorter ones: the first that is known already ends the search."""
        for n, said, answer in self._told:
            beginnings = said.all_beginnings()
            self._held.setdefault(_further(beginnings, answer), (n, len(beginnings) + 1))
            for length in range(len(beginnings), 0, -1):
                if beginnings[length - 1] in self._held:
                    break
                self._held[beginnings[length - 1]] = (n, length)
        self._told.clear()

    def _note(self, content: Any, n: int) -> None:
        if content and len(text := _canonical(content)) > _WORTH_BYTES:
            self._holders.setdefault(xxhash.xxh3_128_digest(text), n)

    def _holder(self, content: Any) -> int:
        """0 if no step holds it."""
        return self._holders.get(xxhash.xxh3_128_digest(_canonical(content)), 0) if content and self._holders else 0


def _first(messages: list[Message], head: bytes) -> Said:
    state = xxhash.xxh3_128(head + _canonical(messages)[:-1])
    return Said(messages, head, state)


def _next(before: Said, new: list[Message], head: bytes) -> Said:
    messages = [*before.messages, *new]
    beginnings = _beginnings(new, before.all_beginnings())
    if head != before.head:
        said = _first(messages, head)
        said.beginnings = beginnings
        return said
    state = before.state.copy()
    if new:
        state.update(b"," + _canonical(new)[1:-1])
    return Said(messages, head, state, beginnings)


def _beginnings(messages: Sequence[Message], before: list[bytes]) -> list[bytes]:
    found = [*before]
    for message in messages:
        found.append(_further(found, message))
    return found


def _further(beginnings: Sequence[bytes], message: Message) -> bytes:
    return xxhash.xxh3_128_digest((beginnings[-1] if beginnings else b"") + _canonical(message))
