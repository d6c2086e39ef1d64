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
_NOISE = 1e-14
"""Relative differences up to this are rounding."""


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


class GroupSums(msgspec.Struct, frozen=True, array_like=True):
    """What a summary needs of some groups: sums over them. The sums of disjoint sets of groups give the same summary as
    all values at once, so a large set can be summed up in parts.

    The squares are of deviations from `center`, the mean of these values, not from 0: large values that differ little
    would lose all digits otherwise.
    """

    n: int = 0
    """How many values."""
    total: float = 0.0
    groups: int = 0
    center: float = 0.0
    squares: float = 0.0
    """The sum of d * d over groups, where d is the sum of the deviations from `center` within a group."""
    products: float = 0.0
    """The sum of d * size."""
    sizes: float = 0.0
    """The sum of size * size."""
    ones: int = 0
    """How many groups have a sum above 0."""
    smallest: int = 0
    largest: int = 0
    """Sizes of groups."""
    agrees: bool = True
    """Whether every group is all 0 or all 1."""
    binary: bool = True
    """Whether every value is 0 or 1."""

    def squares_around(self, mean: float) -> float:
        """The sum of squared deviations of groups from another center."""
        shift = self.center - mean
        if abs(shift) <= _NOISE * abs(mean):
            return self.squares
        return max(self.squares + shift * (2 * self.products + shift * self.sizes), 0.0)


def sum_groups(values: Sequence[float], groups: Sequence[Hashable] | None = None) -> GroupSums:
    """`groups[i]` names the group of `values[i]`; without groups every value is its own group."""
    require_groups(values, groups)
    require_finite(values)
    if not values:
        return GroupSums()
    if groups is not None and len(set(groups)) == len(groups):
        groups = None
    total, binary = math.fsum(values), set(values) <= {0, 1}
    if binary and groups is None:
        return _sum_binary(len(values), round(total))
    center = total / len(values)
    clusters = _clusters(values, groups)
    sizes = [group.size for group in clusters]
    deviations = [_deviation(group, center) for group in clusters]
    return GroupSums(
        n=len(values),
        total=total,
        groups=len(clusters),
        center=center,
        squares=math.fsum(each * each for each in deviations),
        products=math.fsum(each * size for each, size in zip(deviations, sizes, strict=True)),
        sizes=float(sum(size * size for size in sizes)),
        ones=sum(group.total > 0 for group in clusters),
        smallest=min(sizes),
        largest=max(sizes),
        agrees=all(group.agrees for group in clusters),
        binary=binary,
    )


def _sum_binary(n: int, ones: int) -> GroupSums:
    """The most frequent case, without looking at each value: right or wrong, one answer per sample."""
    center = ones / n
    high, low = 1.0 - center, -center
    squares, products = ones * high * high + (n - ones) * low * low, ones * high + (n - ones) * low
    return GroupSums(n, float(ones), n, center, squares, products, float(n), ones, 1, 1)


def summarise_sums(parts: Sequence[GroupSums], confidence: float = LEVEL) -> Summary:
    """Mean, standard error and interval of all groups together. No group may be in two parts."""
    require_confidence(confidence)
    parts = [part for part in parts if part.n]
    n, count = sum(part.n for part in parts), sum(part.groups for part in parts)
    if n == 0:
        return Summary(0)
    mean = math.fsum(part.total for part in parts) / n
    if count < 2:  # one observation shows no variation
        return Summary(n, mean)
    squares = math.fsum(part.squares_around(mean) for part in parts)
    error = math.sqrt(squares * count / (count - 1)) / n
    right = _successes(parts, count)
    tail = 1.0 - (1.0 - confidence) / 2.0
    if right is not None:
        low, high = _wilson(right, count, tail)
    elif error == 0:  # all equal: their variation is unknown
        return Summary(n, mean, error)
    else:
        low, high = _student(mean, error, count - 1, tail)
        if all(part.binary for part in parts):  # a proportion
            low, high = max(low, 0.0), min(high, 1.0)
    return Summary(n, mean, error, low, high)


def summarise(values: Sequence[float], groups: Sequence[Hashable] | None = None, confidence: float = LEVEL) -> Summary:
    """Mean, standard error and interval; `groups[i]` names the group of `values[i]`."""
    return summarise_sums([sum_groups(values, groups)], confidence)


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
    return found if abs(found) > _NOISE * abs(group.total) else 0.0


def _successes(parts: Sequence[GroupSums], count: int) -> int | None:
    """How many groups are all 1, if every group is all 1 or all 0, and they have one size or are all equal; else
    None.
    """
    if not all(part.agrees for part in parts):
        return None
    ones = sum(part.ones for part in parts)
    one_size = min(part.smallest for part in parts) == max(part.largest for part in parts)
    return ones if one_size or ones in (0, count) else None


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
