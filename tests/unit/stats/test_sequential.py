"""Always-valid intervals: against their definitions worked out directly, and against looking after every value."""

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random

import numpy as np
import pytest
from scipy import optimize, stats  # type: ignore[import-untyped]  # scipy has no types

from holdfast.stats import BoundedMean, NormalMixture, Summary, summarise

CLOSE = 1e-9


def after(interval: BoundedMean | NormalMixture, values: Sequence[float]) -> Summary:
    for value in values:
        interval.add(value)
    return interval.summary


def wealth(values: Sequence[float], mean: float, alpha: float) -> Iterator[tuple[float, float]]:
    """What each of the two gamblers against `mean` has after each value, by the published definition."""
    up = down = 0.5
    guesses = [(0.5 + sum(values[: i + 1])) / (i + 2) for i in range(len(values))]
    for index, value in enumerate(values):
        past = zip(values[:index], guesses[:index], strict=True)
        variance = (0.25 + sum((x - guess) ** 2 for x, guess in past)) / (index + 1)
        stake = math.sqrt(2 * math.log(2 / alpha) / (variance * (index + 1) * math.log(index + 2)))
        up *= 1 + min(stake, 0.5 / mean if mean else math.inf) * (value - mean)
        down *= 1 - min(stake, 0.5 / (1 - mean) if mean < 1 else math.inf) * (value - mean)
        yield up, down


@pytest.mark.parametrize("seed", range(3))
def test_the_bounded_interval_is_where_no_gambler_got_rich(seed: int) -> None:
    chance = Random(seed)
    values = [round(chance.betavariate(4, 1), 3) for _ in range(40)]
    found = after(BoundedMean(grid=1000), values)
    means = [index / 1000 for index in range(1001)]
    most = {mean: [max(side) for side in zip(*wealth(values, mean, 0.05), strict=True)] for mean in means}
    assert found.low == pytest.approx(max((mean for mean in means if most[mean][0] >= 20), default=0.0), abs=CLOSE)
    assert found.high == pytest.approx(min((mean for mean in means if most[mean][1] >= 20), default=1.0), abs=CLOSE)
    assert found.mean == pytest.approx(np.mean(values), abs=CLOSE)


def test_other_bounds_only_stretch_the_scale() -> None:
    values = [0.0, 1.0, 1.0, 0.5, 1.0, 0.25] * 10
    plain = after(BoundedMean(), values)
    moved = after(BoundedMean(-1, 1), [2 * value - 1 for value in values])
    assert plain.low is not None
    assert plain.high is not None
    assert (moved.low, moved.high) == pytest.approx((2 * plain.low - 1, 2 * plain.high - 1), abs=CLOSE)


def test_the_interval_never_widens_and_comes_near_the_mean() -> None:
    random = np.random.default_rng(4)
    interval = BoundedMean()
    low, high = 0.0, 1.0
    for value in (random.random(3000) < 0.8).astype(float):
        interval.add(float(value))
        found = interval.summary
        assert found.low is not None
        assert found.high is not None
        assert low <= found.low < found.high <= high
        low, high = found.low, found.high
    assert 0.74 < low < 0.8 < high < 0.86


def test_all_right_leaves_1_possible_and_low_values_not() -> None:
    found = after(BoundedMean(), [1.0] * 200)
    assert found.high == 1.0
    assert found.low is not None
    assert 0.9 < found.low < 1.0


def test_the_mixture_ends_where_its_martingale_reaches_1_over_alpha() -> None:
    values = np.random.default_rng(2).normal(3, 2, 200)
    found = after(NormalMixture(aim=100), values.tolist())
    precision = (-2 * math.log(0.05) + math.log(-2 * math.log(0.05)) + 1) / 100
    deviation = values.std(ddof=1)

    def short_of(mean: float) -> float:
        total = (values - mean).sum() / deviation
        log = precision * total**2 / (2 * (200 * precision + 1)) - math.log(200 * precision + 1) / 2
        return float(log - math.log(1 / 0.05))

    assert found.low == pytest.approx(optimize.brentq(short_of, -10, values.mean(), xtol=1e-12), abs=CLOSE)
    assert found.high == pytest.approx(optimize.brentq(short_of, values.mean(), 20, xtol=1e-12), abs=CLOSE)
    assert found.standard_error == pytest.approx(stats.sem(values), abs=CLOSE)


def test_too_few_or_equal_values_have_no_mixture_interval() -> None:
    assert after(NormalMixture(), []) == Summary(0)
    assert after(NormalMixture(), [1.0, 2.0]) == Summary(2, 1.5)
    assert after(NormalMixture(), [0.5] * 100) == Summary(100, 0.5)
    assert after(BoundedMean(), []) == Summary(0)


def test_nonsense_is_refused_in_one_sentence() -> None:
    for bad in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"outside of the bounds 0\.0 to 1\.0"):
            BoundedMean().add(bad)
    with pytest.raises(ValueError, match="bounds 1 and 0"):
        BoundedMean(1, 0)
    with pytest.raises(ValueError, match="bounds 0 and inf"):
        BoundedMean(0, math.inf)
    with pytest.raises(ValueError, match="confidence 1"):
        BoundedMean(confidence=1)
    with pytest.raises(ValueError, match="value nan: a finite number"):
        NormalMixture().add(math.nan)
    with pytest.raises(ValueError, match="first 1: at least 2"):
        NormalMixture(first=1)


def ever_wrong(make: Callable[[], BoundedMean | NormalMixture], law: str, times: int, length: int) -> int:
    """In how many of so many sequences the interval leaves out the true mean at any moment."""
    random = np.random.default_rng(20261119)
    wrong = 0
    for _ in range(times):
        interval = make()
        values, truth = drawn(law, random, length)
        for value in values:
            interval.add(value)
            found = interval.summary
            if found.low is not None and found.high is not None and not found.low <= truth <= found.high:
                wrong += 1
                break
    return wrong


def drawn(law: str, random: np.random.Generator, length: int) -> tuple[list[float], float]:
    """Values and their true mean."""
    if law == "skewed":
        return random.beta(0.3, 2.7, length).tolist(), 0.1
    if law == "gamma":
        return random.gamma(2.0, size=length).tolist(), 2.0
    truth = {"even": 0.5, "mostly right": 0.95}[law]
    return (random.random(length) < truth).astype(float).tolist(), truth


def bounded() -> BoundedMean:
    return BoundedMean(grid=200)


@pytest.mark.parametrize("law", ["even", "mostly right", "skewed"])
def test_looking_after_every_value_is_rarely_wrong(law: str) -> None:
    assert ever_wrong(bounded, law, 40, 120) <= stats.binom.ppf(1 - 1e-4, 40, 0.05)


@pytest.mark.long
@pytest.mark.parametrize("law", ["even", "mostly right", "skewed"])
def test_looking_after_every_value_is_wrong_at_most_5_times_in_100(law: str) -> None:
    assert ever_wrong(bounded, law, 1000, 600) <= stats.binom.ppf(1 - 1e-4, 1000, 0.05)


@pytest.mark.parametrize(("times", "length"), [(100, 300), pytest.param(2000, 1000, marks=pytest.mark.long)])
def test_the_mixture_is_wrong_at_most_5_times_in_100(times: int, length: int) -> None:
    assert ever_wrong(NormalMixture, "gamma", times, length) <= stats.binom.ppf(1 - 1e-4, times, 0.05)


def test_an_ordinary_interval_looked_at_often_is_wrong_often() -> None:
    """Why all this is needed: Wilson's interval after every tenth value, up to 500."""
    random = np.random.default_rng(7)
    wrong = 0
    for _ in range(60):
        values = (random.random(500) < 0.5).astype(float).tolist()
        looks = (summarise(values[:n]) for n in range(10, 501, 10))
        wrong += any(not (found.low or 0) <= 0.5 <= (found.high or 1) for found in looks)
    assert wrong / 60 > 0.15
