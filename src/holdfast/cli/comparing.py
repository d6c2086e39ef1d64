"""`compare`: what changed between two runs, or between the models and variants of one."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.api import Run
from holdfast.cli.finding import run_to_read
from holdfast.cli.output import print_json, print_table, say, warn
from holdfast.errors import UsageError
from holdfast.report.comparing import Comparison, Shift, compare, pairs_between, pairs_within, sides_of, unlike_scorers
from holdfast.report.grids import Grid
from holdfast.report.wording import counted, first_line

_COLUMNS = ("task", "first", "second", "scorer", "was", "is", "difference", "95% interval", "n", "up", "down", "equal")
_EXCERPT = 70


class Wanted(msgspec.Struct, frozen=True):
    """Which scores to compare, and how many changed keys to show of each scorer."""

    scorer: str | None = None
    evaluation: str = ""
    limit: int = 5


def compare_runs(names: Sequence[str], wanted: Wanted, store: str | None, as_json: bool) -> None:
    if len(names) > 2:
        raise UsageError("compare takes one run, for its models and variants, or two runs")
    runs = [run_to_read(name, store) for name in names]
    try:
        found = [each for each in _comparisons(runs, wanted.evaluation) if wanted.scorer in (None, each.scorer)]
        doubts = list(_doubts(runs, wanted.evaluation))
    finally:
        for run in runs:
            run.close()
    if not found:
        raise UsageError(_nothing(names, wanted.scorer))
    if as_json:
        print_json({"comparisons": found, "warnings": doubts})
        return
    for doubt in doubts:
        warn(doubt)
    print_table(Grid(_COLUMNS, list(map(_row, found)), titles=4, right=_COLUMNS[4:], whole=("scorer",)))
    for each in found:
        _say_changed(each, wanted.limit)


def _comparisons(runs: Sequence[Run], evaluation: str) -> Iterator[Comparison]:
    sides = [sides_of(run.place.run_id, run.lines(evaluation)) for run in runs]
    pairs = pairs_between(sides[0], sides[1]) if len(sides) == 2 else pairs_within(sides[0])
    for first, second in pairs:
        yield from compare(first, second)


def _doubts(runs: Sequence[Run], evaluation: str) -> Iterator[str]:
    """What a reader of the numbers must know."""
    for run in runs:
        status, _ = run.status()
        if status != "completed":
            yield f"{run.place.run_id} is {status}: only what it has finished is compared"
    if len(runs) < 2:
        return
    first, second = runs
    mine, theirs = first.row_digests(), second.row_digests()
    other = sum(mine[each] != theirs[each] for each in mine.keys() & theirs.keys())
    if other:
        yield f"{counted(other, 'sample')} of one id have other rows in the second run: they are compared all the same"
    for name in unlike_scorers(first.scorer_identities(evaluation), second.scorer_identities(evaluation)):
        yield f"the scorer {name} is not the same in both (other code or arguments): its difference may be the scorer's"


def _nothing(names: Sequence[str], scorer: str | None) -> str:
    if scorer is not None:
        return f"--scorer {scorer}: nothing to compare under that name; leave it out to see all"
    if len(names) == 1:
        other = f"name a second run: holdfast compare {names[0]} OTHER"
        return f"{names[0]} has one model for each task and no variants; {other}"
    return f"{' and '.join(names)} have no task with a common model and scorer: there is nothing to compare"


def _row(each: Comparison) -> list[str]:
    difference = each.difference
    known = difference is not None and difference.low is not None
    interval = f"{difference.low:+.4f} .. {difference.high:+.4f}" if difference is not None and known else ""
    return [
        each.first.task if each.first.task == each.second.task else each.first.family,
        each.first.label(each.second),
        each.second.label(each.first),
        each.scorer,
        _number(each.mean_first),
        _number(each.mean_second),
        f"{difference.mean:+.4f}" if difference is not None and difference.mean is not None else "",
        interval,
        str(each.common),
        str(each.higher),
        str(each.lower),
        str(each.equal),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _say_changed(each: Comparison, limit: int) -> None:
    if not each.changed or not limit:
        return
    say(f"\n{each.first.task} {each.scorer}: {len(each.changed)} of {each.common} changed", "bold")
    for shift in each.changed[:limit]:
        say(f"  {_name(shift)}  {shift.before} -> {shift.after}")
        say(f"    - {first_line(shift.output_before, _EXCERPT)}")
        say(f"    + {first_line(shift.output_after, _EXCERPT)}")
    if len(each.changed) > limit:
        say(f"  … and {len(each.changed) - limit} more; see them with --limit")


def _name(shift: Shift) -> str:
    return shift.sample_id if shift.repeat == 1 else f"{shift.sample_id} ({shift.repeat})"
