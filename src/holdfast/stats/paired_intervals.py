"""The interval of a mean difference between two sides on the same samples.

Zero variance is not certainty: if 20 of 20 pairs are tied, a loss in 5 % of all samples may still have gone unseen. So
differences that are right-or-wrong, or mostly ties, get a score interval instead of Student's. It is the set of true
differences that the data do not reject, with the variance that each of them implies:

- One right-or-wrong answer a sample: Tango's interval (1998) for paired proportions.
- Repeats, samples in groups, or grades on a scale with two ends: gains and losses count as parts of the
  largest possible change. Changes of that size would vary most, so n samples are worth at least n such pairs; the
  observed variance says how many more. A variance that rests on few changes is hardly known, so it is blended with the
  cautious end (see `_worth`).
- Most samples differ, and not by right or wrong: Student's interval, cut at the largest possible change.
- All differences are equal: the bound of Markov's inequality on the scale of differences (see `intervals`).
- No ends of the scale, and fewer than ten changes: no interval.

Tango (1998), Equivalence test and confidence interval for the difference in proportions for the paired-sample design,
Statistics in Medicine 17: 891-908.
"""

import math
from collections.abc import Hashable, Iterator, Sequence

import msgspec

from holdfast.stats.intervals import (
    LEVEL,
    Summary,
    blend_worth,
    student_quantile,
    sum_groups,
    summarise_sums,
)
from holdfast.stats.scales import NUMBER, Scale
from holdfast.stats.values import group_values, require_confidence

_ENOUGH = 10
"""Changes from which a variance is taken as known without the ends of a scale."""
_CAUTION = 3.0
"""Weight of the cautious end, in changes. Chosen by simulation: with less, rare large losses beside frequent small ones
pass a gate too often (tests/unit/stats/test_paired_intervals.py)."""
_STEPS = 80


def paired_interval(
    differences: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    confidence: float = LEVEL,
    scale: Scale = NUMBER,
    answers: int | None = None,
) -> Summary:
    """The mean of one difference per sample, with an interval that is honest for few changes. `scale`: of both sides.
    `answers`: the pairs of answers behind the differences, if samples have repeats.
    """
    require_confidence(confidence)
    sums = sum_groups(differences, groups)
    width = scale.width
    span = NUMBER if width is None else Scale("range", -width, width)
    usual = summarise_sums([sums], confidence, span)
    if usual.mean is None or sums.groups < 2:
        return usual
    changed = sum(each != 0 for each in differences)
    mostly_tied = 2 * changed < len(differences)
    if not scale.is_bool and not mostly_tied:
        return usual
    if width is None:
        return usual if changed >= _ENOUGH else msgspec.structs.replace(usual, low=None, high=None, method="")
    tail = 1.0 - (1.0 - confidence) / 2.0
    parts = [each / width for each in differences]
    most = (answers or sums.n) if scale.is_bool else None
    if sums.groups == sums.n == most:  # one answer per sample: the samples are worth what they are
        worth = float(sums.n)
    else:
        is_grouped = groups is not None and sums.groups < sums.n
        members = group_values(parts, groups or ()).values() if is_grouped else [[each] for each in parts]
        worth = _worth(list(members), most)
    each = worth / sums.n
    gains, losses = each * math.fsum(max(d, 0) for d in parts), each * math.fsum(max(-d, 0) for d in parts)
    quantile = student_quantile(sums.groups - 1, tail)
    low, high = (width * end for end in _tango(gains, losses, worth, quantile))
    return msgspec.structs.replace(usual, low=low, high=high, method="tango")


def _worth(members: Sequence[Sequence[float]], most: int | None) -> float:
    """How many independent pairs with changes of the full size some groups are worth, at most `most`. `members`: the
    differences in each group, as parts of the full size.
    """
    totals, sizes = [math.fsum(each) for each in members], [len(each) for each in members]
    n = sum(sizes)
    mean = math.fsum(totals) / n
    least = n * n / sum(size * size for size in sizes)
    # The variances of the mean: as it is, and of independent changes of the full size.
    variance = math.fsum((each - size * mean) ** 2 for each, size in zip(totals, sizes, strict=True)) / (n * n)
    full = math.fsum(abs(each) for several in members for each in several) / n - mean * mean
    estimated = full / variance if variance > 0 else least
    # How many changes the variance rests on: one large change among many small ones counts as little more than one.
    fourth = math.fsum(each**4 for each in totals)
    resting_on = math.fsum(each * each for each in totals) ** 2 / fourth if fourth > 0 else 0.0
    return blend_worth(least, min(estimated, most or math.inf), _CAUTION / (_CAUTION + resting_on))


def _tango(gains: float, losses: float, n: float, quantile: float) -> Iterator[float]:
    """The lower and the upper end, by bisection: the score falls as the supposed difference rises."""
    for outside in (-1.0, 1.0):
        inside = (gains - losses) / n
        for _ in range(_STEPS):
            middle = (inside + outside) / 2
            if abs(_score(gains, losses, n, middle)) <= quantile:
                inside = middle
            else:
                outside = middle
        yield inside


def _score(gains: float, losses: float, n: float, difference: float) -> float:
    """How far the data are from a supposed true difference, in standard errors under it.

    The share of losses is the one that is most likely under the supposed difference: the root of a quadratic equation.
    """
    linear = (2 * n - gains + losses) * difference - gains - losses
    constant = -losses * difference * (1 - difference)
    share = (math.sqrt(max(linear * linear - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance = n * (2 * share + difference * (1 - difference))
    distance = gains - losses - n * difference
    return (
        distance / math.sqrt(variance) if variance > 1e-12 else math.copysign(math.inf, distance) if distance else 0.0
    )
