"""What the test server counts, and the structs that report it.

Invariant: a request is counted when its body has arrived, whatever happens then. So the count is what a client has
sent, not what it has received.
"""

from collections import Counter
from typing import Any

import msgspec

from holdfast.testing.behaviour import Arrival


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
