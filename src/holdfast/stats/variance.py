"""Where the spread of scores comes from: samples that are harder than others, or answers that differ from repeat to
repeat. And so what would make a result surer: more samples, or more repeats.

One-way random effects, by the analysis of variance: the variance within is the pooled one of repeats about their
sample's mean; the variance between is what the samples' means spread beyond what that explains, not below 0. Samples
may have different numbers of repeats.
"""

import math
from collections.abc import Hashable, Sequence

import msgspec

from holdfast.stats.refusals import require_at_least, require_finite, require_groups


class VarianceSplit(msgspec.Struct, frozen=True):
    """`between` samples and `within` them; None where there is too little to tell, or nothing varies at all."""

    samples: int
    values: int
    mean: float | None = None
    between: float | None = None
    within: float | None = None

    @property
    def between_share(self) -> float | None:
        """Of the variance of one answer: the intraclass correlation, ICC(1)."""
        if self.between is None or self.within is None or self.between + self.within == 0:
            return None
        return self.between / (self.between + self.within)

    def expected_error(self, samples: int, repeats: float) -> float | None:
        """The standard error of the mean of so many samples with so many repeats each; `math.inf` repeats say what no
        number of repeats can better.
        """
        require_at_least(samples, 1, "samples")
        if not repeats >= 1:
            raise ValueError(f"repeats {repeats}: at least 1")
        if self.between is None or self.within is None:
            return None
        return math.sqrt((self.between + self.within / repeats) / samples)


def split_variance(values: Sequence[float], groups: Sequence[Hashable]) -> VarianceSplit:
    """`groups[i]` is the sample of `values[i]`. Without a second sample, or any repeat, they cannot be told apart."""
    require_groups(values, groups)
    require_finite(values)
    members: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        members.setdefault(group, []).append(value)
    n, samples = len(values), len(members)
    if n == 0:
        return VarianceSplit(0, 0)
    mean = math.fsum(values) / n
    if samples < 2 or n == samples or min(values) == max(values):
        return VarianceSplit(samples, n, mean)
    means = {group: math.fsum(each) / len(each) for group, each in members.items()}
    inside = math.fsum((value - means[group]) ** 2 for value, group in zip(values, groups, strict=True)) / (n - samples)
    outside = math.fsum(len(each) * (means[group] - mean) ** 2 for group, each in members.items()) / (samples - 1)
    usual_size = (n - math.fsum(len(each) ** 2 for each in members.values()) / n) / (samples - 1)
    return VarianceSplit(samples, n, mean, max(0.0, (outside - inside) / usual_size), inside)
