"""The types of records, and the data of those that the journal itself writes.

A type that is not listed is an error, on writing and on reading: a newer program's facts must not be ignored by an
older one. Names that start with `x-` are free for extensions.
"""

import msgspec

from holdfast.records.ranges import Count, CountOrMinusOne

FORMAT = 1
"""The version of the bytes described in docs/format.md."""

_KNOWN = frozenset(
    {
        "segment",
        "run.started",
        "run.resumed",
        "run.extended",
        "run.replanned",
        "run.completed",
        "run.failed",
        "run.cancelled",
        "run.interrupted",
        "step.started",
        "step",
        "batch",
        "sample.finished",
        "sample.failed",
        "score",
        "score.started",
        "score.completed",
        "anomaly",
        "totals",
        "note",
    }
)


class Fence(msgspec.Struct, frozen=True):
    """The last record of the segment before that counts. Bytes of that segment beyond `bytes` are void."""

    segment: Count
    bytes: Count
    n: Count
    x: str


class Segment(msgspec.Struct, frozen=True):
    """The first record of every segment: whose it is, under which epoch it is written, and where the one before it
    ends.
    """

    format: Count
    run: str
    segment: Count
    epoch: Count
    first: Count
    prev: Fence | None = None


class Anomaly(msgspec.Struct, frozen=True, omit_defaults=True):
    """A loss that was found and is recorded once: which bytes, which numbers, which keys if still readable."""

    kind: str
    segment: Count
    first: Count
    last: Count
    n_first: Count
    n_last: CountOrMinusOne
    keys: tuple[str, ...] = ()
    detail: str = ""
    quarantine: str = ""


def is_known(kind: str) -> bool:
    return kind in _KNOWN or kind.startswith("x-")
