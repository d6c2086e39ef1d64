"""A histogram of durations with buckets that grow by 5 percent.

Quantiles are exact to 2.5 percent; durations below 0.1 ms count as 0. Histograms are merged by adding their counts, so
several processes, or a reader that continues later, get the same result as one pass.
"""

import math
from typing import Annotated

import msgspec

from holdfast.records.samples import Count, Seconds, Total

RELATIVE_ERROR = 0.025
SHORTEST = 1e-4
_GROWTH = math.log(1.05)
_BUCKETS = 1 / _GROWTH
_LAST = 700
"""The last bucket. It bounds the number of buckets if a clock was set and a duration is absurdly long."""


class Durations(msgspec.Struct, omit_defaults=True):
    """The histogram, in seconds. `add` and `merge` change it."""

    counts: dict[Annotated[int, msgspec.Meta(ge=0, le=_LAST)], Count] = msgspec.field(default_factory=dict)
    """By bucket: bucket 0 is below 0.1 ms, bucket i is about 0.1 ms times 1.05 to the power of i - 1."""
    seconds: Total = 0.0
    """The sum of all durations."""
    longest: Seconds = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        bucket = bucket_of(seconds)
        if bucket:
            self.seconds += seconds * count
            if seconds > self.longest:
                self.longest = seconds
        self.counts[bucket] = self.counts.get(bucket, 0) + count

    def merge(self, other: "Durations") -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.seconds += other.seconds
        self.longest = max(self.longest, other.longest)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def above(self, bucket: int) -> int:
        """How many are in higher buckets."""
        return sum(count for each, count in self.counts.items() if each > bucket)

    def quantile(self, share: float) -> float:
        """The smallest duration that at least this share of all durations does not exceed; 0 if there are none."""
        left = max(math.ceil(share * self.count), 1)
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return min(middle_of(bucket), self.longest)
        return 0.0


def bucket_of(seconds: float) -> int:
    return min(int(1.5 + math.log(seconds / SHORTEST) * _BUCKETS), _LAST) if seconds >= SHORTEST else 0


def rounded(seconds: float, per_second: int = 1_000_000) -> float:
    """Seconds, rounded to 1/per_second. Faster than `round(seconds, 6)`, which formats and parses a text; every step
    calls this several times.
    """
    return round(seconds * per_second) / per_second if seconds else 0.0


def middle_of(bucket: int) -> float:
    """The duration in the middle of a bucket."""
    return SHORTEST * math.exp((bucket - 1) * _GROWTH) if bucket else 0.0
