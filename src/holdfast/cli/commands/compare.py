"""`compare`: what changed between runs, or between the models and variants of one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from holdfast.cli.commands.comparability import all_sides, opened_runs, unfinished, unlike, without_data, without_groups
from holdfast.cli.output import print_json, print_table, say, warn
from holdfast.errors import UsageError
from holdfast.report.compare.comparison import Adjustment, Comparison, Shift, adjusted, compare
from holdfast.report.compare.sides import Answers, Cell, Side, pairs_between, pairs_within
from holdfast.report.grid import Grid
from holdfast.report.text import counted, first_line
from holdfast.runs import Run
from holdfast.spec.source.messages import nearest

_COLUMNS = (
    "task",
    "first",
    "second",
    "scorer",
    "was",
    "is",
    "difference",
    "95% interval",
    "test",
    "p",
    "adjusted p",
    "effect",
    "n",
    "wins",
    "losses",
    "ties",
)
_EXCERPT = 70
_CHANGED = 5
_ADJUSTMENTS = {"holm", "bh"}
_WORDS = {
    "label": "with a label instead",
    "no_score": "no score",
    "scorer_failed": "scorer failed",
    "no_value": "too few scores",
}


class Wanted(msgspec.Struct, frozen=True):
    """Which scores to compare, how ps are adjusted, and how many changed keys to show of each scorer."""

    scorer: str | None = None
    evaluation: str = ""
    adjust: str = "holm"
    limit: int | None = None


def compare_runs(names: Sequence[str], wanted: Wanted, store: str | None, as_json: bool) -> None:
    if wanted.adjust not in _ADJUSTMENTS:
        raise UsageError(f"--adjust {wanted.adjust}: there is no such method{nearest(wanted.adjust, _ADJUSTMENTS)}")
    with opened_runs(names, store) as runs:
        sides = all_sides(runs, wanted.evaluation)
        every = list(_comparisons(sides))
        found = [each for each in every if _is_wanted(each, wanted.scorer)]
        reasons = [why for other in runs[1:] for why in unlike(runs[0], other, wanted.evaluation)]
        doubts = [*unfinished(runs), *without_data(runs), *(f"{why}; compared all the same" for why in reasons)]
        doubts += without_groups(runs)
        doubts += _apart(runs, sides, {(each.first, each.second) for each in every})
    if not found:
        raise UsageError(_nothing(names, wanted.scorer))
    found = adjusted(found, cast(Adjustment, wanted.adjust))
    if as_json:
        limited = [msgspec.structs.replace(each, changed=each.changed[: wanted.limit]) for each in found]
        told = {"comparable": not reasons, "warnings": doubts, "adjusted": wanted.adjust}
        print_json({"comparisons": limited, **told})
        return
    for doubt in doubts:
        warn(doubt)
    several = len({_common_model(each) for each in found} - {""}) > 1
    print_table(_table(found, several))
    say("")
    for line in dict.fromkeys(_intersection(each, several) for each in found):
        say(line, "dim")
    for each in found:
        _say_changed(each, several, _CHANGED if wanted.limit is None else wanted.limit)


def _is_wanted(each: Comparison, scorer: str | None) -> bool:
    return scorer is None or each.scorer == scorer or each.scorer.startswith(f"{scorer} ")


def _comparisons(sides: Sequence[Mapping[Cell, Answers]]) -> Iterator[Comparison]:
    """The first run with each other one; of one run, its models and variants."""
    first, *others = sides
    several = [pairs_between(first, other) for other in others] or [pairs_within(first)]
    for one, other in (pair for pairs in several for pair in pairs):
        yield from compare(one, other)


def _apart(
    runs: Sequence[Run], sides: Sequence[Mapping[Cell, Answers]], compared: set[tuple[Side, Side]]
) -> Iterator[str]:
    """What has no part in the table, since only one run has it."""
    for run, other in zip(runs[1:], sides[1:], strict=True):
        pairs = list(pairs_between(sides[0], other))
        for own, every, matched in (
            (runs[0], sides[0], {first.side for first, _ in pairs}),
            (run, other, {second.side for _, second in pairs}),
        ):
            names = [f"{each.side.task} with {each.side.model}" for each in every.values() if each.side not in matched]
            if names:
                yield f"{runs[0].run_id} and {run.run_id}: only {own.run_id} has {', '.join(names)}; not compared"
        for first, second in pairs:
            if (first.side, second.side) not in compared:
                place = f"{first.side.task} with {second.side.model}"
                yield f"{runs[0].run_id} and {run.run_id} have no scorer in common for {place}; not compared"


def _nothing(names: Sequence[str], scorer: str | None) -> str:
    if scorer is not None:
        return f"--scorer {scorer}: nothing to compare under that name; leave it out to see all"
    if len(names) == 1:
        other = f"name a second run: holdfast compare {names[0]} OTHER"
        return f"{names[0]} has one model for each task and no variants; {other}"
    return f"{' and '.join(names)} have no task with a common model and scorer: there is nothing to compare"


def _common_model(each: Comparison) -> str:
    """The model of both sides, which does not tell them apart; empty if they have two."""
    return each.first.model if each.first.model == each.second.model else ""


def _named(each: Comparison, task: str, several: bool) -> str:
    """What was measured of what. `several`: there are comparisons of more than one model with itself."""
    model = f"/{_common_model(each)}" if several and _common_model(each) else ""
    return f"{task}{model} {each.scorer}"


def _table(found: Sequence[Comparison], several: bool) -> Grid:
    rows = list(map(_row, found))
    columns: Sequence[str] = _COLUMNS
    if several:
        columns = (*columns[:1], "model", *columns[1:])
        rows = [[*row[:1], _common_model(each), *row[1:]] for each, row in zip(found, rows, strict=True)]
    return Grid(columns, rows, titles=4 + several, right=_COLUMNS[4:], whole=("scorer",))


def _row(each: Comparison) -> list[str]:
    difference = each.difference
    known = difference is not None and difference.low is not None
    interval = f"{difference.low:+.4f} .. {difference.high:+.4f}" if difference is not None and known else ""
    numbers = each.difference is not None
    return [
        each.first.task if each.first.task == each.second.task else each.first.family,
        each.first.label(each.second),
        each.second.label(each.first),
        each.scorer,
        _number(each.mean_first),
        _number(each.mean_second),
        _number(difference.mean if difference is not None else None, "+"),
        interval,
        each.test if each.exact else f"{each.test}, drawn",
        _chance(each.p),
        _chance(each.adjusted_p),
        _number(each.effect, "+"),
        str(each.common),
        str(each.wins) if numbers else "",
        str(each.losses) if numbers else "",
        str(each.ties),
    ]


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.4f}"


def _chance(p: float | None) -> str:
    """Four digits; a smaller one is not 0."""
    return "" if p is None else f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"


def _intersection(each: Comparison, several: bool) -> str:
    """On what two sides were compared, and what was left out."""
    first, second = each.first.label(each.second), each.second.label(each.first)
    sides = f"{_named(each, each.first.family, several)}, {first} and {second}"
    told = [f"compared on {counted(each.common, 'key')} of {counted(each.samples, 'sample')}"]
    if each.difference is not None and each.difference.groups is not None:
        told[0] += f" in {counted(each.difference.groups, 'group')}"
    for label, only, missing in (
        (first, each.only_first, each.missing_first),
        (second, each.only_second, each.missing_second),
    ):
        if only:
            told.append(f"{only} only in {label}")
        if missing:
            reasons = ", ".join(f"{count} {_WORDS.get(why, why)}" for why, count in missing.items())
            told.append(f"left out of {label}: {reasons}")
    return f"{sides}: {'; '.join(told)}"


def _say_changed(each: Comparison, several: bool, limit: int) -> None:
    if not each.changed or not limit:
        return
    sides = f"{each.first.label(each.second)} -> {each.second.label(each.first)}"
    told = f"{len(each.changed)} of {each.common} changed"
    say("")
    say(f"{_named(each, each.first.task, several)}, {sides}: {told}", "bold")
    for shift in each.changed[:limit]:
        say(f"  {_name(shift)}  {shift.before} -> {shift.after}")
        if shift.repeat:
            say(f"    - {first_line(shift.output_before, _EXCERPT)}")
            say(f"    + {first_line(shift.output_after, _EXCERPT)}")
    if len(each.changed) > limit:
        say(f"  … and {len(each.changed) - limit} more; see them with --limit")


def _name(shift: Shift) -> str:
    return shift.sample_id if shift.repeat <= 1 else f"{shift.sample_id} ({shift.repeat})"
