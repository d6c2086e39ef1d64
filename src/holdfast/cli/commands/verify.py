"""`verify`: whether every byte of a run is what was written, and every reported number follows from the journal."""

import shutil
from collections.abc import Sequence

import msgspec

from holdfast.cli.output import print_json, say
from holdfast.cli.progress import patience
from holdfast.errors import DamagedError
from holdfast.journal import Verification, verify
from holdfast.journal.object_store import is_url
from holdfast.records.decoder import check_fact
from holdfast.report.text import counted
from holdfast.runs import RunPlace, default_store, find_run
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.mirror.remote import fetch_all, find_in_mirror
from holdfast.runs.store.blob_check import check_content
from holdfast.runs.store.damage import check_every_byte
from holdfast.runs.verification import ScoresChecked, check_index, check_scores
from holdfast.state import standing_of

_SHOWN_MAX = 50


def verify_run(name: str, store: str | None, as_json: bool, scores: bool = False) -> int:
    """Of a run in a mirror every object is fetched: what was copied before says nothing of what is there now."""
    where = store or default_store()
    if not is_url(name) and not is_url(where):
        return _verify(find_run(where, name), [], as_json, scores)
    _, place = find_in_mirror(where, name)
    with patience("fetching from the mirror") as wait:
        folder, wrong = fetch_all(place, wait.tell)
    try:
        return _verify(msgspec.structs.replace(place, folder=folder), wrong, as_json, scores)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _verify(place: RunPlace, wrong: list[str], as_json: bool, scores: bool) -> int:
    with patience("verifying the journal") as reading:
        found = verify(place.journal, told=reading.tell, check=check_fact)
    with patience("verifying plan, data and files"):
        standing = standing_of(place.folder)  # before the journal: a writer may add to it meanwhile
        errors = [*wrong, *found.errors]
        try:
            fold = read_fold(place)
            errors += check_every_byte(place, fold, found.last_n, standing)
            errors += check_content(place, fold)
        except DamagedError as error:
            errors += [str(error)] if str(error) not in errors else []
    checked = None
    if scores:
        with patience("rebuilding the index and rescoring"):
            checked = check_scores(place)
    index: list[str] = []
    if not place.url and not errors:  # what was fetched to be verified has no index; a damaged journal proves nothing
        with patience("comparing the index with the journal"):
            index = check_index(place, is_wrong=checked is not None and bool(checked.differences))
    if as_json:
        told = {} if checked is None else {"scores": checked}
        is_right = not index and (checked is None or not checked.differences)
        verdict = {"errors": errors, "index": index, "ok": not errors and is_right}
        print_json({**msgspec.to_builtins(found), **verdict, **told})
    else:
        _tell(place, found, errors)
        for line in index:
            say(f"error: {line}", style="red")
        if checked is not None:
            _tell_scores(place, checked)
    return 5 if errors or index or (checked is not None and checked.differences) else 0


def _tell(place: RunPlace, found: Verification, errors: Sequence[str]) -> None:
    for warning in found.warnings:
        say(f"warning: {warning}")
    for error in errors:
        say(f"error: {error}", style="red")
    if found.keys:
        say(f"keys affected: {', '.join(found.keys[:20])}")
    verdict = "is whole" if not errors else f"is damaged: {counted(len(errors), 'error')}, listed above"
    size = f"{counted(found.records, 'record')} in {counted(found.segments, 'segment')}"
    say(f"{place.run_id}: {size}, {verdict}.")


def _tell_scores(place: RunPlace, checked: ScoresChecked) -> None:
    for each in checked.differences[:_SHOWN_MAX]:
        say(f"error: {each}", style="red")
    left = len(checked.differences) - _SHOWN_MAX
    if left > 0:
        say(f"… and {left} more; see them with --json")
    for name, count in checked.rescored.items():
        say(f"scorer {name}: {counted(count, 'score')} computed again")
    for name, why in checked.skipped.items():
        say(f"scorer {name}: not scored again: {why}")
    rebuilt = f"an index rebuilt from {counted(checked.records, 'record')}"
    numbers = f"{counted(checked.numbers, 'number')} compared with {rebuilt}"
    if not checked.differences:
        say(f"{place.run_id}: {numbers}: all are as reported.")
        return
    say(f"{place.run_id}: {numbers}: {counted(len(checked.differences), 'difference')}. The journal is the original.")
