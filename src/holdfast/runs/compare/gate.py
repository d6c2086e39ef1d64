"""Judges an opened run: is it as good as a baseline, less a margin, or does it reach a number?

Invariant: what cannot be judged never passes. UsageError if the runs are not comparable or have no key in common, if
the baseline has a task, model or scorer that the run lacks, or if the baseline is unfinished.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

import msgspec

from holdfast.errors import UsageError
from holdfast.report import (
    CellName,
    GateResult,
    GateRule,
    GateVerdict,
    Measure,
    SideAnswers,
    choose_measures,
    counted,
    judge_against,
    judge_level,
    pairs_between,
)
from holdfast.runs.compare.comparability import (
    all_sides,
    changed_benchmarks,
    evaluations_of,
    incomparable_reasons,
    of_several,
    partially_scored,
    require_comparable,
    without_data,
    without_groups,
)
from holdfast.runs.run import Run
from holdfast.spec import MEAN, nearest

_UNSURE = {"fail": False, "pass": True}


class GateOptions(msgspec.Struct, frozen=True):
    """What to judge, and by what."""

    baseline: str | None = None
    """The name of the run to compare with."""
    at_least: float | None = None
    margin: float | None = None
    confidence: float = 0.95
    if_unsure: str = "fail"
    missing_max: int = 0
    identical_passes: bool = False
    task: str | None = None
    model: str | None = None
    scorer: str | None = None
    evaluation: str = ""

    def bar(self) -> GateRule:
        """Build the bar; raise UsageError for options that contradict each other."""
        if (self.baseline is None) == (self.at_least is None):
            raise UsageError("give either --baseline RUN or --at-least NUMBER, for example --at-least 0.8")
        if self.baseline is not None and self.margin is None:
            raise UsageError(
                "--margin is missing: how much worse than the baseline may pass, for example --margin 0.02"
            )
        if self.at_least is not None and self.margin is not None:
            raise UsageError("--margin is for --baseline; with --at-least, give the number that the mean must reach")
        for option, number in (("--margin", self.margin), ("--at-least", self.at_least)):
            if number is not None and not math.isfinite(number):
                raise UsageError(f"{option} {number}: must be a finite number, for example 0.02")
        if (self.margin or 0.0) < 0:
            raise UsageError(f"--margin {self.margin}: must be 0 or more")
        if not 0 < self.confidence < 1:
            raise UsageError(f"--confidence {self.confidence}: must be between 0 and 1, for example 0.95")
        if self.if_unsure not in _UNSURE:
            raise UsageError(
                f"--if-unsure {self.if_unsure}: must be fail or pass{nearest(self.if_unsure, set(_UNSURE))}"
            )
        if self.identical_passes and self.baseline is None:
            raise UsageError("--identical-passes compares with a baseline: give --baseline RUN")
        return GateRule(
            self.margin or 0.0,
            self.confidence,
            self.at_least,
            self.missing_max,
            _UNSURE[self.if_unsure],
            self.identical_passes,
        )


_OTHER_EVALUATION = "choose another evaluation with --evaluation (holdfast show lists them)"


def gate_result_of(runs: Sequence[Run], options: GateOptions) -> GateResult:
    """Judge every task, model and scorer of a run that the options choose. `runs`: the run, and the baseline if there
    is one. Raises UsageError if it cannot be judged.
    """
    bar, run = options.bar(), runs[0]
    require_comparable(runs)
    sides = []
    for each, cells in zip(runs, all_sides(runs, options.evaluation), strict=True):
        # Only tasks that have scorers in the evaluation: in others there is nothing to judge.
        tasks = {scorer["task"] for scorer in each.scorer_identities(options.evaluation) if "task" in scorer}
        sides.append({cell: answers for cell, answers in cells.items() if not tasks or cell[0] in tasks})
    mine = _select(sides[0], options, run.run_id)
    if len(runs) == 1:
        found, notes = list[GateVerdict](), list[str]()
        for answers in mine.values():
            measures = _measures_to_judge(answers, _scorer_to_judge(run, answers, options)).values()
            judged = [measure for measure in measures if _is_judgeable(measure)]
            _refuse_out_of_reach(judged, bar)
            found += [judge_level(answers, measure, bar) for measure in judged]
    else:
        found, notes = _by_baseline(runs, (mine, sides[1]), options, bar), list(without_data(runs))
    notes += [*of_several(runs, options.evaluation), *partially_scored(runs, options.evaluation)]
    notes += [*without_groups(runs), *changed_benchmarks(runs), *_describe_results(runs[-1], found, options)]
    if not found:
        named = "" if options.scorer is None else f" under the name {options.scorer}"
        raise UsageError(f"{run.run_id}: no scorer gave a number{named}, so there is nothing to judge")
    used = evaluations_of(runs, options.evaluation)
    return GateResult(all(each.passed for each in found), tuple(found), bar, tuple(notes), used)


def _select(sides: Mapping[CellName, SideAnswers], options: GateOptions, run: str) -> dict[CellName, SideAnswers]:
    """The cells of the task and model that were named. Raises UsageError for an unknown name."""
    tasks, models = {task for task, _ in sides}, {model for _, model in sides}
    if options.task is not None and options.task not in tasks:
        raise UsageError(f"--task {options.task}: {run} has no such task{nearest(options.task, tasks)}")
    if options.model is not None and options.model not in models:
        raise UsageError(f"--model {options.model}: {run} has no such model{nearest(options.model, models)}")
    return {
        (task, model): each
        for (task, model), each in sides.items()
        if options.task in (None, task) and options.model in (None, model)
    }


def _measures_to_judge(answers: SideAnswers, scorer: str | None) -> dict[str, Measure]:
    nothing = answers.unscored(scorer or "-")
    if nothing is not None:
        return {nothing.name: nothing}
    found = answers.measures()
    kept = choose_measures(found, scorer)
    if not kept and scorer is not None:
        place = f"{answers.side.run} {answers.side.task}/{answers.side.model}"
        known = nearest(scorer, set(found))
        raise UsageError(
            f"--scorer {scorer}: {place} has no such scorer in this evaluation{known}; {_OTHER_EVALUATION}"
        )
    return kept


def _scorer_to_judge(run: Run, answers: SideAnswers, options: GateOptions) -> str | None:
    """The scorer that was named, else the result of a benchmark; None: all scorers."""
    origin = run.benchmarks().get(answers.side.task)
    if options.scorer is not None or origin is None:
        return options.scorer
    # The user may have replaced the scorers of the benchmark.
    return origin.metric if choose_measures(answers.measures(), origin.metric) else None


def _describe_results(run: Run, found: Sequence[GateVerdict], options: GateOptions) -> Iterator[str]:
    """Which scorer was judged, where a task has others."""
    judged = {each.task: each.scorer for each in found}
    for task, origin in run.benchmarks().items() if options.scorer is None else ():
        scorer = judged.get(task, "")
        others = [each["name"] for each in run.scorer_identities(options.evaluation) if each.get("task", task) == task]
        if f"{scorer}.".startswith(f"{origin.metric}.") and len(others) > 1:
            yield f"{task}: judged by {scorer}, the result of the benchmark; for another scorer, add --scorer"


def _refuse_out_of_reach(measures: Sequence[Measure], bar: GateRule) -> None:
    """UsageError for a number that no run can reach, such as 60 for shares from 0 to 1."""
    for measure in measures:
        highest = measure.scale.highest
        if bar.at_least is not None and highest is not None and bar.at_least > highest and measure.values:
            scale = (
                f"{measure.scale.lowest:g} to {highest:g}" if measure.scale.lowest is not None else f"up to {highest:g}"
            )
            share = (
                f"; for {bar.at_least:g} % write {bar.at_least / 100:g}" if highest == 1 < bar.at_least <= 100 else ""
            )
            other = "" if share else "; choose another scorer with --scorer"
            raise UsageError(f"--at-least {bar.at_least:g}: scores of {measure.name} are {scale}{share}{other}")


def _is_judgeable(measure: Measure) -> bool:
    """Whether a measure can be judged: numbers can, and so can missing scores; labels cannot."""
    return not measure.values or measure.numbers() is not None


def _by_baseline(
    runs: Sequence[Run],
    both: tuple[Mapping[CellName, SideAnswers], Mapping[CellName, SideAnswers]],
    options: GateOptions,
    bar: GateRule,
) -> list[GateVerdict]:
    (run, baseline), (mine, sides) = runs, both
    same_model = any(model == options.model for _, model in sides)
    theirs = {
        (task, model): each
        for (task, model), each in sides.items()
        if options.task in (None, task) and (not same_model or model == options.model)
    }
    pairs = list(pairs_between(theirs, mine))
    matched = {(first.side.task, first.side.model) for first, _ in pairs}
    for task, model in theirs:
        if (task, model) not in matched:  # a task that was dropped must not pass unnoticed
            advice = "choose what to judge with --task or --model"
            raise UsageError(f"the baseline has {task} with {model}, and {run.run_id} does not; {advice}")
    measures = [
        (first, second, name, _matching_measure(second, measure, scorer), measure)
        for first, second in pairs
        for scorer in [_scorer_to_judge(baseline, first, options)]
        for name, measure in _baseline_measures(baseline, first, scorer).items()
        if _is_judgeable(measure)
    ]
    reasons = incomparable_reasons(run, baseline, options.evaluation, [name for _, _, name, _, _ in measures])
    if reasons:
        raise UsageError("; ".join(reasons))
    for first, _, _, own, measure in measures:
        _refuse_unfinished(baseline, first, measure, own, bar)
    return [judge_against(second, own, measure, bar) for _, second, _, own, measure in measures]


def _baseline_measures(baseline: Run, answers: SideAnswers, scorer: str | None) -> dict[str, Measure]:
    """The measures of the baseline. Raises UsageError if it has no scores."""
    nothing = answers.unscored(scorer or "-")
    if nothing is not None:
        keys = f"{counted(len(nothing.missing), 'key')} of {answers.side.task} without a score"
        _refuse_baseline(baseline, keys, f"continue it: {baseline.place.command('resume')}")
    return _measures_to_judge(answers, scorer)


def _matching_measure(answers: SideAnswers, theirs: Measure, scorer: str | None) -> Measure:
    """The run's measure with the same name as one of the baseline. Raises UsageError if there is none to compare."""
    mine = answers.unscored(theirs.scorer, theirs.reduction) or _measures_to_judge(answers, scorer).get(theirs.name)
    place = f"{answers.side.run} {answers.side.task}/{answers.side.model}"
    if mine is None:
        lack = f"{answers.side.run} has no scores of {theirs.name}, which the baseline has"
        raise UsageError(f"{lack}; choose a scorer with --scorer, or {_OTHER_EVALUATION}")
    if not {*mine.values, *mine.missing} & {*theirs.values, *theirs.missing}:
        raise UsageError(f"{place} and the baseline have no key in common: {theirs.name} cannot be judged")
    return mine


def _refuse_unfinished(baseline: Run, answers: SideAnswers, theirs: Measure, mine: Measure, bar: GateRule) -> None:
    missing = sum(pair in mine.values or pair in mine.missing for pair in theirs.missing)
    if missing <= bar.missing_max:
        return
    task, accept = answers.side.task, "accept them with --missing-max"
    if answers.has_open_keys(theirs.scorer):
        advice = f"continue it: {baseline.place.command('resume')}, or {accept}"
    elif theirs.reduction.name == MEAN:
        advice = f"every key is answered and scored; {accept}"
    else:  # a resume has nothing to do: the reducer needs more scores for each sample than there are
        repeats = next(each.repeats for each in baseline.spec().tasks if each.name == task)
        more = baseline.place.command("extend", "--set", f"tasks.{task}.repeats={2 * repeats}")
        other = baseline.place.command("resume", "--set", f"tasks.{task}.reduce={MEAN}")
        advice = f"add repeats: {more}, choose another reducer: {other}, or {accept}"
    _refuse_baseline(baseline, f"{counted(missing, 'key')} of {task} without a score by {theirs.name}", advice)


def _refuse_baseline(baseline: Run, keys: str, advice: str) -> NoReturn:
    raise UsageError(f"the baseline {baseline.run_id} has {keys}, so it cannot be a baseline; {advice}")
