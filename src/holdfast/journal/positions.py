"""Types that the modules of the journal exchange: where a record is, what was read, what was lost."""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol

import msgspec

from holdfast.records import Anomaly, Draft, Line, Position


class Cursor(msgspec.Struct, frozen=True, gc=False):
    """A reader's position: behind record `n` with checksum `x`, which ends at `offset` of `segment`."""

    segment: int
    offset: int
    n: int
    x: str


START = Cursor(0, 0, 0, "")


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A verified record and where it is."""

    line: Line
    segment: int
    offset: int
    end: int

    @property
    def is_copy(self) -> bool:
        """Whether the journal has lost this record and it was read from started.jsonl. Then it has no offset."""
        return self.offset < 0


class Damage(msgspec.Struct, frozen=True):
    """Bytes [first, last) of a segment that are not records, or record numbers n_first..n_last that are missing.

    `n_last < n_first` means that no record was lost (foreign bytes between two good ones). Kinds: `line` (wrong
    checksum), `hole` (numbers missing, no bytes), `repeat` (a record that was already read), `frame` (a compressed
    block that cannot be unpacked), `cut` (a segment shorter than its successor's fence), `fence` (a segment that does
    not end with the record that its successor names), `missing`, `foreign` and `stray` segments, `torn` (an unfinished
    last line), `void` (bytes behind a fence), `lost` (acknowledged records are missing at the end).
    """

    kind: str
    segment: int
    first: int
    last: int
    n_first: int
    n_last: int
    keys: tuple[str, ...] = ()
    detail: str = ""

    @property
    def records_lost(self) -> int:
        return max(0, self.n_last - self.n_first + 1)

    def anomaly(self, quarantine: str = "") -> Anomaly:
        return Anomaly(
            kind=self.kind,
            segment=self.segment,
            first=self.first,
            last=self.last,
            n_first=self.n_first,
            n_last=self.n_last,
            keys=self.keys,
            detail=self.detail,
            quarantine=quarantine,
        )

    def is_known_by(self, anomaly: Anomaly) -> bool:
        """Whether an anomaly record already covers this loss."""
        return (
            self.segment == anomaly.segment
            and anomaly.first <= self.first
            and self.last <= anomaly.last
            and anomaly.n_first <= self.n_first
            and self.n_last <= anomaly.n_last
        )


def unrecorded(damage: Iterable[Damage], anomalies: Sequence[Anomaly]) -> list[Damage]:
    """The losses that no anomaly record mentions yet. A torn tail is no loss: its record was never acknowledged."""
    return [each for each in damage if each.kind != "torn" and not any(map(each.is_known_by, anomalies))]


class Journal(Protocol):
    """The part of a writer that code needs to save records."""

    def append(self, record: Draft) -> Awaitable[Position]: ...

    def append_soon(self, record: Draft) -> None: ...
