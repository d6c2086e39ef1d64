"""Tango's score interval by its definition: search instead of formulas, to check the one in `holdfast.stats`."""

import math

from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from scipy.optimize import brentq, minimize_scalar  # type: ignore[import-untyped]


def tango_interval(gains: int, losses: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The differences of paired shares that a score test does not reject, with Student's quantile."""
    quantile = float(scipy_stats.t.ppf((1 + confidence) / 2, n - 1))
    mean = (gains - losses) / n

    def excess(difference: float) -> float:
        return abs(score(gains, losses, n, difference)) - quantile

    return brentq(excess, -1 + 1e-9, mean - 1e-12), brentq(excess, mean + 1e-12, 1 - 1e-9)


def score(gains: int, losses: int, n: int, difference: float) -> float:
    """The distance to a supposed difference in standard errors, with the most likely share of losses under it."""

    def unlikelihood(share: float) -> float:
        shares, counts = (share + difference, share, 1 - 2 * share - difference), (gains, losses, n - gains - losses)
        if min(shares) < 0:
            return math.inf
        return -sum(count * math.log(max(each, 1e-300)) for count, each in zip(counts, shares, strict=True) if count)

    bounds = (max(0.0, -difference), (1 - difference) / 2)
    share = minimize_scalar(unlikelihood, bounds=bounds, method="bounded", options={"xatol": 1e-14}).x
    ends = min((unlikelihood(each), each) for each in (share, *bounds))
    variance = n * (2 * ends[1] + difference * (1 - difference))
    return (gains - losses - n * difference) / math.sqrt(max(variance, 1e-300))
