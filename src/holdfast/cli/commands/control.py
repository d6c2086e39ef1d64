"""`cancel`, `tune`, `tag` and `note`: requests to a run, live or not."""

from holdfast.cli.output import jobs_line, print_line
from holdfast.errors import UsageError
from holdfast.journal import is_url
from holdfast.runs import Run, RunLocation, add_note, cancel, change_tags, default_store, find_run, tune


def cancel_run(name: str, store: str | None) -> int:
    place = _find_live(name, store)
    said = cancel(place)
    if said:
        print_line(said)
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
    said = tune(place, sets)
    if said:
        print_line(said)
    print_line(f"{place.run_id}: {', '.join(sets)}")
    return 0


def tag_run(name: str, tags: list[str], store: str | None) -> int:
    """Add tags, or remove those with a leading `-`."""
    place = find_run(store or default_store(), name)
    change_tags(place, tags)
    with Run(place) as run:
        print_line(f"{place.run_id}: {', '.join(run.summary().tags) or 'no tags'}")
    return 0


def note_run(name: str, text: str, store: str | None) -> int:
    place = find_run(store or default_store(), name)
    add_note(place, text)
    print_line(f"{place.run_id}: note added")
    return 0


def _find_live(name: str, store: str | None) -> RunLocation:
    """Find a run that may be live. Requests are files in its folder, so they need a machine that has the folder."""
    where = store or default_store()
    if is_url(name) or is_url(where):
        raise UsageError(f"{name}: a live run is controlled on the machine that runs it: use the run's id there")
    return find_run(where, name)
