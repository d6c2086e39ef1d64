"""Requests to a run, live or not: cancel, tune, tag, note, set a score by hand.

A journal has one writer: a live run writes tags and notes itself, on request. Without one, this process takes the lock.
The functions block while they wait for a reply, and need a thread without a running event loop.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import UsageError
from holdfast.journal import SHARDS, StoredObjects
from holdfast.records import Draft, RunEnded, ScoreGiven, Shard, draft, parse_shard, shard_index
from holdfast.runs.control import (
    NOTHING_CHANGES,
    ControlRequest,
    make_control_record,
    send_control_request,
    send_through_mirror,
    tune_spec,
)
from holdfast.runs.execution.orders import is_cancelled
from holdfast.runs.execution.resume import Reading, claim, open_claimed, stored_spec
from holdfast.runs.execution.session import close_quietly
from holdfast.runs.mirror.claim import objects_of, restore_from_mirror, update_from_mirror
from holdfast.runs.mirror.remote import read_heartbeats
from holdfast.runs.run import Run
from holdfast.runs.scoring import Edit, edited
from holdfast.runs.shards.copy import mirror_of
from holdfast.runs.shards.layout import begun_shards, is_sharded, read_started, shard_location
from holdfast.runs.shards.standings import shard_standings
from holdfast.runs.store.damage import require_started
from holdfast.runs.store.lookup import RunLocation, not_started_error
from holdfast.spec import read_stored_spec
from holdfast.state import Story, standing_by, standing_of

Send = Callable[[ControlRequest], tuple[bool, str] | None]
"""Sends a request to one worker; returns its reply, or None without a reply in time."""
_WORKERS_MAX = 64
_REPLY_SECONDS = 15.0
_log = logging.getLogger("holdfast")


def cancel(place: RunLocation) -> str:
    """Stop a live run; its answers are kept. Raises UsageError if no process is working on it. Returns what is to be
    said about the workers of a sharded run: they also find the order in the root journal. No worker claims another
    shard, and one that is started later leaves the run alone until it is resumed.
    """
    request = ControlRequest("cancel")
    if not is_sharded(place):
        _send_to_live(place, request)
        return ""
    workers = _find_workers(place)
    # The order must not wait for a copy of all records, which takes minutes in a large run that is being paid for.
    counts = _counts_of_shards(place) if workers else _counts_of_open_run(place)
    asyncio.run(_append(place, draft("run.cancelled", RunEnded(*counts, "by `holdfast cancel`"))))
    return _send_to_workers(place, request, workers)


def tune(place: RunLocation, sets: Sequence[str]) -> str:
    """Change throughput fields of a live run. `sets`: as in `--set`. Returns as `cancel`."""
    request = ControlRequest("tune", sets=list(sets))
    if not is_sharded(place):
        _send_to_live(place, request)
        return ""
    workers = _find_workers(place)
    root = _read_root(place)
    if not workers or is_cancelled(root):
        raise UsageError(f"{place.run_id} is not running; to continue it: {place.command('resume')}")
    asyncio.run(_append(place, tune_spec(root, sets)[1]))
    return _send_to_workers(place, request, workers)


def _read_root(place: RunLocation) -> Story:
    """The story of a sharded run by its root journal, with what other machines have recorded."""
    reading = Reading(place)
    update_from_mirror(stored_spec(reading.fold).mirror, place, _log.warning)
    reading.catch_up()
    return reading.fold.story


def _counts_of_shards(place: RunLocation) -> tuple[int, int, int]:
    """Finished, failed and unfinished samples of a sharded run, by the last heartbeats of its workers."""
    root = _read_root(place)
    count = root.started.shards if root.started is not None else 0
    leases = [each.lease for each in shard_standings(place, count, mirror_of(root.spec)).values() if each.lease]
    finished, failed = sum(each.finished for each in leases), sum(each.failed for each in leases)
    return finished, failed, max(root.planned - finished - failed, 0)


def _counts_of_open_run(place: RunLocation) -> tuple[int, int, int]:
    """The same, from all records. Raises UsageError if nothing is left to do."""
    with Run(place) as run:
        if run.status()[0] == "completed":
            raise UsageError(f"{place.run_id} is completed: no process is working on it")
        summary = run.summary()
    return summary.finished, summary.failed, summary.unfinished


def _send_to_workers(place: RunLocation, request: ControlRequest, workers: Sequence[Send]) -> str:
    """Send a request to live workers of a sharded run. It is recorded: those that miss it find it in the root journal.
    Raises UsageError if one refuses it.
    """
    if not workers:
        return "no worker is running now; one that is paused stops when it continues"
    with ThreadPoolExecutor(_WORKERS_MAX, "holdfast-request") as pool:
        replies = list(pool.map(lambda send: send(request), workers))
    for reply in replies:
        if reply is not None and not reply[0] and reply[1] != NOTHING_CHANGES:
            raise UsageError(f"{place.run_id}: {reply[1]}")
    received = sum(reply is not None for reply in replies)
    later = "" if received == len(replies) else "; the others find it in the root journal of the run"
    return f"{received} of {len(replies)} workers have received it{later}"


def _find_workers(place: RunLocation) -> list[Send]:
    """The live workers: those that hold shards in the run's folder, and those that hold others in its mirror."""
    here = {each.shard: each for each in begun_shards(place) if standing_of(each.folder).held}
    found: list[Send] = [functools.partial(send_control_request, each.folder) for each in here.values()]
    started = read_started(place)
    mirror = mirror_of(started.spec) if started is not None else ""
    if not mirror:
        return found
    objects = objects_of(mirror, place)
    shards = [each for each in map(parse_shard, objects.folders(SHARDS)) if str(each) not in here]
    stored = [objects.below(f"{SHARDS}/{each.folder}") for each in shards]
    for each, status in zip(stored, read_heartbeats(stored), strict=True):
        beat = status.beat
        if beat is not None and beat.lease is not None and standing_by(beat).held:
            seconds = beat.expiry_seconds + _REPLY_SECONDS  # its next heartbeat comes sooner
            found.append(functools.partial(_send_far, each, beat.lease.epoch, seconds))
    return found


def _send_far(objects: StoredObjects, epoch: int, seconds: float, request: ControlRequest) -> tuple[bool, str] | None:
    return send_through_mirror(objects, epoch, request, seconds)


def change_tags(place: RunLocation, tags: Sequence[str]) -> None:
    """Add tags, or remove those with a leading `-`."""
    if any(not tag.strip("- \t") for tag in tags):
        raise UsageError("a tag needs at least one letter: `nightly` adds it, `-nightly` removes it")
    add = [tag for tag in tags if not tag.startswith("-")]
    remove = [tag[1:] for tag in tags if tag.startswith("-")]
    write_request(place, ControlRequest("tag", add=add, remove=remove))


def add_note(place: RunLocation, text: str) -> None:
    if not text.strip():
        raise UsageError("the note is empty: write holdfast note RUN TEXT")
    write_request(place, ControlRequest("note", text=text))


def set_score(place: RunLocation, edit: Edit, *, quiet: bool = False) -> ScoreGiven:
    """Set one score by hand and return what was recorded. `quiet`: issue no `DamageWarning`. Raises UsageError if the
    run is a copy of a mirror, or if the edit is not possible.
    """
    if place.url:
        raise UsageError(f"{place.run_id} is open as a copy from a mirror, which cannot change; restore it first")
    if is_sharded(place):  # the journal of the answer has its score too
        place = _shard_of(place, edit.key)
    with Run(place, quiet=quiet) as run:
        score = edited(run, edit)
    write_request(place, ControlRequest("score", key=edit.key, score=score))
    return score


def _shard_of(place: RunLocation, key: str) -> RunLocation:
    """The shard of a key, with what other machines have recorded in it; the run itself if the shard has not begun."""
    root = _read_root(place)
    assert root.started is not None
    count = root.started.shards
    shard = shard_location(place, Shard(shard_index(key.rpartition("/")[0], count) + 1, count))
    mirror = read_stored_spec(root.spec).mirror
    restore_from_mirror(mirror, shard, _log.warning)
    update_from_mirror(mirror, shard, _log.warning)
    return shard if shard.began else place


def _send_to_live(place: RunLocation, request: ControlRequest) -> None:
    if not standing_of(place.folder).held:
        with Run(place) as run:
            if not run.has_begun:
                raise not_started_error(place)
            if run.status()[0] == "completed":
                raise UsageError(f"{place.run_id} is completed: no process is working on it")
        raise UsageError(f"{place.run_id} is not running; to continue it: {place.command('resume')}")
    reply = send_control_request(place.folder, request)
    if reply is None:
        raise UsageError(f"{place.run_id} does not respond: see `holdfast doctor {place.run_id}`")
    done, sentence = reply
    if not done:
        raise UsageError(f"{place.run_id}: {sentence}")


def write_request(place: RunLocation, request: ControlRequest) -> None:
    """Let a live run write the record; write it here if the run is not live or ends meanwhile."""
    if standing_of(place.folder).held:
        reply = send_control_request(place.folder, request)
        if reply is not None and reply[0]:
            return
        if reply is not None:
            raise UsageError(f"{place.run_id}: {reply[1]}")
    asyncio.run(_append(place, make_control_record(request)))


async def _append(place: RunLocation, record: Draft) -> None:
    reading = await asyncio.to_thread(Reading, place)
    require_started(place, reading.fold)
    writer, logbook = await open_claimed(reading, await claim(reading, stored_spec(reading.fold).mirror))
    try:
        await writer.append(record)
    except BaseException:
        await close_quietly(writer)
        raise
    finally:
        logbook.close()
    await writer.close(seal_last=True)
