"""What can be recovered: the runs of a store that have not ended, or those of a mirror."""

import os
import time
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import HoldfastError, StoreError, UsageError
from holdfast.journal.mirror.pieces import FOLDER, last_number, parse_piece
from holdfast.journal.object_store import StoredObjects, is_url, open_objects
from holdfast.journal.ownership.claims import Beat
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.mirror.claim import hear
from holdfast.runs.mirror.recovery import begun_count, mirrored_runs
from holdfast.runs.mirror.remote import fetch_journal
from holdfast.runs.run import Run
from holdfast.runs.store.damage import describe_unreadable
from holdfast.runs.store.lookup import RunPlace, default_store, runs_in
from holdfast.state import Fold, is_held


class Recoverable(msgspec.Struct, frozen=True):
    """A run that can be brought back or continued."""

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
    """Records that were acknowledged and are not there."""
    age_seconds: float
    """Since it was last heard of."""
    ended: bool = False
    exact: bool = True
    """False: the records could not be read. The counts are those of the last heartbeat; the mirror may hold more."""


def list_recoverable(where: str = "") -> Iterator[Recoverable]:
    """Runs of a store that have not ended here, or every run of a mirror. UsageError if it cannot be looked at.

    The counts are those of the records. Of a run in a mirror whose last heartbeat was not its last word, the journal is
    fetched into the user's cache to count them: whole the first time, and only what is new after that.
    """
    if not is_url(where):
        if where and not os.path.isdir(where):
            raise UsageError(f"{where} is no folder; give a store's folder, or the URL of a mirror")
        for place in runs_in(where or default_store()):
            found = _local(place)
            if found is not None:
                yield found
        return
    try:
        for objects, experiment, run_id in mirrored_runs(open_objects(where)):
            heard = hear(objects)
            if not heard.removed:
                yield _counted(_remote(objects, experiment, run_id, heard.beat))
    except StoreError as error:
        raise UsageError(str(error)) from error


def damage_of(found: Recoverable) -> Sequence[str]:
    """What is damaged in a run that is here, a sentence each."""
    if found.source != "local":
        return ()
    store = os.path.dirname(os.path.dirname(found.place))
    place = RunPlace(store, found.experiment, found.run_id, found.place)
    with Run(place, quiet=True) as run:
        try:
            damage = run.damage
        except HoldfastError as error:
            return [str(error)]
    return damage or ([describe_unreadable(place, found.lost)] if found.lost else ())


def _counted(found: Recoverable) -> Recoverable:
    """The same with the counts of the mirror's records: what was recorded after the last heartbeat is in none."""
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


def _local(place: RunPlace) -> Recoverable | None:
    if is_held(place.folder):
        return None
    try:
        fold = read_fold(place)
    except HoldfastError:
        fold = Fold()
    end = fold.story.end
    if end is not None and end.kind == "run.completed" and not fold.unfinished:
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
        lost=sum(damage.records_lost for damage in fold.damage if damage.kind != "torn"),
        age_seconds=round(time.time() - os.stat(place.journal if place.began else place.folder).st_mtime, 1),
        ended=end is not None,
    )


def _remote(objects: StoredObjects, experiment: str, run_id: str, beat: Beat | None) -> Recoverable:
    """As its last heartbeat says."""
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
        lost=_lost_there(objects, beat) if beat else 0,
        age_seconds=round(time.time() - lease.at, 1) if lease else 0.0,
        ended=beat is not None and beat.ended,
        exact=beat is not None and beat.ended and lease is not None and lease.released,
    )


def _lost_there(objects: StoredObjects, beat: Beat) -> int:
    """Records that were acknowledged and are not there. Some may have got there after the last beat: the last chunk
    tells.
    """
    known = beat.lease.acknowledged if beat.lease else 0
    if known <= beat.mirrored:
        return 0
    pieces = filter(None, (parse_piece(each.name, each.size) for each in objects.listed(FOLDER)))
    last = max(pieces, key=lambda each: (each.epoch, each.segment, each.sealed, each.last), default=None)
    there = last_number(objects.get(last.name) or b"") if last is not None and not last.sealed else 0
    return max(known - max(there, beat.mirrored), 0)
