"""`cancel`, `tune`, `tag` and `note`: requests to a run, live or not.

A journal has one writer: a live run writes tags and notes itself, on request. Without one, this process takes the lock.
"""

import asyncio

from holdfast.cli.output import jobs_line, print_line
from holdfast.errors import UsageError
from holdfast.journal import is_url
from holdfast.runs import Run, RunLocation, default_store, find_run
from holdfast.runs.control import ControlRequest, make_control_record, send_control_request
from holdfast.runs.execution.resume import Reading, claim, open_claimed, stored_spec
from holdfast.runs.execution.session import close_quietly
from holdfast.runs.store.damage import require_started
from holdfast.runs.store.lookup import not_started_error
from holdfast.state import standing_of


def cancel_run(name: str, store: str | None) -> int:
    place = _find_live(name, store)
    _send_to_live(place, ControlRequest("cancel"))
    print_line(f"{place.run_id} is stopping; its answers are kept. Continue with: {place.command('resume')}")
    with Run(place) as run:
        jobs = run.jobs()
    if jobs:
        print_line(f"{jobs_line(jobs)}; they continue there, and the next start collects them")
    return 0


def tune_run(name: str, sets: list[str], store: str | None) -> int:
    if not sets:
        raise UsageError("--set is missing: name what to change, for example --set concurrency.samples=8")
    place = _find_live(name, store)
    _send_to_live(place, ControlRequest("tune", sets=sets))
    print_line(f"{place.run_id}: {', '.join(sets)}")
    return 0


def tag_run(name: str, tags: list[str], store: str | None) -> int:
    """Add tags, or remove those with a leading `-`."""
    if any(not tag.strip("- \t") for tag in tags):
        raise UsageError("a tag needs at least one letter: `nightly` adds it, `-nightly` removes it")
    add = [tag for tag in tags if not tag.startswith("-")]
    remove = [tag[1:] for tag in tags if tag.startswith("-")]
    place = find_run(store or default_store(), name)
    write_request(place, ControlRequest("tag", add=add, remove=remove))
    with Run(place) as run:
        print_line(f"{place.run_id}: {', '.join(run.summary().tags) or 'no tags'}")
    return 0


def note_run(name: str, text: str, store: str | None) -> int:
    if not text.strip():
        raise UsageError("the note is empty: write holdfast note RUN TEXT")
    place = find_run(store or default_store(), name)
    write_request(place, ControlRequest("note", text=text))
    print_line(f"{place.run_id}: note added")
    return 0


def _find_live(name: str, store: str | None) -> RunLocation:
    """Find a run that may be live. Requests are files in its folder, so they need a machine that has the folder."""
    where = store or default_store()
    if is_url(name) or is_url(where):
        raise UsageError(f"{name}: a live run is controlled on the machine that runs it: use the run's id there")
    return find_run(where, name)


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
