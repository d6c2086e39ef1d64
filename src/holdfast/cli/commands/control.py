"""`cancel`, `tune`, `tag` and `note`: what is asked of a run, live or at rest."""

import asyncio

from holdfast.cli.output import jobs_line, resume_command, say
from holdfast.errors import UsageError
from holdfast.journal.object_store import is_url
from holdfast.runs import Run, RunPlace, default_store, find_run
from holdfast.runs.control import Wish, ask_run, record_of
from holdfast.runs.execution.resume import Reading, claim, open_claimed, stored_spec
from holdfast.runs.execution.session import close_quietly
from holdfast.runs.store.damage import require_started
from holdfast.runs.store.lookup import not_begun
from holdfast.state import standing_of


def cancel_run(name: str, store: str | None) -> int:
    place = _find_live(name, store)
    _ask_live(place, Wish("cancel"))
    say(f"{place.run_id} stops; what it has is kept. Go on with: {resume_command(place)}")
    with Run(place) as run:
        jobs = run.jobs()
    if jobs:
        say(f"{jobs_line(jobs)}; they go on there, and the next start collects them")
    return 0


def tune_run(name: str, sets: list[str], store: str | None) -> int:
    if not sets:
        raise UsageError("--set is missing: say what to change, for example --set concurrency.samples=8")
    place = _find_live(name, store)
    _ask_live(place, Wish("tune", sets=sets))
    say(f"{place.run_id}: {', '.join(sets)}")
    return 0


def tag_run(name: str, tags: list[str], store: str | None) -> int:
    """`nightly` adds a tag, `-nightly` takes it away."""
    if any(not tag.strip("- \t") for tag in tags):
        raise UsageError("a tag needs at least one letter: `nightly` adds it, `-nightly` takes it away")
    add = [tag for tag in tags if not tag.startswith("-")]
    remove = [tag[1:] for tag in tags if tag.startswith("-")]
    place = find_run(store or default_store(), name)
    write_wish(place, Wish("tag", add=add, remove=remove))
    with Run(place) as run:
        say(f"{place.run_id}: {', '.join(run.summary().tags) or 'no tags'}")
    return 0


def note_run(name: str, text: str, store: str | None) -> int:
    if not text.strip():
        raise UsageError("the note is empty: say what you want to remember")
    place = find_run(store or default_store(), name)
    write_wish(place, Wish("note", text=text))
    say(f"{place.run_id}: noted")
    return 0


def _find_live(name: str, store: str | None) -> RunPlace:
    """A wish is a file in the run's folder: only the machine that has the folder can ask."""
    where = store or default_store()
    if is_url(name) or is_url(where):
        raise UsageError(f"{name}: a live run is asked on the machine that runs it: do it there, with the run's id")
    return find_run(where, name)


def _ask_live(place: RunPlace, wish: Wish) -> None:
    if not standing_of(place.folder).held:
        with Run(place) as run:
            if not run.has_begun:
                raise not_begun(place)
        raise UsageError(f"{place.run_id} is not running; if it should, go on with it: {resume_command(place)}")
    answer = ask_run(place.folder, wish)
    if answer is None:
        raise UsageError(f"{place.run_id} does not answer: see `holdfast doctor {place.run_id}`")
    done, sentence = answer
    if not done:
        raise UsageError(f"{place.run_id}: {sentence}")


def write_wish(place: RunPlace, wish: Wish) -> None:
    """A live run writes it itself: there is only one writer. If it ends meanwhile, we do."""
    if standing_of(place.folder).held:
        answer = ask_run(place.folder, wish)
        if answer is not None and answer[0]:
            return
        if answer is not None:
            raise UsageError(f"{place.run_id}: {answer[1]}")
    asyncio.run(_append(place, wish))


async def _append(place: RunPlace, wish: Wish) -> None:
    reading = await asyncio.to_thread(Reading, place)
    require_started(place, reading.fold)
    writer, logbook = await open_claimed(reading, await claim(reading, stored_spec(reading.fold).mirror))
    try:
        await writer.append(record_of(wish))
    except BaseException:
        await close_quietly(writer)
        raise
    finally:
        logbook.close()
    await writer.close(seal_last=True)
