"""Reducers over repeats, against all subsets counted one by one."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random

import pytest

from holdfast.stats import (
    at_least,
    cons_at_k,
    maximum,
    mean,
    median,
    mode,
    mode_label,
    pass_at_k,
    pass_power_k,
    reducer,
)

CLOSE = 1e-12
EVERY = ["mean", "median", "mode", "majority", "max", "at_least_1", "pass@1", "pass^1"]


def subsets(values: Sequence[float], k: int) -> list[tuple[float, ...]]:
    return list(itertools.combinations(values, k))


@pytest.mark.parametrize(("n", "right"), [(n, right) for n in range(1, 8) for right in range(n + 1)])
def test_pass_at_k_and_pass_power_k_are_shares_of_subsets(n: int, right: int) -> None:
    values = [1.0] * right + [0.0] * (n - right)
    for k in range(1, n + 1):
        chosen = subsets(values, k)
        assert pass_at_k(values, k) == pytest.approx(sum(map(max, chosen)) / len(chosen), abs=CLOSE)
        assert pass_power_k(values, k) == pytest.approx(sum(map(min, chosen)) / len(chosen), abs=CLOSE)


def test_published_values_of_pass_at_k() -> None:
    """The product form of Chen et al. (2021): 1 - prod(1 - k/i) for i from n-c+1 to n."""
    values = [1] * 13 + [0] * 187
    product = math.prod(1 - 10 / i for i in range(200 - 13 + 1, 201))
    assert pass_at_k(values, 10) == pytest.approx(1 - product, abs=CLOSE)


def votes(answers: Sequence[str], right: set[str], k: int) -> Fraction:
    total, count = Fraction(0), 0
    for chosen in itertools.combinations(answers, k):
        counts = Counter(chosen)
        most = [answer for answer in counts if counts[answer] == max(counts.values())]
        total += Fraction(sum(answer in right for answer in most), len(most))
        count += 1
    return total / count


@pytest.mark.parametrize("seed", range(12))
def test_cons_at_k_is_the_vote_over_all_subsets_ties_shared(seed: int) -> None:
    chance = Random(seed)
    answers = [chance.choice("aabbcdef") for _ in range(chance.randint(3, 9))]
    right = set(chance.sample("abcdef", chance.randint(1, 3)))
    values = [float(answer in right) for answer in answers]
    for k in range(1, len(answers) + 1):
        assert cons_at_k(answers, values, k) == pytest.approx(float(votes(answers, right, k)), abs=CLOSE)


def test_cons_at_one_is_the_mean_and_of_all_repeats_the_vote() -> None:
    answers = [str(index % 97) for index in range(3000)] + ["right"] * 40
    values = [float(answer == "right") for answer in answers]
    assert cons_at_k(answers, values, 1) == pytest.approx(40 / 3040, abs=1e-9)
    assert cons_at_k(answers[-300:], values[-300:], 300) == pytest.approx(1.0, abs=1e-9)


def test_an_answer_scored_both_ways_is_refused() -> None:
    with pytest.raises(ValueError, match="scored right and wrong"):
        cons_at_k(["a", "a"], [1, 0], 1)


def test_a_missing_answer_has_no_vote() -> None:
    assert cons_at_k(["a", None, "b", "a"], [1, 1, None, 1], 2) == pytest.approx(1.0)
    assert cons_at_k(["a", None, "b"], [1, 1, None], 2) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 0, None, 1], (2 / 3, 1.0, 1.0, None)),
        ([0.2, 0.4, math.nan, 0.9, 0.4], (0.475, 0.4, 0.4, None)),
        ([1, 0], (0.5, 0.5, 0.5, 1)),
        ([3, 1, 1, 3, 2], (2.0, 2, 2.0, 3)),
    ],
)
def test_what_is_missing_is_left_out_and_the_best_of_fewer_is_no_maximum(
    values: list[float | None], expected: tuple[float | None, ...]
) -> None:
    found = (mean(values), median(values), mode(values), maximum(values))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("values", [[], [None], [math.nan, None]])
def test_nothing_is_none_and_never_wrong(name: str, values: list[float | None]) -> None:
    assert reducer(name)(values) is None


@pytest.mark.parametrize("name", EVERY)
def test_an_infinite_score_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="infinite"):
        reducer(name)([1.0, math.inf])


def test_a_label_wins_alone_or_not_at_all() -> None:
    assert mode_label(["yes", "no", None, "yes"]) == "yes"
    assert mode_label(["yes", "no"]) is None
    assert mode_label([None]) is None


@pytest.mark.parametrize("values", [[1, 1, None], [1, 0, math.nan], [0, 0, None]])
def test_at_least_says_nothing_if_a_repeat_is_missing(values: list[float | None]) -> None:
    """Also if the others decide: samples whose repeats are few would then be right, or wrong, less often."""
    assert at_least(values, 2) is None


def test_at_least_counts_the_right_ones() -> None:
    assert at_least([1, 1, 0], 2) == 1.0
    assert at_least([1, 0, 0], 2) == 0.0
    assert at_least([1], 2) == 0.0
    assert at_least([1, 0.5], 2, threshold=0.5) == 1.0


@pytest.mark.parametrize("reduce", [maximum, functools.partial(at_least, k=2)])
def test_repeats_that_fail_at_random_do_not_shift_what_is_reported(reduce: Callable[..., float | None]) -> None:
    """Every pattern of right, wrong and missing, weighed by its chance: as without any failure. Before: 0.688 of 0.6"""
    ease, failing = 0.4, 0.3
    chances = {1.0: ease * (1 - failing), 0.0: (1 - ease) * (1 - failing), None: failing}
    patterns = [(each, math.prod(map(chances.__getitem__, each))) for each in itertools.product(chances, repeat=3)]
    whole = [(values, chance) for values, chance in patterns if None not in values]
    known = [(reduce(values), chance) for values, chance in patterns if reduce(values) is not None]
    expected = sum((reduce(values) or 0.0) * chance for values, chance in whole) / sum(chance for _, chance in whole)
    assert sum((value or 0.0) * chance for value, chance in known) / sum(c for _, c in known) == pytest.approx(expected)
    of_three = {maximum: 1 - 0.6**3}.get(reduce, 3 * 0.4**2 * 0.6 + 0.4**3)
    assert expected == pytest.approx(of_three)


def test_too_few_repeats_for_k_have_no_estimate() -> None:
    assert pass_at_k([1, 0], 3) is None
    assert pass_power_k([1, None, 1], 3) is None
    assert cons_at_k(["a", "a"], [1, 1], 3) is None


def test_reducers_are_found_by_name() -> None:
    assert reducer("pass@2")([1, 0, 0]) == pytest.approx(2 / 3)
    assert reducer("pass^2")([1, 1, 0]) == pytest.approx(1 / 3)
    assert reducer("at_least_2")([1, 1, 0]) == 1.0
    assert reducer("pass@1", threshold=0.5)([0.6, 0.4]) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["best", "pass@0", "pass@", "pass@k", "at_least_", "mean3", ""])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match="one of mean, median"):
        reducer(name)


@pytest.mark.parametrize("reduce", [at_least, pass_at_k, pass_power_k])
def test_k_begins_at_one(reduce: object) -> None:
    assert callable(reduce)
    with pytest.raises(ValueError, match="k 0: at least 1"):
        reduce([1.0], 0)


@pytest.mark.parametrize(("right", "wrong", "k"), [(3, 0, 2), (2, 1, 3), (7, 2, 5), (40, 3, 9), (150, 90, 240)])
def test_a_consensus_that_is_certain_is_exactly_so(right: int, wrong: int, k: int) -> None:
    """Or the interval of a share, Wilson's, would be taken for that of a mean."""
    answers, values = ["a"] * right + ["b"] * wrong, [1.0] * right + [0.0] * wrong
    assert cons_at_k(answers, values, k) == 1.0
    assert cons_at_k(answers, [1.0 - value for value in values], k) == 0.0
