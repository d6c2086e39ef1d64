"""A model server and a client with endless work, in a world whose clock is a number: as fast as it can be computed."""

import heapq
import math
from collections.abc import Callable
from typing import NamedTuple

from holdfast.models import ModelError
from holdfast.models.pacing.pace import Pace, PaceLimits

_REFUSAL_SECONDS = 0.01


class Told(NamedTuple):
    """What came of it: answers and refusals by the second of the world's clock, and the most that were under way."""

    answered: dict[int, int]
    refused: dict[int, int]
    most: int

    @property
    def answers(self) -> int:
        return sum(self.answered.values())

    @property
    def refusals(self) -> int:
        return sum(self.refused.values())

    def per_second(self, first: int, last: int) -> float:
        return sum(self.answered.get(second, 0) for second in range(first, last)) / (last - first)


class Server(NamedTuple):
    """Takes `bears(now)` at a time and refuses the rest at once, or, with `lanes`, lets the rest wait in a queue."""

    latency_seconds: float = 1.0
    bears: Callable[[float], float] = lambda now: math.inf
    lanes: int | None = None


def work(limits: PaceLimits, server: Server, seconds: float) -> Told:
    """Let a client send whenever its pace lets it."""
    pace, now, inside, most = Pace(limits), 0.0, 0, 0
    told = Told({}, {}, 0)
    lanes = [0.0] * (server.lanes or 0)
    coming: list[tuple[float, int, float, bool]] = []
    number = 0
    while now < seconds:
        while (wait := pace.wait(now)) <= 0:
            pace.sent(now)
            most = max(most, pace.in_flight)
            number += 1
            if inside >= server.bears(now):
                heapq.heappush(coming, (now + _REFUSAL_SECONDS, number, now, False))
                continue
            inside += 1
            begins = max(now, heapq.heappop(lanes)) if server.lanes else now
            if server.lanes:
                heapq.heappush(lanes, begins + server.latency_seconds)
            heapq.heappush(coming, (begins + server.latency_seconds, number, now, True))
        if not coming or now + wait < coming[0][0]:
            now += max(wait, 1e-6)
            continue
        now, _, sent_at, is_answer = heapq.heappop(coming)
        counts = told.answered if is_answer else told.refused
        counts[int(now)] = counts.get(int(now), 0) + 1
        inside -= is_answer
        if is_answer:
            pace.answered(now, sent_at)
        else:
            pace.failed(now, sent_at, ModelError("rate_limit", "too many"), False)
    return told._replace(most=most)
