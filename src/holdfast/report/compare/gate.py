"""Gates: whether a run is at most a margin worse than a baseline (`gate`), or reaches a score (`assert_score`).

The verdict depends on the interval, not the mean. It passes if the whole interval is at or above the bound
(non-inferiority), is worse if the whole interval is below, and is otherwise unsure: too little data. Then the verdict
includes how many samples would decide, and the caller chooses whether unsure passes. If all differences are equal,
the mean itself decides. Keys without a score do not pass, because the hard samples may be the ones that failed; without
any score nothing passes. Each measure must pass by itself, so p-values are not involved and nothing is adjusted.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.report.compare.comparison import paired
from holdfast.report.compare.sides import Measure, SideAnswers
from holdfast.report.formats.lines import ExportLine
from holdfast.report.reduction import member_of, with_groups
from holdfast.report.text import count_of, counted
from holdfast.score import as_number
from holdfast.stats import Design, Summary, paired_difference, samples_needed, split_variance, summarise
from holdfast.stats.intervals import LEVEL

Outcome = Literal["passed", "worse", "unsure", "missing"]
_SLACK = 1e-9
POWER = 0.8


class GateRule(msgspec.Struct, frozen=True):
    """What a run must reach. `at_least`: a fixed score instead of a baseline."""

    margin: float = 0.0
    confidence: float = LEVEL
    at_least: float | None = None
    missing_max: int = 0
    unsure_passes: bool = False

    @property
    def bound(self) -> float:
        """The value that the whole interval must reach."""
        return (self.at_least or 0.0) - self.margin


class GateVerdict(msgspec.Struct, frozen=True):
    """The verdict on one measure of one cell. `interval`: of the difference to the baseline, or of the mean."""

    task: str
    model: str
    scorer: str
    outcome: Outcome
    passed: bool
    common: int
    samples: int
    mean: float | None
    baseline: float | None
    interval: Summary
    bound: float
    missing: dict[str, int]
    samples_needed: int | None = None
    """If unsure: about how many samples would decide, with the same repeats and group sizes, if the mean stays as it
    is.
    """


class _GateData(msgspec.Struct, frozen=True):
    """The values behind an interval."""

    values: Sequence[float]
    samples: Sequence[Hashable]
    """The sample of each value; `groups` has its independent unit: the group, or the sample."""
    groups: Sequence[Hashable]
    interval: Summary
    mean: float | None
    baseline: float | None
    missing: dict[str, int]


def judge_against(answers: SideAnswers, mine: Measure, theirs: Measure, rule: GateRule) -> GateVerdict:
    """Compare with a baseline on the keys that both have scored. Keys of both plans without a score in `mine` are
    missing.
    """
    pairs = paired(theirs, mine)
    planned = {*theirs.values, *theirs.missing}
    missing = dict(Counter(why for pair, why in mine.missing.items() if pair in planned).most_common())
    if pairs is None:
        return _verdict(answers, mine, _GateData((), (), (), Summary(0), None, None, missing), rule)
    samples = [sample for sample, repeat in theirs.values if (sample, repeat) in mine.values]
    interval = paired_difference(pairs.differences, pairs.groups, rule.confidence)
    interval = with_groups(interval, samples, pairs.groups)
    means = [sum(values) / len(values) for values in (pairs.second, pairs.first)]
    data = _GateData(pairs.differences, samples, pairs.groups, interval, means[0], means[1], missing)
    return _verdict(answers, mine, data, rule)


def judge_level(answers: SideAnswers, mine: Measure, rule: GateRule) -> GateVerdict:
    """Compare with a fixed score."""
    numbers = mine.numbers() or {}
    interval = mine.summary(rule.confidence)
    missing = dict(Counter(mine.missing.values()).most_common())
    samples = [sample for sample, _ in numbers]
    values, groups = list(numbers.values()), mine.members(numbers)
    return _verdict(answers, mine, _GateData(values, samples, groups, interval, interval.mean, None, missing), rule)


def _verdict(answers: SideAnswers, measure: Measure, data: _GateData, rule: GateRule) -> GateVerdict:
    outcome = _outcome(data, rule)
    return GateVerdict(
        task=answers.side.task,
        model=answers.side.model,
        scorer=measure.name,
        outcome=outcome,
        passed=outcome == "passed" or (outcome == "unsure" and rule.unsure_passes),
        common=len(data.values),
        samples=len(set(data.samples)),
        mean=data.mean,
        baseline=data.baseline,
        interval=data.interval,
        bound=rule.bound,
        missing=data.missing,
        samples_needed=_samples_needed(data, rule) if outcome == "unsure" else None,
    )


def _outcome(data: _GateData, rule: GateRule) -> Outcome:
    interval = data.interval
    if sum(data.missing.values()) > rule.missing_max or interval.mean is None:
        return "missing"
    low, high = interval.low, interval.high
    if (low is None or high is None) and interval.standard_error == 0:
        low = high = interval.mean
    if low is None or high is None:
        return "unsure"
    if low >= rule.bound - _SLACK:
        return "passed"
    return "worse" if high < rule.bound - _SLACK else "unsure"


def _samples_needed(data: _GateData, rule: GateRule) -> int | None:
    groups, samples = len(set(data.groups)), len(set(data.samples))
    away = abs((data.interval.mean or 0.0) - rule.bound)
    if groups < 2 or away < _SLACK:
        return None
    split = split_variance(data.values, data.groups)
    between, within = split.between, split.within
    if between is None or within is None:  # one value per group: all variance lies between groups
        between, within = len(data.values) * (data.interval.standard_error or 0.0) ** 2, 0.0
    if between + within <= 0:
        return None
    repeats = round(len(data.values) / groups)
    needed = samples_needed(Design(between, within, repeats, alpha=1 - rule.confidence), away, POWER)
    return None if needed is None else max(math.ceil(needed * samples / groups), samples + 1)


_KEYS_NAMED = 10


class RequiredScore(msgspec.Struct, frozen=True):
    """What `assert_score` requires. Empty `scorer`: every scorer with numbers. `certain`: the whole interval must
    reach it.
    """

    at_least: float
    scorer: str = ""
    confidence: float = 0.95
    certain: bool = False
    failed_max: int = 0


class MeasuredScore(msgspec.Struct, frozen=True):
    """One scorer over one task with one model."""

    task: str
    model: str
    scorer: str
    summary: Summary
    low: tuple[str, ...]
    """Keys with a score below the required one."""

    def meets(self, required: RequiredScore) -> bool:
        found = self.summary.low if required.certain else self.summary.mean
        return found is not None and found >= required.at_least


def shortcomings(lines: Iterable[ExportLine], required: RequiredScore) -> list[str]:
    """Why the run does not reach the required score, as lines for a person; empty if it does."""
    values: dict[tuple[str, str, str], list[tuple[float, ExportLine]]] = {}
    missing: list[str] = []
    for line in lines:
        if line.status != "finished":
            missing.append(f"{line.key} is {line.status}")
        elif any(required.scorer in ("", name) for name in line.broken):
            missing.append(f"{line.key} could not be scored")
        for name, value in line.values.items():
            number = as_number(value)
            if number is not None and required.scorer in ("", name):
                values.setdefault((line.task, line.model, name), []).append((number, line))
    measured = []
    for place, found in values.items():
        members = [member_of(line.sample_id, line.group) for _, line in found]
        summary = summarise([number for number, _ in found], members, required.confidence)
        summary = with_groups(summary, [line.sample_id for _, line in found], members)
        low = tuple(line.key for number, line in found if number < required.at_least)
        measured.append(MeasuredScore(*place, summary, low))
    reasons = [line for each in measured if not each.meets(required) for line in _explain(each, required)]
    if not measured:
        reasons.append("no answer has a score" + (f" of {required.scorer}" if required.scorer else ""))
    if len(missing) > required.failed_max:
        reasons += [f"{counted(len(missing), 'sample')} without a score:", *_named(missing)]
    return reasons


def _explain(measured: MeasuredScore, required: RequiredScore) -> list[str]:
    summary = measured.summary
    place = f"{measured.task} / {measured.model} / {measured.scorer}"
    interval = "no interval"
    if summary.low is not None and summary.high is not None:
        interval = f"{required.confidence:.0%} interval {summary.low:.4f} .. {summary.high:.4f}"
    requirement = f"{'certainly ' if required.certain else ''}at least {required.at_least:g}"
    lines = [f"{place}: mean {summary.mean:.4f}, wanted {requirement} ({interval}, n {count_of(summary)})"]
    if summary.high is not None and summary.high >= required.at_least:
        lines.append(f"  the interval holds {required.at_least:g}: more samples would tell")
    if measured.low:
        lines += [f"  {counted(len(measured.low), 'answer')} below it:", *_named(measured.low)]
    return lines


def _named(keys: Sequence[str]) -> list[str]:
    more = len(keys) - _KEYS_NAMED
    return [f"    {key}" for key in keys[:_KEYS_NAMED]] + ([f"    … and {more} more"] if more > 0 else [])
