"""Computes every p-value that Holdfast reports: two-sided tests of whether two sides differ on the same keys.

`report.compare.comparison.paired_test` chooses the test: McNemar for one right-or-wrong answer per sample, otherwise
the permutation test. `compare`, `leaderboard` and the plots get their p-values from there, and `stats.adjustment`
adjusts them. Wilcoxon's test is for callers of `holdfast.stats`.

All tests take differences (second minus first) and groups. A group is one observation, so repeats of one sample count
once. If no difference is nonzero, p is 1: every outcome is as extreme. Without pairs, p is None.

- Permutation: under the null hypothesis the sign of a group's differences is random. The statistic is the mean of all
  differences. Exact for up to a million different outcomes (always for 20 groups, and for thousands of groups that are
  only right or wrong), otherwise sampled: p = (b + 1) / (m + 1), where b of m draws are as extreme.
- McNemar, exact: groups with a gain against groups with a loss, binomial with p = 1/2. A group counts by the sign of
  its mean difference, so with repeats this is the sign test.
- Wilcoxon's signed ranks, of the groups' mean differences: zeros are left out, equal sizes share their mean rank. Exact
  for up to 50 groups, also with ties; above that the normal approximation, corrected for ties, not for continuity.

Differences that agree to 12 digits are equal, so floating-point rounding does not break ties.
"""

import math
from collections.abc import Hashable, Sequence

import msgspec
import numpy as np
from scipy.special import bdtr, gammaln, ndtr  # type: ignore[import-untyped]  # scipy has no types

from holdfast.stats.units import Counts, Floats, batches, units_of
from holdfast.stats.values import require_at_least

RESAMPLES = 10_000
EXACT_OUTCOMES = 1 << 20
EXACT_RANKS = 50
_DIGITS = 12
_SMALLEST = float(np.finfo(float).tiny)
"""A p is never 0. A plain float: numbers of numpy cannot be written as JSON."""


class PairedTest(msgspec.Struct, frozen=True):
    """The result of a test on `n` groups. `exact` is False if p was sampled or approximated."""

    method: str
    n: int
    statistic: float | None
    p: float | None
    exact: bool
    is_bound: bool = False
    """Whether no draw was as extreme, so that p is the smallest that so many draws can show."""


def permutation_test(
    differences: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairedTest:
    """Two-sided sign-flip permutation test. The statistic is the mean of all differences."""
    require_at_least(resamples, 1, "resamples")
    units = units_of(differences, groups)
    if units.count == 0:
        return PairedTest("permutation", 0, None, None, exact=True)
    totals = _rounded(units.totals, differences)
    sizes, counts = np.unique(np.abs(totals[totals != 0]), return_counts=True)
    observed = abs(math.fsum(totals)) - 1e-12 * math.fsum(np.abs(totals))
    exact = float(np.log(counts + 1.0).sum()) <= math.log(EXACT_OUTCOMES) + 1e-9
    if exact:
        sums, chances = _outcomes(sizes, counts)
        as_extreme = np.abs(sums) >= observed
        p = 1.0 if as_extreme.all() else min(1.0, float(chances[as_extreme].sum()))
    else:
        p = (_drawn_as_extreme(sizes, counts, observed, resamples, seed) + 1) / (resamples + 1)
    is_bound = not exact and p <= 1 / (resamples + 1)
    return PairedTest("permutation", units.count, units.mean, max(p, _SMALLEST), exact, is_bound)


def mcnemar_test(differences: Sequence[float], groups: Sequence[Hashable] | None = None) -> PairedTest:
    """McNemar's exact test. The statistic is the smaller of the counts of gains and losses."""
    units = units_of(differences, groups)
    if units.count == 0:
        return PairedTest("mcnemar", 0, None, None, exact=True)
    totals = _rounded(units.totals, differences)
    gains, losses = int((totals > 0).sum()), int((totals < 0).sum())
    fewer = min(gains, losses)
    p = min(1.0, 2 * float(bdtr(fewer, gains + losses, 0.5))) if gains + losses else 1.0
    return PairedTest("mcnemar", units.count, fewer, max(p, _SMALLEST), exact=True)


def wilcoxon_test(differences: Sequence[float], groups: Sequence[Hashable] | None = None) -> PairedTest:
    """Wilcoxon's signed-rank test. The statistic is the smaller of the two rank sums."""
    units = units_of(differences, groups)
    if units.count == 0:
        return PairedTest("wilcoxon", 0, None, None, exact=True)
    means = _rounded(units.totals / units.sizes, differences)
    means = means[means != 0]
    if len(means) == 0:
        return PairedTest("wilcoxon", units.count, 0.0, 1.0, exact=True)
    _, place, ties = np.unique(np.abs(means), return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(ties) - ties + 1)[place]  # twice the mean rank: a whole number
    above, below = int(doubled[means > 0].sum()), int(doubled[means < 0].sum())
    exact = len(means) <= EXACT_RANKS
    p = _exact_rank_p(doubled, min(above, below)) if exact else _normal_rank_p(ties, (above - below) / 4)
    return PairedTest("wilcoxon", units.count, min(above, below) / 2, max(p, _SMALLEST), exact)


def _rounded(values: Floats, differences: Sequence[float]) -> Floats:
    """Remove floating-point noise: 0.3 - 0.1 equals 0.4 - 0.2, and 0.1 + 0.2 - 0.3 is 0."""
    scale = max(map(abs, differences))
    return np.round(values / scale, _DIGITS) * scale if scale > 0 else values


def _outcomes(sizes: Floats, counts: Counts) -> tuple[Floats, Floats]:
    """Every sum that sign flips can give, with its probability. Equal sizes are counted together: binomially."""
    sums, chances = np.zeros(1), np.ones(1)
    for size, count in zip(sizes, counts, strict=True):
        plus = np.arange(count + 1)
        ways = gammaln(count + 1) - gammaln(plus + 1) - gammaln(count - plus + 1)
        sums = (sums[:, None] + size * (2 * plus - count)).ravel()
        chances = (chances[:, None] * np.exp(ways - count * math.log(2))).ravel()
    return sums, chances


def _drawn_as_extreme(sizes: Floats, counts: Counts, observed: float, resamples: int, seed: int) -> int:
    """How many of `resamples` random sign flips give a sum as extreme as the observed one."""
    random = np.random.default_rng(seed)
    alone, several = sizes[counts == 1], counts > 1
    offset = float((sizes * counts).sum())
    found = 0
    for first, last in batches(resamples, len(sizes)):
        rows = last - first
        sums = np.full(rows, -offset)
        if several.any():
            plus = random.binomial(counts[several], 0.5, size=(rows, int(several.sum())))
            sums += 2 * (plus @ sizes[several])
        if len(alone):
            drawn = np.frombuffer(random.bytes(rows * (len(alone) // 8 + 1)), dtype=np.uint8).reshape(rows, -1)
            bits = np.unpackbits(drawn, axis=1, count=len(alone))
            sums += 2 * (bits.astype(float) @ alone)
        found += int((np.abs(sums) >= observed).sum())
    return found


def _exact_rank_p(doubled: Counts, smaller: int) -> float:
    """Count the ways to reach each rank sum (dynamic programming); all sign patterns are equally likely."""
    ways = np.zeros(int(doubled.sum()) + 1)
    ways[0] = 1.0
    for rank in doubled:
        ways[rank:] += ways[:-rank].copy()
    return min(1.0, 2 * float(ways[: smaller + 1].sum()) / 2.0 ** len(doubled))


def _normal_rank_p(ties: Counts, away: float) -> float:
    """The normal approximation, with the variance reduced for ties. `away`: the rank sum minus its expectation."""
    n = float(ties.sum())
    variance = n * (n + 1) * (2 * n + 1) / 24 - float((ties.astype(float) ** 3 - ties).sum()) / 48
    return 2 * float(ndtr(-abs(away) / math.sqrt(variance)))
