"""The behaviour of the test server: its answers, its latency, its limits and its faults.

Invariant: what happens to a request depends only on its content, the seed and how often the server has seen it before.
Exceptions are `every`, `first` and storms, which count all requests in the order of arrival. So the final outcome of a
request can be predicted (`holdfast.testing.protocols`), whatever faults it meets on the way.

What the test server counts, and the structs that report it.

Invariant: a request is counted when its body has arrived, whatever happens then. So the count is what a client has
sent, not what it has received.
"""

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import xxhash

from holdfast.records import Answer, Message


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The load that the server accepts. By default it accepts everything.

    `in_flight`: more requests in flight than this are rejected · `per_second`: a token bucket of this size and refill
    rate; requests beyond it are rejected · `lanes`: this many are answered at a time, the others wait in order and are
    not rejected. A rejection has `status`, and `Retry-After` if `retry_after` is set; with `tells`, all responses have
    the headers `x-ratelimit-*-requests` of the bucket.
    """

    in_flight: int | None = None
    per_second: float | None = None
    lanes: int | None = None
    status: int = 429
    retry_after: str = ""
    tells: bool = False


class LoadState:
    """The current load of a server: its bucket and its lanes."""

    def __init__(self) -> None:
        self._bucket = 0.0
        self._filled_at: float | None = None
        self._busy = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def takes(self, load: Load, in_flight: int, now: float) -> bool:
        """Whether a request is accepted; `in_flight` includes it."""
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
"""Receives the request's messages, in OpenAI's format whatever the protocol. Returns the answer's text, a whole
assistant message (for example with tool calls), or an Answer (with a finish reason, usage and logprobs).
"""

Rewrite = Callable[[list[Message], bytes], bytes]
"""Receives the request's messages and the body (or all events) of a correct response; returns the bytes to send."""

SHAPES = ("null-tool-calls", "no-usage", "empty-answer", "same-id", "huge")
"""Faults that are still correct answers: a client must accept them."""

ENDINGS = ("truncated", "half-filtered")
"""Faults that are parts of answers, marked as such: a client must accept them and keep the mark."""

FAULT_KINDS: dict[str, str] = {
    "429-retry-after": "429 with the header Retry-After: `retry_after`",
    "429-retry-date": "the same, as a date: so many seconds from now",
    "context-too-long": "400, the prompt exceeds the context length",
    "content-filter": "400, refused by a content filter",
    "filtered": "200, no content, finish_reason content_filter",
    "reset": "the connection is reset without an answer",
    "cut": "the connection ends in the middle of the body",
    "hang": "no response until the client disconnects",
    "malformed": "200, a body that is not JSON",
    "empty": "200, an empty body",
    "other-json": "200, JSON of another shape",
    "wrong-type": "200, a correct answer with the content type text/plain",
    "trickle": "200, a correct answer byte by byte, with pauses",
    "no-choices": "200, a body without any answer in it",
    "html": "200, an HTML page",
    "unended": "a stream ends normally but without its end marker; a body that is no stream is cut",
    "stall": "the response begins, and then nothing comes until the client disconnects",
    "broken-off": "a stream begins and then reports an overload; without a stream a 503",
    "null-tool-calls": "a correct answer with nulls and unknown fields",
    "no-usage": "a correct answer without usage",
    "empty-answer": "a correct answer with an empty text",
    "same-id": "a correct answer with an id that other answers have too",
    "huge": "a correct answer in a body of `megabytes`",
    "truncated": "the first half of a correct answer, finish_reason length",
    "half-filtered": "the first half of a correct answer, finish_reason content_filter",
}
"""In addition, every HTTP status from 400 to 599 is a kind: "429", "500", "503"."""

_HASHES = 2**64
_STATUS = re.compile("[45][0-9][0-9]")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of fault. It happens when all given conditions hold; without conditions, always.

    `rate`: this share of requests, by hash · `every`: each n-th request · `first`: the server's first n requests ·
    `times`: only the first n times that the same request arrives. With `sticky` the same request always meets it, or
    never; without, it is drawn again each time.
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
    """A burst of faults: of each `every` requests, the first `lasts` may meet its faults. They take precedence over
    `Behaviour.faults`.
    """

    every: int
    lasts: int
    faults: Sequence[Fault]

    def __post_init__(self) -> None:
        if not 1 <= self.lasts <= self.every:
            raise ValueError("a storm must have 1 <= lasts <= every")


HANGS = {
    "upload": "the upload gets no response, and no job can be created from it",
    "create": "the job is created, but the request gets no response",
    "results": "half of the results are sent, then nothing",
}


class BatchBehaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of batch jobs. By default a job is complete when it is first polled, with all its answers.

    `…_every: n` gives each n-th line of the results that fault; lines are numbered from 1.
    """

    polls: int = 1
    """A job ends when it was polled this many times."""
    hang: str = ""
    """One of HANGS; it happens once, and is shown in the statistics."""
    unlisted: int = 0
    """This many first lists of jobs are empty: real servers list a new job only after a while."""
    ends: tuple[str, ...] = ()
    """How the first jobs end: completed, expired, failed or cancelled. One that expired or was cancelled has answers to
    every second line, one that failed has none.
    """
    refusals: tuple[int, ...] = ()
    """Statuses that the first submissions of a job get."""
    forgets: bool = False
    """Jobs lose their metadata."""
    locked: int = 0
    """This many first polls get a 401."""
    cuts: int = 0
    """This many first downloads of results are cut off in the middle."""
    missing_every: int = 0
    malformed_every: int = 0
    overloaded_every: int = 0
    """The line's own status is 503."""
    refused_every: int = 0
    """The line's own status is 400: a content filter."""
    doubled_every: int = 0
    """A second line for the same request, with another answer."""
    unknown: int = 0
    """This many lines with unknown request ids."""

    def __post_init__(self) -> None:
        if self.hang and self.hang not in HANGS:
            raise ValueError(f"hang {self.hang!r} is not known; use {', '.join(HANGS)}")


class CompletionBehaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How `POST …/completions` treats log-probabilities of a prompt. By default it has both ways to ask for them."""

    exists: bool = True
    """False: a server for chats only, which answers 404."""
    echo: Literal["yes", "ignored", "refused"] = "yes"
    prompt_logprobs: Literal["yes", "ignored", "refused"] = "yes"
    bos: int = 0
    """How many BOS tokens (`<s>`) stand before the prompt. As in vLLM, the offsets count them."""
    straddles: bool = False
    """Tokens are pieces of five characters, which ignore the borders of words."""


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a test server except its port.

    Without a `reply` it computes the last sum in the last user message ("12 + 30", "7 * 6") and gets a share of
    `wrong_rate` of them wrong, by hash; without a sum it echoes the message. Of several faults that apply, the first
    one happens. An answer takes `latency_seconds` and up to `jitter_seconds` more.
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
    """The load that it accepts."""
    batch: BatchBehaviour = BatchBehaviour()
    completions: CompletionBehaviour = CompletionBehaviour()
    kept: int = 0
    """How many of the latest requests are kept for `server.requests()`."""


class Arrival(msgspec.Struct, frozen=True):
    """One request as the faults see it: its number on the server, and among equal requests (`seen`); both from 1."""

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
    """The fault that a request always meets, however often it is sent."""
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
    """Whether a request gets a wrong answer: the same one each time it is sent."""
    return bool(behaviour.wrong_rate) and _share(behaviour.seed, "wrong", Arrival(0, digest, 0)) < behaviour.wrong_rate


def _share(seed: int, about: str, arrival: Arrival) -> float:
    """A pseudo-random number in [0, 1), equal for equal requests."""
    text = f"{about} {arrival.digest} {arrival.seen}"
    return xxhash.xxh3_64_intdigest(text.encode(), seed % _HASHES) / _HASHES


class Stats(msgspec.Struct, frozen=True):
    """`GET /stats`. A digest is of a request's model and messages; `repeats` = requests - distinct digests.

    `answered`: answers that were sent in total, and `answers` by digest; `faults`: how often each kind
    happened; `connections`: accepted so far.
    """

    requests: int
    in_flight: int
    max_in_flight: int
    repeats: int
    answered: int
    connections: int
    faults: dict[str, int]
    by_digest: dict[str, int]
    answers: dict[str, int]


class Seen(msgspec.Struct, frozen=True):
    """One request as received."""

    headers: dict[str, str]
    body: dict[str, Any]


class JobStats(msgspec.Struct, frozen=True):
    """One job as received."""

    id: str
    token: str
    requests: int
    status: str


class BatchStats(msgspec.Struct, frozen=True):
    """`GET /batch-stats`. `by_digest`: how often each request was in a job."""

    jobs: list[JobStats]
    by_digest: dict[str, int]
    uploads: int
    looks: int
    lists: int
    downloads: int
    hanging: str
    """The simulated hang that has happened; empty if none."""


class RequestCounts:
    """The running counts of one server."""

    def __init__(self) -> None:
        self.connections = 0
        self.faults: Counter[str] = Counter()
        self._requests = 0
        self.in_flight = 0
        self._max_in_flight = 0
        self._by_digest: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()

    def arrive(self, digest: str) -> Arrival:
        self._requests += 1
        self._by_digest[digest] += 1
        self.in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self.in_flight)
        return Arrival(self._requests, digest, self._by_digest[digest])

    def answer(self, digest: str) -> None:
        self._answers[digest] += 1

    def leave(self) -> None:
        self.in_flight -= 1

    def stats(self) -> Stats:
        return Stats(
            requests=self._requests,
            in_flight=self.in_flight,
            max_in_flight=self._max_in_flight,
            repeats=self._requests - len(self._by_digest),
            answered=self._answers.total(),
            connections=self.connections,
            faults=dict(self.faults),
            by_digest=dict(self._by_digest),
            answers=dict(self._answers),
        )
