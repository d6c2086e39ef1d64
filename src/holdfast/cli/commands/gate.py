"""`gate`: exit 7 unless a run is as good as a baseline, less a margin, or reaches a number.

Invariant: what cannot be judged never passes. Exit 2 if the runs are not comparable or have no key in common, if the
baseline has a task, model or scorer that the run lacks, or if the baseline is unfinished.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec

from holdfast.cli.commands.compare import all_sides, opened_runs, unlike, without_data, without_groups
from holdfast.cli.output import print_json, print_line, print_table, warn
from holdfast.errors import UsageError
from holdfast.report import (
    Grid,
    count_of,
    counted,
    describe_methods,
    describe_missing,
    format_interval,
    format_number,
)
from holdfast.report.compare.gate import POWER, GateRule, GateVerdict, judge_against, judge_level
from holdfast.report.compare.sides import CellName, Measure, SideAnswers, choose_measures, pairs_between
from holdfast.runs import Run
from holdfast.spec import MEAN, nearest

NOT_PASSED = 7
_COLUMNS = (
    "task",
    "model",
    "scorer",
    "verdict",
    "baseline",
    "mean",
    "difference",
    "interval",
    "bound",
    "n",
    "left out",
    "needed",
)
_HIDDEN = ("baseline", "mean", "left out", "needed")
_HIDDEN_OF_LEVEL = ("baseline", "difference", "left out", "needed")
"""Columns that only --all shows: with a baseline, and with a number to reach."""
_STYLES = {"passed": "green", "worse": "red", "missing": "red", "unsure": "yellow"}
_UNSURE = {"fail": False, "pass": True}


class GateOptions(msgspec.Struct, frozen=True):
    """What to judge, and by what."""

    baseline: str | None = None
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
    all_columns: bool = False

    def bar(self) -> GateRule:
        """Build the bar; raise UsageError for options that contradict each other."""
        if (self.baseline is None) == (self.at_least is None):
            raise UsageError("give either --baseline RUN or --at-least NUMBER")
        if self.baseline is not None and self.margin is None:
            raise UsageError(
                "--margin is missing: how much worse than the baseline may pass, for example --margin 0.02"
            )
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


def gate_run(name: str, options: GateOptions, store: str | None, as_json: bool) -> int:
    """Judge a run; return 7 if a task, model or scorer does not pass. Raises UsageError if it cannot be judged."""
    bar = options.bar()
    names = [name] if options.baseline is None else [name, options.baseline]
    with opened_runs(names, store) as runs:
        every = zip(runs, all_sides(runs, options.evaluation), strict=True)
        sides = []
        for run, cells in every:  # only tasks that have scorers in the evaluation: in others there is nothing to judge
            tasks = {each["task"] for each in run.scorer_identities(options.evaluation) if "task" in each}
            sides.append({cell: each for cell, each in cells.items() if not tasks or cell[0] in tasks})
        mine = _select(sides[0], options, runs[0].run_id)
        if len(runs) == 1:
            found, notes = list[GateVerdict](), list[str]()
            for answers in mine.values():
                measures = _measures_to_judge(answers, options.scorer).values()
                found += [judge_level(answers, measure, bar) for measure in measures if _is_judgeable(measure)]
        else:
            found, notes = _by_baseline(runs, (mine, sides[1]), options, bar), list(without_data(runs))
        notes += without_groups(runs)
    if not found:
        named = "" if options.scorer is None else f" under the name {options.scorer}"
        raise UsageError(f"{name}: no scorer gave a number{named}, so there is nothing to judge")
    passed = all(each.passed for each in found)
    if as_json:
        print_json({"passed": passed, "verdicts": found, "bar": bar, "warnings": notes})
        return 0 if passed else NOT_PASSED
    for note in notes:
        warn(note)
    for each in found:
        print_line(_describe_verdict(each, bar), _STYLES[each.outcome])
    print_line("")
    hidden = () if options.all_columns else _HIDDEN if bar.at_least is None else _HIDDEN_OF_LEVEL
    shown = [index for index, name in enumerate(_COLUMNS) if name not in hidden]
    rows = [[_row(each, bar)[index] for index in shown] for each in found]
    print_table(Grid([_COLUMNS[i] for i in shown], rows, titles=4, right=_COLUMNS[4:], whole=("scorer",)))
    method = describe_methods(each.interval for each in found)
    if method:
        level, error = 100 * bar.confidence, 50 * (1 - bar.confidence)
        rate = f"; a run exactly at the bound passes in at most {error:.4g}% of cases"
        if bar.unsure_passes or bar.identical_passes:
            rate = ""
        print_line("")
        print_line(f"{level:.4g}% intervals: {method}{rate}", "dim")
    return 0 if passed else NOT_PASSED


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
        raise UsageError(f"--scorer {scorer}: {place} has no such scorer{nearest(scorer, set(found))}")
    return kept


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
        (first, second, name, _matching_measure(second, measure, options.scorer), measure)
        for first, second in pairs
        for name, measure in _baseline_measures(baseline, first, options.scorer).items()
        if _is_judgeable(measure)
    ]
    reasons = unlike(run, baseline, options.evaluation, [name for _, _, name, _, _ in measures])
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
        raise UsageError(f"{lack}; choose a scorer with --scorer")
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


def _row(each: GateVerdict, bar: GateRule) -> list[str]:
    interval, against = each.interval, bar.at_least is None
    sign = "+" if against else ""
    return [
        each.task,
        each.model,
        each.scorer,
        each.outcome,
        "" if each.baseline is None else format_number(each.baseline),
        "" if each.mean is None else format_number(each.mean),
        format_number(interval.mean, "+") if against and interval.mean is not None else "",
        format_interval(interval, sign),
        format_number(each.bound, sign),
        count_of(interval),
        str(sum(each.missing.values()) or ""),
        "" if each.samples_needed is None else str(each.samples_needed),
    ]


def _count_samples(each: GateVerdict) -> str:
    samples, groups = counted(each.samples, "sample"), each.interval.groups
    return samples if groups is None else f"{samples} in {counted(groups, 'group')}"


def _describe_verdict(each: GateVerdict, bar: GateRule) -> str:
    """The verdict in a sentence, with the next step."""
    place = f"{each.task}/{each.model} {each.scorer}"
    what = "the mean" if bar.at_least is not None else "the difference to the baseline"
    level = f"{bar.confidence:.12g}"
    if each.outcome == "missing":
        if not each.missing:
            return f"{place}: not passed: no key has a score on both sides"
        keys, why = counted(sum(each.missing.values()), "key"), describe_missing(each.missing)
        return f"{place}: not passed: {keys} without a score ({why}); to accept them: --missing-max"
    accept = "--if-unsure pass or --identical-passes" if each.identical else "--if-unsure pass"
    decision = "passed because of --if-unsure pass" if each.passed else f"not passed (to accept: {accept})"
    if each.depends_on_missing:
        otherwise = "with the scores that the baseline lacks"
        if each.missing:
            otherwise = f"with {counted(sum(each.missing.values()), 'missing score')} counted as wrong"
        return f"{place}: it passes on what is scored, but perhaps not {otherwise}; {decision}"
    if each.identical and bar.identical_passes:
        return f"{place}: passed because of --identical-passes: every score is the same ({_count_samples(each)})"
    if each.outcome == "passed":
        also = f", also with {counted(sum(each.missing.values()), 'missing score')} counted as wrong"
        reached = f"{what} is at least {each.bound:.4g} at confidence {level}"
        return f"{place}: passed: {reached}{also if each.missing else ''}"
    if each.outcome == "worse":
        return f"{place}: not passed: {what} is below {each.bound:.4g} at confidence {level}"
    needed = "more samples are needed"
    if each.interval.low is None and each.samples > 1:
        needed = "too little varies for an interval, and the scale of the scorer has no known ends"
    if each.samples_needed is not None:
        stays = f"if {what} stays {each.interval.mean:.4g}"
        needed = f"about {each.samples_needed} samples would decide with power {POWER}, {stays}"
    return f"{place}: not enough data on {_count_samples(each)}: {needed}; {decision}"
