"""Leaderboards: the models of one or several runs on a task, with ranks that respect uncertainty.

A rank is 1 + the number of significantly better models. Every two models are compared on the keys that both have scored
(`comparison.paired_test`), and the p-values of a board are adjusted with Holm's method. Higher scores are better.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.report.compare.comparison import paired, paired_test
from holdfast.report.compare.sides import CellName, Measure, SideAnswers, choose_measures
from holdfast.report.costs import Cost
from holdfast.stats import Summary, holm, tied_ranks

ALPHA = 0.05


class Ranked(msgspec.Struct, frozen=True):
    """One model in one run. `summary`: as in its report. `missing`: keys without a score."""

    rank: int
    model: str
    run: str
    summary: Summary
    missing: int
    cost: Cost = Cost()


class Board(msgspec.Struct, frozen=True):
    """One task and scorer. `common_min`: the fewest common keys of any two models; None for a single model."""

    task: str
    scorer: str
    ranked: tuple[Ranked, ...]
    common_min: int | None = None
    unranked: tuple[str, ...] = ()
    """Models with their runs that have the task but no number to rank."""


class _Entrant(msgspec.Struct, frozen=True):
    run: str
    model: str
    measure: Measure
    cost: Cost


class _PairTest(msgspec.Struct, frozen=True):
    """Two models on their common keys: the difference (second minus first) and its p-value."""

    common: int = 0
    difference: float = 0.0
    p: float | None = None


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
    pairs = [(one, other) for one in range(len(entrants)) for other in range(one)]
    tests = dict.fromkeys(pairs, _PairTest())
    for one, other in pairs:
        common = paired(entrants[other].measure, entrants[one].measure)
        if common is not None:
            steps = common.differences
            tests[one, other] = _PairTest(len(steps), sum(steps) / len(steps), paired_test(common).p)
    adjusted = dict(zip(pairs, holm([tests[pair].p for pair in pairs]), strict=True))

    def is_better(one: int, other: int) -> bool:
        pair = (max(one, other), min(one, other))
        p, higher = adjusted[pair], tests[pair].difference * (1 if one > other else -1)
        return p is not None and p <= ALPHA and higher > 0

    ranks = tied_ranks(len(entrants), is_better)
    ranked = [
        Ranked(rank, each.model, each.run, each.measure.summary(), len(each.measure.missing), each.cost)
        for rank, each in zip(ranks, entrants, strict=True)
    ]
    ranked.sort(key=lambda each: (each.rank, -(each.summary.mean or 0.0)))
    return Board(task, scorer, tuple(ranked), min((each.common for each in tests.values()), default=None))
