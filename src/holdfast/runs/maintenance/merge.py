"""Joins runs of the same plan that were made apart, for example on two laptops or in the jobs of a CI matrix.

The result is an ordinary run without shards, with a uid of its own. It is made in a hidden folder and renamed when it
is complete and synced. A crash before that leaves a folder that the next merge removes.

If several runs have answered the same key, the answer of the first one counts with its scores, and what the others cost
is counted too.
"""

import array
import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import DamagedError, DriftError, UsageError
from holdfast.files import is_file, open_file
from holdfast.journal import OS_DISK, OWNER, CopyWriter, Entry, Reader, copy_start, make_run_folder, own
from holdfast.plan import originals
from holdfast.records import Change, RunEnded, RunStarted, Shard, draft, parse_shard
from holdfast.runs.execution.resume import read_fold, stored_spec
from holdfast.runs.fork import remove_leftovers
from holdfast.runs.shards.copy import link_file
from holdfast.runs.shards.layout import begun_shards
from holdfast.runs.shards.merger import Merger, MergeSource, NumberFile, ordinals_by_shard
from holdfast.runs.store.lookup import RunLocation, run_location
from holdfast.runs.store.provenance import write_spec_file
from holdfast.runs.store.trust import executed_by, remember
from holdfast.spec import find_differences
from holdfast.state import Fold, standing_of

_PREFIX = ".fork-"
"""As of forks: `remove_leftovers` removes both."""
_SHOWN = 10


class Merged(msgspec.Struct, frozen=True):
    """What was made."""

    place: RunLocation
    planned: int
    finished: int
    failed: int
    conflicts: int
    """How many keys several runs have answered."""
    conflicting: tuple[str, ...]
    """The first of these keys."""


class _Part(msgspec.Struct, frozen=True):
    """One of the runs to be merged."""

    place: RunLocation
    fold: Fold
    started: RunStarted

    @property
    def journals(self) -> Iterator[tuple[str, str, Shard | None]]:
        """A name for messages, the journal, and the shard that it belongs to."""
        yield self.place.run_id, self.place.journal, None
        for each in begun_shards(self.place):
            yield f"{self.place.run_id}, shard {each.shard}", each.journal, parse_shard(each.shard)


def merge(places: Sequence[RunLocation], run_id: str, store: str) -> Merged:
    """Join runs into a new one. UsageError if one of them is live or the id is taken, DriftError if they are not of one
    plan.
    """
    if len({each.folder for each in places}) < len(places):
        raise UsageError("a run is named twice; name each run once")
    target = run_location(store, places[0].experiment, run_id)
    if os.path.exists(target.folder):
        raise UsageError(f"there is already a run {target.run_id}; choose another --id")
    parts = [_read(place) for place in places]
    for other in parts[1:]:
        _require_same(parts[0], other)
    above = os.path.dirname(target.folder)
    building = msgspec.structs.replace(target, folder=os.path.join(above, f"{_PREFIX}{uuid.uuid4().hex}"))
    make_run_folder(OS_DISK, building.folder)
    try:
        remove_leftovers(above)
        own(building.folder)
        merged = _write(parts, building, target)
        os.unlink(os.path.join(building.folder, OWNER))
        _sync_all(building.folder)
        os.rename(building.folder, target.folder)
        OS_DISK.sync_folder(above)
    except BaseException:
        shutil.rmtree(building.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: it holds other runs
            os.rmdir(above)
        raise
    return merged


def _read(place: RunLocation) -> _Part:
    for each in (place, *begun_shards(place)):
        if standing_of(each.folder).held:
            raise UsageError(f"{place.run_id} is still being written; wait for it, or stop it first")
    fold = read_fold(place)
    if fold.story.started is None:
        raise UsageError(f"{place.run_id} has not begun: there is nothing to merge")
    if fold.story.replans:
        raise UsageError(
            f"{place.run_id} has corrected models: only runs with the plan that they began with are merged"
        )
    return _Part(place, fold, fold.story.started)


def _require_same(first: _Part, other: _Part) -> None:
    """DriftError unless both have the same spec, plan, data and code."""
    one, another = stored_spec(first.fold), stored_spec(other.fold)
    changes = [each for each in find_differences(one, another) if each.kind in ("result", "evaluation")]
    blocks = [
        [(block.plan.digest, block.data and block.data.digest) for block in part.fold.story.blocks]
        for part in (first, other)
    ]
    if not changes and blocks[0] != blocks[1]:
        changes = [Change("plan", "the keys and rows", "other keys or rows", "result")]
    if not changes and first.fold.story.inputs != other.fold.story.inputs:
        changes = [Change("solvers", "the code and the examples", "other code or examples", "result")]
    if changes:
        fields = "; ".join(f"{each.field}: {each.old!r} and {each.new!r}" for each in changes)
        names = f"{first.place.run_id} and {other.place.run_id}"
        raise DriftError(
            f"{names} are not parts of one run ({fields}); compare them instead: holdfast compare "
            f"{first.place.run_id} {other.place.run_id}"
        )


def _write(parts: Sequence[_Part], building: RunLocation, target: RunLocation) -> Merged:
    first, uid = parts[0], uuid.uuid4().hex
    story = first.fold.story
    for path, _ in originals(first.place.folder, story.blocks):
        shutil.copyfile(path, os.path.join(building.folder, os.path.basename(path)), follow_symlinks=False)
    for part in parts:
        _copy_blobs(part, building)
    os.makedirs(building.journal)
    writer = CopyWriter(building.journal, uid)
    started = msgspec.structs.replace(first.started, run_id=target.run_id, shards=0)
    writer.append(draft("run.started", started), story.created)
    for each in story.extensions:
        writer.append(draft("run.extended", each.extended), each.at)
    evaluations: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=building.folder) as scratch:
        ordinals: dict[int, list[array.array[int]]] = {}
        merger, last = Merger(writer, evaluations), story.created
        for number, (name, journal, shard) in enumerate(each for part in parts for each in part.journals):
            own = None
            if shard is not None:
                own = NumberFile(os.path.join(scratch, "ordinals"), 0)
                own.extend(_ordinals(first, shard, ordinals))
            source = MergeSource(name, NumberFile(os.path.join(scratch, f"numbers-{number}"), 0), own)
            for found in Reader(journal).read():
                if isinstance(found, Entry):
                    merger.add(source, found)
                    last = max(last, found.line.at)
                elif found.records_lost:
                    raise DamagedError(f"{name}: its journal is damaged; repair it first with: holdfast recover")
            source.numbers.close()
            if own is not None:
                own.close()  # a run may have more shards than a process may have open files
    writer.flush()
    fold, conflicts = _read_merged(building, uid)
    left = fold.planned - fold.finished.count - fold.failed.count
    names = ", ".join(part.place.run_id for part in parts)
    end = RunEnded(fold.finished.count, fold.failed.count, left, f"merged from {names}")
    writer.append(draft("run.interrupted" if left else "run.completed", end), last)
    writer.close(sealed=True)
    copy_start(building.folder, uid, Reader(building.journal, uid).read())
    write_spec_file(building, fold.story)
    remember(uid, executed_by(stored_spec(fold), started.source, started.included))
    return Merged(
        target, fold.planned, fold.finished.count, fold.failed.count, len(conflicts), tuple(conflicts[:_SHOWN])
    )


def _read_merged(building: RunLocation, uid: str) -> tuple[Fold, list[str]]:
    """Also returns the keys that several runs have answered."""
    fold, conflicts = Fold(), dict[str, None]()
    for each in Reader(building.journal, uid).read(live=True):
        before = fold.story.twice
        fold.read((each,))
        if fold.story.twice > before and isinstance(each, Entry):
            conflicts[each.line.k or ""] = None
    return fold, sorted(conflicts)


def _sync_all(folder: str) -> None:
    """Sync every file and folder below, so that after a power loss a run that has its name is whole."""
    for above, _, names in os.walk(folder, topdown=False):
        for path in (os.path.join(above, name) for name in names):
            if is_file(path):
                handle = open_file(path)
                try:
                    OS_DISK.sync(handle)
                finally:
                    OS_DISK.close(handle)
        OS_DISK.sync_folder(above)


def _ordinals(first: _Part, shard: Shard, known: "dict[int, list[array.array[int]]]") -> "array.array[int]":
    """The ordinals of the whole plan for one shard. `known`: by number of shards; computed once."""
    if shard.count not in known:
        known[shard.count] = ordinals_by_shard(first.place.folder, first.fold.story.blocks, shard.count)
    return known[shard.count][shard.number - 1]


def _copy_blobs(part: _Part, building: RunLocation) -> None:
    for each in (part.place, *begun_shards(part.place)):
        folder = os.path.join(each.folder, "blobs")
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            target = os.path.join(building.folder, "blobs", name)
            if not os.path.exists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                link_file(os.path.join(folder, name), target)
