"""Gates: whether a run is at most a margin worse than a baseline (`gate`), or reaches a score (`assert_score`).

The verdict depends on the interval, not the mean. It passes if the whole interval is at or above the bound
(non-inferiority), is worse if the whole interval is below, and is otherwise unsure: too little data. Then the verdict
includes how many samples would decide, and the caller chooses whether unsure passes. Each measure must pass by itself,
so p-values are not involved and nothing is adjusted.

Invariants:

- A run that is worse by exactly the margin passes in at most 2.5 % of cases (at 95 % confidence). Zero variance is not
  certainty: see `stats.paired_intervals`. Where a scale has no ends and nothing varies, the verdict is unsure.
- Missing is never better. Keys without a score do not pass, because the hard samples may be the ones that failed.
  Neither do keys of the baseline that the run has not planned. If the caller accepts some, the verdict must also hold
  with each of them wrong (the lowest of the scale; for the baseline the highest); else it is unsure.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.records import Key
from holdfast.report.compare.comparison import PairedSamples, cautious_pair, paired
from holdfast.report.compare.sides import CellName, Measure, Pair, SideAnswers
from holdfast.report.text import count_of, counted, describe_missing, format_interval, format_number
from holdfast.stats import (
    LEVEL,
    NUMBER,
    Design,
    Scale,
    Summary,
    samples_needed,
    split_variance,
    widen_for_unseen,
)
from holdfast.stats.intervals import normal_quantile

Outcome = Literal["passed", "worse", "unsure", "missing"]
_SLACK = 1e-9
POWER = 0.8
NOT_PLANNED = "not_planned"


class GateRule(msgspec.Struct, frozen=True):
    """What a run must reach. `at_least`: a fixed score instead of a baseline."""

    margin: float = 0.0
    confidence: float = LEVEL
    at_least: float | None = None
    missing_max: int = 0
    unsure_passes: bool = False
    identical_passes: bool = False
    """Whether a run whose every score is that of the baseline passes, however few there are."""

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
    identical: bool = False
    """Whether every score is that of the baseline."""
    depends_on_missing: bool = False
    """Unsure only because of missing scores: it would not pass if they were wrong, or their scale is not known."""
    reason: str = ""
    """The verdict as a sentence, with the next step."""
    scale: Scale = NUMBER
    """Of the scorer's values."""


class _GateData(msgspec.Struct, frozen=True):
    """The values behind an interval: one per sample. `cautious`: the interval with every missing value wrong; None if
    nothing is missing. `groups`: the independent unit of each sample.
    """

    values: Sequence[float]
    groups: Sequence[Hashable]
    answers: int
    interval: Summary
    mean: float | None
    baseline: float | None
    missing: dict[str, int]
    cautious: Summary | None
    width: float | None = None
    """The largest possible change, if the scale has two ends."""


def judge_against(answers: SideAnswers, mine: Measure, theirs: Measure, rule: GateRule) -> GateVerdict:
    """Compare with a baseline on the keys that both have scored. Planned keys of the baseline without a score in `mine`
    are missing.
    """
    planned = theirs.planned
    reasons = {pair: mine.missing.get(pair, NOT_PLANNED) for pair in planned if pair not in mine.values}
    missing = dict(Counter(reasons.values()).most_common())
    pairs = paired(theirs, mine)
    if pairs is None:
        return _verdict(answers, mine, _GateData((), (), 0, Summary(0), None, None, missing, None), rule)
    whole = msgspec.structs.replace(mine, missing={**mine.missing, **reasons})
    cautious = None
    if reasons or any(pair in mine.values for pair in theirs.missing):
        filled = cautious_pair(theirs, whole)
        cautious = _interval_of(filled, rule) if filled is not None else Summary(0)
    data = _GateData(
        values=pairs.differences,
        groups=pairs.groups,
        answers=pairs.answers,
        interval=_interval_of(pairs, rule),
        mean=sum(pairs.second) / len(pairs.second),
        baseline=sum(pairs.first) / len(pairs.first),
        missing=missing,
        cautious=cautious,
        width=pairs.scale.width,
    )
    return _verdict(answers, mine, data, rule)


def _interval_of(pairs: PairedSamples, rule: GateRule) -> Summary:
    width = pairs.scale.width
    span = NUMBER if width is None else Scale("range", -width, width)
    return widen_for_unseen(pairs.interval(rule.confidence), span, width, rule.confidence)


def judge_level(answers: SideAnswers, mine: Measure, rule: GateRule) -> GateVerdict:
    """Compare with a fixed score. The interval of right-or-wrong answers is exact, because Wilson's passes a little
    more often than it says.
    """
    numbers = mine.numbers() or {}
    missing = dict(Counter(mine.missing.values()).most_common())
    interval, cautious, scale = _level_of(mine, rule), None, mine.scale
    if missing:
        filled = mine.fill(scale.lowest or 0.0, mine.missing)
        cautious = _level_of(filled, rule) if scale.lowest is not None else Summary(0)
    values = mine.sample_means(numbers)
    groups = [mine.groups.get(sample, sample) for sample in values]
    data = _GateData(
        list(values.values()), groups, len(numbers), interval, interval.mean, None, missing, cautious, scale.width
    )
    return _verdict(answers, mine, data, rule)


def _level_of(measure: Measure, rule: GateRule) -> Summary:
    found = measure.summary(rule.confidence, exact=True)
    return widen_for_unseen(found, measure.scale, measure.scale.width, rule.confidence)


def _verdict(answers: SideAnswers, measure: Measure, data: _GateData, rule: GateRule) -> GateVerdict:
    identical = rule.at_least is None and bool(data.values) and not any(data.values)
    outcome: Outcome = "missing"
    if sum(data.missing.values()) <= rule.missing_max and data.interval.mean is not None:
        outcome = "passed" if identical and rule.identical_passes else _outcome(data.interval, rule)
    depends = outcome == "passed" and data.cautious is not None and _outcome(data.cautious, rule) != "passed"
    if depends:
        outcome = "unsure"
    verdict = GateVerdict(
        task=answers.side.task,
        model=answers.side.model,
        scorer=measure.name,
        outcome=outcome,
        passed=outcome == "passed" or (outcome == "unsure" and rule.unsure_passes),
        common=data.answers,
        samples=len(data.values),
        mean=data.mean,
        baseline=data.baseline,
        interval=data.interval,
        bound=rule.bound,
        missing=data.missing,
        samples_needed=_samples_needed(data, rule) if outcome == "unsure" and not depends else None,
        identical=identical,
        depends_on_missing=depends,
        scale=measure.scale,
    )
    return msgspec.structs.replace(verdict, reason=_describe_verdict(verdict, rule))


def _count_samples(each: GateVerdict) -> str:
    samples, groups = counted(each.samples, "sample"), each.interval.groups
    return samples if groups is None else f"{samples} in {counted(groups, 'group')}"


def _describe_verdict(each: GateVerdict, rule: GateRule) -> str:
    """The verdict in a sentence, with the next step."""
    place = f"{each.task}/{each.model} {each.scorer}"
    what = "the mean" if rule.at_least is not None else "the difference to the baseline"
    level = f"{rule.confidence:.12g}"
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
    if each.identical and rule.identical_passes:
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


def _outcome(interval: Summary, rule: GateRule) -> Outcome:
    if interval.low is None or interval.high is None:
        return "unsure"
    if interval.low >= rule.bound - _SLACK:
        return "passed"
    return "worse" if interval.high < rule.bound - _SLACK else "unsure"


def _samples_needed(data: _GateData, rule: GateRule) -> int | None:
    groups, samples = len(set(data.groups)), len(data.values)
    mean = data.interval.mean or 0.0
    away = abs(mean - rule.bound)
    if groups < 2 or away < _SLACK:
        return None
    split = split_variance(data.values, data.groups)
    between, within = split.between, split.within
    if between is None or within is None:  # one value per group: all variance lies between groups
        between, within = samples * (data.interval.standard_error or 0.0) ** 2, 0.0
    needed: float | None = None
    if data.interval.method in ("tango", "exact", "equal", "unseen"):
        width = data.width or 1.0
        needed = _score_samples(samples * (data.interval.standard_error or 0.0) ** 2 / width**2, away / width, rule)
    elif between + within > 0:
        repeats = round(samples / groups)
        needed = samples_needed(Design(between, within, repeats, alpha=1 - rule.confidence), away, POWER)
    return None if needed is None else max(math.ceil(needed * samples / groups), samples + 1)


def _score_samples(variance: float, away: float, rule: GateRule) -> float:
    """How many samples a score interval needs. Without variance it ends about z^2 / n away from the mean; that adds to
    the usual half width: n is the root of `away = (z + power) * sqrt(variance / n) + z^2 / n`.
    """
    z = normal_quantile((1 + rule.confidence) / 2)
    usual = (z + normal_quantile(POWER)) * math.sqrt(variance)
    return float(((usual + math.sqrt(usual**2 + 4 * away * z**2)) / (2 * away)) ** 2)


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


def shortcomings(sides: Mapping[CellName, SideAnswers], required: RequiredScore) -> list[str]:
    """Why the run does not reach the required score, as lines for a person; empty if it does. Missing scores count as
    in `gate`.
    """
    reasons: list[str] = []
    judged = False
    rule = GateRule(confidence=required.confidence, at_least=required.at_least, missing_max=required.failed_max)
    for answers in sides.values():
        nothing = answers.unscored(required.scorer or "-")
        measures = answers.measures().values() if nothing is None else [nothing]
        for measure in measures:
            if required.scorer in ("", measure.scorer) and (measure.numbers() is not None or not measure.values):
                judged |= bool(measure.values)
                reasons += _explain(answers, measure, judge_level(answers, measure, rule), required)
    if not judged:
        reasons.insert(0, "no answer has a score" + (f" of {required.scorer}" if required.scorer else ""))
    return reasons


def _explain(answers: SideAnswers, measure: Measure, verdict: GateVerdict, required: RequiredScore) -> list[str]:
    """Why a measure does not reach the required score."""
    place, lines = f"{verdict.task} / {verdict.model} / {verdict.scorer}", list[str]()
    summary, at_least = verdict.interval, required.at_least
    reached = summary.low if required.certain else summary.mean
    if summary.mean is not None and (reached is None or reached < at_least - _SLACK):
        interval = "no interval"
        if summary.low is not None:
            interval = f"{required.confidence:.0%} interval {format_interval(summary)}"
        requirement = f"{'certainly ' if required.certain else ''}at least {at_least:g}"
        lines.append(
            f"{place}: mean {format_number(summary.mean)}, wanted {requirement} ({interval}, n {count_of(summary)})"
        )
        if summary.high is not None and summary.high >= at_least:
            lines.append(f"  the interval holds {at_least:g}: more samples would tell")
        low = [_key(answers, pair) for pair, value in (measure.numbers() or {}).items() if value < at_least]
        if low:
            lines += [f"  {counted(len(low), 'answer')} below it:", *_named(low)]
    elif _depends_on_missing(measure, verdict, required):
        few = counted(len(measure.missing), "missing score")
        lines.append(f"{place}: reaches {at_least:g}, but perhaps not with the {few}, which count as wrong")
    if len(measure.missing) > required.failed_max:
        missing = [f"{_key(answers, pair)} ({why.replace('_', ' ')})" for pair, why in measure.missing.items()]
        lines += [f"{place}: {counted(len(missing), 'answer')} without a score:", *_named(missing)]
    return lines


def _depends_on_missing(measure: Measure, verdict: GateVerdict, required: RequiredScore) -> bool:
    if required.certain or not measure.missing:
        return verdict.depends_on_missing
    lowest = measure.scale.lowest
    filled = None if lowest is None else measure.fill(lowest, measure.missing).summary().mean
    return filled is None or filled < required.at_least - _SLACK


def _key(answers: SideAnswers, pair: Pair) -> str:
    return str(Key(answers.side.task, answers.side.model, *pair))


def _named(keys: Sequence[str]) -> list[str]:
    more = len(keys) - _KEYS_NAMED
    return [f"    {key}" for key in keys[:_KEYS_NAMED]] + ([f"    … and {more} more"] if more > 0 else [])
