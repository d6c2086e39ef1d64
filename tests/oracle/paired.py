"""Comparisons and gates a second time, from the scores of two sides by key: see `formulas`.

The most likely share of losses is found by search instead of by formula, and p by flipping all signs, so this is only
for few samples.
"""

import itertools
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence

import msgspec

from tests.oracle.formulas import Defined, Possible, summary, t_quantile

Scores = Mapping[tuple[str, int], float | None]
"""By sample and repeat, of all planned keys; None is missing."""
_TINY = 1e-13


class Paired(msgspec.Struct, frozen=True):
    """What a comparison should say. Differences are second minus first."""

    difference: Defined
    keys: int
    p: float
    samples: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None
    cautious_p: float | None = None


class Judged(msgspec.Struct, frozen=True):
    outcome: str
    missing: int
    depends: bool


def compared(first: Scores, second: Scores, groups: Mapping[str, Hashable], scale: Possible) -> Paired | None:
    """None without a common key that both have a score of."""
    both = [key for key in first if key in second]
    found = _on(first, second, groups, scale)
    is_missing = any(side[key] is None for side in (first, second) for key in both)
    if found is None or not is_missing:
        return found
    if math.isinf(scale.highest - scale.lowest):  # what is missing could be anything
        return msgspec.structs.replace(found, cautious_p=1.0)
    up = _on(_filled(first, both, scale.highest), _filled(second, both, scale.lowest), groups, scale)
    down = _on(_filled(first, both, scale.lowest), _filled(second, both, scale.highest), groups, scale)
    assert up is not None
    assert down is not None
    low, mean, high = (each.difference.mean or 0.0 for each in (up, found, down))
    cautious = (up if low > 0 else None) if mean > 0 else (down if high < 0 or mean == 0 else None)
    cautious_p = 1.0 if cautious is None else cautious.p
    return msgspec.structs.replace(found, bounds=(low, high), cautious_p=cautious_p)


def judged(
    baseline: Scores,
    run: Scores,
    groups: Mapping[str, Hashable],
    scale: Possible,
    margin: float,
    accepted: int,
) -> Judged:
    """A gate's verdict on a run against a baseline."""
    missing = [key for key in baseline if run.get(key) is None]
    found = _on(baseline, run, groups, scale)
    if found is None or len(missing) > accepted:
        return Judged("missing", len(missing), depends=False)
    width, size = scale.highest - scale.lowest, len({groups.get(sample, sample) for sample in found.samples})
    outcome = _outcome(_widened(found.difference, width, size), margin)
    unknown = [key for key in baseline if baseline[key] is None and run.get(key) is not None]
    if outcome != "passed" or not (missing or unknown):
        return Judged(outcome, len(missing), depends=False)
    if not math.isinf(scale.highest - scale.lowest):
        keys = list(baseline)
        worst = _on(_filled(baseline, keys, scale.highest), _filled(run, keys, scale.lowest), groups, scale)
        assert worst is not None
        size = len({groups.get(sample, sample) for sample in worst.samples})
        if _outcome(_widened(worst.difference, width, size), margin) == "passed":
            return Judged(outcome, len(missing), depends=False)
    return Judged("unsure", len(missing), depends=True)


def _widened(found: Defined, width: float, groups: int) -> Defined:
    """Student's interval with room for a share of z^2 / n that was not seen and changed by the whole width."""
    if found.method != "student" or math.isinf(width) or found.mean is None or found.error is None:
        return found
    unseen = width * statistics.NormalDist().inv_cdf(0.975) ** 2 / groups / 2
    half = unseen + math.sqrt((t_quantile(groups - 1) * found.error) ** 2 + unseen**2)
    return msgspec.structs.replace(found, low=found.mean - half, high=found.mean + half)


def _outcome(found: Defined, margin: float) -> str:
    if found.low is None or found.high is None:
        return "unsure"
    return "passed" if found.low >= -margin - 1e-9 else "worse" if found.high < -margin - 1e-9 else "unsure"


def _filled(scores: Scores, keys: Sequence[tuple[str, int]], value: float) -> Scores:
    return {key: value if (known := scores.get(key)) is None else known for key in keys}


def _on(first: Scores, second: Scores, groups: Mapping[str, Hashable], scale: Possible) -> Paired | None:
    """On the keys that both have."""
    steps: dict[str, list[float]] = {}
    values: set[float] = set()
    for key, before in first.items():
        after = second.get(key)
        if before is not None and after is not None:
            steps.setdefault(key[0], []).append(after - before)
            values |= {before, after}
    if not steps:
        return None
    means = [statistics.fmean(each) for each in steps.values()]
    members = [groups.get(sample, sample) for sample in steps]
    keys = sum(map(len, steps.values()))
    return Paired(interval(means, members, scale, keys), keys, _p_value(means, members), tuple(steps))


def interval(means: Sequence[float], groups: Sequence[Hashable], scale: Possible, keys: int) -> Defined:
    """Of the mean of one difference a sample."""
    width = scale.highest - scale.lowest
    possible = Possible() if math.isinf(width) else Possible(-width, width)
    usual, changed = summary(means, groups, possible), sum(abs(each) > _TINY for each in means)
    if len(set(groups)) < 2:
        return usual
    if not scale.is_bool and 2 * changed >= len(means):
        return usual
    if math.isinf(width):
        return usual if changed >= 10 else msgspec.structs.replace(usual, low=None, high=None, method="")
    n = _worth([each / width for each in means], groups, keys if scale.is_bool else None)
    gains = n * statistics.fmean(max(each, 0.0) for each in means) / width
    losses = n * statistics.fmean(max(-each, 0.0) for each in means) / width
    low, high = (width * end for end in _not_rejected(gains, losses, n, t_quantile(len(set(groups)) - 1)))
    return msgspec.structs.replace(usual, low=low, high=high, method="tango")


def _worth(parts: Sequence[float], groups: Sequence[Hashable], most: int | None) -> float:
    """As many independent pairs, each with a whole gain or loss or none, would give the mean this variance."""
    import numpy

    names = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    place, given, n = numpy.asarray([names[group] for group in groups]), numpy.asarray(parts), len(parts)
    sizes, totals = numpy.bincount(place), numpy.bincount(place, weights=given)
    least = 1 / float(((sizes / n) ** 2).sum())
    variance = float(((totals - sizes * given.mean()) ** 2).sum()) / n**2
    whole = float(numpy.abs(given).mean() - given.mean() ** 2)
    if variance < _TINY or whole < _TINY:
        return least
    variance = min(max(variance, whole / most if most else 0.0), whole / least)
    changes = float((totals**2).sum() ** 2 / (totals**4).sum())
    few = 3 / (3 + changes)
    return whole / (few * whole / least + (1 - few) * variance)


def _not_rejected(gains: float, losses: float, n: float, quantile: float) -> tuple[float, float]:
    """The ends of the differences that a score test does not reject."""
    from scipy.optimize import brentq  # type: ignore[import-untyped]  # scipy has no types

    def away(supposed: float) -> float:
        share = _likely_losses(gains, losses, n, supposed)
        error = math.sqrt(n * max(2 * share + supposed * (1 - supposed), 0.0))
        return (gains - losses - n * supposed) / max(error, 1e-300)

    mean = (gains - losses) / n
    ends = []
    for outside, sign in ((-1.0, 1.0), (1.0, -1.0)):
        if abs(mean - outside) < _TINY or sign * away(outside) <= quantile:
            ends.append(outside)
        else:
            inside = mean + (outside - mean) * 1e-12
            ends.append(float(brentq(lambda at, sign=sign: sign * away(at) - quantile, inside, outside, xtol=1e-14)))
    return ends[0], ends[1]


def _likely_losses(gains: float, losses: float, n: float, supposed: float) -> float:
    """The share of losses that makes the counts most likely, if gains are more by what is supposed."""
    from scipy.optimize import brentq

    ties = n - gains - losses

    def slope(share: float) -> float:
        parts = [(gains, share + supposed, 1), (losses, share, 1), (ties, 1 - 2 * share - supposed, -2)]
        return math.fsum(sign * count / max(each, 1e-300) for count, each, sign in parts if count > _TINY)

    low, high = max(0.0, -supposed), (1 - supposed) / 2
    if high - low < _TINY or slope(low + (high - low) * 1e-14) <= 0:
        return low
    if ties <= _TINY:
        return high
    return float(brentq(slope, low + (high - low) * 1e-14, high - (high - low) * 1e-14, xtol=1e-16))


def _p_value(means: Sequence[float], groups: Sequence[Hashable]) -> float:
    totals: dict[Hashable, float] = {}
    for each, group in zip(means, groups, strict=True):
        totals[group] = totals.get(group, 0.0) + each
    observed = abs(math.fsum(totals.values())) - 1e-9
    flipped = itertools.product((1, -1), repeat=len(totals))
    sums = [abs(math.fsum(sign * each for sign, each in zip(signs, totals.values(), strict=True))) for signs in flipped]
    return statistics.fmean(each >= observed for each in sums)
