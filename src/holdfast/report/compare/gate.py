"""Whether a run is good enough: not worse than a baseline by more than a margin, or at least a number.

What is judged is an interval, not a mean. It passes if all of it is at or above the bound (that is what a test of
non-inferiority asks), is worse if all of it is below, and else there is not enough data; the caller says what that
means, and is told how many samples would decide. Where no key is scored otherwise, or all differ by the same, there is
nothing to be unsure of. Keys without a score are no pass: what failed may be what is hard; and where none has one,
nothing lets it pass. Of several measures each must pass by itself, so nothing is adjusted.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Literal

import msgspec

from holdfast.report.compare.comparison import paired
from holdfast.report.compare.sides import Answers, Measure
from holdfast.report.formats.lines import ExportLine
from holdfast.report.groups import member_of, with_groups
from holdfast.report.text import count_of, counted
from holdfast.score import as_number
from holdfast.stats import Design, Summary, paired_difference, samples_needed, split_variance, summarise
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
    """About so many would decide, with the same repeats, and as many in a group, if the mean stays what it is. Told if
    it is unsure.
    """


class _Judged(msgspec.Struct, frozen=True):
    """The values that the interval is of."""

    values: Sequence[float]
    samples: Sequence[Hashable]
    """Of which sample each is, and what it is independent by: a group of samples, or the sample:"""
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
        return _verdict(answers, mine, _Judged((), (), (), Summary(0), None, None, missing), bar)
    samples = [sample for sample, repeat in theirs.values if (sample, repeat) in mine.values]
    interval = paired_difference(pairs.differences, pairs.groups, bar.confidence)
    interval = with_groups(interval, samples, pairs.groups)
    means = [sum(values) / len(values) for values in (pairs.second, pairs.first)]
    judged = _Judged(pairs.differences, samples, pairs.groups, interval, means[0], means[1], missing)
    return _verdict(answers, mine, judged, bar)


def judge_level(answers: Answers, mine: Measure, bar: Bar) -> Verdict:
    """Against a number."""
    numbers = mine.numbers() or {}
    interval = mine.summary(bar.confidence)
    missing = dict(Counter(mine.missing.values()).most_common())
    samples = [sample for sample, _ in numbers]
    values, groups = list(numbers.values()), mine.members(numbers)
    return _verdict(answers, mine, _Judged(values, samples, groups, interval, interval.mean, None, missing), bar)


def _verdict(answers: Answers, measure: Measure, judged: _Judged, bar: Bar) -> Verdict:
    outcome = _outcome(judged, bar)
    return Verdict(
        task=answers.side.task,
        model=answers.side.model,
        scorer=measure.name,
        outcome=outcome,
        passed=outcome == "passed" or (outcome == "unsure" and bar.unsure_passes),
        common=len(judged.values),
        samples=len(set(judged.samples)),
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
    groups, samples = len(set(judged.groups)), len(set(judged.samples))
    away = abs((judged.interval.mean or 0.0) - bar.bound)
    if groups < 2 or away < _SLACK:
        return None
    split = split_variance(judged.values, judged.groups)
    between, within = split.between, split.within
    if between is None or within is None:  # one value a group: all of it lies between them
        between, within = len(judged.values) * (judged.interval.standard_error or 0.0) ** 2, 0.0
    if between + within <= 0:
        return None
    repeats = round(len(judged.values) / groups)
    needed = samples_needed(Design(between, within, repeats, alpha=1 - bar.confidence), away, POWER)
    return None if needed is None else max(math.ceil(needed * samples / groups), samples + 1)


_KEYS_NAMED = 10


class Standard(msgspec.Struct, frozen=True):
    """`scorer` empty means every scorer that gives numbers. `certain`: the whole interval must be high enough."""

    at_least: float
    scorer: str = ""
    confidence: float = 0.95
    certain: bool = False
    failed_max: int = 0


class Measured(msgspec.Struct, frozen=True):
    """One scorer over one task with one model."""

    task: str
    model: str
    scorer: str
    summary: Summary
    low: tuple[str, ...]
    """Keys with a score below the standard."""

    def meets(self, standard: Standard) -> bool:
        found = self.summary.low if standard.certain else self.summary.mean
        return found is not None and found >= standard.at_least


def shortcomings(lines: Iterable[ExportLine], standard: Standard) -> list[str]:
    """Why the run does not meet the standard, in lines for a person; empty if it does."""
    values: dict[tuple[str, str, str], list[tuple[float, ExportLine]]] = {}
    missing: list[str] = []
    for line in lines:
        if line.status != "finished":
            missing.append(f"{line.key} is {line.status}")
        elif any(standard.scorer in ("", name) for name in line.broken):
            missing.append(f"{line.key} could not be scored")
        for name, value in line.values.items():
            number = as_number(value)
            if number is not None and standard.scorer in ("", name):
                values.setdefault((line.task, line.model, name), []).append((number, line))
    measured = [_measured(place, found, standard) for place, found in values.items()]
    told = [line for each in measured if not each.meets(standard) for line in _told(each, standard)]
    if not measured:
        told.append("no answer has a score" + (f" of {standard.scorer}" if standard.scorer else ""))
    if len(missing) > standard.failed_max:
        told += [f"{counted(len(missing), 'sample')} without a score:", *_named(missing)]
    return told


def _measured(place: tuple[str, str, str], found: Sequence[tuple[float, ExportLine]], standard: Standard) -> Measured:
    members = [member_of(line.sample_id, line.group) for _, line in found]
    summary = summarise([number for number, _ in found], members, standard.confidence)
    summary = with_groups(summary, [line.sample_id for _, line in found], members)
    return Measured(*place, summary, tuple(line.key for number, line in found if number < standard.at_least))


def _told(measured: Measured, standard: Standard) -> list[str]:
    summary = measured.summary
    place = f"{measured.task} / {measured.model} / {measured.scorer}"
    interval = "no interval"
    if summary.low is not None and summary.high is not None:
        interval = f"{standard.confidence:.0%} interval {summary.low:.4f} .. {summary.high:.4f}"
    wanted = f"{'certainly ' if standard.certain else ''}at least {standard.at_least:g}"
    told = [f"{place}: mean {summary.mean:.4f}, wanted {wanted} ({interval}, n {count_of(summary)})"]
    if summary.high is not None and summary.high >= standard.at_least:
        told.append(f"  the interval holds {standard.at_least:g}: more samples would tell")
    if measured.low:
        told += [f"  {counted(len(measured.low), 'answer')} below it:", *_named(measured.low)]
    return told


def _named(keys: Sequence[str]) -> list[str]:
    more = len(keys) - _KEYS_NAMED
    return [f"    {key}" for key in keys[:_KEYS_NAMED]] + ([f"    … and {more} more"] if more > 0 else [])
