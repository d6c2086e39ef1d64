"""Strengths from games, against statsmodels' logistic regression and published values."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types
from statsmodels.genmod.families import Binomial  # type: ignore[import-untyped]  # no types
from statsmodels.genmod.generalized_linear_model import GLM  # type: ignore[import-untyped]  # no types

from holdfast.stats import Strengths, fit_strengths

CLOSE = 1e-9
TEAMS = ["Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore"]
WON = [
    [0, 7, 9, 7, 7, 9, 11],
    [6, 0, 7, 5, 11, 9, 9],
    [4, 6, 0, 7, 7, 8, 12],
    [6, 8, 6, 0, 6, 7, 10],
    [6, 2, 6, 7, 0, 7, 12],
    [4, 4, 5, 6, 6, 0, 6],
    [2, 4, 1, 3, 1, 7, 0],
]
Games = dict[tuple[str, str], float]


def baseball() -> Games:
    """The American League East of 1987, as in Agresti, Categorical Data Analysis."""
    return {(one, other): WON[i][j] for (i, one), (j, other) in itertools.permutations(enumerate(TEAMS), 2)}


def values(found: Strengths) -> dict[str, float]:
    return {player.name: player.value for player in found.players}


def test_published_strengths() -> None:
    """Agresti's table, differences to Baltimore: 1.58, 1.44, 1.29, 1.25, 1.11, 0.68."""
    found = values(fit_strengths(baseball()))
    told = [round(found[team] - found["Baltimore"], 2) for team in TEAMS[:-1]]
    assert told == [1.58, 1.44, 1.29, 1.25, 1.11, 0.68]


def test_strengths_and_errors_are_those_of_a_logistic_regression() -> None:
    rows, outcomes = [], []
    for i, j in itertools.combinations(range(7), 2):
        row = np.zeros(7)
        row[i], row[j] = 1, -1
        rows.append(row)
        outcomes.append([WON[i][j], WON[j][i]])
    fit = GLM(np.array(outcomes), np.array(rows)[:, :-1], family=Binomial()).fit(tol=1e-14)  # the last one is 0
    beta = np.append(fit.params, 0.0)
    covariance = np.zeros((7, 7))
    covariance[:6, :6] = fit.cov_params()
    away = np.eye(7) - 1 / 7
    errors = np.sqrt(np.diag(away @ covariance @ away.T))
    found = fit_strengths(baseball())
    assert found.prior == 0
    for player in found.players:
        index = TEAMS.index(player.name)
        assert player.value == pytest.approx(beta[index] - beta.mean(), abs=CLOSE)
        assert player.standard_error == pytest.approx(errors[index], abs=CLOSE)
        assert player.high == pytest.approx(player.value + scipy_stats.norm.ppf(0.975) * errors[index], abs=CLOSE)


def test_two_players_have_the_odds_of_their_games() -> None:
    found = fit_strengths({("a", "b"): 6, ("b", "a"): 2})
    assert [player.name for player in found.players] == ["a", "b"]
    assert found.chance("a", "b") == pytest.approx(0.75, abs=CLOSE)
    assert found.chance("b", "a") == pytest.approx(0.25, abs=CLOSE)


def test_a_tie_is_half_a_win_for_each() -> None:
    tied = fit_strengths({("a", "b"): 5, ("b", "a"): 1}, ties={("b", "a"): 2})
    assert tied == fit_strengths({("a", "b"): 6, ("b", "a"): 2})


def test_who_is_not_significantly_worse_shares_a_rank() -> None:
    ranks = {player.name: player.rank for player in fit_strengths(baseball()).players}
    assert ranks["Milwaukee"] == ranks["Detroit"] == ranks["Boston"] == 1
    assert ranks["Baltimore"] == 6
    assert ranks["Cleveland"] < ranks["Baltimore"]


def test_one_who_never_lost_is_strong_but_not_endlessly() -> None:
    found = fit_strengths({("a", "b"): 9, ("b", "c"): 3, ("c", "b"): 2})
    assert found.prior == 1.0
    assert [player.name for player in found.players] == ["a", "b", "c"]
    assert 0 < found.players[0].value < 5


def test_groups_that_never_met_are_told_apart_only_by_the_prior() -> None:
    found = fit_strengths({("a", "b"): 5, ("b", "a"): 5, ("c", "d"): 5, ("d", "c"): 5})
    assert found.prior == 1.0
    assert [player.value for player in found.players] == pytest.approx([0] * 4, abs=CLOSE)
    assert {player.rank for player in found.players} == {1}


def test_a_prior_is_tied_games_against_an_average_player() -> None:
    """One parameter is left by symmetry: s with 4 wins, 0 losses and `prior` half-won games against 0 on each side."""
    found = fit_strengths({("a", "b"): 4}, prior=2.0)
    strength = found.players[0].value
    chance, against = 1 / (1 + math.exp(-2 * strength)), 1 / (1 + math.exp(-strength))
    assert 4 * (1 - chance) + 2.0 * (0.5 - against) == pytest.approx(0, abs=CLOSE)


def test_no_games_have_no_strengths() -> None:
    assert fit_strengths({}) == Strengths([], 0.0)
    assert fit_strengths({("a", "b"): 0}).players == []


def test_nonsense_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="-1 games of 'a' and 'b'"):
        fit_strengths({("a", "b"): -1})
    with pytest.raises(ValueError, match="nan games"):
        fit_strengths({}, {("a", "b"): math.nan})
    with pytest.raises(ValueError, match="'a' has played against itself"):
        fit_strengths({("a", "a"): 1})
    with pytest.raises(ValueError, match="need a prior above 0"):
        fit_strengths({("a", "b"): 1}, prior=0)
    with pytest.raises(ValueError, match="prior -1"):
        fit_strengths({("a", "b"): 1}, prior=-1)
    with pytest.raises(ValueError, match="'z' has played no game: one of a, b"):
        fit_strengths({("a", "b"): 1}).chance("a", "z")


@pytest.mark.parametrize("times", [100, pytest.param(3000, marks=pytest.mark.long)])
def test_intervals_hold_the_true_strengths(times: int) -> None:
    """95 in 100 of five strengths' intervals, 40 games a pair."""
    random = np.random.default_rng(20261120)
    truth = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    held = 0
    for _ in range(times):
        games: Games = {}
        for i, j in itertools.combinations(range(5), 2):
            won = random.binomial(40, 1 / (1 + math.exp(truth[j] - truth[i])))
            games[str(i), str(j)], games[str(j), str(i)] = won, 40 - won
        found = fit_strengths(games)
        held += sum(player.low <= truth[int(player.name)] <= player.high for player in found.players)
    low, high = scipy_stats.binom.ppf([1e-4, 1 - 1e-4], times * 5, 0.95)
    assert low * 0.99 <= held <= high * 1.01  # the five of one draw hang together
