"""A mean, its standard error and its 95% interval.

Groups are independent of each other, values inside a group are not: repeats of one sample share a group, so more
repeats do not make the data set larger. Without groups every value is its own group.

- Standard error: the deviations from the mean are summed within each group, then between groups (the clustered, or
  "sandwich", estimator with the G/(G-1) correction). With one value a group this is the usual s/sqrt(n).
- Interval: Wilson's score interval if every observation is 0 or 1, else Student's t with G-1 degrees of freedom. A
  group of repeats counts as one observation of 0 or 1 if all groups are of one size and agree within themselves: a
  deterministic model with five repeats gets the interval of one repeat, and five times right is not certainty.
  If all groups have the same mean and are not right or wrong, their variation is unknown: no interval.

Invariant: an unknown number is None, never 0. NaN and infinity raise: the caller leaves out answers without a score.
"""

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import msgspec

from holdfast.stats.values import (
    group_values,
    require_at_least,
    require_confidence,
    require_finite,
    require_groups,
)

LEVEL = 0.95


class Summary(msgspec.Struct, frozen=True):
    """`n` values with their mean; uncertainty is None where fewer than two independent observations exist."""

    n: int
    mean: float | None = None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    groups: int | None = None
    """Number of groups, set by the caller if samples share groups (`report.groups.with_groups`)."""


class _Group(msgspec.Struct, gc=False):
    """One group: how many values, their sum, and whether they are all 0 or all 1."""

    size: int
    total: float
    agrees: bool


def summarise(values: Sequence[float], groups: Sequence[Hashable] | None = None, confidence: float = LEVEL) -> Summary:
    """Mean, standard error and interval; `groups[i]` names the group of `values[i]`."""
    require_confidence(confidence)
    require_groups(values, groups)
    require_finite(values)
    n = len(values)
    if n == 0:
        return Summary(0)
    mean = math.fsum(values) / n
    clusters = _clusters(values, groups)
    if len(clusters) < 2:  # one observation shows no variation
        return Summary(n, mean)
    count = len(clusters)
    squares = math.fsum(_deviation(group, mean) ** 2 for group in clusters)
    error = math.sqrt(squares * count / (count - 1)) / n
    right = _successes(clusters)
    tail = 1.0 - (1.0 - confidence) / 2.0
    if right is not None:
        low, high = _wilson(right, count, tail)
    elif error == 0:  # all equal: their variation is unknown
        return Summary(n, mean, error)
    else:
        low, high = _student(mean, error, count - 1, tail)
        if all(value in (0, 1) for value in values):  # a proportion
            low, high = max(low, 0.0), min(high, 1.0)
    return Summary(n, mean, error, low, high)


def wilson(successes: int, n: int, confidence: float = LEVEL) -> Summary:
    """A share of counted successes with Wilson's interval, also for a single observation."""
    require_confidence(confidence)
    require_at_least(n, 0, "n")
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: from 0 to {n}")
    if n == 0:
        return Summary(0)
    share = successes / n
    error = math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else None
    return Summary(n, share, error, *_wilson(successes, n, 1.0 - (1.0 - confidence) / 2.0))


def student(values: Sequence[float], groups: Sequence[Hashable] | None = None, confidence: float = LEVEL) -> Summary:
    """A mean with Student's interval, also for values that are all 0 or 1. If all are equal there is no interval."""
    summary = summarise(values, groups, confidence)
    if summary.mean is None or not summary.standard_error:
        return msgspec.structs.replace(summary, low=None, high=None)
    independent = len(values) if groups is None else len(set(groups))
    tail = 1.0 - (1.0 - confidence) / 2.0
    low, high = _student(summary.mean, summary.standard_error, independent - 1, tail)
    return msgspec.structs.replace(summary, low=low, high=high)


def paired_difference(
    differences: Sequence[float], groups: Sequence[Hashable] | None = None, confidence: float = LEVEL
) -> Summary:
    """The mean of differences within pairs, with Student's interval. Never Wilson's, even if all differences are 0 or
    1: a mean difference can be negative.
    """
    return student(differences, groups, confidence)


def _clusters(values: Sequence[float], groups: Sequence[Hashable] | None) -> list[_Group]:
    if groups is None:
        return [_Group(1, value, value in (0, 1)) for value in values]
    members = group_values(values, groups).values()
    return [_Group(len(each), math.fsum(each), set(each) in ({0}, {1})) for each in members]


def _deviation(group: _Group, mean: float) -> float:
    """Without floating-point noise: three times 0.1 does not vary."""
    found = group.total - group.size * mean
    return found if abs(found) > 1e-14 * abs(group.total) else 0.0


def _successes(clusters: Sequence[_Group]) -> int | None:
    """How many groups are all 1, if every group is all 1 or all 0, and they have one size or are all equal; else
    None.
    """
    if not all(group.agrees for group in clusters):
        return None
    ones = sum(group.total > 0 for group in clusters)
    one_size = all(group.size == clusters[0].size for group in clusters)
    return ones if one_size or ones in (0, len(clusters)) else None


def _wilson(successes: int, n: int, tail: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(tail)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half  # exact at the ends, where rounding would show
    high = 1.0 if successes == n else centre + half
    return low, high


def _student(mean: float, error: float, freedom: int, tail: float) -> tuple[float, float]:
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy has no types

    half = float(stdtrit(freedom, tail)) * error
    return mean - half, mean + half
