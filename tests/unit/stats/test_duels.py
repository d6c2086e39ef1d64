"""Strengths from duels on samples, against the beta distribution, Bradley-Terry's fit and simulations."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types

from holdfast.stats import DuelStrength, DuelStrengths, Strengths, connected_games, duel_strengths, duels, fit_strengths

NEAR = 0.06
"""Of quantiles of 10,000 resamples, in log-odds."""
Games = dict[tuple[str, str], Mapping[Any, float | None]]


def against_text(**outcomes: Sequence[float | None]) -> Games:
    return {(name, "text"): dict(enumerate(values)) for name, values in outcomes.items()}


def player(found: DuelStrengths, name: str) -> DuelStrength:
    return next(each for each in found.players if each.name == name)


def rated(games: Games, **more: object) -> DuelStrengths:
    return duel_strengths(games, "text", unranked=("text",), **more)  # type: ignore[arg-type]  # passed through


def logit(share: float) -> float:
    return math.log(share / (1 - share))


def ends(wins: float, losses: float) -> list[float]:
    """The wider of the two posteriors' ends."""
    several = [scipy_stats.beta(wins + unseen, losses + unseen).ppf([0.025, 0.975]) for unseen in (0.25, 1.0)]
    return [logit(min(low for low, _ in several)), logit(max(high for _, high in several))]


@pytest.mark.parametrize(("wins", "losses"), [(15, 5), (19, 1), (3, 2), (100, 80)])
def test_one_player_against_a_text_has_the_posterior_of_a_share(wins: int, losses: int) -> None:
    found = player(rated(against_text(a=[1.0] * wins + [0.0] * losses)), "a")
    assert found.value == pytest.approx(logit(wins / (wins + losses)), abs=1e-6)
    assert [found.low, found.high] == pytest.approx(ends(wins, losses), abs=NEAR + 0.1 * (min(wins, losses) < 3))
    assert (found.wins, found.ties, found.losses, found.rank) == (wins, 0, losses, 1)


def test_who_never_lost_has_no_upper_end_and_is_not_certain() -> None:
    found = rated(against_text(a=[1.0] * 20, b=[0.0] * 20))
    best, worst = player(found, "a"), player(found, "b")
    assert (best.value, best.high, worst.value, worst.low) == (None, None, None, None)
    assert best.low == pytest.approx(logit(0.025 ** (1 / 21)), abs=NEAR)
    assert worst.high == pytest.approx(-(best.low or 0.0), abs=2 * NEAR)
    assert [each.name for each in found.players] == ["a", "text", "b"]
    assert (best.rank, worst.rank) == (1, 2)


def test_ties_only_do_not_show_that_two_are_equal() -> None:
    few, many = (player(rated(against_text(a=[0.5] * count)), "a") for count in (5, 100))
    assert (few.value, few.ties) == (0.0, 5)
    assert (few.low or 0) < -0.5 < (many.low or 0) < -0.03
    assert few.high == pytest.approx(-(few.low or 0), abs=2 * NEAR)


def test_the_last_bits_of_the_fit_order_no_equal_players(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(wins: Mapping[tuple[str, str], float]) -> Strengths:
        found = fit_strengths(wins)
        noise = {"a": 0.0, "b": 4e-17, "text": 5e-17}
        moved = [msgspec.structs.replace(each, value=each.value + noise[each.name]) for each in found.players]
        return msgspec.structs.replace(found, players=moved)

    monkeypatch.setattr(duels, "fit_strengths", noisy)
    found = rated(against_text(a=[0.5] * 20, b=[0.5] * 20))
    assert [(each.name, repr(each.value)) for each in found.players] == [("a", "0.0"), ("b", "0.0"), ("text", "0.0")]


def test_a_single_game_says_next_to_nothing() -> None:
    found = player(rated(against_text(a=[1.0])), "a")
    assert (found.value, found.high) == (None, None)
    assert (found.low or 0) < -1.5


def test_repeats_and_groups_do_not_make_more_games() -> None:
    random = np.random.default_rng(3)
    values = [float(each) for each in random.random(30) < 0.6]
    alone = player(rated(against_text(a=list(values))), "a")
    doubled: Games = {("a", "text"): {(copy, i): values[i] for copy in "xy" for i in range(30)}}
    grouped = player(rated(doubled, groups={(copy, i): i for copy in "xy" for i in range(30)}), "a")
    assert grouped.value == pytest.approx(alone.value, abs=1e-6)
    assert (grouped.high or 0) - (grouped.low or 0) > 0.8 * ((alone.high or 0) - (alone.low or 0))
    apart = player(rated(doubled), "a")
    assert (apart.high or 0) - (apart.low or 0) < 0.75 * ((alone.high or 0) - (alone.low or 0))


def test_strengths_of_a_network_are_those_of_the_fit() -> None:
    random = np.random.default_rng(5)
    games: Games = {}
    for pair in (("a", "text"), ("b", "text"), ("b", "a"), ("c", "a"), ("c", "other")):
        games[pair] = dict(enumerate(float(each) for each in random.choice([0, 0.5, 1], 40, p=[0.3, 0.2, 0.5])))
    wins = {pair: sum(value or 0 for value in own.values()) for pair, own in games.items()}
    wins |= {(pair[1], pair[0]): 40 - won for pair, won in wins.items()}
    fitted = {each.name: each.value for each in fit_strengths(wins).players}
    for each in rated(games).players:
        assert each.value == pytest.approx(fitted[each.name] - fitted["text"], abs=1e-6)
        assert (each.low or 0) <= (each.value or 0) <= (each.high or 0)


def test_games_with_one_who_never_lost_say_nothing_about_the_others() -> None:
    values = [1.0] * 12 + [0.0] * 8
    alone = player(rated(against_text(a=list(values))), "a")
    beside = player(rated(against_text(a=list(values), best=[1.0] * 20)), "a")
    assert beside.value == pytest.approx(alone.value, abs=1e-6)
    assert [beside.low, beside.high] == pytest.approx([alone.low, alone.high], abs=NEAR)


def test_two_who_only_beat_the_same_third_have_no_ends_at_all() -> None:
    found = rated({("a", "b"): dict.fromkeys(range(9), 1.0), ("text", "b"): dict.fromkeys(range(9), 1.0)})
    assert (player(found, "a").low, player(found, "a").high) == (None, None)
    assert player(found, "b").high is not None


def test_players_who_never_met_are_split() -> None:
    games: Games = {("a", "x"): {1: 1.0}, ("b", "y"): {1: 0.0}, ("c", "x"): {1: 0.5}, ("d", "y"): {1: None}}
    parts = connected_games(games)
    assert [set(part) for part in parts] == [{("a", "x"), ("c", "x")}, {("b", "y")}]
    with pytest.raises(ValueError, match="some players never met"):
        duel_strengths({("a", "x"): {1: 1.0}, ("b", "y"): {1: 1.0}}, "x")
    joined = {**games, ("a", "y"): {2: 1.0}}
    assert len(connected_games(joined)) == 1


def test_ranks_use_that_two_were_judged_on_the_same_samples() -> None:
    """Two shares whose intervals overlap differ significantly if one is better on the same samples."""
    one = [1.0] * 55 + [0.0] * 45
    other = [1.0] * 45 + [0.0] * 55
    paired = rated(against_text(a=list(one), b=list(other)))
    assert (player(paired, "a").rank, player(paired, "b").rank) == (1, 2)
    assert (player(paired, "a").low or 0) < (player(paired, "b").high or 0)
    apart: Games = {("a", "text"): dict(enumerate(one)), ("b", "text"): {-1 - i: each for i, each in enumerate(other)}}
    assert {each.rank for each in rated(apart).players} == {1, None}


def test_a_missing_game_never_helps() -> None:
    whole = [1.0] * 60
    other = [1.0] * 45 + [0.0] * 15
    found = rated(against_text(a=whole, b=other))
    assert (player(found, "b").rank, found.undecided) == (2, 0)
    found = rated(against_text(a=[*whole, *[None] * 40], b=[*other, *[1.0] * 40]))
    assert {each.rank for each in found.players} == {1, None}, "its missing games may all be lost"
    assert found.undecided == 1


def test_few_differences_are_not_significant() -> None:
    """Five samples on which one is better and none on which it is worse: p is 0.0625 by any exact test."""
    for count, rank in ((5, 1), (6, 2)):
        found = rated(against_text(a=[1.0] * (50 + count) + [0.0] * (50 - count), b=[1.0] * 50 + [0.0] * 50))
        assert player(found, "b").rank == rank


@pytest.mark.parametrize(
    ("games", "anchor", "said"),
    [
        ({("a", "text"): {1: 1.5}}, "text", "a game of 'a' and 'text' is 1.5: 1 is won, 0 lost, 0.5 a tie"),
        ({("a", "text"): {1: math.nan}}, "text", "is nan"),
        ({("a", "a"): {1: 1.0}}, "a", "'a' has played against itself"),
        ({("a", "text"): {1: 1.0}}, "b", "'b' has played no game: one of a, text"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(games: Games, anchor: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        duel_strengths(games, anchor)


def test_the_same_games_have_the_same_result_in_any_order() -> None:
    values = dict(enumerate([1.0, 0.0, 0.5, 1.0, None, 0.0, 1.0]))
    games: Games = {("a", "text"): values, ("b", "text"): {i: 1.0 - (v or 0) for i, v in values.items()}}
    turned: Games = {("a", "text"): dict(reversed(values.items())), ("b", "text"): games["b", "text"]}
    assert rated(games) == rated(turned)


def _shares(random: np.random.Generator, count: int) -> tuple[list[float], float]:
    return [float(each) for each in random.random(count) < 0.9], logit(0.9)


def _with_ties(random: np.random.Generator, count: int) -> tuple[list[float], float]:
    return [float(each) for each in random.choice([0.0, 0.5, 1.0], count, p=[0.1, 0.5, 0.4])], logit(0.65)


def _with_repeats(random: np.random.Generator, count: int) -> tuple[list[float], float]:
    return [float(each) / 4 for each in random.binomial(4, random.beta(0.8, 0.2, count))], logit(0.8)


@pytest.mark.parametrize(
    "draw", [_shares, *(pytest.param(each, marks=pytest.mark.long) for each in (_with_ties, _with_repeats))]
)
@pytest.mark.parametrize(("times", "lowest"), [(60, 0.86), pytest.param(1500, 0.93, marks=pytest.mark.long)])
def test_intervals_hold_the_true_strength(
    draw: Callable[[np.random.Generator, int], tuple[list[float], float]], times: int, lowest: float
) -> None:
    """95 in 100, with 10, 20 and 50 samples: right or wrong, half ties, four repeats that depend on the sample."""
    for count in (10, 20, 50):
        random, held = np.random.default_rng(20261121), 0
        for seed in range(times):
            values, truth = draw(random, count)
            found = player(rated({("a", "text"): dict(enumerate(values))}, seed=seed), "a")
            held += (found.low is None or found.low <= truth) and (found.high is None or truth <= found.high)
        assert held / times >= lowest, (count, held / times)


@pytest.mark.parametrize(("times", "highest"), [(60, 0.15), pytest.param(1500, 0.07, marks=pytest.mark.long)])
def test_equal_models_share_a_rank(times: int, highest: float) -> None:
    """In 95 of 100 draws, although three pairs are tested."""
    random = np.random.default_rng(20261122)
    apart = 0
    for seed, _ in enumerate(itertools.repeat(None, times)):
        games = against_text(**{name: [float(each) for each in random.random(30) < 0.7] for name in "abc"})
        apart += any(each.rank not in (1, None) for each in rated(games, seed=seed).players)
    assert apart / times <= highest
