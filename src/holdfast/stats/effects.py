"""How large a difference is, in units that do not depend on the number of samples. Positive: the second is higher.

- `cohens_d`: the difference of means over the pooled standard deviation of both sides. For pairs this is the usual d
  with the average variance: it relates the difference to the spread between samples.
- `cohens_dz`: the mean difference within pairs over the standard deviation of these differences, as in a paired test.
- `cliffs_delta`: how much more often a value of the second side is above one of the first than below, over all pairs.
- `cohens_h`: the difference of two shares on the arcsine scale, where equal steps are equally hard to detect.
- `odds_ratio`: of two separate sides, with Woolf's interval; `paired_odds_ratio`: gains over losses, with the exact
  (Clopper-Pearson) interval.

With groups, repeats of one sample are averaged first. An undefined effect (nothing varies, an empty count) is None.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from statistics import NormalDist

from holdfast.stats.intervals import LEVEL, Summary
from holdfast.stats.values import (
    group_values,
    require_at_least,
    require_confidence,
    require_finite,
    require_groups,
    require_pairs,
    require_probability,
)


def cohens_d(first: Sequence[float], second: Sequence[float], groups: Sequence[Hashable] | None = None) -> float | None:
    """With groups both sides are pairs: `first[i]` and `second[i]` are in `groups[i]`."""
    if groups is not None:
        require_pairs(first, second)
    one, two = _averaged(first, groups), _averaged(second, groups)
    freedom = len(one) + len(two) - 2
    if len(one) < 2 or len(two) < 2:
        return None
    return _ratio(_mean(two) - _mean(one), math.sqrt((_squares(one) + _squares(two)) / freedom), [*one, *two])


def cohens_dz(differences: Sequence[float], groups: Sequence[Hashable] | None = None) -> float | None:
    found = _averaged(differences, groups)
    if len(found) < 2:
        return None
    return _ratio(_mean(found), math.sqrt(_squares(found) / (len(found) - 1)), found)


def cliffs_delta(first: Sequence[float], second: Sequence[float]) -> float | None:
    require_finite(first)
    require_finite(second)
    if not first or not second:
        return None
    ordered = sorted(first)
    more = sum(bisect_left(ordered, value) - (len(ordered) - bisect_right(ordered, value)) for value in second)
    return more / (len(first) * len(second))


def cohens_h(first: float, second: float) -> float:
    require_probability(first, "share")
    require_probability(second, "share")
    return 2 * math.asin(math.sqrt(second)) - 2 * math.asin(math.sqrt(first))


def odds_ratio(first: tuple[int, int], second: tuple[int, int], confidence: float = LEVEL) -> Summary:
    """Each side as (right, wrong). With a count of 0 there is no ratio. The standard error is that of the log ratio."""
    require_confidence(confidence)
    counts = (*first, *second)
    for count in counts:
        require_at_least(count, 0, "a count of")
    if 0 in counts:
        return Summary(sum(counts))
    log = math.log(second[0] * first[1] / (second[1] * first[0]))
    error = math.sqrt(sum(1 / count for count in counts))
    half = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return Summary(sum(counts), math.exp(log), error, math.exp(log - half), math.exp(log + half))


def paired_odds_ratio(gains: int, losses: int, confidence: float = LEVEL) -> Summary:
    """Of pairs with one right and one wrong. Without losses there is only a lower bound, without gains an upper one."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]  # scipy has no types

    require_confidence(confidence)
    require_at_least(gains, 0, "gains")
    require_at_least(losses, 0, "losses")
    tail = (1 - confidence) / 2
    low = high = None
    if gains:
        share = float(betaincinv(gains, losses + 1, tail))
        low = share / (1 - share)
    if losses:
        share = float(betaincinv(gains + 1, losses, 1 - tail))
        high = share / (1 - share)
    ratio = gains / losses if losses else None
    error = math.sqrt(1 / gains + 1 / losses) if gains and losses else None
    return Summary(gains + losses, ratio, error, low, high)


def _averaged(values: Sequence[float], groups: Sequence[Hashable] | None) -> list[float]:
    require_groups(values, groups)
    require_finite(values)
    if groups is None or len(set(groups)) == len(groups):
        return list(values)
    return [_mean(each) for each in group_values(values, groups).values()]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    centre = _mean(values)
    return math.fsum((value - centre) ** 2 for value in values)


def _ratio(difference: float, deviation: float, values: Sequence[float]) -> float | None:
    """None where the values do not vary beyond the rounding of floats."""
    return difference / deviation if deviation > 1e-14 * max(map(abs, values)) else None
