"""`verify`, `doctor`, `recover`, `merge` and `gc`: check the bytes of a run, find problems in a store, restore a run
from its mirror or from a copy of its folder, join runs, remove old ones.
"""

import os
import shlex
import warnings

import msgspec

from holdfast.cli.errors import explain, explain_os_error
from holdfast.cli.output import print_json, print_line, print_table, warn
from holdfast.cli.progress import spinner
from holdfast.errors import DamageWarning, HoldfastError, UsageError
from holdfast.journal import Loss, is_url
from holdfast.report import Grid, counted, duration, human_bytes
from holdfast.runs import (
    RecoveryOptions,
    RetentionRule,
    RunLocation,
    ScoresChecked,
    configuration_path,
    damage_of,
    default_store,
    find_in_mirror,
    find_run,
    finish_removals,
    folders_in,
    list_recoverable,
    merge,
    name_option,
    read_policies,
    recover,
    verify_files,
    verify_mirrored,
)
from holdfast.runs.maintenance.doctor import examine
from holdfast.runs.maintenance.doctor import fix as fix_finding
from holdfast.runs.maintenance.retention import (
    RemovalCandidate,
    chosen,
    named,
    remove,
    remove_stale_entries,
    select_in_mirror,
    with_mirror,
)

_DIFFERENCES_SHOWN = 50
Kept = dict[str, HoldfastError | OSError]
"""Runs that could not be removed, by folder, and why."""


def verify_run(name: str, store: str | None, as_json: bool, scores: bool = False) -> int:
    """Check a run; return 5 if it is damaged. Fetches every object of a run in a mirror: a cache proves nothing."""
    where = store or default_store()
    if not is_url(name) and not is_url(where):
        place = find_run(where, name)
        found = verify_files(place, scores=scores, stage=spinner)
    else:
        _, place = find_in_mirror(where, name)
        found = verify_mirrored(place, scores=scores, stage=spinner)
    journal, checked = found.journal, found.scores
    if as_json:
        print_json(found.as_json())
    else:
        for warning in journal.warnings:
            print_line(f"warning: {warning}")
        for line in found.errors:
            print_line(f"error: {line}", style="red")
        if journal.keys:
            print_line(f"keys affected: {', '.join(journal.keys[:20])}")
        verdict = "no damage" if not found.errors else f"damaged: {counted(len(found.errors), 'error')}, listed above"
        size = f"{counted(journal.records, 'record')} in {counted(journal.segments, 'segment')}"
        print_line(f"{place.run_id}: {size}: {verdict}.")
        for line in found.index:
            print_line(f"error: {line}", style="red")
        if checked is not None:
            _print_score_check(place, checked)
    return 0 if found.ok else 5


def _print_score_check(place: RunLocation, checked: ScoresChecked) -> None:
    for each in checked.differences[:_DIFFERENCES_SHOWN]:
        print_line(f"error: {each}", style="red")
    left = len(checked.differences) - _DIFFERENCES_SHOWN
    if left > 0:
        print_line(f"… and {left} more; see them with --json")
    for name, count in checked.rescored.items():
        print_line(f"scorer {name}: {counted(count, 'score')} computed again")
    for name, why in checked.skipped.items():
        print_line(f"scorer {name}: not scored again: {why}")
    rebuilt = f"an index rebuilt from {counted(checked.records, 'record')}"
    numbers = f"{counted(checked.numbers, 'number')} compared with {rebuilt}"
    if not checked.differences:
        print_line(f"{place.run_id}: {numbers}: all equal.")
        return
    print_line(
        f"{place.run_id}: {numbers}: {counted(len(checked.differences), 'difference')}. The journal is authoritative."
    )


class RemovalMode(msgspec.Struct, frozen=True):
    """`yes`: remove the runs, not only list them. `mirror`: also remove their mirrors."""

    yes: bool
    mirror: bool


def diagnose(name: str | None, store: str | None, fix: bool, as_json: bool) -> int:
    """Print every problem found in a store or a run; return 5 if data is damaged and was not fixed."""
    where = store or default_store()
    if store and not name and not os.path.isdir(where):
        raise UsageError(f"there is no store {where}; name one with --store, or start a run")
    place = find_run(where, name, folders_in) if name else None
    found = [fix_finding(trouble) if fix else trouble.finding for trouble in examine(where, place)]
    if as_json:
        print_json(found)
    else:
        for finding in found:
            print_line(f"{finding.run}: {finding.what}" if finding.run else finding.what, "bold")
            print_line(f"  {finding.means}")
            not_fixed = "not fixed, because only you can decide; next: " if fix else ""
            print_line("  fixed" if finding.fixed else f"  {not_fixed}{finding.command}")
        if not found:
            print_line("No problems found.")
    return 5 if any(finding.damage and not finding.fixed for finding in found) else 0


def remove_runs(names: list[str], rule: RetentionRule, store: str | None, removal: RemovalMode, as_json: bool) -> int:
    """List or remove runs; return the exit code of the first named run that could not be removed."""
    where = store or default_store()
    if names and rule != RetentionRule():
        raise UsageError("name runs, or select them with options such as --older-than; not both")
    there = [name for name in names if is_url(name)]
    if there and not removal.mirror:
        raise UsageError(f"{there[0]} is a run in a mirror; to remove it there, add --mirror")
    here = [name for name in names if name not in there]
    doomed = named([find_run(where, name) for name in here]) if names else _select(where, rule)
    doomed = [with_mirror(each, goes=removal.mirror) for each in doomed] + [select_in_mirror(url) for url in there]
    if removal.yes and not is_url(where):
        finish_removals(where)
    kept = _remove_all(doomed) if removal.yes else {}
    _print_selected(doomed, kept, removal.yes, as_json)
    if removal.yes:
        count, size = remove_stale_entries()
        if count and not as_json:
            print_line(f"Removed {counted(count, 'stale file')} from the cache, {human_bytes(size)}.")
    for why in kept.values() if names else ():  # a run that no rule may remove is expected; a named one is not
        return explain(why) if isinstance(why, HoldfastError) else explain_os_error(why)
    return 0


def _select(where: str, rule: RetentionRule) -> list[RemovalCandidate]:
    """Select runs by the options; without options, by the rules of the store."""
    if rule.is_selective:
        return [msgspec.structs.replace(each, rule=0) for each in chosen(where, [rule.policy(name_option)])]
    has_options = msgspec.structs.replace(rule, experiment=None) != RetentionRule()
    policies = [] if has_options or is_url(where) else read_policies(where)
    path = configuration_path(where)
    if not policies:
        options = "--older-than 30d, --keep 5, --max-size 10GB"
        raise UsageError(f"say which runs to remove: {options}, or name runs; or write rules into {path}")
    found = [each for each in chosen(where, policies) if rule.experiment in (None, each.place.experiment)]
    return [msgspec.structs.replace(each, why=f"rule {each.rule} of {path}: {each.why}") for each in found]


def _remove_all(doomed: list[RemovalCandidate]) -> Kept:
    """Remove runs. One that cannot be removed does not keep the others from being removed."""
    kept: Kept = {}
    for each in doomed:
        try:
            with spinner(f"removing {each.place.run_id}"):
                remove(each)
        except (HoldfastError, OSError) as error:
            kept[each.place.folder] = error
    return kept


def _print_selected(doomed: list[RemovalCandidate], kept: Kept, yes: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {
                    "run_id": each.place.run_id,
                    "experiment": each.place.experiment,
                    "created": each.created,
                    "bytes": each.bytes,
                    "why": each.why,
                    "rule": each.rule or None,
                    "mirror": each.mirror,
                    "mirror_goes": each.mirror_goes,
                    "removed": yes and each.place.folder not in kept,
                }
                for each in doomed
            ]
        )
        return
    if not doomed:
        print_line("Nothing to remove. Unfinished, tagged and newest runs are kept unless you name them.")
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
        name = each.place.run_id
        if each.mirror and each.mirror_goes:
            print_line(f"{'Removed' if yes else 'Would remove'} the mirror of {name}: {each.mirror}")
        elif each.mirror:
            how = f"holdfast gc {shlex.quote(each.mirror)} --mirror --yes" if yes else "add --mirror"
            print_line(f"The mirror of {name} is kept: {each.mirror}; to remove it too: {how}")
    print_line(f"Removed {what}." if yes else f"Would remove {what}. Nothing was changed; to remove them, add --yes")


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
                str(each.lost) if each.lost_is_exact else f">={each.lost}",
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
    # Without another source, this command has only read the run: it exits like other reading commands.
    code = 5 if found.lost and not found.merged else 0
    if as_json:
        print_json({**msgspec.to_builtins(found), "place": found.place.folder})
        return code
    left = found.planned - found.finished - found.failed
    counts = f"{found.finished} of {found.planned} finished, {found.failed} failed, {left} unfinished"
    name = f"{found.place.experiment}/{found.place.run_id}"
    print_line(f"recovered {name}: {counts}" if found.merged else f"{name}: {counts}", "bold")
    print_line(f"  in {found.place.folder}")
    if not found.merged:
        print_line("  nothing was restored: the run has no mirror that can be read, and no other copy was named")
    if found.in_flight:
        print_line(f"  {counted(found.in_flight, 'sample')} had begun: they continue after their last recorded step")
    if found.lost:
        print_line(f"  {Loss(found.lost, found.lost_is_exact)} lost: a resume requests again what is missing")
    if found.cleaned:
        print_line(f"  everything was copied, so the old folder was removed: {where}")
    if left or found.lost:
        print_line(f"  continue it: {found.place.command('resume')}")
    return code


def merge_runs(names: list[str], run_id: str, store: str | None) -> int:
    where = store or default_store()
    if len(names) < 2:
        raise UsageError("name at least two runs: holdfast merge A B --id X")
    places = [find_run(where, name) for name in names]
    done = merge(places, run_id, where)
    left = done.planned - done.finished - done.failed
    counts = f"{done.finished} finished, {done.failed} failed, {left} unfinished"
    print_line(f"{run_id}: {counts} of {counted(done.planned, 'sample')}, merged from {counted(len(places), 'run')}.")
    if done.conflicts:
        more = done.conflicts - len(done.conflicting)
        keys = ", ".join(done.conflicting) + (f" and {more:,} more" if more else "")
        warn(
            f"{counted(done.conflicts, 'sample')} answered by several runs: {keys}; the answer of the run named first "
            "counts, the costs of all do"
        )
    if left:
        print_line(f"Answer the rest with: {done.place.command('resume')}")
    return 0
