"""The conversations of one attempt. A later request records, digests and copies only the messages that are new in it.

Invariant: the result is the same as if every request were processed alone. A solver may change its messages in place,
so nothing is assumed about them: each request is encoded as JSON as a whole, and only the text after a prefix with a
known digest is processed further. Without this, an agent with many turns takes quadratic time and space.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.errors import BadRecordError
from holdfast.records import Message, Step, StoredRequest

_KEPT = 64
"""How many conversations are remembered. A forgotten one costs time and changes nothing."""
_WORTH_BYTES = 40
"""Shorter parameters and tools are repeated in each record, where people can see them."""

_canonical = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.json.Encoder().encode
_messages = msgspec.json.Decoder(list[Message])


class RequestMessages(msgspec.Struct, eq=False):
    """The messages of one request, copied when it was made, with their digests.

    `messages` must not be changed: the next request of the conversation shares them.
    """

    messages: list[Message]
    head: bytes
    """The canonical JSON before the messages: the model and its parameters."""
    state: xxhash.xxh3_128
    """The digest of the head and the messages; a copy of it can be extended."""
    prefixes: list[bytes] = []
    """Digests of the first message, of the first two, and so on; empty until needed."""

    def digest(self, tools: bytes) -> str:
        """Return the digest of the canonical JSON of [model, parameters, messages, tools]."""
        whole = self.state.copy()
        whole.update(b"]," + tools + b"]")
        return whole.hexdigest()

    def all_prefixes(self) -> list[bytes]:
        if len(self.prefixes) < len(self.messages):
            self.prefixes = _prefixes(self.messages, [])
        return self.prefixes


class Conversations:
    """The conversations of one attempt."""

    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[int, bytes], RequestMessages] = (
            OrderedDict()
        )  # by length and digest of the text
        self._answered: list[
            tuple[int, RequestMessages, Message]
        ] = []  # not yet in `_held`: samples with one request never need it
        self._held: dict[bytes, tuple[int, int]] = {}  # prefixes of conversations -> the step that holds each
        self._holders: dict[bytes, int] = {}  # parameters and tools -> the step that holds each

    def take(self, messages: Sequence[Message], identity: dict[str, Any], params: dict[str, Any]) -> RequestMessages:
        """Copy the messages as they are now: the record must not change when the solver changes its own list."""
        try:
            text = _encode(messages)
            place, before = self._find(text) if self._recent else (0, None)
            new = _messages.decode(text if before is None else b"[" + text[place:] if place < len(text) else b"[]")
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRecordError(f"the messages cannot be written as JSON: {error}") from error
        head = _canonical([identity, params])[:-1] + b","
        request = _first(new, head) if before is None else _next(before, new, head)
        self._recent[len(text), xxhash.xxh3_128_digest(memoryview(text)[:-1])] = request
        if len(self._recent) > _KEPT:
            self._recent.popitem(last=False)
        return request

    def asked(
        self, request: RequestMessages, role: str, params: dict[str, Any], tools: list[dict[str, Any]]
    ) -> StoredRequest:
        """Return the request as it is recorded: without what an earlier step of this sample already holds."""
        self._index_answered()
        n = keep = 0
        for length in range(len(request.messages) if self._held else 0, 0, -1):
            found = self._held.get(request.all_prefixes()[length - 1])
            if found is not None:
                n, keep = found
                break
        params_of, tools_of = self._holder(params), self._holder(tools)
        return StoredRequest(
            new=request.messages[keep:],
            after=n,
            keep=keep,
            role=role,
            params={} if params_of else params,
            params_of=params_of,
            tools=[] if tools_of else tools,
            tools_of=tools_of,
        )

    def answered(self, n: int, step: Step, request: RequestMessages) -> None:
        """Note that step `n` is recorded: later requests may refer to it."""
        assert step.answer is not None
        self._answered.append((n, request, step.answer.message))
        if step.asked is not None:
            self._note(step.asked.params, n)
            self._note(step.asked.tools, n)

    def _find(self, text: bytes) -> tuple[int, RequestMessages | None]:
        """Return the longest conversation that this text equals or continues, and where the new part begins. It is
        removed: the longer one replaces it.
        """
        seen = memoryview(text)
        for length, digest in sorted(self._recent, reverse=True):
            continues = length < len(text) and text[length - 1] == b","[0]
            if (continues or length == len(text)) and xxhash.xxh3_128_digest(seen[: length - 1]) == digest:
                return length, self._recent.pop((length, digest))
        return 0, None

    def _index_answered(self) -> None:
        """Add answered requests to `_held`. A step that holds a prefix holds all shorter ones too, so the first known
        prefix ends the search.
        """
        for n, request, answer in self._answered:
            prefixes = request.all_prefixes()
            self._held.setdefault(_extend(prefixes, answer), (n, len(prefixes) + 1))
            for length in range(len(prefixes), 0, -1):
                if prefixes[length - 1] in self._held:
                    break
                self._held[prefixes[length - 1]] = (n, length)
        self._answered.clear()

    def _note(self, content: Any, n: int) -> None:
        if content and len(text := _canonical(content)) > _WORTH_BYTES:
            self._holders.setdefault(xxhash.xxh3_128_digest(text), n)

    def _holder(self, content: Any) -> int:
        """Return the step that holds it; 0 if none does."""
        return self._holders.get(xxhash.xxh3_128_digest(_canonical(content)), 0) if content and self._holders else 0


def _first(messages: list[Message], head: bytes) -> RequestMessages:
    state = xxhash.xxh3_128(head + _canonical(messages)[:-1])
    return RequestMessages(messages, head, state)


def _next(before: RequestMessages, new: list[Message], head: bytes) -> RequestMessages:
    messages = [*before.messages, *new]
    prefixes = _prefixes(new, before.all_prefixes())
    if head != before.head:
        request = _first(messages, head)
        request.prefixes = prefixes
        return request
    state = before.state.copy()
    if new:
        state.update(b"," + _canonical(new)[1:-1])
    return RequestMessages(messages, head, state, prefixes)


def _prefixes(messages: Sequence[Message], before: list[bytes]) -> list[bytes]:
    found = [*before]
    for message in messages:
        found.append(_extend(found, message))
    return found


def _extend(prefixes: Sequence[bytes], message: Message) -> bytes:
    return xxhash.xxh3_128_digest((prefixes[-1] if prefixes else b"") + _canonical(message))
