"""Leaderboards: the models of one or several runs on a task, with ranks that respect uncertainty.

Means and ranks rest on the keys that all models have scored. A rank is 1 + the number of significantly better models
(`comparison.paired_test`, adjusted with Holm's method for all pairs of the board). A model is better only if it would
also be with each missing score of its own wrong and each of the other right, so failures never help. Models with equal
means share a rank. Higher scores are better.
"""

from collections.abc import Container, Iterator, Mapping, Sequence

import msgspec

from holdfast.report.compare.comparison import ALPHA, cautious_pair, paired, paired_test
from holdfast.report.compare.sides import CellName, Measure, Pair, SideAnswers, choose_measures
from holdfast.report.costs import Cost
from holdfast.stats import NUMBER, Scale, Summary, holm, tied_ranks


class Ranked(msgspec.Struct, frozen=True):
    """One model in one run. `summary`: over the keys that all models have scored. `missing`: keys without a score."""

    rank: int
    model: str
    run: str
    summary: Summary
    missing: int
    cost: Cost = Cost()
    bounds: tuple[float, float] | None = None
    """The mean over all of its own keys, if every missing score were the lowest of the scale, or the highest."""


class Board(msgspec.Struct, frozen=True):
    """One task and scorer. `common_min`: the keys that all models have scored; None for a single model."""

    task: str
    scorer: str
    ranked: tuple[Ranked, ...]
    common_min: int | None = None
    unranked: tuple[str, ...] = ()
    """Models with their runs that have the task but no number to rank."""
    undecided: int = 0
    """Pairs of models with a significant difference that missing scores could undo. They count as not different."""
    scale: Scale = NUMBER


class _Entrant(msgspec.Struct, frozen=True):
    run: str
    model: str
    measure: Measure
    cost: Cost


class PairTest(msgspec.Struct, frozen=True):
    """Two models on their common keys: the difference (second minus first) and its p-value."""

    difference: float = 0.0
    p: float | None = None
    cautious_p: float | None = None
    """If each missing score were against the difference."""


def leaderboards(
    runs: Sequence[Mapping[CellName, SideAnswers]],
    costs: Sequence[Mapping[CellName, Cost]],
    task: str | None = None,
    scorer: str | None = None,
) -> Iterator[Board]:
    """One board per task, in the order of the first run, and measure; none for scorers that give labels. `costs`: by
    run.
    """
    every = [
        (each, cost[cell])
        for run, cost in zip(runs, costs, strict=True)
        for cell, each in run.items()
        if task in (None, each.side.task)
    ]
    for name in dict.fromkeys(each.side.task for each, _ in every):
        entrants: dict[str, list[_Entrant]] = {}
        for each, cost in ((each, cost) for each, cost in every if each.side.task == name):
            side = each.side
            for measure in choose_measures(each.measures(), scorer).values():
                if measure.numbers() is not None:
                    entrants.setdefault(measure.name, []).append(_Entrant(side.run, side.model, measure, cost))
        asked = [(each.side.run, each.side.model) for each, _ in every if each.side.task == name]
        for called, several in entrants.items():
            ranked = {(each.run, each.model) for each in several}
            left = tuple(f"{model} of {run}" for run, model in asked if (run, model) not in ranked)
            yield msgspec.structs.replace(_board(name, called, several), unranked=left)


def _board(task: str, scorer: str, entrants: Sequence[_Entrant]) -> Board:
    measures = [each.measure for each in entrants]
    common = set.intersection(*(set(each.numbers() or ()) for each in measures))
    pairs = [(one, other) for one in range(len(entrants)) for other in range(one)]
    tests = {pair: _test_pair(measures[pair[1]], measures[pair[0]], common) for pair in pairs}
    summaries = [each.summary(keys=common or None) for each in measures]
    ranks, undecided = rank(tests, [each.mean for each in summaries])
    ranked = [
        Ranked(
            place,
            each.model,
            each.run,
            summary,
            len(each.measure.missing),
            each.cost,
            each.measure.bounds(),
        )
        for place, summary, each in zip(ranks, summaries, entrants, strict=True)
    ]
    ranked.sort(key=lambda each: (each.rank, -(each.summary.mean or 0.0)))
    return Board(
        task,
        scorer,
        tuple(ranked),
        len(common) if len(entrants) > 1 else None,
        undecided=undecided,
        scale=measures[0].scale,
    )


def rank(tests: Mapping[tuple[int, int], PairTest], means: Sequence[float | None]) -> tuple[list[int], int]:
    """The ranks of entries with these means, and how many significant pairs missing scores could undo. `tests`: of each
    pair, the higher number first; differences are those of the first to the other.
    """
    pairs = list(tests)
    adjusted = dict(zip(pairs, holm([tests[pair].p for pair in pairs]), strict=True))
    cautious = dict(zip(pairs, holm([tests[pair].cautious_p for pair in pairs]), strict=True))
    significant = {pair for pair in pairs if _up_to(adjusted[pair], ALPHA)}
    decided = {pair for pair in significant if _up_to(cautious[pair], ALPHA)}

    def is_better(one: int, other: int) -> bool:
        pair = (max(one, other), min(one, other))
        return pair in decided and tests[pair].difference * (1 if one > other else -1) > 0

    best: dict[float | None, int] = {}
    ranks = tied_ranks(len(means), is_better)
    for place, mean in zip(ranks, means, strict=True):
        best[mean] = min(place, best.get(mean, place))
    return [best[mean] for mean in means], len(significant) - len(decided)


def _test_pair(first: Measure, second: Measure, common: Container[Pair]) -> PairTest:
    pairs = paired(first, second, common)
    if pairs is None:
        return PairTest()
    difference, p = sum(pairs.differences) / len(pairs.differences), paired_test(pairs).p
    ordered = (first, second) if difference > 0 else (second, first)
    against, cautious_p = cautious_pair(*ordered), p
    if against is not None:
        still_better = sum(against.differences) > 0
        cautious_p = paired_test(against).p if still_better else 1.0
    elif first.missing or second.missing:
        cautious_p = 1.0 if first.planned & second.planned & {*first.missing, *second.missing} else p
    return PairTest(difference, p, cautious_p)


def _up_to(p: float | None, alpha: float) -> bool:
    return p is not None and p <= alpha
