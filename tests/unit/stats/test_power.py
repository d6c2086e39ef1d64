"""Power, detectable effects and sample sizes, against statsmodels and against simulated evaluations."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from statsmodels.stats.power import TTestIndPower, TTestPower  # type: ignore[import-untyped]  # no types

from holdfast.stats import Design, detectable_effect, paired_difference, power_of, repeats_needed, samples_needed

CLOSE = 1e-9


@pytest.mark.parametrize("samples", [2, 5, 30, 200])
@pytest.mark.parametrize("effect", [0.0, 0.05, 0.2, 0.45])
def test_power_is_statsmodels(samples: int, effect: float) -> None:
    paired = TTestPower().power(effect, samples, 0.05)
    unpaired = TTestIndPower().power(effect, samples, 0.05)
    assert power_of(Design(4.0), 2 * effect, samples) == pytest.approx(paired, abs=CLOSE)
    assert power_of(Design(4.0, paired=False), -2 * effect, samples) == pytest.approx(unpaired, abs=CLOSE)


@pytest.mark.parametrize("samples", [3, 25, 1000, 2_000_000])
@pytest.mark.parametrize("paired", [True, False])
def test_the_detectable_effect_has_the_power_that_was_asked_for(samples: int, paired: bool) -> None:
    design = Design(0.2, 0.3, repeats=4, paired=paired, alpha=0.01)
    found = detectable_effect(design, samples, 0.9)
    assert power_of(design, found, samples) == pytest.approx(0.9, abs=CLOSE)


@pytest.mark.parametrize("effect", [0.02, 0.1, 0.7, 5.0])
@pytest.mark.parametrize("paired", [True, False])
def test_one_sample_fewer_than_needed_is_too_few(effect: float, paired: bool) -> None:
    design = Design(0.25, paired=paired)
    found = samples_needed(design, effect)
    assert found is not None
    assert power_of(design, effect, found) >= 0.8
    assert found == 2 or power_of(design, effect, found - 1) < 0.8


def test_a_published_sample_size() -> None:
    """Cohen (1988): d = 0.5, alpha = .05, power = .80 needs 64 a side; the paired one 34."""
    assert samples_needed(Design(1.0, paired=False), 0.5) == 64
    assert samples_needed(Design(1.0), 0.5) == 34


def test_repeats_count_as_far_as_answers_vary() -> None:
    once, often = Design(0.1, 0.3), Design(0.1, 0.3, repeats=3)
    assert power_of(often, 0.1, 50) == pytest.approx(power_of(Design(0.2), 0.1, 50), abs=CLOSE)
    found = repeats_needed(once, 0.1, 100)
    assert found is not None
    assert power_of(Design(0.1, 0.3, repeats=found), 0.1, 100) >= 0.8
    assert power_of(Design(0.1, 0.3, repeats=found - 1), 0.1, 100) < 0.8
    assert repeats_needed(once, 0.05, 100) is None
    assert repeats_needed(Design(0.0, 0.3), 0.01, 100) is not None


def test_extremes_stay_numbers() -> None:
    assert power_of(Design(1e-12), 1.0, 1000) == 1.0
    assert power_of(Design(1.0), 0.0, 10) == pytest.approx(0.05, abs=CLOSE)
    assert samples_needed(Design(1.0), 1e-9) is None
    assert samples_needed(Design(1.0), 100.0) == 2


def test_nonsense_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"variances 0.0 and 0.0"):
        Design(0.0)
    with pytest.raises(ValueError, match="variances nan"):
        Design(math.nan)
    with pytest.raises(ValueError, match="repeats 0: at least 1"):
        Design(1.0, repeats=0)
    with pytest.raises(ValueError, match="alpha 5"):
        Design(1.0, alpha=5)
    with pytest.raises(ValueError, match="samples 1: at least 2"):
        power_of(Design(1.0), 0.1, 1)
    with pytest.raises(ValueError, match="effect inf"):
        power_of(Design(1.0), math.inf, 10)
    with pytest.raises(ValueError, match="effect 0: a difference other than 0"):
        samples_needed(Design(1.0), 0)
    with pytest.raises(ValueError, match=r"power 1.0: between alpha \(0.05\) and 1"):
        detectable_effect(Design(1.0), 10, 1.0)


def detections(times: int) -> int:
    """Of evaluations with 25 samples and 4 repeats, made to have a power of 0.8."""
    random = np.random.default_rng(20261118)
    effect = detectable_effect(Design(0.5, 1.0, repeats=4), 25)
    groups = (np.arange(100) // 4).tolist()
    found = 0
    for _ in range(times):
        values = effect + random.normal(0, math.sqrt(0.5), (25, 1)) + random.normal(size=(25, 4))
        summary = paired_difference(values.ravel().tolist(), groups)
        assert summary.low is not None
        assert summary.high is not None
        found += not summary.low <= 0 <= summary.high
    return found


@pytest.mark.parametrize("times", [400, pytest.param(10_000, marks=pytest.mark.long)])
def test_simulated_evaluations_detect_as_often_as_promised(times: int) -> None:
    low, high = scipy_stats.binom.ppf([1e-4, 1 - 1e-4], times, 0.8)
    assert low <= detections(times) <= high
