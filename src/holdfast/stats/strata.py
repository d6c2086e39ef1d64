"""A macro mean: the mean of the means of strata, such as subjects, languages or tasks, with its uncertainty.

Each stratum weighs the same, so a value of a stratum with n values weighs 1 / (strata * n).

- Independent strata: the squared standard errors of their means are added; square root, over the number of strata.
- A group in several strata (one question in many languages): the weighted deviations of values from the mean of their
  own stratum are summed within each group, then squared and added, times G/(G-1).
- Interval: Student's t; for right or wrong Wilson's, for as many observations as the variance is worth, at least the
  number of groups of one weight.
"""

import math
from collections.abc import Hashable, Mapping, Sequence

from holdfast.stats.intervals import (
    LEVEL,
    Summary,
    blend_worth,
    cautious_weight,
    cut,
    normal_quantile,
    student_quantile,
    wilson_ends,
)
from holdfast.stats.scales import NUMBER, Scale
from holdfast.stats.values import require_confidence, require_finite, require_groups

_NOISE = 1e-14
"""Relative differences up to this are rounding."""


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
    found = _crossed(by_group) if any(len(each) > 1 for each in by_group.values()) else _independent(by_group)
    if found is None:
        return Summary(len(values), mean)
    variance, freedom = found
    sizes = [math.fsum(weights[stratum] * len(each) for stratum, each in parts.items()) for parts in by_group.values()]
    error, tail = math.sqrt(variance), (1 + confidence) / 2
    if scale.is_bool and 0 <= mean <= 1:
        least = 1 / math.fsum(size * size for size in sizes)  # as many groups of one weight
        ends = wilson_ends(mean, _worth(mean, variance, least, freedom, tail), tail)
        return Summary(len(values), mean, error, *ends, method="wilson")
    if not error:
        return Summary(len(values), mean, error)
    half = student_quantile(freedom, tail) * error
    return Summary(len(values), mean, error, *cut((mean - half, mean + half), scale), method="student")


_Deviations = Mapping[Hashable, Mapping[Hashable, Sequence[float]]]
"""Weighted deviations by group, then by stratum."""


def _crossed(groups: _Deviations) -> tuple[float, int] | None:
    """The variance of a macro mean whose groups are in several strata, and its degrees of freedom."""
    count = len(groups)
    if count < 2:
        return None
    sums = [math.fsum(value for part in parts.values() for value in part) for parts in groups.values()]
    return math.fsum(each * each for each in sums) * count / (count - 1), count - 1


def _independent(groups: _Deviations) -> tuple[float, int] | None:
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


def _worth(mean: float, variance: float, least: float, freedom: int, tail: float) -> float:
    """How many right or wrong answers the macro mean is worth. Without variance: the fewest."""
    if mean in (0.0, 1.0) or variance <= 0:
        return least
    worth = blend_worth(least, mean * (1 - mean) / variance, cautious_weight(least, mean))
    return max(least, worth * (normal_quantile(tail) / student_quantile(freedom, tail)) ** 2)
