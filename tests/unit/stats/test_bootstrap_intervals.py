"""The bootstrap, against scipy's on the same resamples, and against exact distributions."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types

from holdfast.stats import Summary, bootstrap, graded_f1, paired_difference
from holdfast.stats import bootstrap_intervals as module
from holdfast.stats.units import units_of

CLOSE = 1e-9
TAILS = np.array([0.025, 0.975])


@pytest.mark.parametrize("seed", range(4))
def test_bca_takes_the_quantiles_that_scipy_takes_of_the_same_resamples(seed: int) -> None:
    values = np.random.default_rng(seed).gamma(1.5, size=30)
    theirs = scipy_stats.bootstrap((values,), np.mean, n_resamples=999, rng=seed, method="BCa")
    units = units_of(values.tolist(), None)
    replicates = theirs.bootstrap_distribution
    tails = module.bca_tails(TAILS, replicates, units.mean, module.leave_one_out(units))
    expected = (theirs.confidence_interval.low, theirs.confidence_interval.high)
    assert tuple(np.quantile(replicates, tails)) == pytest.approx(expected, abs=CLOSE)


def test_resampled_means_of_zeros_and_ones_are_binomial() -> None:
    means = module.resampled_means(units_of([1.0] * 30 + [0.0] * 70, None), 20_000, seed=1)
    counted = np.bincount(np.round(means * 100).astype(int), minlength=101)
    expected = scipy_stats.binom(100, 0.3).pmf(np.arange(101)) * 20_000
    kept = expected > 5
    found = scipy_stats.chisquare(counted[kept], expected[kept] * counted[kept].sum() / expected[kept].sum())
    assert found.pvalue > 0.001


@pytest.mark.parametrize("values", [np.arange(40.0) ** 2, np.repeat([0.0, 0.5, 3.0], 40)])
def test_the_spread_of_resampled_means_is_the_plug_in_error(values: np.ndarray) -> None:
    """sqrt(population variance / n), within five times the error of a standard deviation of 20,000 draws."""
    found = bootstrap(values.tolist(), resamples=20_000, seed=3)
    expected = values.std() / np.sqrt(len(values))
    assert found.standard_error == pytest.approx(expected, rel=5 / np.sqrt(2 * 20_000))


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_groups_of_repeats_are_drawn_whole(method: module.Method) -> None:
    once = [1.0, 0.0, 0.3, 0.9, 0.2, 0.7, 0.1]
    values = [value for value in once for _ in range(4)]
    groups = [index for index in range(7) for _ in range(4)]
    one, many = bootstrap(once, method=method), bootstrap(values, groups, method=method)
    assert (many.mean, many.low, many.high) == pytest.approx((one.mean, one.low, one.high), abs=CLOSE)


def test_groups_of_several_sizes_keep_their_weight() -> None:
    random = np.random.default_rng(5)
    sizes = random.integers(1, 6, 200)
    groups = np.repeat(np.arange(200), sizes)
    values = 20 + random.normal(size=200)[groups] + random.normal(size=len(groups))
    found = bootstrap(values.tolist(), groups.tolist(), method="percentile", seed=1)
    usual = paired_difference(values.tolist(), groups.tolist())
    assert found.mean == pytest.approx(usual.mean, abs=CLOSE)
    assert found.standard_error == pytest.approx(usual.standard_error, rel=0.05)


def test_the_same_seed_gives_the_same_interval_in_any_order() -> None:
    values, groups = [0.1, 0.5, 0.9, 0.2, 0.7], ["a", "a", "b", "c", "c"]
    assert bootstrap(values, groups) == bootstrap(values[::-1], groups[::-1])
    assert bootstrap(values, groups) != bootstrap(values, groups, seed=1)


@pytest.mark.parametrize(
    ("values", "groups", "mean"),
    [([], None, None), ([0.5], None, 0.5), ([0.1] * 9, None, 0.1), ([1.0, 0.0], ["a", "a"], 0.5)],
)
def test_where_nothing_varies_there_is_no_interval(
    values: list[float], groups: list[str] | None, mean: float | None
) -> None:
    found = bootstrap(values, groups)
    assert found == Summary(len(values), found.mean)
    assert found.mean == pytest.approx(mean)


def test_nonsense_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        bootstrap([1.0, float("nan")])
    with pytest.raises(ValueError, match="2 values, but 1 groups"):
        bootstrap([1.0, 0.0], ["a"])
    with pytest.raises(ValueError, match="confidence 95"):
        bootstrap([1.0, 0.0], confidence=95)
    with pytest.raises(ValueError, match="resamples 1: at least 2"):
        bootstrap([1.0, 0.0], resamples=1)
    with pytest.raises(ValueError, match="percentile or bca"):
        bootstrap([1.0, 0.0], method="magic")  # type: ignore[arg-type]  # what a spec might say


def test_memory_is_that_of_a_batch_however_many_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two million numbers would be 16 MB and more."""
    monkeypatch.setattr("holdfast.stats.units.CHUNK", 100_000)
    values = np.random.default_rng(0).normal(size=10_000).tolist()
    tracemalloc.start()
    bootstrap(values, resamples=200)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


def coverage(method: module.Method, times: int, resamples: int, draw: str) -> int:
    random = np.random.default_rng(20261116)
    held = 0
    for index in range(times):
        chance = random.beta(2, 1, 60)[:, None]
        if draw == "clustered":
            values = (random.random((60, 3)) < chance).astype(float).ravel()
            groups, truth = (np.arange(180) // 3).tolist(), 2 / 3
        else:
            values, groups, truth = random.gamma(2.0, size=60), None, 2.0
        found = bootstrap(values.tolist(), groups, method, resamples, index)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    return held


@pytest.mark.parametrize("draw", ["clustered", "skewed"])
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_the_interval_holds_the_truth_about_95_times_in_100(method: module.Method, draw: str) -> None:
    assert scipy_stats.binom.ppf(1e-4, 200, 0.92) <= coverage(method, 200, 400, draw)


@pytest.mark.long
@pytest.mark.parametrize("draw", ["clustered", "skewed"])
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_the_interval_holds_the_truth_95_times_in_100(method: module.Method, draw: str) -> None:
    """Between 0.925 and 0.96 at 60 groups, within binomial bounds for 4,000 draws: a bootstrap is a little narrow."""
    held = coverage(method, 4000, 2000, draw)
    assert scipy_stats.binom.ppf(1e-4, 4000, 0.925) <= held <= scipy_stats.binom.ppf(1 - 1e-4, 4000, 0.96)


def singly(correct: int, incorrect: int, others: int) -> dict[tuple[int, int, int], int]:
    """Every answer is a group of its own."""
    return {(1, 0, 0): correct, (0, 1, 0): incorrect, (0, 0, 1): others}


def test_f1_of_grades_is_the_harmonic_mean_of_both_shares() -> None:
    found = graded_f1(singly(60, 20, 20))
    assert found.mean == pytest.approx(2 / (1 / 0.6 + 1 / 0.75))
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.6667 < found.high
    assert graded_f1(singly(5, 0, 0)) == Summary(5, 1.0)
    assert graded_f1(singly(0, 5, 5)) == Summary(10, 0.0)
    assert graded_f1(singly(0, 0, 0)) == Summary(0)


def test_intervals_of_f1_cover_the_truth() -> None:
    """Seeded; 0.95 is nominal, and 400 draws have a standard error of 0.011."""
    random = np.random.default_rng(5)
    truth = 2 * 0.5 / (1 + 0.8)
    covered = 0
    for _ in range(400):
        drawn = random.multinomial(200, [0.5, 0.3, 0.2])
        found = graded_f1(singly(*map(int, drawn)))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= truth <= found.high
    assert 0.92 <= covered / 400 <= 0.98


def test_groups_of_grades_are_drawn_as_a_whole() -> None:
    """Ten equal answers to each question say no more than one: the error is that of 100 questions, not of 1,000."""
    one = graded_f1(singly(50, 30, 20))
    ten = graded_f1({(10, 0, 0): 50, (0, 10, 0): 30, (0, 0, 10): 20})
    assert (one.mean, one.standard_error, one.low) == (ten.mean, ten.standard_error, ten.low)
    assert (one.n, one.groups, ten.n, ten.groups) == (100, None, 1000, 100)
    alone = graded_f1(singly(500, 300, 200))
    assert alone.standard_error is not None
    assert one.standard_error == pytest.approx(alone.standard_error * 10**0.5, rel=0.05)
