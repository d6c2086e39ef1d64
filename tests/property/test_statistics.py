"""What holds of every statistic whatever the numbers: bounds, symmetry, identity, and that order does not matter."""

import itertools
import math
from collections.abc import Callable, Hashable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.stats import (
    BoundedMean,
    Design,
    PairedTest,
    at_least,
    benjamini_hochberg,
    bootstrap,
    cliffs_delta,
    cohens_d,
    cohens_dz,
    cohens_h,
    cohens_kappa,
    cons_at_k,
    detectable_effect,
    fit_strengths,
    holm,
    krippendorff_alpha,
    maximum,
    mcnemar_test,
    mean,
    median,
    mode,
    pair_up,
    paired_odds_ratio,
    pass_at_k,
    pass_power_k,
    percent_agreement,
    permutation_test,
    power_of,
    samples_needed,
    split_variance,
    student,
    tied_ranks,
    wilcoxon_test,
    wilson,
)
from holdfast.stats.agreement import Level

CLOSE = 1e-9
few = settings(max_examples=40)  # numbers are drawn anew in every run
real = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))
shares = st.floats(0, 1)
scores = st.lists(st.none() | st.sampled_from([0.0, 1.0, 0.5, math.nan]), max_size=12)
grouped = st.lists(st.tuples(real, st.integers(0, 6)), max_size=25)
randoms = st.randoms(use_true_random=False)
TESTS: list[Callable[..., PairedTest]] = [permutation_test, mcnemar_test, wilcoxon_test]
Grouped = list[tuple[float, int]]


def parts(pairs: Grouped) -> tuple[list[float], list[int]]:
    return [value for value, _ in pairs], [group for _, group in pairs]


def shuffled(items: list[Any], random: Random) -> list[Any]:
    mixed = list(items)
    random.shuffle(mixed)
    return mixed


@few
@given(scores, st.integers(1, 6), randoms)
def test_reducers_stay_within_the_scores_in_any_order(values: list[float | None], k: int, random: Random) -> None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    mixed = shuffled(values, random)
    for reduce in (mean, median, mode, maximum):
        found = reduce(values)
        assert (found is None) == (not known or (reduce is maximum and len(known) < len(values)))
        assert found is None or min(known) <= found <= max(known)
        assert found == reduce(mixed)
    for count in (at_least, pass_at_k, pass_power_k):
        share = count(values, k)
        assert share is None or 0 <= share <= 1
        assert share == count(mixed, k)


@few
@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=12))
def test_more_tries_help_one_and_hurt_all(values: list[float]) -> None:
    rising = [pass_at_k(values, k) for k in range(1, len(values) + 1)]
    falling = [pass_power_k(values, k) for k in range(1, len(values) + 1)]
    assert rising[0] == pytest.approx(np.mean(values), abs=CLOSE)
    assert falling[0] == pytest.approx(np.mean(values), abs=CLOSE)
    for one, two in itertools.pairwise(rising):
        assert (one or 0) <= (two or 0) + CLOSE
    for one, two in itertools.pairwise(falling):
        assert (one or 0) >= (two or 0) - CLOSE


@few
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=10), st.data(), randoms)
def test_the_votes_of_all_answers_are_shared_out(answers: list[str], data: st.DataObject, random: Random) -> None:
    k = data.draw(st.integers(1, len(answers)))
    found = [cons_at_k(answers, [float(each == right) for each in answers], k) or 0.0 for right in set(answers)]
    assert all(0 <= share <= 1 for share in found)
    assert sum(found) == pytest.approx(1, abs=CLOSE)
    mixed = shuffled(answers, random)
    again = cons_at_k(mixed, [float(each == answers[0]) for each in mixed], k)
    assert again == pytest.approx(cons_at_k(answers, [float(each == answers[0]) for each in answers], k), abs=CLOSE)


@few
@given(st.integers(0, 300), st.integers(0, 300), st.floats(0.01, 0.999))
def test_wilson_is_symmetric_and_within_bounds(right: int, wrong: int, confidence: float) -> None:
    assume(right + wrong > 0)
    one, other = wilson(right, right + wrong, confidence), wilson(wrong, right + wrong, confidence)
    assert one.low is not None
    assert one.mean is not None
    assert one.high is not None
    assert 0 <= one.low <= one.mean + CLOSE
    assert one.mean - CLOSE <= one.high <= 1
    assert (other.low, other.high) == pytest.approx((1 - one.high, 1 - one.low), abs=CLOSE)


@few
@given(grouped, st.sampled_from(["percentile", "bca"]), randoms)
def test_a_bootstrap_stays_within_the_values_in_any_order(pairs: Grouped, method: Any, random: Random) -> None:
    found = bootstrap(*parts(pairs), method=method, resamples=50)
    assert found == bootstrap(*parts(shuffled(pairs, random)), method=method, resamples=50)
    if found.low is not None and found.high is not None:
        values = [value for value, _ in pairs]
        slack = CLOSE * max(map(abs, values))
        assert min(values) - slack <= found.low <= found.high <= max(values) + slack


@few
@given(st.lists(real, min_size=2, max_size=25), st.floats(-100, 100), st.floats(0.01, 100))
def test_students_interval_moves_with_the_values(values: list[float], shift: float, scale: float) -> None:
    plain, moved = student(values), student([scale * value + shift for value in values])
    assume(plain.low is not None and moved.low is not None)
    assert plain.low is not None
    slack = 1e-6 * (1 + scale * max(map(abs, values)) + abs(shift))
    assert moved.low == pytest.approx(scale * plain.low + shift, abs=slack)


@few
@given(grouped, randoms)
@pytest.mark.parametrize("test", TESTS)
def test_a_test_does_not_care_which_side_is_first_or_for_order(
    test: Callable[..., PairedTest], pairs: Grouped, random: Random
) -> None:
    values, groups = parts(pairs)
    found = test(values, groups)
    assert (found.p is None) == (not pairs)
    assert found.p is None or 0 < found.p <= 1
    assert found == test(*parts(shuffled(pairs, random)))
    assert test([-value for value in values], groups).p == pytest.approx(found.p, abs=CLOSE)
    assert test([4 * value for value in values], groups).p == pytest.approx(found.p, abs=CLOSE)


@few
@given(st.dictionaries(st.integers(0, 9), real | st.none()), st.dictionaries(st.integers(0, 9), real | st.none()))
def test_swapped_sides_turn_differences_around(first: dict[int, float | None], second: dict[int, float | None]) -> None:
    one, other = pair_up(first, second), pair_up(second, first)
    assert sorted(one.differences) == sorted(-step for step in other.differences)
    assert (one.only_first, one.only_second) == (other.only_second, other.only_first)


@few
@given(st.lists(real, min_size=1, max_size=20), st.lists(real, min_size=1, max_size=20))
def test_effects_turn_around_with_the_sides_and_vanish_between_equals(first: list[float], second: list[float]) -> None:
    delta = cliffs_delta(first, second)
    assert delta is not None
    assert -1 <= delta <= 1
    assert cliffs_delta(second, first) == -delta
    assert cliffs_delta(first, first) == 0
    d = cohens_d(first, second)
    if d is not None:
        assert cohens_d(second, first) == pytest.approx(-d, rel=CLOSE)
        assert cohens_dz([]) is None


@few
@given(shares, shares)
def test_h_is_odd_and_bounded(first: float, second: float) -> None:
    found = cohens_h(first, second)
    assert abs(found) <= math.pi + CLOSE
    assert cohens_h(second, first) == -found
    assert cohens_h(first, first) == 0


@few
@given(st.integers(0, 60), st.integers(0, 60))
def test_a_paired_odds_ratio_turns_into_its_reciprocal(gains: int, losses: int) -> None:
    one, other = paired_odds_ratio(gains, losses), paired_odds_ratio(losses, gains)
    if one.low is not None:
        assert other.high == pytest.approx(1 / one.low, rel=1e-6)
    if one.mean is not None and one.low is not None and one.high is not None:
        assert one.low <= one.mean <= one.high


@few
@given(st.lists(st.none() | shares, max_size=12), randoms)
@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_adjusting_only_raises_and_keeps_the_order(
    adjust: Callable[..., list[float | None]], ps: list[float | None], random: Random
) -> None:
    found = adjust(ps)
    known = sorted((p, q) for p, q in zip(ps, found, strict=True) if p is not None and q is not None)
    assert [p is None for p in ps] == [q is None for q in found]
    assert all(p <= q <= 1 for p, q in known)
    assert [q for _, q in known] == sorted(q for _, q in known)
    order = shuffled(list(range(len(ps))), random)
    assert adjust([ps[index] for index in order]) == [found[index] for index in order]
    assert all((b or 0) <= (h or 0) + CLOSE for b, h in zip(benjamini_hochberg(ps), holm(ps), strict=True))


@few
@given(grouped, randoms)
def test_a_split_of_variance_is_never_negative_and_scales(pairs: Grouped, random: Random) -> None:
    found = split_variance(*parts(pairs))
    assert found == split_variance(*parts(shuffled(pairs, random)))
    values, groups = parts(pairs)
    doubled = split_variance([2 * value for value in values], groups)
    if found.between is not None and found.within is not None:
        assert found.between >= 0
        assert found.within >= 0
        assert doubled.within == pytest.approx(4 * found.within, rel=CLOSE)
        assert doubled.between == pytest.approx(4 * found.between, rel=1e-6)
        one, more = found.expected_error(10, 1), found.expected_error(10, 4)
        assert one is not None
        assert more is not None
        assert more <= one


@few
@given(st.floats(0.01, 4), st.floats(0, 4), st.integers(1, 8), st.booleans(), st.integers(2, 500))
def test_power_rises_with_effect_and_samples(
    between: float, within: float, repeats: int, paired: bool, samples: int
) -> None:
    design = Design(between, within, repeats, paired)
    effect = detectable_effect(design, samples)
    assert effect > 0
    assert power_of(design, effect, samples) == pytest.approx(0.8, abs=CLOSE)
    assert power_of(design, effect, samples) == power_of(design, -effect, samples)
    assert power_of(design, effect, samples + 1) > 0.8 - CLOSE
    assert power_of(design, 1.1 * effect, samples) > power_of(design, effect, samples)
    assert samples_needed(design, effect * (1 + 1e-9)) in (samples, samples - 1)


@few
@given(st.lists(shares, min_size=1, max_size=40))
def test_a_sequence_turned_around_has_its_interval_turned_around(values: list[float]) -> None:
    one, other = BoundedMean(grid=50), BoundedMean(grid=50)
    for value in values:
        one.add(value)
        other.add(1 - value)
        found, turned = one.summary, other.summary
        assert found.low is not None
        assert found.high is not None
        assert 0 <= found.low < found.high <= 1
        assert (turned.low, turned.high) == pytest.approx((1 - found.high, 1 - found.low), abs=0.02 + CLOSE)


@few
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")).filter(lambda pair: pair[0] != pair[1]),
        st.integers(0, 9),
    ),
    randoms,
)
def test_strengths_explain_the_wins_in_any_order(games: dict[tuple[str, str], int], random: Random) -> None:
    wins: dict[tuple[str, str], float] = dict(games)
    found = fit_strengths(wins)
    assert found == fit_strengths(dict(shuffled(list(wins.items()), random)))
    assert sum(player.value for player in found.players) == pytest.approx(0, abs=CLOSE)
    assert [player.value for player in found.players] == sorted((p.value for p in found.players), reverse=True)
    turned = fit_strengths({(loser, winner): count for (winner, loser), count in wins.items()})
    backwards = {player.name: -player.value for player in turned.players}
    assert all(backwards[player.name] == pytest.approx(player.value, abs=1e-7) for player in found.players)
    if found.players and found.prior == 0:
        best = found.players[0].name
        names = [player.name for player in found.players[1:]]
        won = sum(wins.get((best, name), 0) for name in names)
        played = [(name, wins.get((best, name), 0) + wins.get((name, best), 0)) for name in names]
        assert won == pytest.approx(sum(n * found.chance(best, name) for name, n in played), abs=1e-7)


@few
@given(st.lists(st.lists(st.none() | st.integers(0, 3), max_size=5), max_size=12), randoms)
def test_agreement_is_at_most_1_whoever_the_judges_are(units: list[list[int | None]], random: Random) -> None:
    levels: list[Level] = ["nominal", "ordinal", "interval"]
    mixed: list[list[Hashable]] = [shuffled(unit, random) for unit in shuffled(units, random)]
    for level in levels:
        found = krippendorff_alpha(units, level)
        assert found is None or found <= 1
        assert krippendorff_alpha(mixed, level) == pytest.approx(found, abs=CLOSE)
    share = percent_agreement(units)
    assert share is None or 0 <= share <= 1


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_kappa_is_symmetric_and_1_with_oneself(pairs: list[tuple[int, int]]) -> None:
    first, second = [one for one, _ in pairs], [two for _, two in pairs]
    for weights in ("none", "linear", "quadratic"):
        found = cohens_kappa(first, second, weights)
        assert found is None or -1 - CLOSE <= found <= 1
        assert cohens_kappa(second, first, weights) == pytest.approx(found, abs=CLOSE)
    assert cohens_kappa(first, first) in (None, 1.0)


@few
@given(st.lists(st.integers(0, 5), max_size=10))
def test_ranks_of_a_strict_order_are_those_of_a_competition(values: list[int]) -> None:
    found = tied_ranks(len(values), lambda one, other: values[one] > values[other])
    assert found == [1 + sum(other > value for other in values) for value in values]
