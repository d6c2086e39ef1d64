"""Compares opened runs: the first with each other, or the models and variants of one."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec

from holdfast.errors import UsageError
from holdfast.report import (
    Adjustment,
    CellName,
    ComparisonResult,
    Observe,
    Side,
    SideAnswers,
    add_questions,
    adjust_p_values,
    compare_sides,
    family_size,
    pairs_between,
    pairs_within,
)
from holdfast.runs.compare.comparability import (
    all_sides,
    changed_benchmarks,
    evaluations_of,
    incomparable_reasons,
    of_several,
    partially_scored,
    require_comparable,
    unfinished,
    without_data,
    without_groups,
)
from holdfast.runs.run import Run
from holdfast.spec import nearest

_ADJUSTMENTS = {"holm", "bh"}


class ShownQuestions(msgspec.Struct, frozen=True):
    """How many changed keys of each comparison get their question and target (None: all), with these columns of their
    rows.
    """

    limit: int | None = None
    columns: tuple[str, ...] = ()


_ALL_QUESTIONS = ShownQuestions()


def comparison_of(
    runs: Sequence[Run],
    scorer: str | None = None,
    evaluation: str = "",
    adjust: str = "holm",
    questions: ShownQuestions = _ALL_QUESTIONS,
    observe: Observe | None = None,
) -> ComparisonResult:
    """Compare the first run with each other one; if there is one, its models and variants. `questions`: for which
    changed keys it is read what they were asked. `observe`: gets the common keys of each comparison; none is then
    listed as changed. Raises UsageError if there is nothing to compare, and DamagedError for a damaged run.
    """
    if adjust not in _ADJUSTMENTS:
        raise UsageError(f"--adjust {adjust}: there is no such method{nearest(adjust, _ADJUSTMENTS)}")
    require_comparable(runs)
    for run in runs:
        run.row_columns(questions.columns)
    sides = all_sides(runs, evaluation)
    first, *others = sides
    pairs = [pairs_between(first, other) for other in others] or [pairs_within(first)]
    every = [each for pair in itertools.chain.from_iterable(pairs) for each in compare_sides(*pair, observe=observe)]
    found = [each for each in every if scorer in (None, each.scorer) or each.scorer.startswith(f"{scorer} ")]
    reasons = [why for other in runs[1:] for why in incomparable_reasons(runs[0], other, evaluation)]
    doubts = [
        *unfinished(runs),
        *changed_benchmarks(runs),
        *without_data(runs),
        *(f"{why}; compared anyway" for why in reasons),
    ]
    doubts += [*of_several(runs, evaluation), *partially_scored(runs, evaluation), *without_groups(runs)]
    doubts += _describe_unmatched(runs, sides, {(each.first, each.second) for each in every})
    if not found:
        raise _nothing_error(runs, scorer, {each.scorer for each in every})
    run_of = {each.side.run: run for run, cells in zip(runs, sides, strict=True) for each in cells.values()}
    find = lambda side, ids: run_of[side.run].questions(side.task, ids, questions.columns)  # noqa: E731
    found = add_questions(found, questions.limit, find)
    family = family_size(found)
    adjusted = tuple(adjust_p_values(found, cast(Adjustment, adjust)))
    used = evaluations_of(runs, evaluation)
    return ComparisonResult(adjusted, not reasons, tuple(doubts), adjust, family, used)


def _nothing_error(runs: Sequence[Run], scorer: str | None, known: set[str]) -> UsageError:
    names = [run.run_id for run in runs]
    if scorer is not None:
        problem = f"nothing to compare under that name{nearest(scorer, known)}"
        return UsageError(f"--scorer {scorer}: {problem}; leave it out to see all")
    if len(names) == 1:
        other = f"name a second run: holdfast compare {names[0]} OTHER"
        return UsageError(f"{names[0]} has one model for each task and no variants; {other}")
    problem = f"{' and '.join(names)} have no task with a common model and scorer: there is nothing to compare"
    others = [
        f"{run.run_id} also has {each.evaluation} ({run.evaluation_names()[each.evaluation]})"
        for run in runs
        for each in run.evaluations()
        if not each.current
    ]
    return UsageError("; ".join([problem, *others, *(["choose one with --evaluation"] if others else [])]))


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
