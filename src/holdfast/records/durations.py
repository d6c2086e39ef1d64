"""Many durations in little room: how many fell into buckets that grow by 5 percent.

What is read back is within 2.5 percent of what was put in; what is below 0.1 ms counts as nothing. Two of them are
added by adding their counts, so a run's processes, and a reader that goes on later, come to the same as one pass.
"""

import math
from typing import Annotated

import msgspec

from holdfast.records.ranges import Count, Seconds, Total

RELATIVE_ERROR = 0.025
SHORTEST = 1e-4
_GROWTH = math.log(1.05)
_BUCKETS = 1 / _GROWTH
_LAST = 700
"""More than a life: a clock that was set must not make the buckets many."""


class Durations(msgspec.Struct, omit_defaults=True):
    """In seconds. Grows by `add` and `merge`."""

    counts: dict[Annotated[int, msgspec.Meta(ge=0, le=_LAST)], Count] = msgspec.field(default_factory=dict)
    """By bucket: number 0 is nothing, number i is about 0.1 ms times 1.05 to the i - 1."""
    seconds: Total = 0.0
    """Of all of them."""
    longest: Seconds = 0.0

    def add(self, seconds: float) -> None:
        bucket = 0
        if seconds >= SHORTEST:
            bucket = int(1.5 + math.log(seconds / SHORTEST) * _BUCKETS)
            if bucket > _LAST:
                bucket = _LAST
            self.seconds += seconds
            if seconds > self.longest:
                self.longest = seconds
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: "Durations") -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.seconds += other.seconds
        self.longest = max(self.longest, other.longest)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def quantile(self, share: float) -> float:
        """The smallest that so large a share of all does not exceed; 0 if there are none."""
        left = max(math.ceil(share * self.count), 1)
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return min(_middle(bucket), self.longest)
        return 0.0


def rounded(seconds: float, per_second: int = 1_000_000) -> float:
    """To so many parts of a second. `round(seconds, 6)` makes a text of it and reads that, and every step pays for it
    several times.
    """
    return round(seconds * per_second) / per_second if seconds else 0.0


def _middle(bucket: int) -> float:
    return SHORTEST * math.exp((bucket - 1) * _GROWTH) if bucket else 0.0
