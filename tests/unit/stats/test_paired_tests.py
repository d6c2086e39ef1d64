"""Tests of differences within pairs, against scipy and statsmodels, and against how often they are wrong."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from statsmodels.stats.contingency_tables import mcnemar  # type: ignore[import-untyped]  # no types

from holdfast.stats import PairedTest, mcnemar_test, pair_up, permutation_test, wilcoxon_test
from holdfast.stats import paired_tests as module

CLOSE = 1e-9
TESTS: list[Callable[..., PairedTest]] = [permutation_test, mcnemar_test, wilcoxon_test]


def flipped(values: np.ndarray) -> float:
    """scipy's p of the mean under every flip of signs."""
    found = scipy_stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided", axis=-1
    )
    return float(found.pvalue)


@pytest.mark.parametrize("seed", range(6))
def test_exact_permutation_is_scipys(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.4, 1, size=10)
    found = permutation_test(values.tolist())
    assert found.exact
    assert found.statistic == pytest.approx(values.mean(), abs=CLOSE)
    assert found.p == pytest.approx(flipped(values), abs=CLOSE)


@pytest.mark.parametrize("seed", range(6))
def test_exact_permutation_with_ties_and_zeros_is_scipys(seed: int) -> None:
    values = np.random.default_rng(seed).choice([-0.5, 0.0, 0.25, 0.5, 0.75], size=11)
    assert permutation_test(values.tolist()).p == pytest.approx(flipped(values), abs=CLOSE)


def test_a_permutation_of_right_and_wrong_is_mcnemars_test_however_many_there_are() -> None:
    differences = [1.0] * 2100 + [-1.0] * 1990 + [0.0] * 9000
    one, other = permutation_test(differences), mcnemar_test(differences)
    assert one.exact
    assert one.p == pytest.approx(other.p, abs=CLOSE)


@pytest.mark.parametrize("rounded", [False, True])
def test_drawn_permutations_are_near_the_exact_ones(rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within five standard errors of a share of 20,000 draws; with values that are alike and that are not."""
    values = np.random.default_rng(8).normal(0.45, 1, size=18)
    values = np.round(values, 1) if rounded else values
    exact = permutation_test(values.tolist())
    monkeypatch.setattr(module, "EXACT_OUTCOMES", 1)
    drawn = permutation_test(values.tolist(), resamples=20_000, seed=2)
    assert (exact.exact, drawn.exact) == (True, False)
    assert exact.p is not None
    assert drawn.p == pytest.approx(exact.p, abs=5 * np.sqrt(exact.p * (1 - exact.p) / 20_000))


def test_a_drawn_p_is_never_zero() -> None:
    values = np.random.default_rng(1).normal(5, 1, size=60).tolist()
    found = permutation_test(values, resamples=999)
    assert (found.p, found.exact) == (1 / 1000, False)


@pytest.mark.parametrize(("gains", "losses"), [(0, 1), (3, 9), (10, 10), (25, 11), (0, 12)])
def test_mcnemar_is_statsmodels(gains: int, losses: int) -> None:
    found = mcnemar_test([1.0] * gains + [-1.0] * losses + [0.0] * 7)
    expected = mcnemar([[4, gains], [losses, 3]], exact=True)
    assert found.p == pytest.approx(expected.pvalue, abs=CLOSE)
    assert found.statistic == expected.statistic


@pytest.mark.parametrize("n", [1, 2, 7, 25, 50])
def test_exact_ranks_are_scipys(n: int) -> None:
    values = np.random.default_rng(n).normal(0.3, 1, size=n)
    found, expected = wilcoxon_test(values.tolist()), scipy_stats.wilcoxon(values, method="exact")
    assert found.exact
    assert found.p == pytest.approx(expected.pvalue, abs=CLOSE)
    assert found.statistic == pytest.approx(expected.statistic, abs=CLOSE)


@pytest.mark.parametrize("seed", range(3))
def test_exact_ranks_with_ties_and_zeros_are_scipys_permutation(seed: int) -> None:
    values = np.random.default_rng(seed).choice([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0], size=8)
    found, expected = wilcoxon_test(values.tolist()), scipy_stats.wilcoxon(values)
    assert found.p == pytest.approx(expected.pvalue, abs=CLOSE)
    assert found.statistic == pytest.approx(expected.statistic, abs=CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_many_ranks_are_scipys_normal_approximation(seed: int) -> None:
    values = np.round(np.random.default_rng(seed).normal(0.1, 1, size=200), 1)
    found = wilcoxon_test(values.tolist())
    expected = scipy_stats.wilcoxon(values, zero_method="wilcox", correction=False, method="asymptotic")
    assert not found.exact
    assert found.p == pytest.approx(expected.pvalue, abs=CLOSE)
    assert found.statistic == pytest.approx(expected.statistic, abs=CLOSE)


@pytest.mark.parametrize("test", TESTS)
def test_repeats_of_a_sample_are_one_observation(test: Callable[..., PairedTest]) -> None:
    once = [1.0, 0.5, -0.5, 1.0, 0.0, 0.25, 1.0]
    often = [value for value in once for _ in range(5)]
    groups = [index for index in range(7) for _ in range(5)]
    one, many = test(once), test(often, groups)
    assert many.n == one.n == 7
    assert many.p == pytest.approx(one.p, abs=CLOSE)


@pytest.mark.parametrize("test", TESTS)
def test_no_pair_has_no_p_and_no_difference_has_p_1(test: Callable[..., PairedTest]) -> None:
    assert test([]).p is None
    assert test([0.0] * 8).p == 1.0
    assert test([0.5]).p == 1.0
    assert test([0.1, 0.2, -0.3] * 2, ["a", "a", "a", "b", "b", "b"]).p == 1.0


@pytest.mark.parametrize("test", TESTS)
def test_one_that_always_wins_has_the_smallest_p_there_is(test: Callable[..., PairedTest]) -> None:
    assert test([1.0] * 10).p == pytest.approx(2 / 2**10, abs=CLOSE)
    p = test([1.0] * 3000).p
    assert p is not None
    assert 0 < p < 1e-300
    assert type(p) is float, "numbers of numpy cannot be written as JSON"


@pytest.mark.parametrize("test", TESTS)
def test_the_noise_of_floats_makes_no_winner(test: Callable[..., PairedTest]) -> None:
    assert test([0.3 - 0.1, 0.2 - 0.4] * 4).p == 1.0


@pytest.mark.parametrize("test", TESTS)
def test_nan_is_refused(test: Callable[..., PairedTest]) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        test([1.0, float("nan")])


def test_pairs_are_the_common_keys() -> None:
    first = {("a", 0): 1.0, ("a", 1): 0.0, ("b", 0): None, ("c", 0): 1.0, ("d", 0): float("nan")}
    second = {("a", 1): 1.0, ("a", 0): 1.0, ("b", 0): 1.0, ("e", 0): 0.0, ("f", 0): 1.0}
    pairs = pair_up(first, second, group_of=lambda key: key[0])
    assert (pairs.first, pairs.second, pairs.groups) == ([1.0, 0.0], [1.0, 1.0], ["a", "a"])
    assert (pairs.differences, pairs.only_first, pairs.only_second) == ([0.0, 1.0], 1, 3)


def test_memory_is_that_of_a_batch_however_many_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two million numbers would be 16 MB and more."""
    monkeypatch.setattr("holdfast.stats.units.CHUNK", 100_000)
    values = np.random.default_rng(0).normal(size=10_000).tolist()
    tracemalloc.start()
    permutation_test(values, resamples=200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


def false_findings(test: Callable[..., PairedTest], times: int) -> int:
    """No difference, three repeats of 40 samples that hang together: how often p is at most 0.05."""
    random = np.random.default_rng(20261117)
    groups = (np.arange(120) // 3).tolist()
    found = 0
    for _ in range(times):
        differences = (random.normal(size=(40, 1)) + random.normal(size=(40, 3))).ravel()
        p = test(differences.tolist(), groups).p
        found += p is not None and p <= 0.05
    return found


@pytest.mark.parametrize("test", [mcnemar_test, wilcoxon_test])
def test_groups_keep_false_findings_rare(test: Callable[..., PairedTest]) -> None:
    assert false_findings(test, 300) <= scipy_stats.binom.ppf(1 - 1e-4, 300, 0.05)


@pytest.mark.long
@pytest.mark.parametrize("test", TESTS)
def test_false_findings_are_5_in_100(test: Callable[..., PairedTest]) -> None:
    times = 2000
    found = false_findings(test, times)
    assert found <= scipy_stats.binom.ppf(1 - 1e-4, times, 0.05)
    assert found >= scipy_stats.binom.ppf(1e-4, times, 0.02)  # McNemar's steps are coarse, so it is careful


def test_a_p_of_nearly_one_is_a_probability() -> None:
    """The chances of thousands of outcomes are rounded: their sum may lie above 1, which no adjustment takes."""
    test = permutation_test([1.0] * 29_999 + [-1.0, -30_000.5])
    assert (test.exact, test.p) == (True, 1.0)
