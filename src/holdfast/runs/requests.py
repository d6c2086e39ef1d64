"""Requests to a run, live or not: cancel, tune, tag, note, set a score by hand.

A journal has one writer: a live run writes tags and notes itself, on request. Without one, this process takes the lock.
The functions block while they wait for a reply, and need a thread without a running event loop.
"""

import asyncio
from collections.abc import Sequence

from holdfast.errors import UsageError
from holdfast.records import ScoreGiven
from holdfast.runs.control import ControlRequest, make_control_record, send_control_request
from holdfast.runs.execution.resume import Reading, claim, open_claimed, stored_spec
from holdfast.runs.execution.session import close_quietly
from holdfast.runs.run import Run
from holdfast.runs.scoring import Edit, edited
from holdfast.runs.store.damage import require_started
from holdfast.runs.store.lookup import RunLocation, not_started_error
from holdfast.state import standing_of


def cancel(place: RunLocation) -> None:
    """Stop a live run; its answers are kept. Raises UsageError if no process is working on it."""
    _send_to_live(place, ControlRequest("cancel"))


def tune(place: RunLocation, sets: Sequence[str]) -> None:
    """Change throughput fields of a live run. `sets`: as in `--set`."""
    _send_to_live(place, ControlRequest("tune", sets=list(sets)))


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
    with Run(place, quiet=quiet) as run:
        score = edited(run, edit)
    write_request(place, ControlRequest("score", key=edit.key, score=score))
    return score


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
    asyncio.run(_append(place, request))


async def _append(place: RunLocation, request: ControlRequest) -> None:
    reading = await asyncio.to_thread(Reading, place)
    require_started(place, reading.fold)
    writer, logbook = await open_claimed(reading, await claim(reading, stored_spec(reading.fold).mirror))
    try:
        await writer.append(make_control_record(request))
    except BaseException:
        await close_quietly(writer)
        raise
    finally:
        logbook.close()
    await writer.close(seal_last=True)
