"""Macro means: their definition, and how often the interval holds the truth."""

import math
import random
from collections.abc import Callable

import pytest

from holdfast.stats import BOOL, NUMBER, UNIT, Scale, macro_mean, summarise

Drawn = tuple[list[float], list[int], list[int] | None]
Draw = Callable[[random.Random], Drawn]


def independent(shares: list[float], sizes: list[int]) -> Draw:
    def draw(source: random.Random) -> Drawn:
        pairs = [(float(source.random() < p), at) for at, p in enumerate(shares) for _ in range(sizes[at])]
        return [value for value, _ in pairs], [at for _, at in pairs], None

    return draw


def crossed(strata: int, questions: int, share: float, alike: float) -> Draw:
    """Each question is in every stratum; `alike`: how often a stratum has the question's own outcome."""

    def draw(source: random.Random) -> Drawn:
        values, places, groups = [], [], []
        for question in range(questions):
            own = source.random() < share
            for at in range(strata):
                values.append(float(own if source.random() < alike else source.random() < share))
                places.append(at)
                groups.append(question)
        return values, places, groups

    return draw


def grades(source: random.Random) -> Drawn:
    pairs = [(source.betavariate(2 + at, 2), at) for at, size in enumerate([8, 20, 50]) for _ in range(size)]
    return [value for value, _ in pairs], [at for _, at in pairs], None


def covered(draw: Draw, truth: float, scale: Scale, times: int) -> float:
    source, found = random.Random(7), 0
    for _ in range(times):
        values, strata, groups = draw(source)
        each = macro_mean(values, strata, groups, scale=scale)
        found += each.low is not None and each.high is not None and each.low <= truth <= each.high
    return found / times


SHARES = [0.3, 0.5, 0.7, 0.9, 0.95]
CASES = [
    pytest.param(independent(SHARES, [40, 60, 80, 100, 160]), sum(SHARES) / 5, BOOL, 0.94, 0.97, id="unequal"),
    pytest.param(independent(SHARES, [10, 20, 40, 80, 160]), sum(SHARES) / 5, BOOL, 0.91, 0.97, id="small strata"),
    pytest.param(independent([0.9] * 10, [20] * 10), 0.9, BOOL, 0.94, 0.98, id="many"),
    pytest.param(independent([0.95] * 20, [5] * 20), 0.95, BOOL, 0.94, 0.99, id="tiny"),
    pytest.param(crossed(5, 40, 0.7, 0.6), 0.7, BOOL, 0.94, 0.98, id="crossed"),
    pytest.param(crossed(10, 20, 0.9, 0.8), 0.9, BOOL, 0.94, 0.995, id="crossed, few questions"),
    pytest.param(grades, sum((2 + at) / (4 + at) for at in range(3)) / 3, UNIT, 0.93, 0.97, id="grades"),
]


@pytest.mark.parametrize(("draw", "truth", "scale", "low", "high"), CASES)
def test_intervals_hold_the_truth(draw: Draw, truth: float, scale: Scale, low: float, high: float) -> None:
    assert low - 0.025 <= covered(draw, truth, scale, 300) <= high + 0.02


@pytest.mark.long
@pytest.mark.parametrize(("draw", "truth", "scale", "low", "high"), CASES)
def test_intervals_hold_the_truth_in_many_draws(
    draw: Draw, truth: float, scale: Scale, low: float, high: float
) -> None:
    assert low <= covered(draw, truth, scale, 4000) <= high


def test_equal_questions_in_all_strata_are_worth_one_stratum() -> None:
    values = [1.0, 0.0, 1.0, 1.0, 0.0]
    found = macro_mean(values * 4, [at for at in range(4) for _ in values], [*range(5)] * 4, scale=UNIT)
    alone = summarise(values, scale=UNIT)
    assert (found.mean, found.standard_error) == pytest.approx((alone.mean, alone.standard_error))
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high))


def test_groups_inside_strata_are_clustered_there() -> None:
    values, strata = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], [0, 0, 0, 0, 1, 1]
    found = macro_mean(values, strata, ["a", "a", "b", "b", "c", "d"])
    errors = [summarise([1.0, 0.0], scale=NUMBER).standard_error or 0.0] * 2
    assert found.standard_error == pytest.approx(math.hypot(*errors) / 2)


def test_one_stratum_is_a_mean() -> None:
    values = [0.2, 0.9, 0.4, 0.4]
    found, alone = macro_mean(values, [0] * 4), summarise(values)
    assert (found.mean, found.standard_error, found.low) == pytest.approx((alone.mean, alone.standard_error, alone.low))


@pytest.mark.parametrize("scale", [BOOL, NUMBER])
def test_no_variation_is_no_certainty(scale: Scale) -> None:
    found = macro_mean([1.0] * 10, [0] * 5 + [1] * 5, scale=scale)
    assert found.standard_error == 0.0
    if scale == BOOL:
        assert found.low == pytest.approx(summarise([1.0] * 10, scale=BOOL).low)
    else:
        assert found.low is None


def test_nothing_and_too_little() -> None:
    assert macro_mean([], []).mean is None
    assert macro_mean([1.0, 0.0, 1.0], [0, 0, 1]).standard_error is None
    assert macro_mean([1.0, 0.0], [0, 1], ["a", "a"]).standard_error is None
    assert macro_mean([0.1, 0.1, 0.1, 0.3, 0.3, 0.3], [0, 0, 0, 1, 1, 1]).standard_error == 0.0
