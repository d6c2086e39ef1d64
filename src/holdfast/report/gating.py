"""Whether a run is good enough: not worse than a baseline by more than a margin, or at least a number.

What is judged is an interval, not a mean. It passes if all of it is at or above the bound (that is what a test of
non-inferiority asks), is worse if all of it is below, and else there is not enough data; the caller says what that
means, and is told how many samples would decide. Where no key is scored otherwise, or all differ by the same, there is
nothing to be unsure of. Keys without a score are no pass: what failed may be what is hard; and where none has one,
nothing lets it pass. Of several measures each must pass by itself, so nothing is adjusted.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal

import msgspec

from holdfast.report.comparing import paired
from holdfast.report.sides import Answers, Measure
from holdfast.stats import Design, Summary, paired_difference, samples_needed, split_variance
from holdfast.stats.intervals import LEVEL

Outcome = Literal["passed", "worse", "unsure", "missing"]
_SLACK = 1e-9
POWER = 0.8


class Bar(msgspec.Struct, frozen=True):
    """How high it lies. `at_least`: a number instead of a baseline."""

    margin: float = 0.0
    confidence: float = LEVEL
    at_least: float | None = None
    missing_max: int = 0
    unsure_passes: bool = False

    @property
    def bound(self) -> float:
        """What the whole interval must reach."""
        return (self.at_least or 0.0) - self.margin


class Verdict(msgspec.Struct, frozen=True):
    """One measure of one task with one model. `interval` is of the difference to the baseline, or of the mean."""

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
    """About so many would decide, with the same repeats, if the mean stays what it is. Told if it is unsure."""


class _Judged(msgspec.Struct, frozen=True):
    """The values that the interval is of."""

    values: Sequence[float]
    groups: Sequence[Hashable]
    interval: Summary
    mean: float | None
    baseline: float | None
    missing: dict[str, int]


def judge_against(answers: Answers, mine: Measure, theirs: Measure, bar: Bar) -> Verdict:
    """On the keys that both have a score for. Keys of both plans that `mine` has none for are missing."""
    pairs = paired(theirs, mine)
    planned = {*theirs.values, *theirs.missing}
    missing = dict(Counter(why for pair, why in mine.missing.items() if pair in planned).most_common())
    if pairs is None:
        return _verdict(answers, mine, _Judged((), (), Summary(0), None, None, missing), bar)
    interval = paired_difference(pairs.differences, pairs.groups, bar.confidence)
    means = [sum(values) / len(values) for values in (pairs.second, pairs.first)]
    judged = _Judged(pairs.differences, pairs.groups, interval, means[0], means[1], missing)
    return _verdict(answers, mine, judged, bar)


def judge_level(answers: Answers, mine: Measure, bar: Bar) -> Verdict:
    """Against a number."""
    numbers = mine.numbers() or {}
    interval = mine.summary(bar.confidence)
    missing = dict(Counter(mine.missing.values()).most_common())
    groups = [sample for sample, _ in numbers]
    return _verdict(answers, mine, _Judged(list(numbers.values()), groups, interval, interval.mean, None, missing), bar)


def _verdict(answers: Answers, measure: Measure, judged: _Judged, bar: Bar) -> Verdict:
    outcome = _outcome(judged, bar)
    return Verdict(
        task=answers.side.task,
        model=answers.side.model,
        scorer=measure.name,
        outcome=outcome,
        passed=outcome == "passed" or (outcome == "unsure" and bar.unsure_passes),
        common=len(judged.values),
        samples=len(set(judged.groups)),
        mean=judged.mean,
        baseline=judged.baseline,
        interval=judged.interval,
        bound=bar.bound,
        missing=judged.missing,
        samples_needed=_needed(judged, bar) if outcome == "unsure" else None,
    )


def _outcome(judged: _Judged, bar: Bar) -> Outcome:
    interval = judged.interval
    if sum(judged.missing.values()) > bar.missing_max or interval.mean is None:
        return "missing"
    low, high = interval.low, interval.high
    if (low is None or high is None) and interval.standard_error == 0:
        low = high = interval.mean
    if low is None or high is None:
        return "unsure"
    if low >= bar.bound - _SLACK:
        return "passed"
    return "worse" if high < bar.bound - _SLACK else "unsure"


def _needed(judged: _Judged, bar: Bar) -> int | None:
    samples = Counter(judged.groups)
    away = abs((judged.interval.mean or 0.0) - bar.bound)
    if len(samples) < 2 or away < _SLACK:
        return None
    split = split_variance(judged.values, judged.groups)
    between, within = split.between, split.within
    if between is None or within is None:  # no repeats: all of it lies between samples
        between, within = len(judged.values) * (judged.interval.standard_error or 0.0) ** 2, 0.0
    if between + within <= 0:
        return None
    repeats = round(len(judged.values) / len(samples))
    needed = samples_needed(Design(between, within, repeats, alpha=1 - bar.confidence), away, POWER)
    return None if needed is None else max(needed, len(samples) + 1)
