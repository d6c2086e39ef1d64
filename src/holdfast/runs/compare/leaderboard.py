"""Ranks the models of opened runs, task by task."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import UsageError
from holdfast.records import normalized
from holdfast.report import (
    Board,
    LeaderboardResult,
    PairwiseRule,
    counted,
    leaderboards,
    pairwise_boards,
    ranked_by_strength,
    suite_of,
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


def leaderboard_of(
    runs: Sequence[Run], task: str | None = None, scorer: str | None = None, evaluation: str = ""
) -> LeaderboardResult:
    """One board for each task and scorer. Raises UsageError if there is nothing to rank, and DamagedError for a damaged
    run.
    """
    require_comparable(runs)
    sides = all_sides(runs, evaluation)
    costs = [{(cell.task, cell.model): cell.cost for cell in run.cells()} for run in runs]
    reasons = [why for other in runs[1:] for why in incomparable_reasons(runs[0], other, evaluation)]
    doubts = [
        *unfinished(runs),
        *changed_benchmarks(runs),
        *without_data(runs),
        *(f"{why}; ranked anyway" for why in reasons),
    ]
    doubts += [*of_several(runs, evaluation), *partially_scored(runs, evaluation), *without_groups(runs)]
    rules = [_pairwise_rules(run, evaluation) for run in runs]
    pairwise = tuple(pairwise_boards(sides, rules, costs, task, scorer))
    found = tuple(ranked_by_strength(leaderboards(sides, costs, task, scorer), pairwise))
    if not found:
        known = {name for each in sides for name, _ in each}
        if task is not None and task not in known:
            raise UsageError(f"--task {task}: there is no such task{nearest(task, known)}")
        if scorer is not None:
            scorers = {name for each in sides for answers in each.values() for name in answers.measures()}
            problem = f"no numbers by that scorer{nearest(scorer, scorers)}"
            raise UsageError(f"--scorer {scorer}: {problem}; leave it out to see all")
        names = " and ".join(run.run_id for run in runs)
        raise UsageError(f"{names}: no scorer gave a number, so there is nothing to rank")
    used = evaluations_of(runs, evaluation)
    result = LeaderboardResult(found, not reasons, (*doubts, *_describe_doubts(found)), pairwise, used)
    suite = suite_of(sides, result.mean_boards(), _listed_scorers(runs, evaluation))
    if suite is None:
        return result
    return msgspec.structs.replace(result, suite=suite, warnings=(*result.warnings, *suite.doubts()))


def _listed_scorers(runs: Sequence[Run], evaluation: str) -> dict[str, list[str]]:
    """By task: the result of its benchmark, if it is one, then all scorers in the order of the specs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for task, origin in run.benchmarks().items():
            found.setdefault(task, []).append(origin.metric)
    for run in runs:
        for each in run.scorer_identities(evaluation):
            found.setdefault(str(each.get("task", "")), []).append(str(each.get("name", "")))
    return found


def _pairwise_rules(run: Run, evaluation: str) -> dict[tuple[str, str], PairwiseRule]:
    """The scorers of an evaluation that are Holdfast's `pairwise`, by task and name."""
    found = {}
    for each in map(normalized, run.scorer_identities(evaluation)):
        if each.get("function") == "pairwise" and "version" in each:
            args = dict(each.get("args") or {})
            against = str(args.pop("against", "target"))
            asked = {name: value for name, value in each.items() if name not in ("name", "task")} | {"args": args}
            question = msgspec.json.encode(asked, order="deterministic")
            found[str(each.get("task", "")), str(each.get("name", ""))] = PairwiseRule(question, against)
    return found


def _describe_doubts(boards: Sequence[Board]) -> Iterator[str]:
    """What missing scores mean for the ranks."""
    for board in boards:
        if board.common_min == 0:
            yield f"{board.task} {board.scorer}: no key has a score of every model, so they are not compared"
    for board in boards:
        leaders = [each for each in board.ranked if each.rank == 1 and each.missing]
        if leaders and len(board.ranked) > 1:
            names = ", ".join(f"{each.model} ({each.missing} without a score)" for each in leaders)
            yield f"{board.task} {board.scorer}: in the lead with missing scores: {names}"
        if board.undecided:
            pairs = counted(board.undecided, "pair")
            yield f"{board.task} {board.scorer}: {pairs} of models share a rank because of missing scores"
    for board in boards:
        for name in board.unranked:
            yield f"{board.task} {board.scorer}: {name} has no score, so it has no rank"
