"""The types of records, and the data of those that the journal itself writes.

An unknown type is an error on writing and on reading, because an older version must not ignore records of a newer one.
Names that start with `x-` are free for extensions.
"""

import msgspec

from holdfast.records.samples import Count, CountOrMinusOne

FORMAT = 1
"""The version of the bytes described in docs/format.md."""

SEGMENT = "segment"
ANOMALY = "anomaly"
RUN_STARTED = "run.started"
START_RECORDS = frozenset({RUN_STARTED, "run.extended"})
"""The types that say what a run is. Without these records no other record can be understood."""

_KNOWN = frozenset(
    {
        SEGMENT,
        *START_RECORDS,
        "run.resumed",
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
        ANOMALY,
        "totals",
        "note",
    }
)


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where a record is: its number, its segment and the offset of its first byte (of uncompressed bytes)."""

    n: int
    segment: int
    offset: int


class Fence(msgspec.Struct, frozen=True):
    """The last record of the previous segment that counts. Bytes of that segment behind `bytes` are void."""

    segment: Count
    bytes: Count
    n: Count
    x: str


class Segment(msgspec.Struct, frozen=True):
    """The header, the first record of every segment: its run, its epoch, and where the previous segment ends."""

    format: Count
    run: str
    segment: Count
    epoch: Count
    first: Count
    prev: Fence | None = None


class Anomaly(msgspec.Struct, frozen=True, omit_defaults=True):
    """A loss, recorded once when it was found: which bytes, which record numbers, which keys if still readable."""

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
