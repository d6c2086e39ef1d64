"""`recover`: restore a run from its mirror or from a copy of its folder."""

import warnings

import msgspec

from holdfast.cli.output import print_json, print_line, print_table, warn
from holdfast.cli.progress import spinner
from holdfast.errors import DamageWarning
from holdfast.report import Grid, counted, duration
from holdfast.runs.mirror.recoverable import damage_of, list_recoverable
from holdfast.runs.mirror.recovery import RecoveryOptions, recover

_COLUMNS = ("run", "source", "finished", "failed", "in flight", "lost", "last seen", "place")


def print_recoverable(where: str | None, store: str | None, as_json: bool) -> int:
    with spinner("reading the mirror"):
        found = list(list_recoverable(where or store or ""))
    for each in found:  # the counts of a damaged run cover only what is left of it
        for sentence in damage_of(each):
            warnings.warn(sentence, DamageWarning, stacklevel=2)
    if as_json:
        print_json(found)
    elif not found:
        print_line("Nothing to recover.")
    else:
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
        print_table(Grid(_COLUMNS, rows, right=_COLUMNS[2:6], whole=("run", "place")))
        if not all(each.exact for each in found):
            print_line("*: at least; not all records could be read, so the counts are those of the last heartbeat")
        print_line("To restore one: holdfast recover PLACE. To continue one that is in this store: holdfast resume RUN")
    return 0


def recover_run(where: str, options: RecoveryOptions, as_json: bool) -> int:
    with spinner("recovering") as spin:
        found = recover(where, options, spin.update)
    for line in found.warnings:
        warn(line)
    if as_json:
        print_json({**msgspec.to_builtins(found), "place": found.place.folder})
        return 0
    left = found.planned - found.finished - found.failed
    counts = f"{found.finished} of {found.planned} finished, {found.failed} failed, {left} unfinished"
    print_line(f"recovered {found.place.experiment}/{found.place.run_id}: {counts}", "bold")
    print_line(f"  in {found.place.folder}")
    if found.in_flight:
        print_line(f"  {counted(found.in_flight, 'sample')} had begun: they continue after their last recorded step")
    if found.lost:
        print_line(
            f"  {counted(found.lost, 'record')} had been acknowledged and are lost: their requests will be sent again"
        )
    if found.cleaned:
        print_line("  everything was copied, so the recovered folder was removed")
    if left:
        print_line(f"  continue it: {found.place.command('resume')}")
    return 0
