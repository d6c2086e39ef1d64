"""Bradley-Terry: strengths from wins and losses. The odds that i beats j are exp(strength i - strength j).

A tie is half a win for each. Strengths have mean 0 and maximise the likelihood, which is concave (Newton's method).
Their intervals come from the Fisher information; ties vary less than it assumes, so with many ties the intervals are
conservative.

If a player never won, or never lost, against a part of the others, the likelihood has no maximum. Then, and otherwise
only on request, every player gets `prior` tied games against an imagined player of average strength. That pulls
strengths towards 0. The result reports it: `prior` is 0 if nothing was added.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
from scipy.special import ndtr, ndtri  # type: ignore[import-untyped]  # scipy has no types

from holdfast.stats.adjustment import ranks_of_tests
from holdfast.stats.intervals import LEVEL
from holdfast.stats.units import Floats
from holdfast.stats.values import require_confidence

PRIOR = 1.0
_STEPS = 200
Games = Mapping[tuple[str, str], float]


class Strength(msgspec.Struct, frozen=True):
    """`value` is on the scale of log-odds. `rank` is 1 + the number of significantly stronger ones (Holm)."""

    name: str
    value: float
    standard_error: float
    low: float
    high: float
    rank: int


class Strengths(msgspec.Struct, frozen=True):
    """Strongest first. `prior` tied games were added for every player."""

    players: list[Strength]
    prior: float

    def chance(self, one: str, other: str) -> float:
        """The chance that `one` beats `other`."""
        values = {player.name: player.value for player in self.players}
        for name in (one, other):
            if name not in values:
                raise ValueError(f"{name!r} has played no game: one of {', '.join(values)}")
        return 1 / (1 + math.exp(values[other] - values[one]))


def fit_strengths(
    wins: Games, ties: Games | None = None, prior: float | None = None, confidence: float = LEVEL
) -> Strengths:
    """`wins[a, b]` is how often a beat b, `ties[a, b]` how often neither won (in either order of names)."""
    require_confidence(confidence)
    if prior is not None and not 0 <= prior < math.inf:
        raise ValueError(f"prior {prior}: a number of games, not negative")
    names, won = _table(wins, ties or {})
    if not names:
        return Strengths([], prior or 0.0)
    is_whole = _reaches_all(won) and _reaches_all(won.T)
    if prior is None:
        prior = 0.0 if is_whole else PRIOR
    if prior == 0 and not is_whole:
        raise ValueError("someone never won or never lost against a part of the others: strengths need a prior above 0")
    values = _most_likely(won, prior)
    away = np.eye(len(won)) - _level(len(won))  # the covariance is of strengths relative to their mean
    covariance: Floats = away @ np.linalg.inv(_information(won, values, prior) + _level(len(won))) @ away
    return Strengths(_players(names, values, covariance, confidence), prior)


def _reaches_all(won: Floats) -> bool:
    """Whether there is a chain of wins from the first name to every other. (scipy.sparse.csgraph would do it too, but
    loading it takes 35 MB and half a second.)
    """
    reached = np.zeros(len(won), dtype=bool)
    reached[0] = True
    while True:
        further = reached | (won[reached] > 0).any(axis=0)
        if (further == reached).all():
            return bool(reached.all())
        reached = further


def _table(wins: Games, ties: Games) -> tuple[list[str], Floats]:
    """Names in order, and how often each beat each, half for a tie."""
    for pair, count in [*wins.items(), *ties.items()]:
        if not 0 <= count < math.inf:
            raise ValueError(f"{count} games of {pair[0]!r} and {pair[1]!r}: a number of games, not negative")
        if pair[0] == pair[1]:
            raise ValueError(f"{pair[0]!r} has played against itself: a game needs two")
    names = sorted({name for games in (wins, ties) for pair, count in games.items() if count for name in pair})
    place = {name: index for index, name in enumerate(names)}
    won = np.zeros((len(names), len(names)))
    for (one, other), count in wins.items():
        if count:
            won[place[one], place[other]] += count
    for (one, other), count in ties.items():
        if count:
            won[place[one], place[other]] += count / 2
            won[place[other], place[one]] += count / 2
    return names, won


def _most_likely(won: Floats, prior: float) -> Floats:
    """Maximise the likelihood with Newton steps, each halved until the likelihood rises."""
    values = np.zeros(len(won))
    for _ in range(_STEPS):
        gradient = won.sum(axis=1) - ((won + won.T) * _win_probabilities(values)).sum(axis=1)
        gradient += prior * (0.5 - _win_probability(values))
        step = np.linalg.solve(_information(won, values, prior) + _level(len(won)), gradient)
        before = _likelihood(won, values, prior)
        while _likelihood(won, values + step, prior) < before - 1e-12 * abs(before):
            step = step / 2
        values = values + step
        if np.abs(step).max() < 1e-9:  # quadratic convergence: the next step would change nothing
            break
    centred: Floats = values - values.mean()
    return centred


def _players(names: list[str], values: Floats, covariance: Floats, confidence: float) -> list[Strength]:
    errors = np.sqrt(np.diag(covariance))
    half = float(ndtri((1 + confidence) / 2)) * errors

    def p_of(one: int, other: int) -> float:
        variance = covariance[one, one] + covariance[other, other] - 2 * covariance[one, other]
        return 2 * float(ndtr(-abs(values[one] - values[other]) / math.sqrt(variance)))

    ranks = ranks_of_tests(values.tolist(), p_of, 1 - confidence)
    players = [
        Strength(name, float(value), float(error), float(value - wide), float(value + wide), rank)
        for name, value, error, wide, rank in zip(names, values, errors, half, ranks, strict=True)
    ]
    return sorted(players, key=lambda player: (-player.value, player.name))


def _information(won: Floats, values: Floats, prior: float) -> Floats:
    chances = _win_probabilities(values)
    weights = (won + won.T) * chances * chances.T
    own = _win_probability(values)
    found: Floats = np.diag(weights.sum(axis=1) + prior * own * (1 - own)) - weights
    return found


def _likelihood(won: Floats, values: Floats, prior: float) -> float:
    apart = values[:, None] - values[None, :]
    played = -(won * np.logaddexp(0, -apart)).sum()
    imagined = -prior / 2 * (np.logaddexp(0, -values) + np.logaddexp(0, values)).sum()
    return float(played + imagined)


def _win_probabilities(values: Floats) -> Floats:
    """That of each player against each other one."""
    return _win_probability(values[:, None] - values[None, :])


def _win_probability(away: Floats) -> Floats:
    found: Floats = 0.5 * (1 + np.tanh(away / 2))
    return found


def _level(count: int) -> Floats:
    """Fixes the level that all strengths share, which games cannot determine: without it the matrix is singular."""
    return np.full((count, count), 1 / count)
