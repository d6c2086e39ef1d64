"""Statistics as docs/statistics.md defines them, a second time: by numpy, scipy and plain counting, without `stats`.

Nothing here is optimised; what is computed must be easy to believe. Formulas are
other ones than those of `stats` where there are two.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.spec.reductions import Reduction

_CLOSE = 1e-9
_UPPER = 0.975
_CHANCES = ("pass_at_k", "pass_power_k", "cons_at_k", "at_least")
_OF_LABELS = ("mode", "majority")
_OF_ALL = ("max", "at_least")
"""No value if a repeat is missing."""


class Defined(msgspec.Struct, frozen=True):
    """What a summary should say."""

    n: int
    mean: float | None = None
    error: float | None = None
    low: float | None = None
    high: float | None = None
    method: str = ""


class Possible(msgspec.Struct, frozen=True):
    """Which values there can be."""

    lowest: float = -math.inf
    highest: float = math.inf
    is_bool: bool = False


ANY = Possible()
RIGHT_OR_WRONG = Possible(0.0, 1.0, is_bool=True)


class Given(msgspec.Struct, frozen=True):
    """One answer to a sample: its score, and what tells it from others."""

    value: Any
    answer: Hashable = None


class Agreed(msgspec.Struct, frozen=True):
    """What an agreement should say."""

    n: int
    share: float | None
    alpha: float | None
    kappa: float | None


def is_number(value: Any) -> bool:
    """To average. A bool is 1 or 0; what is not finite, or whose square is not, is none."""
    return isinstance(value, int | float) and abs(value) <= 1e150


def summary(
    values: Sequence[float], groups: Sequence[Hashable], scale: Possible = ANY, answers: int | None = None
) -> Defined:
    """Mean, standard error and the ends of the interval, values of one group being one observation. `answers`: how many
    the values are means of, if not one each.
    """
    import numpy

    n = len(values)
    if not n:
        return Defined(0)
    place = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    given, names, count = numpy.asarray(values), numpy.asarray([place[group] for group in groups]), len(place)
    mean = math.fsum(values) / n
    if count < 2:
        return Defined(n, mean)
    sizes, sums = numpy.bincount(names), numpy.bincount(names, weights=given)
    variance = float(((sums - sizes * mean) ** 2).sum()) / n**2
    error = math.sqrt(variance * count / (count - 1))
    alike = 1 / float(((sizes / n) ** 2).sum())  # as many groups of one size
    if scale.is_bool and 0 <= mean <= 1:
        worth = _worth(mean, variance, alike, max(answers or n, alike), count - 1)
        return Defined(n, mean, error, *_not_rejected(mean, worth), "wilson")
    if error > _CLOSE * abs(mean):
        half = t_quantile(count - 1) * error
        low, high = float(max(mean - half, scale.lowest)), float(min(mean + half, scale.highest))
        return Defined(n, mean, error, low, high, "student")
    if math.isinf(scale.highest - scale.lowest):
        return Defined(n, mean, 0.0)
    # A value from 0 to the width is at least v in all groups with a chance of at most (mean / v)^groups.
    unseen = math.exp(math.log(1 - _UPPER) / alike)
    low = scale.lowest + (mean - scale.lowest) * unseen
    high = scale.highest - (scale.highest - mean) * unseen
    return Defined(n, mean, 0.0, low, high, "equal")


def macro(
    values: Sequence[float], strata: Sequence[Hashable], groups: Sequence[Hashable]
) -> tuple[float, float | None]:
    """The mean of the means of strata, and its standard error: from the matrix of what each group adds to each mean."""
    import numpy

    rows, columns = list(dict.fromkeys(groups)), list(dict.fromkeys(strata))
    added, sizes = numpy.zeros((len(rows), len(columns))), numpy.zeros((len(rows), len(columns)))
    for value, stratum, group in zip(values, strata, groups, strict=True):
        added[rows.index(group), columns.index(stratum)] += value
        sizes[rows.index(group), columns.index(stratum)] += 1
    means = added.sum(axis=0) / sizes.sum(axis=0)
    away = (added - sizes * means) / sizes.sum(axis=0)
    members = (sizes > 0).sum(axis=0)
    if ((sizes > 0).sum(axis=1) > 1).any():
        error = math.sqrt(float((away.sum(axis=1) ** 2).sum()) * len(rows) / (len(rows) - 1)) if len(rows) > 1 else None
    elif (members < 2).any():
        error = None
    else:
        error = math.sqrt(float(((away**2).sum(axis=0) * members / (members - 1)).sum()))
    return float(means.mean()), None if error is None else error / len(columns)


def _worth(mean: float, variance: float, alike: float, answers: float, freedom: int) -> float:
    """As many independent answers would give a share this variance. It is between that of groups whose answers are all
    alike and that of independent answers; half a wrong (or right) answer's weight is on the first.
    """
    alone = mean * (1 - mean)
    if alone <= 0 or math.isclose(alike, answers, rel_tol=1e-12):
        return alike
    found = min(max(variance, alone / answers), alone / alike)
    few = 0.5 / (0.5 + alike * min(mean, 1 - mean))
    blended = found + few * (alone / alike - found)
    z = statistics.NormalDist().inv_cdf(_UPPER)
    return max(alike, alone / (blended * (t_quantile(freedom) / z) ** 2))


def reduced_summary(
    how: Reduction, values: Sequence[float], groups: Sequence[Hashable], scale: Possible, answers: int
) -> Defined:
    """Of one value a sample; a chance is from 0 to 1 on any scale."""
    return summary(values, groups, reduced_scale(how, scale), answers)


def reduced_scale(how: Reduction, scale: Possible) -> Possible:
    return RIGHT_OR_WRONG if how.name in _CHANCES else scale


def filled(values: Sequence[Sequence[float | None]], scale: Possible) -> tuple[float, float] | None:
    """The mean of the means of samples if all that is missing were the lowest, or the highest. `values`: of each
    sample. Nothing if nothing is missing, or all is, or the scale has no ends.
    """
    every = [value for each in values for value in each]
    if all(value is None for value in every) or None not in every or math.isinf(scale.highest - scale.lowest):
        return None
    low, high = (
        statistics.fmean(statistics.fmean(end if value is None else value for value in each) for each in values)
        for end in (scale.lowest, scale.highest)
    )
    return low, high


def reduced(how: Reduction, given: Sequence[Given], repeats: int) -> float | str | None:
    """What the answers to one sample, of so many repeats that there should be, come to."""
    labels = [each.value for each in given if isinstance(each.value, str)]
    if how.name in _OF_LABELS and labels:
        most = statistics.multimode(labels)
        return most[0] if len(most) == 1 else None
    values = [float(each.value) for each in given if is_number(each.value)]
    n, right = len(values), sum(value >= how.threshold for value in values)
    if how.name == "cons_at_k":
        return _consensus(how, given)
    if how.name == "pass_at_k":
        return None if n < how.k else 1 - math.prod((n - right - i) / (n - i) for i in range(how.k))
    if how.name == "pass_power_k":
        return None if n < how.k else math.prod((right - i) / (n - i) for i in range(how.k))
    if not values or (how.name in _OF_ALL and n < max(repeats, len(given))):
        return None
    if how.name == "at_least":
        return float(right >= how.k)
    if how.name in _OF_LABELS:
        return statistics.fmean(statistics.multimode(values))
    return max(values) if how.name == "max" else float(statistics.median(values))


def agreed(votes: Sequence[Mapping[int, Any]]) -> Agreed:
    """Of several judges, each with what they said of each answer."""
    import numpy

    answers = {answer for each in votes for answer in each}
    rows = [[float(each[o]) for each in votes if is_number(each.get(o))] for o in sorted(answers)]
    units = [unit for unit in rows if len(unit) > 1]
    if not units:
        return Agreed(0, None, None, None)
    pairs = [list(itertools.combinations(unit, 2)) for unit in units]
    share = statistics.fmean(statistics.fmean(one == other for one, other in each) for each in pairs)
    flat = [vote for unit in units for vote in unit]
    _, place, counts = numpy.unique(flat, return_inverse=True, return_counts=True)
    ranks = iter((numpy.cumsum(counts) - (counts - 1) / 2)[place])
    ranked = [[float(next(ranks)) for _ in unit] for unit in units]
    observed = math.fsum(2 * len(unit) * _squares(unit) / (len(unit) - 1) for unit in ranked)
    expected = 2 * len(flat) * _squares([rank for unit in ranked for rank in unit])
    varies = len(set(flat)) > 1
    alpha = 1 - (len(flat) - 1) * observed / expected if varies else None
    return Agreed(len(units), share, alpha, _kappa(units) if len(votes) == 2 else None)


def _not_rejected(share: float, n: float) -> tuple[float, float]:
    """The ends of Wilson's interval: the shares p for which n (share - p)^2 = z^2 p (1 - p)."""
    import numpy

    z = statistics.NormalDist().inv_cdf(_UPPER)
    low, high = sorted(float(root) for root in numpy.roots([n + z**2, -(2 * n * share + z**2), n * share**2]).real)
    return low, high


def t_quantile(freedom: int) -> float:
    """By the distribution of freedom / (freedom + t^2), which is a beta."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]  # scipy has no types

    found = float(betaincinv(freedom / 2, 0.5, 2 * (1 - _UPPER)))
    return math.sqrt(freedom * (1 / found - 1))


def _kappa(units: Sequence[Sequence[float]]) -> float | None:
    n = len(units)
    first, second = Counter(unit[0] for unit in units), Counter(unit[1] for unit in units)
    chance = math.fsum(first[vote] * second[vote] for vote in first) / n**2
    same = sum(unit[0] == unit[1] for unit in units) / n
    return (same - chance) / (1 - chance) if chance < 1 else None


def _squares(values: Sequence[float]) -> float:
    centre = math.fsum(values) / len(values)
    return math.fsum((value - centre) ** 2 for value in values)


def _consensus(how: Reduction, given: Sequence[Given]) -> float | None:
    """None also if an answer is scored both right and wrong."""
    verdicts: dict[Hashable, set[bool]] = {}
    counts: Counter[Hashable] = Counter()
    for each in given:
        if each.answer is not None and is_number(each.value):
            verdicts.setdefault(each.answer, set()).add(each.value >= how.threshold)
            counts[each.answer] += 1
    if counts.total() < how.k or any(len(each) > 1 for each in verdicts.values()):
        return None
    won = Fraction(0)
    for answer, verdict in verdicts.items():
        if True in verdict:
            others = tuple(sorted(count for other, count in counts.items() if other != answer))
            won += _subsets_won(counts[answer], others, how.k)
    return float(won / math.comb(counts.total(), how.k))


@lru_cache(maxsize=4096)  # the samples of a data set have few different patterns of counts
def _subsets_won(own: int, others: tuple[int, ...], k: int) -> Fraction:
    """How many subsets of k an answer given `own` times is the most frequent of; where t others are as frequent, a
    (t + 1)-th of each.
    """
    won = Fraction(0)
    for mine in range(1, min(own, k) + 1):
        ways = {(0, 0): 1}  # drawn of the others, as often as mine
        for count in others:
            after: Counter[tuple[int, int]] = Counter()
            for (drawn, ties), number in ways.items():
                for more in range(min(count, mine, k - mine - drawn) + 1):
                    after[drawn + more, ties + (more == mine)] += number * math.comb(count, more)
            ways = after
        rest = sum(
            (Fraction(number, ties + 1) for (drawn, ties), number in ways.items() if drawn == k - mine), Fraction(0)
        )
        won += math.comb(own, mine) * rest
    return won
