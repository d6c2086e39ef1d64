"""Lists what `recover` can restore: the unfinished runs of a store, or the runs of a mirror. Reads only."""

import os
import time
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import HoldfastError, StoreError, UsageError
from holdfast.journal import (
    PIECES,
    SHARDS,
    Beat,
    Loss,
    Reader,
    StoredObjects,
    count_lost,
    is_url,
    last_number,
    open_objects,
    parse_piece,
)
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.maintenance.recovery import begun_count, has_records
from holdfast.runs.mirror.claim import last_beat, mirrored_epoch, read_mirror_status
from holdfast.runs.mirror.remote import fetch_journal, mirrored_runs
from holdfast.runs.run import Run
from holdfast.runs.shards.copy import mirror_of
from holdfast.runs.shards.layout import is_sharded, read_started
from holdfast.runs.shards.sources import fetch_shards
from holdfast.runs.store.damage import describe_unreadable, losses_of
from holdfast.runs.store.lookup import RunLocation, default_store, runs_in
from holdfast.state import Fold, standing_of


class Recoverable(msgspec.Struct, frozen=True):
    """A run that can be restored or continued."""

    experiment: str
    run_id: str
    source: str
    """`mirror` or `local`."""
    place: str
    planned: int
    finished: int
    failed: int
    in_flight: int
    lost: int
    """Acknowledged records that are missing and that no resume has requested again."""
    age_seconds: float
    """Seconds since its last heartbeat or write."""
    ended: bool = False
    lost_is_exact: bool = True
    """False if more than `lost` records may be missing."""
    exact: bool = True
    """False if the records could not be read: the counts are those of the last heartbeat, and the mirror may have more.
    """


def list_recoverable(where: str = "") -> Iterator[Recoverable]:
    """The unfinished runs of a store, or every run of a mirror. UsageError if `where` cannot be read.

    Counts come from the records. If the last heartbeat of a mirrored run is not final, its journal is fetched into the
    user's cache to count them: all of it the first time, later only what is new.
    """
    if not is_url(where):
        if where and not os.path.isdir(where):
            raise UsageError(f"{where} is not a folder; pass the folder of a store, or the URL of a mirror")
        for place in runs_in(where or default_store()):
            found = _describe_local(place)
            if found is not None:
                yield found
        return
    try:
        for objects, experiment, run_id in mirrored_runs(open_objects(where)):
            status = read_mirror_status(objects)
            if not status.removed:
                names = (experiment, run_id)
                found = _count_records(_describe_mirrored(objects, *names, status.beat))
                shards = (
                    [objects.below(f"{SHARDS}/{name}") for name in objects.folders(SHARDS)] if status.shards else []
                )
                parts = [
                    _count_records(_describe_mirrored(each, *names, last_beat(each)[1]))
                    for each in shards
                    if mirrored_epoch(each)  # else a worker has claimed it and recorded nothing
                ]
                yield _with_shards(found, parts) if parts else found
    except StoreError as error:
        raise UsageError(str(error)) from error


def _with_shards(root: Recoverable, shards: Sequence[Recoverable]) -> Recoverable:
    """A sharded run: its root journal has the plan, its shards have the answers."""
    return msgspec.structs.replace(
        root,
        finished=sum(each.finished for each in shards),
        failed=sum(each.failed for each in shards),
        in_flight=sum(each.in_flight for each in shards),
        lost=root.lost + sum(each.lost for each in shards),
        age_seconds=min(each.age_seconds for each in shards),
        ended=all(each.ended for each in shards),
        lost_is_exact=all(each.lost_is_exact for each in (root, *shards)),
        exact=all(each.exact for each in (root, *shards)),
    )


def damage_of(found: Recoverable) -> Sequence[str]:
    """The damage of a local run, one sentence each."""
    if found.source != "local":
        return ()
    store = os.path.dirname(os.path.dirname(found.place))
    place = RunLocation(store, found.experiment, found.run_id, found.place)
    with Run(place, quiet=True) as run:
        try:
            damage = run.damage
        except HoldfastError as error:
            return [str(error)]
    if damage or not found.lost:
        return damage
    return [describe_unreadable(place, read_fold(place).story, Loss(found.lost, found.lost_is_exact))]


def _count_records(found: Recoverable) -> Recoverable:
    """Replace the counts of the last heartbeat by those of the mirrored records, which may be newer."""
    if found.exact:
        return found
    try:
        place = fetch_journal(found.place)
        fold = read_fold(place)
    except HoldfastError:
        return found
    if fold.story.started is None and has_records(place):
        return found
    return msgspec.structs.replace(
        found,
        planned=fold.planned,
        finished=fold.finished.count,
        failed=fold.failed.count,
        in_flight=begun_count(fold),
        exact=True,
    )


def _describe_local(place: RunLocation) -> Recoverable | None:
    """None if a process writes the run, or if it is complete. Shards of other machines are read from its mirror."""
    started = read_started(place) if is_sharded(place) else None
    shards_here = [] if started is None else fetch_shards(place, Reader(place.journal).uid, mirror_of(started.spec))
    journals = [place, *shards_here]
    if any(standing_of(each.folder).held for each in journals):
        return None
    every = [_describe_journal(each) for each in journals]
    (found, _), *shards = every
    found = _with_shards(found, [each for each, _ in shards]) if shards else found
    is_complete = all(is_completed for _, is_completed in shards or every)
    left = found.planned - found.finished - found.failed
    return None if is_complete and not left and not found.lost else found


def _describe_journal(place: RunLocation) -> tuple[Recoverable, bool]:
    """Describe a run, or one of its shards. Also returns whether its last record is `run.completed`."""
    standing = standing_of(place.folder)
    try:
        fold = read_fold(place)
    except HoldfastError:
        fold = Fold()
    end = fold.story.end
    lost = count_lost(losses_of(fold.damage, fold.story, standing))
    found = Recoverable(
        experiment=place.experiment,
        run_id=place.run_id,
        source="local",
        place=place.folder,
        planned=fold.planned,
        finished=fold.finished.count,
        failed=fold.failed.count,
        in_flight=begun_count(fold),
        lost=lost.records,
        lost_is_exact=lost.is_exact,
        age_seconds=round(time.time() - os.stat(place.journal if place.began else place.folder).st_mtime, 1),
        ended=end is not None,
    )
    return found, end is not None and end.kind == "run.completed"


def _describe_mirrored(objects: StoredObjects, experiment: str, run_id: str, beat: Beat | None) -> Recoverable:
    """Describe a run from its last heartbeat."""
    lease = beat.lease if beat is not None else None
    return Recoverable(
        experiment=experiment,
        run_id=run_id,
        source="mirror",
        place=objects.url,
        planned=lease.planned if lease else 0,
        finished=lease.finished if lease else 0,
        failed=lease.failed if lease else 0,
        in_flight=lease.in_flight if lease else 0,
        lost=_count_lost(objects, beat) if beat else 0,
        age_seconds=round(time.time() - lease.at, 1) if lease else 0.0,
        ended=beat is not None and beat.ended,
        exact=beat is not None and beat.ended and lease is not None and lease.released,
    )


def _count_lost(objects: StoredObjects, beat: Beat) -> int:
    """Count acknowledged records that are not in the mirror. Some may have arrived after the last heartbeat, so the
    last uploaded chunk is read.
    """
    acknowledged = beat.lease.acknowledged if beat.lease else 0
    if acknowledged <= beat.mirrored:
        return 0
    pieces = filter(None, (parse_piece(each.name, each.size) for each in objects.listed(PIECES)))
    last = max(pieces, key=lambda each: (each.epoch, each.segment, each.sealed, each.last), default=None)
    uploaded = last_number(objects.get(last.name) or b"") if last is not None and not last.sealed else 0
    return max(acknowledged - max(uploaded, beat.mirrored), 0)
