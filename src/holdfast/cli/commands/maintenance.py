"""`doctor` and `gc`: what is wrong in a store, and what may go."""

import os
import re
import shlex
from typing import Any

import msgspec

from holdfast.cli.errors import explain, explain_os_error
from holdfast.cli.output import print_json, print_table, say
from holdfast.cli.progress import patience
from holdfast.errors import HoldfastError, UsageError
from holdfast.journal.object_store import is_url
from holdfast.report.grid import Grid
from holdfast.report.text import counted, human_bytes
from holdfast.runs import default_store, find_run
from holdfast.runs.store.doctor import Finding, examine, mend
from holdfast.runs.store.lookup import finish_removals, folders_in
from holdfast.runs.store.retention import (
    Doomed,
    Policy,
    chosen,
    named,
    named_in_mirror,
    remove,
    remove_stale_entries,
    with_mirror,
)

_SIZE = re.compile(r"^\s*([0-9]{1,15}(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_AGE = re.compile(r"^\s*([0-9]{1,9}(?:\.[0-9]+)?)\s*([hdwmy]?)\s*$", re.IGNORECASE)
Kept = dict[str, HoldfastError | OSError]
"""Runs that could not be removed, by folder, and why."""
_DAYS = {"h": 1 / 24, "d": 1, "": 1, "w": 7, "m": 30, "y": 365}


class Removal(msgspec.Struct, frozen=True):
    """`yes`: remove, do not only show. `mirror`: the mirrors of the runs too."""

    yes: bool
    mirror: bool


class Rules(msgspec.Struct, frozen=True):
    """`gc`'s options as they were typed."""

    older_than: str | None = None
    keep: int | None = None
    max_size: str | None = None
    experiment: str | None = None
    tagged_too: bool = False
    latest_too: bool = False


def doctor(name: str | None, store: str | None, fix: bool, as_json: bool) -> int:
    where = store or default_store()
    if store and not name and not os.path.isdir(where):
        raise UsageError(f"there is no store {where}; name one with --store, or start a run")
    place = find_run(where, name, folders_in) if name else None
    found = [mend(trouble) if fix else trouble.finding for trouble in examine(where, place)]
    if as_json:
        print_json(found)
    else:
        for finding in found:
            _tell(finding)
        if not found:
            say("Nothing is wrong.")
    return 5 if any(finding.damage and not finding.fixed for finding in found) else 0


def _tell(finding: Finding) -> None:
    say(f"{finding.run}: {finding.what}" if finding.run else finding.what, "bold")
    say(f"  {finding.means}")
    say("  mended" if finding.fixed else f"  {finding.command}")


def gc(names: list[str], rules: Rules, store: str | None, removal: Removal, as_json: bool) -> int:
    """The exit code is that of the first named run that could not be removed."""
    where = store or default_store()
    if names and rules != Rules():
        raise UsageError("name runs, or say which may go by a rule; not both")
    there = [name for name in names if is_url(name)]
    if there and not removal.mirror:
        raise UsageError(f"{there[0]} is a run in a mirror; to remove it there, add --mirror")
    if names:
        doomed = named([find_run(where, name) for name in names if name not in there])
    else:
        doomed = chosen(where, _policy(rules))
    doomed = [with_mirror(each, goes=removal.mirror) for each in doomed] + [named_in_mirror(url) for url in there]
    kept: Kept = {}
    if removal.yes:
        if not is_url(where):
            finish_removals(where)
        kept = {each.place.folder: error for each in doomed if (error := _failure(each)) is not None}
    _print_doomed(doomed, kept, removal.yes, as_json)
    if removal.yes:
        _remove_stale_entries(as_json)
    for error in kept.values() if names else ():
        return explain(error) if isinstance(error, HoldfastError) else explain_os_error(error)
    return 0


def _remove_stale_entries(as_json: bool) -> None:
    count, size = remove_stale_entries()
    if count and not as_json:
        say(f"Removed {counted(count, 'stale file')} from the cache, {human_bytes(size)}.")


def _policy(rules: Rules) -> Policy:
    policy = Policy(
        _days(rules.older_than),
        rules.keep,
        _bytes(rules.max_size),
        rules.experiment,
        not rules.tagged_too,
        not (rules.latest_too or rules.keep == 0),
    )
    if policy.older_than_days is None and policy.keep is None and policy.max_bytes is None:
        raise UsageError("say what may go: --older-than 30d, --keep 5, --max-size 10GB, or name runs")
    return policy


def _failure(doomed: Doomed) -> HoldfastError | OSError | None:
    """Remove a run; return why it could not be removed. The others are not affected."""
    try:
        with patience(f"removing {doomed.place.run_id}"):
            remove(doomed)
    except (HoldfastError, OSError) as error:
        return error
    return None


def _print_doomed(doomed: list[Doomed], kept: Kept, yes: bool, as_json: bool) -> None:
    if as_json:
        print_json([{**_plain(each), "removed": yes and each.place.folder not in kept} for each in doomed])
        return
    if not doomed:
        say("Nothing to remove. Runs that are not completed, have tags, or are the newest stay unless they are named.")
        return
    rows = []
    for each in doomed:
        place = each.place
        why = f"kept: {kept[place.folder]}" if place.folder in kept else each.why
        rows.append((place.run_id, place.experiment, each.created[:19], human_bytes(each.bytes), why))
    print_table(Grid(("run", "experiment", "created", "size", "why"), rows, right=("size",), whole=("run",)))
    gone = [each for each in doomed if each.place.folder not in kept]
    what = f"{counted(len(gone), 'run')}, {human_bytes(sum(each.bytes for each in gone))}"
    for each in gone:
        if each.mirror:
            say(_about_mirror(each, yes))
    say(f"Removed {what}." if yes else f"Would remove {what}. Nothing was changed; to do it: add --yes")


def _about_mirror(doomed: Doomed, yes: bool) -> str:
    """What happens to a run's mirror."""
    name, url = doomed.place.run_id, shlex.quote(doomed.mirror)
    if doomed.mirror_goes:
        return f"{'Removed' if yes else 'Would remove'} the mirror of {name}: {doomed.mirror}"
    how = f"holdfast gc {url} --mirror --yes" if yes else "add --mirror"
    return f"The mirror of {name} stays: {doomed.mirror}; to remove it too: {how}"


def _plain(doomed: Doomed) -> dict[str, Any]:
    place = doomed.place
    told = {"run_id": place.run_id, "experiment": place.experiment, "created": doomed.created}
    return {
        **told,
        "bytes": doomed.bytes,
        "why": doomed.why,
        "mirror": doomed.mirror,
        "mirror_goes": doomed.mirror_goes,
    }


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    match = _SIZE.match(text)
    if match is None:
        raise UsageError(f"--max-size {text}: write a size such as 500MB or 10GB")
    unit = 1024 if match[3] else 1000
    return int(float(match[1]) * unit ** " kmgt".index(match[2].lower() or " "))


def _days(text: str | None) -> float | None:
    if text is None:
        return None
    match = _AGE.match(text)
    if match is None:
        raise UsageError(f"--older-than {text}: write an age such as 12h, 30d or 8w")
    return float(match[1]) * _DAYS[match[2].lower()]
