"""Lists what `recover` can restore: the unfinished runs of a store, or the runs of a mirror. Reads only."""

import os
import time
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import HoldfastError, StoreError, UsageError
from holdfast.journal import (
    PIECES,
    Beat,
    Loss,
    StoredObjects,
    count_lost,
    is_url,
    last_number,
    open_objects,
    parse_piece,
)
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.maintenance.recovery import begun_count
from holdfast.runs.mirror.claim import read_mirror_status
from holdfast.runs.mirror.remote import fetch_journal, mirrored_runs
from holdfast.runs.run import Run
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
                yield _count_records(_describe_mirrored(objects, experiment, run_id, status.beat))
    except StoreError as error:
        raise UsageError(str(error)) from error


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
        fold = read_fold(fetch_journal(found.place))
    except HoldfastError:
        return found
    if fold.story.started is None:
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
    standing = standing_of(place.folder)
    if standing.held:
        return None
    try:
        fold = read_fold(place)
    except HoldfastError:
        fold = Fold()
    end = fold.story.end
    lost = count_lost(losses_of(fold.damage, fold.story, standing))
    if end is not None and end.kind == "run.completed" and not fold.unfinished and not lost.records:
        return None
    return Recoverable(
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
