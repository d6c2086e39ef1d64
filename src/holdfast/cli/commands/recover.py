"""`recover`: bring back what is left of a run."""

import warnings

import msgspec

from holdfast.cli.output import print_json, print_table, say, warn
from holdfast.cli.progress import patience
from holdfast.errors import DamageWarning
from holdfast.report.grid import Grid
from holdfast.report.tables import duration
from holdfast.report.text import counted
from holdfast.runs.mirror.recoverable import Recoverable, damage_of, list_recoverable
from holdfast.runs.mirror.recovery import Recovered, Wanted, recover

_COLUMNS = ("run", "source", "finished", "failed", "in flight", "lost", "last heard of", "place")


def list_all(where: str | None, store: str | None, as_json: bool) -> int:
    with patience("reading the mirror"):
        found = list(list_recoverable(where or store or ""))
    _warn_of_damage(found)
    if as_json:
        print_json(found)
    elif not found:
        say("There is nothing to recover.")
    else:
        print_table(_table(found))
        if not all(each.exact for each in found):
            say("*: or more: not all records could be read, so these are the counts of the last heartbeat")
        say("bring one back with: holdfast recover PLACE; go on with one that is here with: holdfast resume RUN")
    return 0


def _warn_of_damage(found: list[Recoverable]) -> None:
    """What is listed of a damaged run is what is left of it, not what it had."""
    for each in found:
        for sentence in damage_of(each):
            warnings.warn(sentence, DamageWarning, stacklevel=2)


def bring_back(where: str, wanted: Wanted, as_json: bool) -> int:
    with patience("recovering") as wait:
        found = recover(where, wanted, wait.tell)
    for line in found.warnings:
        warn(line)
    if as_json:
        print_json({**msgspec.to_builtins(found), "place": found.place.folder})
    else:
        _tell(found)
    return 0


def _tell(found: Recovered) -> None:
    left = found.planned - found.finished - found.failed
    counts = f"{found.finished} of {found.planned} finished, {found.failed} failed, {left} unfinished"
    say(f"recovered {found.place.experiment}/{found.place.run_id}: {counts}", "bold")
    say(f"  in {found.place.folder}")
    if found.in_flight:
        say(f"  {counted(found.in_flight, 'sample')} had begun: they go on where their last recorded step is")
    if found.lost:
        say(f"  {counted(found.lost, 'record')} had been acknowledged and are nowhere: what they held is asked again")
    if found.cleaned:
        say("  what it was recovered from is all here now, and was removed")
    if left:
        say(f"  go on with it: {found.place.command('resume')}")


def _table(found: list[Recoverable]) -> Grid:
    rows = [
        (
            f"{each.experiment}/{each.run_id}",
            each.source,
            f"{each.finished}{'' if each.exact else '*'} of {each.planned}",
            str(each.failed),
            str(each.in_flight),
            str(each.lost),
            f"{duration(each.age_seconds)} ago",
            each.place,
        )
        for each in found
    ]
    return Grid(_COLUMNS, rows, right=_COLUMNS[2:6], whole=("run", "place"))
