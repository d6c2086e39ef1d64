"""Bootstrap intervals of a mean: its spread over random resamples of the groups.

Groups are drawn with replacement, each with all its values, so repeats of one sample stay together. Seeded, and drawn
in batches: 100,000 values with 10,000 resamples need no more memory than one batch.

- percentile: the quantiles of the resampled means.
- bca: the same with the quantiles moved for bias (how many resampled means lie below the mean, equal ones counted
  half) and for skewness (the acceleration, from the means without each group in turn). Efron (1987).

If all groups are equal, or there is only one, there is no interval: resampling cannot show variation never observed.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]  # scipy has no types

from holdfast.stats.intervals import LEVEL, Summary
from holdfast.stats.units import Counts, Floats, Units, batches, units_of
from holdfast.stats.values import require_at_least, require_confidence

RESAMPLES = 10_000
Method = Literal["percentile", "bca"]


def bootstrap(
    values: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    method: Method = "bca",
    resamples: int = RESAMPLES,
    seed: int = 0,
    confidence: float = LEVEL,
) -> Summary:
    """The mean of all values; its standard error is the spread of the resampled means. For pairs, pass differences."""
    require_confidence(confidence)
    require_at_least(resamples, 2, "resamples")
    if method not in ("percentile", "bca"):
        raise ValueError(f"no bootstrap is called {method!r}: percentile or bca")
    units = units_of(values, groups)
    if units.count == 0:
        return Summary(0)
    if units.count < 2 or not units.vary:
        return Summary(len(values), units.mean)
    means = resampled_means(units, resamples, seed)
    tails = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    if method == "bca":
        tails = bca_tails(tails, means, units.mean, leave_one_out(units))
    low, high = np.quantile(means, tails)
    return Summary(len(values), units.mean, float(means.std(ddof=1)), float(low), float(high))


def graded_f1(
    groups: Mapping[tuple[int, int, int], int], seed: int = 0, confidence: float = LEVEL, resamples: int = RESAMPLES
) -> Summary:
    """The harmonic mean of two shares of correct answers: of all, and of those attempted (SimpleQA).

    `groups`: how many groups have so many correct, incorrect and not attempted answers. Groups are resampled: a draw of
    how often each kind of group occurs is a draw from a multinomial distribution.
    """
    require_confidence(confidence)
    require_at_least(resamples, 2, "resamples")
    kinds = [kind for kind in sorted(groups) if sum(kind) and groups[kind]]
    counts = np.array([groups[kind] for kind in kinds], dtype=np.int64)
    if not kinds:
        return Summary(0)
    # 2 / (1/p + 1/q) with p = correct / answers and q = correct / attempted
    tops = np.array([2.0 * right for right, _, _ in kinds])
    bottoms = np.array([2.0 * (right + wrong) + others for right, wrong, others in kinds])
    answers, count = sum(sum(kind) * groups[kind] for kind in kinds), int(counts.sum())
    value = float((counts @ tops) / (counts @ bottoms))
    if count < 2 or len(set(tops / bottoms)) == 1:
        return Summary(answers, value)
    random, values = np.random.default_rng(seed), np.empty(resamples)
    for first, last in batches(resamples, len(kinds)):
        drawn = random.multinomial(count, counts / count, size=last - first)
        values[first:last] = (drawn @ tops) / (drawn @ bottoms)
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    error, related = float(values.std(ddof=1)), count if count < answers else None
    return Summary(answers, value, error, float(low), float(high), groups=related, method="bootstrap")


def resampled_means(units: Units, resamples: int, seed: int) -> Floats:
    """If many groups are equal (right or wrong), it draws how often each kind occurs: same distribution, much
    faster.
    """
    random = np.random.default_rng(seed)
    kinds, counts = np.unique(np.column_stack([units.totals, units.sizes]), axis=0, return_counts=True)
    means = np.empty(resamples)
    if len(kinds) * 16 < units.count:
        shares = counts / units.count
        for first, last in batches(resamples, len(kinds)):
            drawn = random.multinomial(units.count, shares, size=last - first)
            means[first:last] = (drawn @ kinds[:, 0]) / (drawn @ kinds[:, 1])
        return means
    same_size = bool((units.sizes == units.sizes[0]).all())
    for first, last in batches(resamples, units.count):
        chosen: Counts = random.integers(0, units.count, size=(last - first, units.count))
        sizes = units.count * units.sizes[0] if same_size else units.sizes[chosen].sum(axis=1)
        means[first:last] = units.totals[chosen].sum(axis=1) / sizes
    return means


def leave_one_out(units: Units) -> Floats:
    """The mean without each group in turn."""
    found: Floats = (units.totals.sum() - units.totals) / (units.sizes.sum() - units.sizes)
    return found


def bca_tails(tails: Floats, means: Floats, observed: float, left_out: Floats) -> Floats:
    """The quantiles of the resampled means that BCa uses instead of `tails`."""
    below = ((means < observed).mean() + (means <= observed).mean()) / 2
    bias = ndtri(np.clip(below, 0.5 / len(means), 1 - 0.5 / len(means)))
    away = left_out.mean() - left_out
    acceleration = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    moved = bias + ndtri(tails)
    room = 1 - acceleration * moved
    at_the_end = np.where(moved > 0, 1.0, 0.0)  # too skewed for this confidence: take the outermost resample
    found: Floats = np.where(room > 0, ndtr(bias + moved / np.where(room > 0, room, 1.0)), at_the_end)
    return found
