"""Suites: several tasks beside each other, one score per task, and a mean over tasks with overall ranks.

The mean over tasks rests on the tasks that every listed model has completed, and on the keys that all of them have
scored. Tasks weigh equally. A model that lacks a task has no overall rank. Two models are compared by the sign-flip
permutation test of their differences by sample, each weighing 1 / (tasks * samples of the task); ranks follow from
these tests as in a board, and missing scores never help.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.report.compare.comparison import PairedSamples, cautious_pair, paired
from holdfast.report.compare.leaderboard import Board, PairTest, rank
from holdfast.report.compare.sides import CellName, Measure, SideAnswers
from holdfast.report.text import counted
from holdfast.stats import BOOL, NUMBER, UNIT, Scale, Summary, macro_mean


class SuiteTask(msgspec.Struct, frozen=True):
    """One task of a suite with its headline score: the result of a benchmark, else that of its first scorer."""

    task: str
    scorer: str
    scale: Scale = NUMBER
    left_out: str = ""
    """Why the mean over tasks is without it, as a sentence; empty: it is part of the mean."""


class SuiteModel(msgspec.Struct, frozen=True):
    """One model with its score on each task."""

    rank: int | None
    """None if it lacks a task, or if no task is part of the mean."""
    model: str
    run: str
    """Several runs with different tasks are joined with commas."""
    scores: dict[str, float]
    """By task, on the keys that all models have scored; without tasks that it lacks."""
    summary: Summary = Summary(0)
    """The mean over tasks. `n` counts samples."""
    lacks: tuple[str, ...] = ()
    """Tasks that it has not completed."""


class Suite(msgspec.Struct, frozen=True):
    """The tasks of a leaderboard, and its models by their mean over tasks."""

    tasks: tuple[SuiteTask, ...]
    models: tuple[SuiteModel, ...]
    undecided: int = 0
    """Pairs of models with a significant difference that missing scores could undo. They count as not different."""

    @property
    def counted(self) -> list[str]:
        """The tasks that the mean is over."""
        return [each.task for each in self.tasks if not each.left_out]

    def doubts(self) -> Iterator[str]:
        """What the overall mean and ranks leave out."""
        for task in self.tasks:
            if task.left_out:
                yield f"{task.task}: not part of the mean over tasks: {task.left_out}"
        lacking: dict[tuple[str, ...], list[str]] = {}
        for each in self.models:
            if each.lacks:
                lacking.setdefault(each.lacks, []).append(f"{each.model} of {each.run}")
        for tasks, names in lacking.items():
            yield f"no overall rank for {', '.join(names)}: {', '.join(tasks)} not completed"
        if self.undecided:
            yield f"mean over tasks: {counted(self.undecided, 'pair')} of models share a rank because of missing scores"

    def method(self) -> str:
        """How means and overall ranks were computed, as a sentence."""
        if not self.counted:
            return ""
        tasks = f"{len(self.counted)} of {counted(len(self.tasks), 'task')} that all models have completed"
        names = {each.scorer for each in self.tasks}
        scorers = names.pop() if len(names) == 1 else ", ".join(f"{each.task}: {each.scorer}" for each in self.tasks)
        tests = "sign-flip permutation tests of paired samples, tasks weigh equally, Holm, 0.05"
        rank_text = f"overall rank: 1 + the number of significantly better models ({tests})"
        return f"mean over tasks: {tasks} ({scorers}); {rank_text}"


class _Entrant(msgspec.Struct, frozen=True):
    model: str
    runs: tuple[str, ...]
    sides: dict[str, SideAnswers]
    """By task."""
    measures: dict[str, Measure]
    """The headline score, by task."""

    def tasks_without(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """The tasks that it has not completed."""
        return tuple(task for task in tasks if task not in self.measures or not self.sides[task].has_ended)


def suite_of(
    runs: Sequence[Mapping[CellName, SideAnswers]],
    boards: Sequence[Board],
    scorers: Mapping[str, Sequence[str]],
) -> Suite | None:
    """None for one task. `boards`: of means. `scorers`: by task, the most important one first."""
    headlines: dict[str, Board] = {}
    for task in dict.fromkeys(board.task for board in boards):
        own = [board for board in boards if board.task == task]
        headlines[task] = min(own, key=lambda board: _place(board.scorer, scorers.get(board.task, ())))
    if len(headlines) < 2:
        return None
    entrants = list(_entrants(runs, headlines))
    tasks = [_task(board, entrants) for board in headlines.values()]
    used = [each for each in tasks if not each.left_out]
    common = {each.task: _common_keys(each.task, entrants) for each in used}
    scale = BOOL if all(each.scale.is_bool for each in used) else UNIT
    summaries = [_mean(each, common, scale) if used else Summary(0) for each in entrants]
    whole = [at for at, each in enumerate(entrants) if used and not each.tasks_without(list(headlines))]
    tests = {
        (one, other): _test(entrants[whole[other]], entrants[whole[one]], common)
        for one in range(len(whole))
        for other in range(one)
    }
    ranks, undecided = rank(tests, [summaries[at].mean for at in whole])
    by_place = dict(zip(whole, ranks, strict=True))
    models = [
        SuiteModel(
            by_place.get(at),
            each.model,
            ", ".join(each.runs),
            _scores(each, headlines),
            summaries[at],
            each.tasks_without(list(headlines)),
        )
        for at, each in enumerate(entrants)
    ]
    models.sort(key=lambda each: (each.rank is None, each.rank or 0, -(each.summary.mean or 0.0)))
    return Suite(tuple(tasks), tuple(models), undecided)


def _place(scorer: str, listed: Sequence[str]) -> tuple[int, int]:
    """The place of a measure in the list of scorers; its parts and reducers follow it."""
    for at, name in enumerate(listed):
        if scorer == name or scorer.startswith((f"{name}.", f"{name} ")):
            return at, int(scorer != name)
    return len(listed), 0


def _entrants(runs: Sequence[Mapping[CellName, SideAnswers]], headlines: Mapping[str, Board]) -> Iterator[_Entrant]:
    """A model of several runs is one entrant if no task is in two of them."""
    found: dict[str, list[SideAnswers]] = {}
    for run in runs:
        for (task, model), each in run.items():
            if task in headlines:
                found.setdefault(model, []).append(each)
    for model, sides in found.items():
        is_one = len({each.side.task for each in sides}) == len(sides)
        for names in [tuple(dict.fromkeys(each.side.run for each in sides))] if is_one else _each_run(sides):
            own = {each.side.task: each for each in sides if each.side.run in names}
            measures = {task: each.measures().get(headlines[task].scorer) for task, each in own.items()}
            scored = {task: each for task, each in measures.items() if each is not None and each.numbers() is not None}
            yield _Entrant(model, names, own, scored)


def _each_run(sides: Sequence[SideAnswers]) -> list[tuple[str, ...]]:
    return [(name,) for name in dict.fromkeys(each.side.run for each in sides)]


def _scores(entrant: _Entrant, headlines: Mapping[str, Board]) -> dict[str, float]:
    """As in the boards."""
    found = {}
    for task, board in headlines.items():
        for each in board.ranked:
            is_own = each.model == entrant.model and each.run in entrant.runs
            if is_own and task in entrant.measures and each.summary.mean is not None:
                found[task] = each.summary.mean
    return found


def _task(board: Board, entrants: Sequence[_Entrant]) -> SuiteTask:
    lacking = [each for each in entrants if each.tasks_without([board.task])]
    why = ""
    if lacking:
        names, have = ", ".join(dict.fromkeys(each.model for each in lacking)), "has" if len(lacking) == 1 else "have"
        why = f"{len(lacking)} of {counted(len(entrants), 'model')} {have} not completed it ({names})"
    elif (board.scale.lowest, board.scale.highest) != (0.0, 1.0):
        why = f"the scores of {board.scorer} are not from 0 to 1"
    elif not _common_keys(board.task, entrants):
        why = "no key has a score of every model"
    return SuiteTask(board.task, board.scorer, board.scale, why)


def _common_keys(task: str, entrants: Sequence[_Entrant]) -> set[tuple[str, int]]:
    return set.intersection(*(set(each.measures[task].numbers() or ()) for each in entrants))


def _mean(entrant: _Entrant, common: Mapping[str, set[tuple[str, int]]], scale: Scale) -> Summary:
    values, strata, groups = list[float](), list[str](), list[tuple[object, ...]]()
    for task, keys in common.items():
        measure = entrant.measures[task]
        numbers = {pair: value for pair, value in (measure.numbers() or {}).items() if pair in keys}
        for sample, value in measure.sample_means(numbers).items():
            values.append(value)
            strata.append(task)
            groups.append((task, measure.groups.get(sample, sample)))
    found = macro_mean(values, strata, groups, scale=scale)
    count = len(set(groups))
    return msgspec.structs.replace(found, groups=count if count < found.n else None)


def _test(first: _Entrant, second: _Entrant, common: Mapping[str, set[tuple[str, int]]]) -> PairTest:
    """Of the mean over tasks, second minus first."""
    pairs = {task: paired(first.measures[task], second.measures[task], keys) for task, keys in common.items()}
    difference, p = _weigh(pairs)
    worse, better = (first, second) if difference > 0 else (second, first)
    against, is_missing = dict[str, PairedSamples | None](), False
    for task, keys in common.items():
        low, high = worse.measures[task], better.measures[task]
        filled = cautious_pair(low, high)
        against[task] = paired(low, high, keys) if filled is None else filled
        is_missing |= filled is not None
    if not is_missing:
        return PairTest(difference, p, p)
    still, cautious_p = _weigh(against)
    return PairTest(difference, p, cautious_p if still > 0 else 1.0)


def _weigh(pairs: Mapping[str, PairedSamples | None]) -> tuple[float, float | None]:
    """The mean difference over tasks, and its p-value."""
    from holdfast.stats import permutation_test

    known = {task: each for task, each in pairs.items() if each is not None}
    values, groups = list[float](), list[tuple[object, ...]]()
    for task, each in known.items():
        weight = 1 / (len(known) * len(each.differences))
        values += [weight * difference for difference in each.differences]
        groups += [(task, group) for group in each.groups]
    return sum(values), permutation_test(values, groups).p
