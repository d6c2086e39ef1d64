"""A mean, its standard error and its interval.

Groups are independent of each other, values inside a group are not: repeats of one sample share a group, so more
repeats do not make the data set larger. Without groups every value is its own group.

- Standard error: the deviations from the mean are summed within each group, then between groups (the clustered, or
  "sandwich", estimator with the G/(G-1) correction). With one value a group this is the usual s/sqrt(n).
- The interval follows the scale, not the values:
  - Right or wrong: Wilson's score interval. With groups, it is computed for the effective number of observations: what
    the variance between groups is worth, at least the number of groups, because the mean of a group never varies more
    than one answer. Few wrong answers say little about that variance, so it is blended with the cautious end.
  - Other scales: Student's t with G-1 degrees of freedom, cut at the ends of the scale.
  - No variation at all on a scale with two ends: the bound of Markov's inequality. If the true mean were lower than
    v * (alpha/2)^(1/G), where v is the common value, G groups at v or above would be too unlikely. It holds for every
    distribution on the scale. On other scales there is no interval.

Values may have weights: a value of weight w counts like w equal values of one group. If a value is the share of w parts
that are right, the weighted mean is the share of all parts. Its standard error is that of a ratio of sums over groups.

A macro mean is the mean of the means of strata, such as subjects, languages or tasks: each stratum weighs the same, so
a value of a stratum with n values weighs 1 / (strata * n).

- Independent strata: the squared standard errors of their means are added; square root, over the number of strata.
- A group in several strata (one question in many languages): the weighted deviations of values from the mean of their
  own stratum are summed within each group, then squared and added, times G/(G-1).
- Interval: Student's t; for right or wrong Wilson's, for as many observations as the variance is worth.

Invariant: an unknown number is None, never 0. NaN and infinity raise: the caller leaves out answers without a score.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import msgspec

from holdfast.stats.scales import BOOL, NUMBER, Scale
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

_MANY = 1000
"""Degrees of freedom from which on Student's quantile is computed without scipy, to 12 digits."""
_CAUTION = 0.5
"""Weight of the cautious end, in wrong or right answers. Chosen by simulation: the smallest with which intervals of 10
to 200 samples with 2 to 10 repeats hold the truth 94 times in 100 (tests/unit/stats/test_intervals.py)."""

Method = Literal["", "wilson", "exact", "student", "unseen", "equal", "tango", "bootstrap"]
"""How an interval was computed. `unseen`: Student's, widened for large changes that were not seen. `equal`: without
variation, from the ends of the scale. Empty: no interval.
"""


class Summary(msgspec.Struct, frozen=True):
    """`n` values with their mean; uncertainty is None where fewer than two independent observations exist."""

    n: int
    mean: float | None = None
    standard_error: float | None = None
    low: float | None = None
    high: float | None = None
    groups: int | None = None
    """Number of groups, set by the caller if samples share groups (`report.groups.with_groups`)."""
    samples: int | None = None
    """Number of samples, set by the caller if it is not `n`: samples have repeats."""
    method: Method = ""


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
    weight: float = 0.0
    """Of all values; 0 if each weighs 1. The size of a group is then its weight."""

    @property
    def size(self) -> float:
        """Of all groups together."""
        return self.weight or self.n

    def squared_deviations_from(self, mean: float) -> float:
        """The sum of squared deviations of groups from another center."""
        shift = self.center - mean
        if abs(shift) <= _NOISE * abs(mean):
            return self.squares
        return max(self.squares + shift * (2 * self.products + shift * self.sizes), 0.0)


def sum_groups(
    values: Sequence[float], groups: Sequence[Hashable] | None = None, weights: Sequence[float] | None = None
) -> GroupSums:
    """`groups[i]` names the group of `values[i]`; without groups every value is its own group. `weights`: positive; how
    much each value counts, by default 1.
    """
    require_groups(values, groups)
    require_finite(values)
    if not values:
        return GroupSums()
    if weights is not None:
        return _sum_weighted(values, range(len(values)) if groups is None else groups, weights)
    if groups is not None and len(set(groups)) == len(groups):
        groups = None
    total = math.fsum(values)
    if groups is None and set(values) <= {0, 1}:
        return _sum_binary(len(values), round(total))
    center = total / len(values)
    members = [[value] for value in values] if groups is None else group_values(values, groups).values()
    clusters = [(math.fsum(each), len(each)) for each in members]
    deviations = [_deviation(each, size, center) for each, size in clusters]
    return GroupSums(
        n=len(values),
        total=total,
        groups=len(clusters),
        center=center,
        squares=math.fsum(each * each for each in deviations),
        products=math.fsum(each * size for each, (_, size) in zip(deviations, clusters, strict=True)),
        sizes=float(sum(size * size for _, size in clusters)),
    )


def _sum_weighted(values: Sequence[float], groups: Sequence[Hashable], weights: Sequence[float]) -> GroupSums:
    require_groups(values, weights)
    require_finite(weights)
    if min(weights) <= 0:
        raise ValueError(f"a weight is {min(weights)}: it must be above 0")
    products = [weight * value for value, weight in zip(values, weights, strict=True)]
    totals, sizes = group_values(products, groups), group_values(weights, groups)
    total, whole = math.fsum(products), math.fsum(weights)
    clusters = [(math.fsum(totals[group]), math.fsum(sizes[group])) for group in totals]
    deviations = [_deviation(each, size, total / whole) for each, size in clusters]
    return GroupSums(
        n=len(values),
        total=total,
        groups=len(clusters),
        center=total / whole,
        squares=math.fsum(each * each for each in deviations),
        products=math.fsum(each * size for each, (_, size) in zip(deviations, clusters, strict=True)),
        sizes=math.fsum(size * size for _, size in clusters),
        weight=whole,
    )


def _sum_binary(n: int, ones: int) -> GroupSums:
    """The most frequent case, without looking at each value: right or wrong, one answer per sample."""
    center = ones / n
    high, low = 1.0 - center, -center
    squares, products = ones * high * high + (n - ones) * low * low, ones * high + (n - ones) * low
    return GroupSums(n, float(ones), n, center, squares, products, float(n))


def summarise_sums(
    parts: Sequence[GroupSums],
    confidence: float = LEVEL,
    scale: Scale = NUMBER,
    answers: int | None = None,
    exact: bool = False,
) -> Summary:
    """Mean, standard error and interval of all groups together. No group may be in two parts.

    `answers`: how many answers the values are means of, if not one each. `exact`: for right or wrong, Clopper and
    Pearson's interval instead of Wilson's: wider, and never wrong more often than it says.
    """
    require_confidence(confidence)
    parts = [part for part in parts if part.n]
    n, count = sum(part.n for part in parts), sum(part.groups for part in parts)
    if n == 0:
        return Summary(0)
    size = math.fsum(part.size for part in parts)
    mean = math.fsum(part.total for part in parts) / size
    if count < 2:  # one observation shows no variation
        return Summary(n, mean)
    squares = math.fsum(part.squared_deviations_from(mean) for part in parts)
    error = math.sqrt(squares * count / (count - 1)) / size
    tail = 1.0 - (1.0 - confidence) / 2.0
    independent = size * size / math.fsum(part.sizes for part in parts)  # as many groups of one size
    if scale.is_bool and 0 <= mean <= 1:
        worth = _worth_of_groups(mean, squares / (size * size), (independent, float(answers or n)), count - 1, tail)
        low, high = (_clopper_pearson if exact else _wilson)(mean, worth, tail)
        return Summary(n, mean, error, low, high, method="exact" if exact else "wilson")
    if error > 0:
        low, high = cut(_student(mean, error, count - 1, tail), scale)
        return Summary(n, mean, error, low, high, method="student")
    if scale.width is None or scale.lowest is None:
        return Summary(n, mean, error)
    low, high = _bound_of_equal((mean - scale.lowest) / scale.width, independent, tail)
    ends = (scale.lowest + scale.width * low, scale.lowest + scale.width * high)
    return Summary(n, mean, error, *ends, method="equal")


def summarise(
    values: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    confidence: float = LEVEL,
    scale: Scale | None = None,
) -> Summary:
    """Mean, standard error and interval; `groups[i]` names the group of `values[i]`. Without a scale, values that are
    all 0 or 1 are taken for right or wrong.
    """
    if scale is None:
        scale = BOOL if set(values) <= {0, 1} else NUMBER
    return summarise_sums([sum_groups(values, groups)], confidence, scale)


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
    return Summary(n, share, error, *_wilson(share, n, 1.0 - (1.0 - confidence) / 2.0), method="wilson")


def student(values: Sequence[float], groups: Sequence[Hashable] | None = None, confidence: float = LEVEL) -> Summary:
    """A mean with Student's interval, also for values that are all 0 or 1. If all are equal there is no interval."""
    return summarise_sums([sum_groups(values, groups)], confidence)


def paired_difference(
    differences: Sequence[float], groups: Sequence[Hashable] | None = None, confidence: float = LEVEL
) -> Summary:
    """The mean of differences within pairs, with Student's interval. `paired_interval` also handles few changes, and
    right or wrong.
    """
    return student(differences, groups, confidence)


def cut(interval: tuple[float, float], scale: Scale) -> tuple[float, float]:
    """Cut an interval at the ends of the scale."""
    low, high = interval
    return (
        low if scale.lowest is None else max(low, scale.lowest),
        high if scale.highest is None else min(high, scale.highest),
    )


def widen_for_unseen(summary: Summary, scale: Scale, width: float | None, confidence: float = LEVEL) -> Summary:
    """Widen Student's interval, so that it is honest if a few values are far from the others. `scale`: of the mean.
    `width`: the largest possible distance; None if there is none.

    n samples without such a value do not exclude that a share of about z^2 / n of all are that far away, and Student's
    interval knows only what was seen. The widths combine as in a score interval: with `unseen` = width * z^2 / 2n, half
    the width of the interval becomes `unseen + sqrt(half^2 + unseen^2)`. Other intervals stay as they are.
    """
    if summary.method != "student" or width is None or summary.mean is None or summary.standard_error is None:
        return summary
    independent = summary.groups or summary.samples or summary.n
    tail = (1 + confidence) / 2
    unseen = width * normal_quantile(tail) ** 2 / (2 * independent)
    half = unseen + math.hypot(student_quantile(independent - 1, tail) * summary.standard_error, unseen)
    low, high = cut((summary.mean - half, summary.mean + half), scale)
    return msgspec.structs.replace(summary, low=low, high=high, method="unseen")


def normal_quantile(tail: float) -> float:
    return NormalDist().inv_cdf(tail)


def student_quantile(freedom: int, tail: float) -> float:
    if freedom >= _MANY and 0 < tail < 1:
        return _student_quantile_of_many(freedom, normal_quantile(tail))
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy has no types

    return float(stdtrit(freedom, tail))


def _student_quantile_of_many(freedom: int, z: float) -> float:
    """From the normal quantile, by the expansion of Cornish and Fisher (Abramowitz and Stegun 26.7.5). Importing scipy
    would take longer than the rest of the report of a large run.
    """
    square = z * z
    terms = (
        (square + 1) / 4,
        ((5 * square + 16) * square + 3) / 96,
        (((3 * square + 19) * square + 17) * square - 15) / 384,
        ((((79 * square + 776) * square + 1482) * square - 1920) * square - 945) / 92160,
    )
    return z * (1 + math.fsum(term / freedom**power for power, term in enumerate(terms, 1)))


def blend_worth(least: float, estimated: float, caution: float) -> float:
    """How many independent observations some groups are worth: between the cautious `least` and what their variance
    says, which is itself uncertain. `caution`: the weight of `least`, from 0 to 1.
    """
    return least if estimated <= least else 1.0 / (caution / least + (1.0 - caution) / estimated)


def _cautious_weight(least: float, mean: float) -> float:
    """The weight of `least` in `blend_worth` for right or wrong: high with few right or few wrong answers."""
    return _CAUTION / (_CAUTION + least * min(mean, 1 - mean))


def _worth_of_groups(mean: float, variance: float, limits: tuple[float, float], freedom: int, tail: float) -> float:
    """Of answers that are right or wrong. `variance`: of the mean. `limits`: numbers of groups and of answers."""
    least, most = limits
    if mean in (0.0, 1.0) or most <= least * (1 + _NOISE):
        return least
    estimated = min(mean * (1 - mean) / variance, most) if variance > 0 else most
    worth = blend_worth(least, estimated, _cautious_weight(least, mean))
    # Student's quantile instead of the normal one, because the variance is estimated.
    return max(least, worth * (normal_quantile(tail) / student_quantile(freedom, tail)) ** 2)


def _bound_of_equal(share: float, n: float, tail: float) -> tuple[float, float]:
    """The interval of the mean of a value from 0 to 1 that was `share` in all of n observations."""
    factor = (1.0 - tail) ** (1.0 / n)
    return share * factor, 1.0 - (1.0 - share) * factor


def _deviation(total: float, size: float, mean: float) -> float:
    """Without floating-point noise: three times 0.1 does not vary."""
    found = total - size * mean
    return found if abs(found) > _NOISE * abs(total) else 0.0


def _wilson(share: float, n: float, tail: float) -> tuple[float, float]:
    z = normal_quantile(tail)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if share == 0 else centre - half  # exact at the ends, where rounding would show
    high = 1.0 if share == 1 else centre + half
    return low, high


def _clopper_pearson(share: float, n: float, tail: float) -> tuple[float, float]:
    from scipy.special import betaincinv

    right, wrong = share * n, (1 - share) * n
    low = float(betaincinv(right, wrong + 1, 1 - tail)) if right > 0 else 0.0
    high = float(betaincinv(right + 1, wrong, tail)) if wrong > 0 else 1.0
    return low, high


def _student(mean: float, error: float, freedom: int, tail: float) -> tuple[float, float]:
    half = student_quantile(freedom, tail) * error
    return mean - half, mean + half


def macro_mean(
    values: Sequence[float],
    strata: Sequence[Hashable],
    groups: Sequence[Hashable] | None = None,
    confidence: float = LEVEL,
    scale: Scale = NUMBER,
) -> Summary:
    """`strata[i]` and `groups[i]` name the stratum and the group of `values[i]`; without groups every value is its own
    group. No standard error if a stratum has one group only, unless groups cross strata.
    """
    require_confidence(confidence)
    require_finite(values)
    require_groups(values, strata)
    require_groups(values, groups)
    members: dict[Hashable, list[int]] = {}
    for index, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(index)
    if not members:
        return Summary(0)
    names: Sequence[Hashable] = range(len(values)) if groups is None else groups
    means = {stratum: math.fsum(values[i] for i in each) / len(each) for stratum, each in members.items()}
    mean = math.fsum(means.values()) / len(means)
    weights = {stratum: 1 / (len(members) * len(each)) for stratum, each in members.items()}
    by_group: dict[Hashable, dict[Hashable, list[float]]] = {}
    for value, stratum, name in zip(values, strata, names, strict=True):
        deviation = value - means[stratum]
        if abs(deviation) <= _NOISE * abs(value):
            deviation = 0.0
        by_group.setdefault(name, {}).setdefault(stratum, []).append(weights[stratum] * deviation)
    found = (
        _variance_across_strata(by_group)
        if any(len(each) > 1 for each in by_group.values())
        else _variance_within_strata(by_group)
    )
    if found is None:
        return Summary(len(values), mean)
    variance, freedom = found
    sizes = [math.fsum(weights[stratum] * len(each) for stratum, each in parts.items()) for parts in by_group.values()]
    error, tail = math.sqrt(variance), (1 + confidence) / 2
    if scale.is_bool and 0 <= mean <= 1:
        least = 1 / math.fsum(size * size for size in sizes)  # as many groups of one weight
        ends = _wilson(mean, _worth_of_strata(mean, variance, least, freedom, tail), tail)
        return Summary(len(values), mean, error, *ends, method="wilson")
    if not error:
        return Summary(len(values), mean, error)
    half = student_quantile(freedom, tail) * error
    return Summary(len(values), mean, error, *cut((mean - half, mean + half), scale), method="student")


_Deviations = Mapping[Hashable, Mapping[Hashable, Sequence[float]]]
"""Weighted deviations by group, then by stratum."""


def _variance_across_strata(groups: _Deviations) -> tuple[float, int] | None:
    """The variance of a macro mean whose groups are in several strata, and its degrees of freedom."""
    count = len(groups)
    if count < 2:
        return None
    sums = [math.fsum(value for part in parts.values() for value in part) for parts in groups.values()]
    return math.fsum(each * each for each in sums) * count / (count - 1), count - 1


def _variance_within_strata(groups: _Deviations) -> tuple[float, int] | None:
    """The same for groups inside strata: the sum of the variances, with the degrees of freedom of Satterthwaite."""
    squares: dict[Hashable, list[float]] = {}
    for parts in groups.values():
        for stratum, part in parts.items():
            squares.setdefault(stratum, []).append(math.fsum(part) ** 2)
    if any(len(each) < 2 for each in squares.values()):
        return None
    variances = [math.fsum(each) * len(each) / (len(each) - 1) for each in squares.values()]
    total = math.fsum(variances)
    spread = math.fsum(part**2 / (len(each) - 1) for part, each in zip(variances, squares.values(), strict=True))
    return total, max(math.floor(total**2 / spread), 1) if spread > 0 else len(groups) - len(squares)


def _worth_of_strata(mean: float, variance: float, least: float, freedom: int, tail: float) -> float:
    """How many right or wrong answers the macro mean is worth. Without variance: the fewest."""
    if mean in (0.0, 1.0) or variance <= 0:
        return least
    worth = blend_worth(least, mean * (1 - mean) / variance, _cautious_weight(least, mean))
    return max(least, worth * (normal_quantile(tail) / student_quantile(freedom, tail)) ** 2)
