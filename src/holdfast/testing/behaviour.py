"""How the test server behaves: how it answers, how long it takes, and which requests go wrong.

Invariant: apart from `every`, `first` and storms, which count the server's requests in the order of their arrival, what
happens to a request follows from its content, the seed and how often the server has seen it before. So what requests
come to in the end can be told beforehand (`holdfast.testing.replies`), whatever else happens to them.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import xxhash

from holdfast.records.samples import Answer, Message
from holdfast.testing.batch import BatchBehaviour


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is too much. Nothing stated: nothing is.

    `in_flight`: with more than so many under way the rest is refused · `per_second`: a bucket of so many that fills so
    fast; what it does not hold is refused · `lanes`: so many are answered at a time, the others wait in order, and are
    not refused. A refusal has `status`, and `Retry-After` if that is said; with `tells`, all answers have the headers
    `x-ratelimit-*-requests` of the bucket.
    """

    in_flight: int | None = None
    per_second: float | None = None
    lanes: int | None = None
    status: int = 429
    retry_after: str = ""
    tells: bool = False


class Bearing:
    """How much a server bears at the moment."""

    def __init__(self) -> None:
        self._bucket = 0.0
        self._filled_at: float | None = None
        self._busy = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def takes(self, load: Load, in_flight: int, now: float) -> bool:
        """Whether a request is taken; `in_flight`: with itself."""
        if load.in_flight is not None and in_flight > load.in_flight:
            return False
        if load.per_second is None:
            return True
        before = self._filled_at if self._filled_at is not None else now - 1.0
        self._bucket = min(max(load.per_second, 1.0), self._bucket + (now - before) * load.per_second)
        self._filled_at = now
        if self._bucket < 1.0:
            return False
        self._bucket -= 1.0
        return True

    def headers(self, load: Load) -> dict[str, str]:
        if not load.tells or load.per_second is None:
            return {}
        size = max(load.per_second, 1.0)
        return {
            "x-ratelimit-limit-requests": f"{size:.0f}",
            "x-ratelimit-remaining-requests": f"{int(self._bucket)}",
            "x-ratelimit-reset-requests": f"{1000 * (size - self._bucket) / load.per_second:.0f}ms",
        }

    async def enter(self, load: Load) -> None:
        """Wait for a lane."""
        if load.lanes is not None and self._busy >= load.lanes:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(turn)
            await turn
        self._busy += 1

    def leave(self, load: Load) -> None:
        self._busy -= 1
        while self._queue and (load.lanes is None or self._busy < load.lanes):
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return


Reply = Callable[[list[Message]], str | Message | Answer]
"""Gets the request's messages, in OpenAI's shape whatever the protocol; returns the answer's text, a whole assistant
message (with tool calls, say), or an Answer, to say how it ended, what it used and its logprobs.
"""

Rewrite = Callable[[list[Message], bytes], bytes]
"""Gets the request's messages and the body (or all events) of a correct response; returns the bytes to send."""

SHAPES = ("null-tool-calls", "no-usage", "empty-answer", "same-id", "huge")
"""Faults that are still right answers: a client has to take them."""

ENDINGS = ("truncated", "half-filtered")
"""Faults that are pieces of answers, and say so: a client has to take them, and to mark them."""

FAULT_KINDS: dict[str, str] = {
    "429-retry-after": "429 with the header Retry-After: `retry_after`",
    "429-retry-date": "the same, as a date: so many seconds from now",
    "context-too-long": "400, the prompt exceeds the context length",
    "content-filter": "400, refused by a content filter",
    "filtered": "200, no content, finish_reason content_filter",
    "reset": "the connection is reset without an answer",
    "cut": "the connection ends in the middle of the body",
    "hang": "no answer until the client goes away",
    "malformed": "200, a body that is not JSON",
    "empty": "200, a body of no bytes",
    "other-json": "200, JSON of another shape",
    "wrong-type": "200, a right answer that is said to be plain text",
    "trickle": "200, a right answer byte by byte, with pauses",
    "no-choices": "200, a body without any answer in it",
    "html": "200, an HTML page",
    "unended": "a stream ends in good order and without its end marker; what is no stream is cut",
    "stall": "the answer begins, and nothing more comes until the client goes away",
    "broken-off": "a stream begins and tells of an overload; what is no stream is a 503",
    "null-tool-calls": "a right answer with nulls and unknown fields",
    "no-usage": "a right answer without usage",
    "empty-answer": "a right answer, of no text",
    "same-id": "a right answer, under an id that others have",
    "huge": "a right answer in a body of `megabytes`",
    "truncated": "the first half of a right answer, finish_reason length",
    "half-filtered": "the first half of a right answer, finish_reason content_filter",
}
"""Besides these every HTTP status from 400 to 599 is a kind: "429", "500", "503"."""

_HASHES = 2**64
_STATUS = re.compile("[45][0-9][0-9]")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of misbehaviour. It happens when all that is stated holds; with nothing stated, always.

    `rate`: that share of requests, by hash · `every`: each n-th request · `first`: the server's first n requests ·
    `times`: only the first n times that the same request comes. With `sticky` the same request always gets it, or
    never; without, it is drawn anew each time.
    """

    kind: str
    rate: float | None = None
    every: int | None = None
    first: int | None = None
    times: int | None = None
    sticky: bool = False
    retry_after: str = "1"
    megabytes: int = 20

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS and not _STATUS.fullmatch(self.kind):
            raise ValueError(f"fault {self.kind!r} is not known; use an HTTP status or {', '.join(FAULT_KINDS)}")
        if self.every is not None and self.every < 1:
            raise ValueError(f"fault {self.kind}: every must be at least 1")


class Storm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bad weather: of each `every` requests of the server, the first `lasts` may meet its faults. They come before the
    faults of every day.
    """

    every: int
    lasts: int
    faults: Sequence[Fault]

    def __post_init__(self) -> None:
        if not 1 <= self.lasts <= self.every:
            raise ValueError("a storm lasts for at least 1 request, and for at most as many as it comes after")


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about a test server but its port.

    Without a `reply` it computes the last sum in the last user message ("12 + 30", "7 * 6") and gets a share of
    `wrong_rate` of them wrong, by hash; where there is nothing to compute it echoes. Of several faults that apply the
    first one happens. An answer takes `latency_seconds` and up to `jitter_seconds` more.
    """

    latency_seconds: float = 0.0
    jitter_seconds: float = 0.0
    wrong_rate: float = 0.0
    faults: Sequence[Fault] = ()
    storms: Sequence[Storm] = ()
    seed: int = 0
    reply: Reply | None = None
    rewrite: Rewrite | None = None
    """Changes correct responses on the wire, to test clients with values that no server should send."""
    load: Load = Load()
    """What is more than it bears."""
    batch: BatchBehaviour = BatchBehaviour()
    kept: int = 0
    """So many of the last requests are kept as they came, and can be looked at: `server.requests()`."""


class Arrival(msgspec.Struct, frozen=True):
    """One request as the faults see it: the how-manieth of the server, and of its own kind; both from 1."""

    number: int
    digest: str
    seen: int


def fault_for(behaviour: Behaviour, arrival: Arrival) -> Fault | None:
    for number, storm in enumerate(behaviour.storms):
        if (arrival.number - 1) % storm.every < storm.lasts:
            for place, fault in enumerate(storm.faults):
                if _happens(fault, arrival, behaviour.seed, f"storm {number} {place}"):
                    return fault
    for place, fault in enumerate(behaviour.faults):
        if _happens(fault, arrival, behaviour.seed, f"fault {place}"):
            # A trickled response is a right answer. A client that is patient enough receives it, so it must not hide
            # a fault that lasts: the outcome of the request would depend on the speed of the machine.
            lasting = lasting_fault(behaviour, arrival.digest) if fault.kind == "trickle" else None
            return lasting or fault
    return None


def lasting_fault(behaviour: Behaviour, digest: str) -> Fault | None:
    """What a request meets however often it comes."""
    once = Arrival(0, digest, 0)
    for place, fault in enumerate(behaviour.faults):
        if fault.sticky and _happens(fault, once, behaviour.seed, f"fault {place}"):
            return fault
    return None


def _happens(fault: Fault, arrival: Arrival, seed: int, name: str) -> bool:
    drawn = Arrival(0, arrival.digest, 0) if fault.sticky else arrival
    return (
        (fault.first is None or arrival.number <= fault.first)
        and (fault.every is None or arrival.number % fault.every == 0)
        and (fault.times is None or arrival.seen <= fault.times)
        and (fault.rate is None or _share(seed, name, drawn) < fault.rate)
    )


def latency_for(behaviour: Behaviour, arrival: Arrival) -> float:
    if not behaviour.jitter_seconds:
        return behaviour.latency_seconds
    return behaviour.latency_seconds + behaviour.jitter_seconds * _share(behaviour.seed, "latency", arrival)


def is_wrong(behaviour: Behaviour, digest: str) -> bool:
    """The same request gets the same answer, however often it is asked."""
    return bool(behaviour.wrong_rate) and _share(behaviour.seed, "wrong", Arrival(0, digest, 0)) < behaviour.wrong_rate


def _share(seed: int, about: str, arrival: Arrival) -> float:
    """In [0, 1); looks random, and is the same for the same request."""
    text = f"{about} {arrival.digest} {arrival.seen}"
    return xxhash.xxh3_64_intdigest(text.encode(), seed % _HASHES) / _HASHES
