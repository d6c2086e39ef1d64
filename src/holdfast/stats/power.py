"""What an evaluation can find: its power, the smallest difference it can detect, and the samples or repeats it needs.

A design gives the variance of a difference between samples and, within a sample, between repeats (`split_variance`
estimates both from a pilot run). The mean over samples is tested two-sided with Student's t, so
power is a tail of the noncentral t. Paired: the variances are those of differences within pairs, with n - 1 degrees of
freedom. Unpaired: those of one side's scores, n samples a side, 2n - 2 degrees of freedom.

For right or wrong: unpaired, p(1-p) in all; paired, the share of samples on which the sides disagree, less the squared
difference.
"""

import math
from collections.abc import Callable, Hashable, Sequence

import msgspec

from holdfast.stats.values import group_values, require_at_least, require_finite, require_groups

MOST = 10**12
_NORMAL_FROM = 10**6


class Design(msgspec.Struct, frozen=True):
    """The variances of one sample's contribution, and how the mean is tested."""

    between: float
    within: float = 0.0
    repeats: int = 1
    paired: bool = True
    alpha: float = 0.05

    def __post_init__(self) -> None:
        require_at_least(self.repeats, 1, "repeats")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha {self.alpha}: between 0 and 1, for example 0.05")
        if not (self.between >= 0 and self.within >= 0 and 0 < self.between + self.within < math.inf):
            raise ValueError(
                f"variances {self.between} and {self.within}: not negative and not both 0, or any difference is found"
            )

    def standard_error(self, samples: int) -> float:
        sides = 1 if self.paired else 2
        return math.sqrt(sides * (self.between + self.within / self.repeats) / samples)

    def freedom(self, samples: int) -> int:
        return samples - 1 if self.paired else 2 * (samples - 1)


def power_of(design: Design, effect: float, samples: int) -> float:
    """The chance of a significant test if the true difference is `effect`, with `samples` samples (per side)."""
    require_at_least(samples, 2, "samples")
    if not math.isfinite(effect):
        raise ValueError(f"effect {effect}: a finite difference")
    return _power(abs(effect) / design.standard_error(samples), design.freedom(samples), design.alpha)


def detectable_effect(design: Design, samples: int, power: float = 0.8) -> float:
    """The smallest true difference that `samples` samples (per side) detect with this power."""
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # scipy has no types

    require_at_least(samples, 2, "samples")
    _require_power(power, design)
    freedom = design.freedom(samples)

    def missing(away: float) -> float:
        return _power(away, freedom, design.alpha) - power

    most = 1.0
    while missing(most) < 0:
        most *= 2
    return float(brentq(missing, 0.0, most, xtol=1e-13, rtol=1e-13)) * design.standard_error(samples)


def samples_needed(design: Design, effect: float, power: float = 0.8) -> int | None:
    """The fewest samples (per side) that detect a true difference of `effect` with this power; None above 10^12."""
    _require_power(power, design)
    _require_effect(effect)
    return _least(2, lambda samples: power_of(design, effect, samples) >= power)


def repeats_needed(design: Design, effect: float, samples: int, power: float = 0.8) -> int | None:
    """The fewest repeats on a data set of `samples` samples; None if no number of repeats suffices."""
    _require_power(power, design)
    _require_effect(effect)
    if design.between > 0:
        endless = msgspec.structs.replace(design, within=0.0)
        if power_of(endless, effect, samples) <= power:
            return None

    def enough(repeats: int) -> bool:
        return power_of(msgspec.structs.replace(design, repeats=repeats), effect, samples) >= power

    return _least(1, enough)


def _power(away: float, freedom: int, alpha: float) -> float:
    """The power of a two-sided t test. `away`: the true difference in standard errors.

    Integrates the normal power over the distribution of the estimated deviation. That is exact and, unlike scipy's
    noncentral t, also finite in the far tails. Gauss-Legendre on pieces, finer where the power rises from 0 to 1. From
    a million degrees of freedom on the deviation is treated as known (error 1e-6).
    """
    import numpy as np
    from scipy.special import gammaincinv, ndtr, ndtri, stdtrit  # type: ignore[import-untyped]  # scipy has no types

    if freedom >= _NORMAL_FROM:
        bound = float(-ndtri(alpha / 2))
        return float(ndtr(away - bound) + ndtr(-away - bound))
    bound = float(-stdtrit(freedom, alpha / 2))
    first, last = np.sqrt(2 / freedom * gammaincinv(freedom / 2, [1e-18, 1 - 1e-16]))
    ends = np.concatenate([np.linspace(first, last, 25), (away + np.linspace(-9, 9, 25)) / bound])
    ends = np.unique(np.clip(ends, first, last))
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = np.diff(ends)[:, None] / 2
    deviation = ends[:-1, None] + half * (1 + nodes)
    log_density = (freedom - 1) * np.log(deviation) - freedom * (deviation**2 - 1) / 2
    density = np.exp(log_density - log_density.max()) * half * weights
    found = ndtr(away - bound * deviation) + ndtr(-away - bound * deviation)
    return float((density * found).sum() / density.sum())


def _require_power(power: float, design: Design) -> None:
    if not design.alpha < power < 1:
        raise ValueError(f"power {power}: between alpha ({design.alpha}) and 1, for example 0.8")


def _require_effect(effect: float) -> None:
    if not math.isfinite(effect) or effect == 0:
        raise ValueError(f"effect {effect}: a difference other than 0, since none is never found")


def _least(first: int, enough: Callable[[int], bool]) -> int | None:
    """The smallest integer from `first` on that is enough (`enough` is monotonic); None above MOST."""
    high = first
    while not enough(high):
        high *= 2
        if high > MOST:
            return None
    low = max(first, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


class VarianceSplit(msgspec.Struct, frozen=True):
    """Variance `between` samples and `within` them; None with too little data, or if nothing varies."""

    samples: int
    values: int
    mean: float | None = None
    between: float | None = None
    within: float | None = None

    @property
    def between_share(self) -> float | None:
        """The share of an answer's variance that lies between samples: the intraclass correlation, ICC(1)."""
        if self.between is None or self.within is None or self.between + self.within == 0:
            return None
        return self.between / (self.between + self.within)

    def expected_error(self, samples: int, repeats: float) -> float | None:
        """The standard error of the mean over `samples` samples with `repeats` each. `math.inf` repeats give the limit
        that more repeats cannot improve.
        """
        require_at_least(samples, 1, "samples")
        if not repeats >= 1:
            raise ValueError(f"repeats {repeats}: at least 1")
        if self.between is None or self.within is None:
            return None
        return math.sqrt((self.between + self.within / repeats) / samples)


def split_variance(values: Sequence[float], groups: Sequence[Hashable]) -> VarianceSplit:
    """Split the variance. `groups[i]` is the sample of `values[i]`. It needs two samples and at least one repeat."""
    require_groups(values, groups)
    require_finite(values)
    members = group_values(values, groups)
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
