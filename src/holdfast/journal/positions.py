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
    open_end: bool = False
    """The journal ends in these bytes, so nothing shows how many records they held: `n_last` is the least number."""

    @property
    def records_lost(self) -> int:
        """At least this many, if `open_end`."""
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


class Loss(msgspec.Struct, frozen=True):
    """How many records are lost. `is_exact`: False if there may be more."""

    records: int
    is_exact: bool = True

    def __str__(self) -> str:
        text = "1 record" if self.records == 1 else f"{self.records} records"
        return text if self.is_exact else f"at least {text}"


def count_lost(damage: Iterable[Damage]) -> Loss:
    """Count the records that are lost, each once: two damaged areas may cover the same numbers."""
    records = n = 0
    is_exact = True
    for each in sorted(damage, key=lambda each: each.n_first):
        records += max(0, each.n_last - max(n, each.n_first - 1))
        n = max(n, each.n_last)
        is_exact = is_exact and not each.open_end
    return Loss(records, is_exact)


def bounded(damage: Iterable[Damage], durable_n: int, *, is_last: bool = False) -> list[Damage]:
    """The same damage, where an open end reaches the last record that is known to have been durable. `is_last`: no
    later record was written.
    """
    return [
        msgspec.structs.replace(
            each, n_last=max(each.n_last, durable_n), open_end=not is_last or durable_n < each.n_last
        )
        if each.open_end
        else each
        for each in damage
    ]


def unrecorded(damage: Iterable[Damage], anomalies: Sequence[Anomaly]) -> list[Damage]:
    """The losses that no anomaly record mentions yet. A torn tail is no loss: its record was never acknowledged."""
    return [each for each in damage if each.kind != "torn" and not is_recorded(each, anomalies)]


def is_recorded(damage: Damage, anomalies: Sequence[Anomaly]) -> bool:
    """Whether anomaly records cover a loss: one of them its bytes, and all together its numbers. For damage at the end
    of a journal, opening records the unreadable bytes and the acknowledged numbers behind them separately.
    """
    if not damage.records_lost:
        return any(map(damage.is_known_by, anomalies))
    here = sorted((each for each in anomalies if each.segment == damage.segment), key=lambda each: each.n_first)
    n = damage.n_first - 1
    for each in here:
        if each.n_first <= n + 1:
            n = max(n, each.n_last)
    starts = (each for each in here if each.n_first <= damage.n_first <= each.n_last)
    return n >= damage.n_last and any(each.first <= damage.first and damage.last <= each.last for each in starts)


class Journal(Protocol):
    """The part of a writer that code needs to save records."""

    def append(self, record: Draft) -> Awaitable[Position]: ...

    def append_soon(self, record: Draft) -> None: ...
