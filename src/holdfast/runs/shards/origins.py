"""Where records of a sharded run were written: the journal of their shard, or the root journal.

Readers of a sharded run read one merged copy (see `copy`), whose numbers, places and checksums are its own. What a
person can check with other tools is in the journals that the workers have written; this module finds it there.
"""

import contextlib
import os
from bisect import bisect_left
from collections.abc import Iterator

import msgspec

from holdfast import files
from holdfast.errors import HoldfastError
from holdfast.journal import OS_DISK, SHARDS, Entry, Position, Reader, journal_folder, list_chain
from holdfast.records import Line, parse_shard
from holdfast.runs.shards.layout import shard_location
from holdfast.runs.shards.sessions import SessionLog, read_shards
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import Index

_ROOT = "root"
_ITEM_BYTES = 8
_ENDS = ("sample.finished", "sample.failed")


class Origin(msgspec.Struct, frozen=True):
    """Where a record was written."""

    journal: str
    """The folder."""
    shard: str
    """Such as `3/8`; empty for the root journal."""
    position: Position

    def read(self, merged: Line) -> Entry | None:
        """The record as it was written; None if it is not there. `merged`: the same record in the merged copy."""
        with contextlib.suppress(HoldfastError, OSError), contextlib.closing(Reader(self.journal)) as reader:
            found = reader.record_at(self.position.segment, self.position.offset)
            if found is not None and (found.line.t, found.line.k, found.line.at) == (merged.t, merged.k, merged.at):
                return found
        return None


def find_origins(place: RunLocation, key: str, o: int) -> dict[int, Origin]:
    """Where the records of a key were written, by their numbers in the merged copy `place`. Records that cannot be
    found are left out: of a shard whose journal is neither here nor copied.
    """
    found: dict[int, Origin] = {}
    sample = key.rpartition("/")[0]
    shards = (each.status.shard for each in read_shards(place))
    shard = next((each for each in shards if parse_shard(each).has(sample)), "")
    for name in (shard, ""):
        with contextlib.suppress(HoldfastError, OSError):
            found |= _origins_in(place, name, o)
    return found


def _origins_in(place: RunLocation, shard: str, o: int) -> dict[int, Origin]:
    folder, name, own = place.root, _ROOT, o
    if shard:
        folder, name = shard_to_read(place, shard).folder, parse_shard(shard).folder
        with contextlib.closing(_Numbers(place, f"ordinals-{name}")) as ordinals:
            own = bisect_left(ordinals, o)
            if own == len(ordinals) or ordinals[own] != o:
                return {}
    journal = journal_folder(folder)
    with contextlib.closing(_Numbers(place, f"numbers-{name}")) as merged, contextlib.closing(Index(folder)) as index:
        # Beyond the end of the numbers are records that were written after the copy was made: they read as 0.
        found = {merged[each.n - 1]: Origin(journal, shard, each) for each in index.positions(own)}
    return {n: origin for n, origin in found.items() if n}


def shard_to_read(place: RunLocation, shard: str) -> RunLocation:
    """Where a shard of a merged copy is read: its own folder, or the copy of what another machine has mirrored."""
    here = shard_location(place.whole, parse_shard(shard))
    above = os.path.dirname(place.folder)
    copied = msgspec.structs.replace(here, folder=os.path.join(above, SHARDS, parse_shard(shard).folder, "run"))
    begun = [each for each in (here, copied) if each.began]
    return max(begun, key=lambda each: list_chain(OS_DISK, each.journal).epoch, default=here)


class _Numbers:
    """A list of numbers beside the merged copy, only to read: see `merger.NumberFile`."""

    def __init__(self, place: RunLocation, name: str) -> None:
        self._handle = files.open_own_file(os.path.join(os.path.dirname(place.folder), name))

    def __len__(self) -> int:
        return os.fstat(self._handle).st_size // _ITEM_BYTES

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(os.pread(self._handle, _ITEM_BYTES, index * _ITEM_BYTES), "little")

    def close(self) -> None:
        os.close(self._handle)


def read_session(place: RunLocation, shard: str, number: int) -> Iterator[Line]:
    """The records of samples that ended in one session of a shard, in order. `number`: of the session, counted from
    0. Reads the journal of the shard from its beginning: only there is it known which process wrote what.
    """
    log = SessionLog()
    with contextlib.closing(Reader(shard_to_read(place, shard).journal)) as reader:
        for each in reader.read(live=True):
            if not isinstance(each, Entry) or each.is_copy:
                continue
            log.note(each.line)
            if len(log.sessions) > number + 1:
                return
            if len(log.sessions) == number + 1 and each.line.t in _ENDS:
                yield each.line
