"""Reads runs of a mirror from any machine, through a copy in the user's cache folder.

The copy has the journal, the plan and the data. It is updated incrementally: sealed segments are fetched once, of the
rest only what is new. Deleting it, or a crash while it is updated, costs only another fetch. Nothing is ever written to
the mirror. A run that was removed from the mirror cannot be read.
"""

import contextlib
import fcntl
import hashlib
import itertools
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from urllib.parse import unquote

import msgspec

from holdfast.errors import HoldfastError, JournalError, StoreError, UsageError, error_of_path
from holdfast.files import open_or_create
from holdfast.journal import (
    SHARDS,
    Beat,
    MirrorSource,
    Reader,
    SegmentPiece,
    Source,
    StoredObjects,
    is_copy_of_records,
    is_report_original,
    is_url,
    open_objects,
    refuse_removed,
    removed_run,
    restore,
    uid_of,
)
from holdfast.runs.mirror.claim import MirrorStatus, last_beat, read_mirror_status
from holdfast.runs.store.lookup import RunLocation, find_run, pick
from holdfast.runs.summary import MirrorProgress, RunSummary
from holdfast.state import (
    FOLDER_VARIABLE,
    Index,
    Story,
    entry_path,
    hold_copy,
    keep_beat,
    make_room,
    mark_used,
    standing_by,
    standing_of,
    status_by,
    status_of,
)

TransferProgress = Callable[[int, int], None]
"""Called with the bytes transferred so far, and the total."""

_TRIES = 3
"""A live run replaces chunks by sealed segments, so a listed object may be gone when it is fetched: list again."""
_CONCURRENCY = 16


def find_to_read(store: str, name: str, moved: TransferProgress | None = None) -> RunLocation:
    """Find a run in a store or a mirror; a run in a mirror is returned as an up-to-date copy."""
    if not is_url(name) and not is_url(store):
        return find_run(store, name)
    return fetch(*find_in_mirror(store, name), moved)


def find_in_mirror(store: str, name: str) -> tuple[StoredObjects, RunLocation]:
    """Find a run by its own URL, or by its name in the mirror at the URL `store`."""
    if is_url(name):
        objects, experiment, run_id = only_run(name)
        return objects, copy_location(objects, experiment, run_id)
    every = {(place := copy_location(*each)).url: (each[0], place) for each in mirrored_runs(open_objects(store))}
    places = [place for _, place in every.values()]
    if name == "latest" and places:
        statuses = read_heartbeats([objects for objects, _ in every.values()])
        return max(zip(every.values(), statuses, strict=True), key=lambda each: each[1].last_seen)[0]
    return every[pick(places, name, store).url]


def read_mirrored_uid(url: str) -> str:
    """The uid of the run at a URL; empty if its records cannot be read."""
    return uid_of(MirrorSource(open_objects(url)))


def fetch_journal(url: str) -> RunLocation:
    """A copy with an up-to-date journal, to count records; plan and data are not fetched."""
    return fetch(*find_in_mirror("", url), files=is_copy_of_records)


def fetch(
    objects: StoredObjects,
    place: RunLocation,
    moved: TransferProgress | None = None,
    files: Callable[[str], bool] = is_report_original,
) -> RunLocation:
    """Bring the copy up to date. One process at a time fetches; readers hold only the lock against eviction."""
    above = os.path.dirname(place.folder)
    try:
        hold_copy(above)
        handle = open_or_create(os.path.join(above, "lock"))
    except OSError as error:
        raise error_of_path(
            error, f"{above} cannot be written: {error.strerror}; set {FOLDER_VARIABLE} to a folder that can"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        update_copy(objects, place, moved, files)
        mark_used(above)
    finally:
        os.close(handle)
    make_room(os.path.dirname(os.path.dirname(above)), keep=above)
    return place


def fetch_all(place: RunLocation, moved: TransferProgress | None = None) -> tuple[str, list[str]]:
    """Fetch every object of a run, blobs included, for a full check. Returns the folder, which the caller must remove,
    and what could not be read.
    """
    folder = f"{place.folder}.{os.getpid()}"
    try:
        for left in reversed(range(_TRIES)):
            shutil.rmtree(folder, ignore_errors=True)
            wrong: list[str] = []
            objects = open_objects(place.url)
            for part in ("", *(f"{SHARDS}/{name}" for name in objects.folders(SHARDS))):
                source = MirrorSource(objects.below(part) if part else objects)
                target = os.path.join(folder, part) if part else folder
                restore(target, [source if moved is None else CountingSource(source, moved)], wrong.append)
            if not wrong or not left:
                break
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, wrong


def read_heartbeats(every: list[StoredObjects]) -> list[MirrorStatus]:
    with ThreadPoolExecutor(_CONCURRENCY, "holdfast-look") as pool:
        return list(pool.map(read_mirror_status, every))


def copy_location(objects: StoredObjects, experiment: str, run_id: str) -> RunLocation:
    """The location of the cached copy of a run."""
    url = objects.url.rstrip("/")
    name = hashlib.blake2b(url.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    above = entry_path("copies", name)
    if above is None:
        raise UsageError(f"there is no folder for copies of runs: set {FOLDER_VARIABLE} to one that can be written")
    return RunLocation(above, experiment, run_id, os.path.join(above, "run"), url)


def update_copy(
    objects: StoredObjects,
    place: RunLocation,
    moved: TransferProgress | None = None,
    files: Callable[[str], bool] = is_report_original,
) -> Beat | None:
    """Fetch what is new, and return the last heartbeat. The caller holds the lock of the copy."""
    _, beat = last_beat(objects)  # before the journal: otherwise a run that ends in between would look interrupted
    for left in reversed(range(_TRIES)):
        warnings: list[str] = []
        source = MirrorSource(objects)
        if removed_run(source) is not None:
            shutil.rmtree(place.folder, ignore_errors=True)  # remove the copy of a removed run too
            refuse_removed(source)
        if not source.pieces():
            raise UsageError(f"{objects.url} holds no records yet: the run has just begun, or its mirror is behind")
        counted = source if moved is None else CountingSource(source, moved)
        try:
            restore(place.folder, [counted], warnings.append, files=files, trusting=True)
        except JournalError:
            now, uid = uid_of(source), Reader(place.journal).uid if place.began else ""
            if not left or not now or uid in ("", now):
                raise
            # the run was removed and started again under the same name: drop the old copy
            shutil.rmtree(place.folder)
            continue
        if not warnings or not left:
            break
    for line in warnings:
        logging.getLogger("holdfast").warning(line)
    keep_beat(place.folder, beat or Beat(0))
    return beat


class MirrorRun(msgspec.Struct, frozen=True):
    """A run of a mirror."""

    summary: RunSummary
    exact: bool
    """False if the mirror may have records that the summary does not count."""
    shards: tuple[Beat, ...] = ()
    """The last heartbeats of the shards of a sharded run."""


def list_mirror(url: str) -> list[MirrorRun]:
    """Every run of a mirror according to its last heartbeat, the latest heartbeat last."""
    every = list(mirrored_runs(open_objects(url)))
    beats = read_heartbeats([objects for objects, _, _ in every])
    found = [
        _summarize_shards(_summarize_beat(objects.url, experiment, run_id, status.beat or Beat(0)), status)
        for (objects, experiment, run_id), status in zip(every, beats, strict=True)
        if not status.removed
    ]
    return sorted(found, key=lambda each: each.summary.updated)


def count_records(found: MirrorRun) -> MirrorRun:
    """Replace counts and status by those of the records; unchanged if not all of them can be read."""
    if found.exact:
        return found
    with contextlib.suppress(HoldfastError):
        place = fetch_journal(found.summary.folder)
        index = Index(place.folder)
        try:
            if index.lost or index.story.started is None:
                return found  # the heartbeat also counted the lost records
            if found.shards:
                return _complete_shards(found, index.story)
            status, reason = status_of(index.story, index.unfinished, standing_of(place.folder))
            counted = msgspec.structs.replace(
                found.summary,
                status=status,
                reason=reason,
                updated=found.summary.updated or index.story.updated,
                planned=index.story.planned,
                finished=index.finished,
                failed=index.failed,
                unfinished=index.unfinished,
            )
        finally:
            index.close()
        return MirrorRun(counted, exact=True)
    return found


def _time_text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _summarize_beat(url: str, experiment: str, run_id: str, beat: Beat) -> MirrorRun:
    """Summarize a run from its heartbeat. It is exact for live runs, and for those that released their lease."""
    standing = standing_by(beat)
    status, reason = status_by(standing)
    lease = standing.lease
    if lease is None:
        return MirrorRun(RunSummary(run_id, experiment, status, reason, folder=url), exact=False)
    summary = RunSummary(
        run_id=run_id,
        experiment=experiment,
        status=status,
        reason=reason,
        updated=_time_text(lease.at),
        planned=lease.planned,
        finished=lease.finished,
        failed=lease.failed,
        unfinished=max(lease.planned - lease.finished - lease.failed, 0),
        folder=url,
        mirror=MirrorProgress(url, standing.mirrored or 0, lease.acknowledged, lease.mirror_behind),
    )
    return MirrorRun(summary, exact=standing.held or (beat.ended and lease.released))


def _summarize_shards(found: MirrorRun, status: MirrorStatus) -> MirrorRun:
    """Add what the shards of a run have done. Its plan is only in the root journal."""
    if not status.shards:
        return found
    standings = list(map(standing_by, status.shards))
    leases = [each.lease for each in standings if each.lease is not None]
    live = [status_by(each) for each in standings if each.held]
    summary = msgspec.structs.replace(
        found.summary,
        status=min(live)[0] if live else "interrupted",  # `running` if one worker is
        reason=min(live)[1] if live else "",
        updated=_time_text(status.last_seen) if status.last_seen else found.summary.updated,
        planned=sum(lease.planned for lease in leases),
        finished=sum(lease.finished for lease in leases),
        failed=sum(lease.failed for lease in leases),
        unfinished=sum(max(lease.planned - lease.finished - lease.failed, 0) for lease in leases),
    )
    return MirrorRun(summary, exact=False, shards=status.shards)


def _complete_shards(found: MirrorRun, story: Story) -> MirrorRun:
    """Add what the root journal says: the plan, and whether the run was cancelled."""
    summary, count = found.summary, story.started.shards if story.started is not None else 0
    left = max(story.planned - summary.finished - summary.failed, 0)
    ends = [each.lease.end for each in found.shards if each.lease is not None]
    status, reason = summary.status, summary.reason
    if status == "interrupted" and story.end is not None:
        status, reason = story.end.kind.removeprefix("run."), story.end.data.reason
    elif status == "interrupted" and not left and ends == ["run.completed"] * count:
        status = "completed"
    counted = msgspec.structs.replace(summary, status=status, reason=reason, planned=story.planned, unfinished=left)
    standings = map(standing_by, found.shards)
    # A worker that never wrote a lease has done nothing in its shard.
    is_exact = all(each.lease is None or each.lease.released or each.held for each in standings)
    return MirrorRun(counted, is_exact, found.shards)


class CountingSource:
    """A source that reports how much of it was read."""

    def __init__(self, source: Source, moved: TransferProgress) -> None:
        self._source = source
        self._moved = moved
        self._done = 0
        self.kind, self.place = source.kind, source.place
        self._total = sum(piece.size for piece in source.pieces())

    def pieces(self) -> list[SegmentPiece]:
        return self._source.pieces()

    def files(self) -> list[str]:
        return self._source.files()

    def read(self, name: str) -> Iterator[bytes]:
        for piece in self._source.read(name):
            self._done += len(piece)
            self._moved(min(self._done, self._total), self._total)
            yield piece


def only_run(url: str) -> tuple[StoredObjects, str, str]:
    """The one run at a URL: its objects, its experiment and its id. UsageError if there is none, or more than one."""
    try:
        runs = list(itertools.islice(mirrored_runs(open_objects(url)), 6))
    except StoreError as error:
        raise UsageError(str(error)) from error
    if len(runs) == 1:
        return runs[0]
    names = ", ".join(f"{experiment}/{run_id}" for _, experiment, run_id in runs[:5])
    problem = f"holds several runs ({names}): add the experiment and the id of one" if runs else "holds no run"
    # The listing of the parent shows the right spelling of the last part; a bucket has no parent.
    above = url.rstrip("/").rpartition("/")[0]
    listed = url if runs or above.endswith((":", "/")) else above
    raise UsageError(f"{url} {problem}; list them with: holdfast recover --list {shlex.quote(listed)}")


def mirrored_runs(objects: StoredObjects) -> Iterator[tuple[StoredObjects, str, str]]:
    """The runs below a URL, which is that of a mirror, of an experiment in it, or of a single run."""
    for path in _run_folders(objects, "", 2):
        parts = f"{objects.url.rstrip('/')}/{path}".rstrip("/").split("/")
        yield (objects.below(path) if path else objects), unquote(parts[-2]), unquote(parts[-1])


def _run_folders(objects: StoredObjects, path: str, depth: int) -> Iterator[str]:
    names = objects.folders(path)
    if "journal" in names or "lease" in names:
        yield path
    elif depth:
        for name in sorted(names):
            yield from _run_folders(objects, f"{path}/{name}" if path else name, depth - 1)
