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
    text: bytes
    """The messages as JSON; empty once a later request was made, when only its length and digest are kept."""
    prefixes: list[bytes] = []
    """Digests of the first message, of the first two, and so on; empty until needed."""

    def digest(self, tools: list[dict[str, Any]]) -> str:
        """Return the digest of the canonical JSON of [model, parameters, messages, tools]."""
        whole = self.state.copy()
        whole.update(b"]," + _canonical(tools) + b"]" if tools else b"],[]]")
        return whole.hexdigest()

    def all_prefixes(self) -> list[bytes]:
        if len(self.prefixes) < len(self.messages):
            self.prefixes = _prefixes(self.messages, [])
        return self.prefixes


class Conversations:
    """The conversations of one attempt."""

    # Class attributes until something is put into them: most samples make one request, and need none of these.
    _newest: RequestMessages | None = None  # the last request, which is not yet in `_recent`
    _recent: "OrderedDict[tuple[int, bytes], RequestMessages] | None" = None  # by length and digest of the text
    _answered: tuple[tuple[int, RequestMessages, Message], ...] = ()  # not yet in `_held`
    _held: dict[bytes, tuple[int, int]] | None = None  # prefixes of conversations -> the step that holds each
    _holders: dict[bytes, int] | None = None  # parameters and tools -> the step that holds each

    def take(self, messages: Sequence[Message], head: bytes) -> RequestMessages:
        """Copy the messages as they are now: the record must not change when the solver changes its own list.

        `head`: the canonical JSON before the messages (`request_head`).
        """
        try:
            text = _encode(messages)
            place, before = self._find(text) if self._newest is not None else (0, None)
            new = _messages.decode(text if before is None else b"[" + text[place:] if place < len(text) else b"[]")
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRecordError(f"the messages cannot be written as JSON: {error}") from error
        request = _first(new, head, text) if before is None else _next(before, new, head, text)
        self._newest = request
        return request

    def asked(
        self, request: RequestMessages, role: str, params: dict[str, Any], tools: list[dict[str, Any]]
    ) -> StoredRequest:
        """Return the request as it is recorded: without what an earlier step of this sample already holds."""
        if not self._answered and self._held is None:
            return StoredRequest(new=request.messages, role=role, params=params, tools=tools)
        held = self._index_answered()
        n = keep = 0
        for length in range(len(request.messages), 0, -1):
            found = held.get(request.all_prefixes()[length - 1])
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
        self._answered = (*self._answered, (n, request, step.answer.message))
        if step.asked is not None and (step.asked.params or step.asked.tools):
            self._note(step.asked.params, n)
            self._note(step.asked.tools, n)

    def _find(self, text: bytes) -> tuple[int, RequestMessages | None]:
        """Return the longest conversation that this text equals or continues, and where the new part begins. It is
        removed: the longer one replaces it.
        """
        assert self._newest is not None
        if self._recent is None:
            self._recent = OrderedDict()
        newest = self._newest
        self._recent[len(newest.text), xxhash.xxh3_128_digest(memoryview(newest.text)[:-1])] = newest
        newest.text = b""
        if len(self._recent) > _KEPT:
            self._recent.popitem(last=False)
        seen = memoryview(text)
        for length, digest in sorted(self._recent, reverse=True):
            continues = length < len(text) and text[length - 1] == b","[0]
            if (continues or length == len(text)) and xxhash.xxh3_128_digest(seen[: length - 1]) == digest:
                return length, self._recent.pop((length, digest))
        return 0, None

    def _index_answered(self) -> dict[bytes, tuple[int, int]]:
        """Add answered requests to `_held`, and return it. A step that holds a prefix holds all shorter ones too, so
        the first known prefix ends the search.
        """
        held = self._held = self._held or {}
        for n, request, answer in self._answered:
            prefixes = request.all_prefixes()
            held.setdefault(_extend(prefixes, answer), (n, len(prefixes) + 1))
            for length in range(len(prefixes), 0, -1):
                if prefixes[length - 1] in held:
                    break
                held[prefixes[length - 1]] = (n, length)
        self._answered = ()
        return held

    def _note(self, content: Any, n: int) -> None:
        if content and len(text := _canonical(content)) > _WORTH_BYTES:
            self._holders = self._holders or {}
            self._holders.setdefault(xxhash.xxh3_128_digest(text), n)

    def _holder(self, content: Any) -> int:
        """Return the step that holds it; 0 if none does."""
        return self._holders.get(xxhash.xxh3_128_digest(_canonical(content)), 0) if content and self._holders else 0


def request_head(identity: dict[str, Any], params: dict[str, Any]) -> bytes:
    """Return the canonical JSON before the messages of a request: the model and its parameters."""
    return _canonical([identity, params])[:-1] + b","


def _first(messages: list[Message], head: bytes, text: bytes) -> RequestMessages:
    state = xxhash.xxh3_128(head + _canonical(messages)[:-1])
    return RequestMessages(messages, head, state, text)


def _next(before: RequestMessages, new: list[Message], head: bytes, text: bytes) -> RequestMessages:
    messages = [*before.messages, *new]
    prefixes = _prefixes(new, before.all_prefixes())
    if head != before.head:
        request = _first(messages, head, text)
        request.prefixes = prefixes
        return request
    state = before.state.copy()
    if new:
        state.update(b"," + _canonical(new)[1:-1])
    return RequestMessages(messages, head, state, text, prefixes)


def _prefixes(messages: Sequence[Message], before: list[bytes]) -> list[bytes]:
    found = [*before]
    for message in messages:
        found.append(_extend(found, message))
    return found


def _extend(prefixes: Sequence[bytes], message: Message) -> bytes:
    return xxhash.xxh3_128_digest((prefixes[-1] if prefixes else b"") + _canonical(message))
