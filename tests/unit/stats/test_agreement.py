"""Agreement of judges, against published values, statsmodels, and the definition counted pair by pair."""

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from random import Random

import pytest
from statsmodels.stats.inter_rater import cohens_kappa as their_kappa  # type: ignore[import-untyped]  # no types

from holdfast.stats import cohens_kappa, krippendorff_alpha, percent_agreement
from holdfast.stats.agreement import Level, Weights

CLOSE = 1e-9
Ratings = list[int | None]
PUBLISHED: list[Ratings] = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
]
UNITS = [list(unit) for unit in zip(*PUBLISHED, strict=True)]


@pytest.mark.parametrize(("level", "expected"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_published_alphas(level: Level, expected: float) -> None:
    """Krippendorff (2011), Computing Krippendorff's alpha-reliability: four observers, twelve units."""
    found = krippendorff_alpha(UNITS, level)
    assert found is not None
    assert round(found, 3) == expected


def counted(units: Sequence[Ratings], distance: Callable[[int, int], float]) -> float:
    """The definition: mean disagreement of pairs in units, over that of all pairs of pairable ratings."""
    rated = [[rating for rating in unit if rating is not None] for unit in units]
    rated = [unit for unit in rated if len(unit) > 1]
    everything = [rating for unit in rated for rating in unit]
    n = len(everything)
    observed = (
        sum(sum(distance(a, b) for a, b in itertools.permutations(unit, 2)) / (len(unit) - 1) for unit in rated) / n
    )
    expected = sum(distance(a, b) for a, b in itertools.permutations(everything, 2)) / (n * (n - 1))
    return 1 - observed / expected


def drawn(seed: int) -> list[Ratings]:
    chance = Random(seed)
    return [[chance.choice([1, 2, 3, 7, None]) for _ in range(chance.randint(0, 5))] for _ in range(15)]


@pytest.mark.parametrize("seed", range(5))
def test_alpha_is_its_definition(seed: int) -> None:
    units = drawn(seed)
    pairable = [r for unit in units if len([x for x in unit if x is not None]) > 1 for r in unit if r is not None]

    def ordinal(one: int, two: int) -> float:
        low, high = min(one, two), max(one, two)
        between = sum(low <= rating <= high for rating in pairable)
        return (between - (pairable.count(low) + pairable.count(high)) / 2) ** 2 if low < high else 0.0

    assert krippendorff_alpha(units) == pytest.approx(counted(units, lambda a, b: float(a != b)), abs=CLOSE)
    assert krippendorff_alpha(units, "interval") == pytest.approx(counted(units, lambda a, b: (a - b) ** 2), abs=CLOSE)
    assert krippendorff_alpha(units, "ordinal") == pytest.approx(counted(units, ordinal), abs=CLOSE)


@pytest.mark.parametrize("weights", ["none", "linear", "quadratic"])
@pytest.mark.parametrize("seed", range(3))
def test_kappa_is_statsmodels(weights: Weights, seed: int) -> None:
    chance = Random(seed)
    first = [chance.randint(0, 3) for _ in range(60)]
    second = [value if chance.random() < 0.6 else chance.randint(0, 3) for value in first]
    table = [[sum(pair == (a, b) for pair in zip(first, second, strict=True)) for b in range(4)] for a in range(4)]
    expected = their_kappa(table, wt=None if weights == "none" else weights).kappa
    assert cohens_kappa(first, second, weights) == pytest.approx(expected, abs=CLOSE)


def test_a_published_kappa() -> None:
    """20 yes and 15 no together, 5 and 10 apart: 0.7 observed, 0.5 by chance, kappa 0.4."""
    first = ["yes"] * 25 + ["no"] * 25
    second = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert cohens_kappa(first, second) == pytest.approx(0.4, abs=CLOSE)


def test_categories_give_the_steps_of_weights() -> None:
    first, second = [1, 2, 5, 5], [1, 5, 5, 2]
    near = cohens_kappa(first, second, "linear")
    far = cohens_kappa(first, second, "linear", categories=[1, 2, 3, 4, 5])
    assert near == pytest.approx(1 - 2 * 4 / 14, abs=CLOSE)  # by chance 5 + 3 + 6 steps of 16 pairs
    assert far == pytest.approx(1 - 6 * 4 / 30, abs=CLOSE)  # 9 + 7 + 14
    assert near != far


def test_missing_ratings_are_left_out() -> None:
    assert cohens_kappa(["a", "b", None, "a"], ["a", "b", "b", None]) == 1.0
    assert percent_agreement([["a", None], ["a", "a"], ["a", "b", None]]) == 0.5


def test_percent_agreement_counts_each_unit_once() -> None:
    assert percent_agreement([[1, 1, 1, 1], [1, 2]]) == 0.5
    assert percent_agreement([[1, 1, 2]]) == pytest.approx(1 / 3, abs=CLOSE)


@pytest.mark.parametrize("units", [[], [[]], [[1]], [[1, None], [2]], [[1, 1], [1, 1]]])
def test_where_nothing_could_be_disagreed_on_there_is_no_alpha(units: list[list[Hashable]]) -> None:
    for level in ("nominal", "ordinal", "interval"):
        assert krippendorff_alpha(units, level) is None


def test_where_nothing_could_be_disagreed_on_there_is_no_kappa() -> None:
    assert cohens_kappa([], []) is None
    assert cohens_kappa(["a", "a"], ["a", "a"]) is None
    assert percent_agreement([]) is None
    assert percent_agreement([["a"], []]) is None


def test_nonsense_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="nominal, ordinal or interval"):
        krippendorff_alpha([], "ratio")  # type: ignore[arg-type]  # what a spec might say
    with pytest.raises(ValueError, match="labels agree on the nominal level only"):
        krippendorff_alpha([["a", "b"]], "interval")
    with pytest.raises(ValueError, match="NaN or infinite"):
        krippendorff_alpha([[math.nan, 1.0]], "interval")
    with pytest.raises(ValueError, match="none, linear or quadratic"):
        cohens_kappa([1], [1], "cubic")  # type: ignore[arg-type]  # what a spec might say
    with pytest.raises(ValueError, match="pairs need as many of each"):
        cohens_kappa([1], [])
    with pytest.raises(ValueError, match="none of the categories"):
        cohens_kappa([1], [9], categories=[1, 2])
