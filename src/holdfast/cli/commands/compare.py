"""`compare`: what changed between runs, or between the models and variants of one.

Also what `compare`, `leaderboard` and `gate` share: opening runs, and whether they can be compared at all. Two runs are
comparable if rows with the same id are equal and scorers with the same name are the same.
"""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from holdfast.cli.output import print_json, print_line, print_table, warn
from holdfast.cli.run_argument import run_to_show
from holdfast.errors import UsageError
from holdfast.report import (
    Grid,
    comparison_sentences,
    count_of,
    counted,
    describe_methods,
    first_line,
    format_interval,
    format_number,
)
from holdfast.report.compare.comparison import (
    Adjustment,
    Comparison,
    adjust_p_values,
    compare,
    differing_scorers,
    family_size,
)
from holdfast.report.compare.sides import CellName, Side, SideAnswers, pairs_between, pairs_within
from holdfast.runs import Run
from holdfast.runs.store.lookup import not_started_error
from holdfast.spec import Reduction, nearest

_TITLES = ("task", "first", "second", "scorer")
_STATS = ("was", "is", "difference", "95% interval", "test", "p", "adjusted p", "dz", "n", "wins", "losses", "ties")
_STATS_BY_IMPORTANCE = ("difference", "95% interval", "adjusted p", "n")
_COLUMNS_MAX = 8
_EXCERPT = 70
_CHANGED = 5
_ADJUSTMENTS = {"holm", "bh"}
_REASONS = {
    "label": "with a label instead",
    "no_score": "no score",
    "scorer_failed": "scorer failed",
    "no_value": "without a value",
}


class CompareOptions(msgspec.Struct, frozen=True):
    """Which scores to compare, how p values are adjusted, and how many changed keys to list per scorer."""

    scorer: str | None = None
    evaluation: str = ""
    adjust: str = "holm"
    limit: int | None = None
    all_columns: bool = False


def compare_runs(names: Sequence[str], options: CompareOptions, store: str | None, as_json: bool) -> None:
    if options.adjust not in _ADJUSTMENTS:
        raise UsageError(f"--adjust {options.adjust}: there is no such method{nearest(options.adjust, _ADJUSTMENTS)}")
    with opened_runs(names, store) as runs:
        sides = all_sides(runs, options.evaluation)
        first, *others = sides
        pairs = [pairs_between(first, other) for other in others] or [pairs_within(first)]
        every = [each for pair in itertools.chain.from_iterable(pairs) for each in compare(*pair)]
        found = [
            each
            for each in every
            if options.scorer in (None, each.scorer) or each.scorer.startswith(f"{options.scorer} ")
        ]
        reasons = [why for other in runs[1:] for why in unlike(runs[0], other, options.evaluation)]
        doubts = [*unfinished(runs), *without_data(runs), *(f"{why}; compared anyway" for why in reasons)]
        doubts += without_groups(runs)
        doubts += _describe_unmatched(runs, sides, {(each.first, each.second) for each in every})
    if not found and options.scorer is not None:
        raise UsageError(f"--scorer {options.scorer}: nothing to compare under that name; leave it out to see all")
    if not found and len(names) == 1:
        other = f"name a second run: holdfast compare {names[0]} OTHER"
        raise UsageError(f"{names[0]} has one model for each task and no variants; {other}")
    if not found:
        raise UsageError(
            f"{' and '.join(names)} have no task with a common model and scorer: there is nothing to compare"
        )
    family = family_size(found)
    found = adjust_p_values(found, cast(Adjustment, options.adjust))
    if as_json:
        limited = [msgspec.structs.replace(each, changed=each.changed[: options.limit]) for each in found]
        about = {"comparable": not reasons, "warnings": doubts, "adjusted": options.adjust, "family": family}
        print_json({"comparisons": limited, **about})
        return
    for doubt in doubts:
        warn(doubt)
    _print_comparisons(found, options, family)


def _print_comparisons(found: Sequence[Comparison], options: CompareOptions, family: int) -> None:
    several = len({_common_model(each) for each in found} - {""}) > 1
    for sentence in comparison_sentences(found):
        print_line(sentence, "bold")
    print_line("")
    rows = list(map(_row, found))
    titles: Sequence[str] = _TITLES
    if several:
        titles = ("task", "model", *_TITLES[1:])
        rows = [[*row[:1], _common_model(each), *row[1:]] for each, row in zip(found, rows, strict=True)]
    names = (*titles, *_STATS)
    kept = names if options.all_columns else (*titles, *_STATS_BY_IMPORTANCE)[:_COLUMNS_MAX]
    shown = [index for index, name in enumerate(names) if name in kept]
    chosen = [[row[index] for index in shown] for row in rows]
    print_table(Grid([names[i] for i in shown], chosen, titles=len(titles), right=_STATS, whole=("scorer",)))
    print_line("")
    print_line(_describe_method(found, options.adjust, family), "dim")
    for line in dict.fromkeys(_describe_overlap(each, several) for each in found):
        print_line(line, "dim")
    for each in found:
        if each.depends_on_missing:
            title = _format_title(each, each.first.family, several)
            print_line(
                f"{title}: the difference would not be significant if the missing scores were against it", "yellow"
            )
    for each in found:
        _print_changed(each, several, _CHANGED if options.limit is None else options.limit)


def _describe_unmatched(
    runs: Sequence[Run], sides: Sequence[Mapping[CellName, SideAnswers]], compared: set[tuple[Side, Side]]
) -> Iterator[str]:
    """What the table leaves out, because only one of two runs has it."""
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


def _common_model(each: Comparison) -> str:
    """The model, if both sides have the same one; else empty."""
    return each.first.model if each.first.model == each.second.model else ""


def _format_title(each: Comparison, task: str, several: bool) -> str:
    """Task and scorer of a comparison, with the model if `several` models are compared with themselves."""
    model = f"/{_common_model(each)}" if several and _common_model(each) else ""
    return f"{task}{model} {each.scorer}"


def _row(each: Comparison) -> list[str]:
    difference = each.difference
    interval = format_interval(difference, "+") if difference is not None else ""
    numbers = each.difference is not None
    return [
        each.first.task if each.first.task == each.second.task else each.first.family,
        each.first.label(each.second),
        each.second.label(each.first),
        each.scorer,
        _format_number(each.mean_first),
        _format_number(each.mean_second),
        _format_number(difference.mean if difference is not None else None, "+"),
        interval,
        each.test if each.exact else f"{each.test}, drawn",
        _format_p(each.p, each.p_is_bound),
        _format_p(each.adjusted_p, each.p_is_bound),
        _format_number(each.effect, "+"),
        count_of(difference) if difference is not None else str(each.common),
        str(each.wins) if numbers else "",
        str(each.losses) if numbers else "",
        str(each.ties),
    ]


def _format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) and not value.is_integer() else str(value)


def _format_number(value: float | None, sign: str = "") -> str:
    return "" if value is None else format_number(value, sign)


def _format_p(p: float | None, is_bound: bool) -> str:
    """Four digits; in scientific notation where these would be zeros. `is_bound`: no draw was as extreme."""
    if p is None:
        return ""
    shown = f"{p:.4f}" if p >= 0.001 else f"{p:.1e}"
    return f"<= {shown}" if is_bound else shown


_TESTS = {"mcnemar": "McNemar's exact test", "permutation": "sign-flip permutation test"}


def _describe_method(found: Sequence[Comparison], adjust: str, family: int) -> str:
    """One line: intervals, tests, adjustment and effect size of the table."""
    parts = []
    method = describe_methods(each.difference for each in found if each.difference is not None)
    if method:
        parts.append(f"95% intervals: {method}")
    tests = " or ".join(_TESTS.get(test, test) for test in dict.fromkeys(each.test for each in found if each.test))
    if tests:
        name = "Holm" if adjust == "holm" else "Benjamini-Hochberg"
        among = f"{name} over {counted(family, 'test')} (not: rows derived from others, rows without a difference)"
        parts.append(f"p: {tests}, two-sided; adjusted p: {among}")
    return "; ".join([*parts, "dz: mean difference over its standard deviation between samples"])


def _describe_overlap(each: Comparison, several: bool) -> str:
    """How many keys two sides were compared on, and what was left out."""
    first, second = each.first.label(each.second), each.second.label(each.first)
    sides = f"{_format_title(each, each.first.family, several)}, {first} and {second}"
    parts = [f"compared on {counted(each.common, 'key')} of {counted(each.samples, 'sample')}"]
    if each.difference is not None and each.difference.groups is not None:
        parts[0] += f" in {counted(each.difference.groups, 'group')}"
    for label, only, missing in (
        (first, each.only_first, each.missing_first),
        (second, each.only_second, each.missing_second),
    ):
        if only:
            parts.append(f"{only} only in {label}")
        if missing:
            reasons = ", ".join(f"{count} {_REASONS.get(why, why)}" for why, count in missing.items())
            parts.append(f"left out of {label}: {reasons}")
    if each.bounds is not None:
        low, high = (format_number(end, "+") for end in each.bounds)
        parts.append(f"with what is missing the difference is between {low} and {high}")
    elif each.difference is not None and (each.missing_first or each.missing_second):
        parts.append("what is missing may change the difference, by how much is unknown: the scale has no known ends")
    return f"{sides}: {'; '.join(parts)}"


def _print_changed(each: Comparison, several: bool, limit: int) -> None:
    if not each.changed or not limit:
        return
    sides = f"{each.first.label(each.second)} -> {each.second.label(each.first)}"
    count = f"{len(each.changed)} of {each.common} changed"
    print_line("")
    print_line(f"{_format_title(each, each.first.task, several)}, {sides}: {count}", "bold")
    for shift in each.changed[:limit]:
        name = shift.sample_id if shift.repeat <= 1 else f"{shift.sample_id} ({shift.repeat})"
        print_line(f"  {name}  {_format_value(shift.before)} -> {_format_value(shift.after)}")
        if shift.repeat:
            print_line(f"    - {first_line(shift.output_before, _EXCERPT)}")
            print_line(f"    + {first_line(shift.output_after, _EXCERPT)}")
    if len(each.changed) > limit:
        print_line(f"  … and {len(each.changed) - limit} more; to list all, add --limit {len(each.changed)}")


@contextlib.contextmanager
def opened_runs(names: Sequence[str], store: str | None) -> Iterator[list[Run]]:
    """Open runs for a `with` block. Raises UsageError for a run that has not begun, because it has no scores, and
    DamagedError for a damaged one, because a verdict on it could be wrong.
    """
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(run_to_show(name, store)) for name in names]
        for run in runs:
            run.require_whole()
            if not run.has_begun:
                raise not_started_error(run.place)
        yield runs


def all_sides(runs: Sequence[Run], evaluation: str = "") -> list[dict[CellName, SideAnswers]]:
    """The answers of each run by cell. Each task gets the reducers of all runs: they only read scores."""
    reductions: dict[str, dict[Reduction, None]] = {}
    for run in runs:
        for task, several in run.reductions().items():
            reductions.setdefault(task, {}).update(dict.fromkeys(several))
    how = {task: tuple(several) for task, several in reductions.items()}
    ids = [run.run_id for run in runs]
    # Two runs may have the same id in different experiments.
    names = [f"{run.place.experiment}/{run.run_id}" if ids.count(run.run_id) > 1 else run.run_id for run in runs]
    return [run.sides(name, evaluation, how) for name, run in zip(names, runs, strict=True)]


def unlike(first: Run, second: Run, evaluation: str = "", scorers: Sequence[str] | None = None) -> list[str]:
    """Why two runs are not comparable, one sentence per reason; empty if they are.

    Reasons are rows that differ, and scorers that differ under the same name (only `scorers`, if given).
    """
    found = []
    mine, theirs = first.row_digests(), second.row_digests()
    other = sum(mine[each] != theirs[each] for each in mine.keys() & theirs.keys())
    both = f"{first.run_id} and {second.run_id} are not comparable"
    if other:
        found.append(f"{both} on {counted(other, 'sample')}: rows with the same id differ")
    names = differing_scorers(first.scorer_identities(evaluation), second.scorer_identities(evaluation))
    for name in names:
        if scorers is None or any(each == name or each.startswith((f"{name}.", f"{name} ")) for each in scorers):
            again = f"to score one of them again: {first.place.command('score')}"
            found.append(f"{both} by {name}: the scorers differ in code, arguments or judges; {again}")
    return found


def without_data(runs: Sequence[Run]) -> Iterator[str]:
    """Warn of runs without stored rows: whether they answered the same questions is not known."""
    for run in runs if len(runs) > 1 else ():
        if not run.holds_data():
            why = "whether rows with the same id differ is not known"
            yield f"{run.run_id} does not hold its data (record_data is off): {why}"


def without_groups(runs: Sequence[Run]) -> Iterator[str]:
    """Warn of runs for which the groups of samples are not known."""
    for run in runs:
        yield from (f"{run.run_id}: {task}: {why}" for task, why in run.unknown_groups().items())


def unfinished(runs: Sequence[Run]) -> Iterator[str]:
    """Warn of runs that have not completed."""
    for run in runs:
        status, _ = run.status()
        if status != "completed":
            yield f"{run.run_id} is {status}: only finished samples count"
