"""Strengths of players who met on samples, relative to one of them, with intervals from resampled samples.

A game is what a judge says about two texts for one sample: 1 if the first is better, 0 if the second is, 0.5 for a tie,
and values between for several judges or repeats. Strengths are those of Bradley and Terry (`bradley_terry`): the odds
that i beats j are exp(strength i - strength j). The anchor has strength 0.

Intervals and tests come from the Bayesian bootstrap (Rubin 1981): each resample gives every independent unit (a sample,
or a group of samples) a random weight, so all games of a unit stay together. What was not seen may still happen: in
each resample every pair that met also gets a win and a loss of random weight, so ten wins out of ten, or ten ties, do
not look certain. Their mean weight is a quarter in one half of the resamples and one in the other (for a single pair:
Beta(wins + 1/4, losses + 1/4) and Beta(wins + 1, losses + 1)). The wider end of the two counts, and the larger p: each
alone is too narrow for some strengths.

Players who met the same others on the same samples are also compared by the permutation test of these differences, and
the larger p counts: resampling finds significance too easily in few differences.

A player who never lost to the anchor, directly or through others, has no highest strength: value and `high` are None.
One who never won has no lowest. Missing games (None) never help: a player ranks above another only if it would also
with each missing game of its own lost and each of the other won.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from holdfast.stats.adjustment import holm, tied_ranks
from holdfast.stats.bradley_terry import fit_strengths
from holdfast.stats.intervals import LEVEL
from holdfast.stats.paired_tests import permutation_test
from holdfast.stats.units import Counts, Floats, batches
from holdfast.stats.values import require_confidence

RESAMPLES = 10_000
_RESAMPLES_MIN = 2_000
_DRAWS_MAX = 200_000_000
"""Random numbers at most: many different samples get fewer resamples."""
_STEPS = 100
_STEP_MAX = 3.0
_STRENGTH_MAX = 20.0
"""Of a resample, in log-odds: beyond it, steps are only rounding errors."""
_DECIMALS = 12
"""Of a strength: the accuracy of the fit."""
_UNSEEN = (0.25, 1.0)
_CLOSE = 1e-6
Games = Mapping[tuple[str, str], Mapping[Hashable, float | None]]
"""By pair of players: by sample, how the first did. None: the game is missing."""


class DuelStrength(msgspec.Struct, frozen=True):
    """One player. `value` is on the scale of log-odds; None if it has no end (see above)."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    rank: int | None
    """1 + the number of significantly stronger players; None for players that are not ranked."""
    wins: int
    ties: int
    losses: int
    share: float
    """The mean over its games: wins, with ties as halves."""

    @property
    def games(self) -> int:
        return self.wins + self.ties + self.losses


class DuelStrengths(msgspec.Struct, frozen=True):
    """Strongest first."""

    players: list[DuelStrength]
    anchor: str
    resamples: int
    undecided: int = 0
    """Pairs with a significant difference that missing games could undo. They count as not different."""


def connected_games(games: Games) -> list[Games]:
    """The games split into groups of players who met, directly or through others. Pairs without a game are left out."""
    groups: list[set[str]] = []
    met = {pair: own for pair, own in games.items() if any(value is not None for value in own.values())}
    for pair in met:
        joined = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if not group & set(pair)]
        groups.append(set(pair).union(*joined))
    order = {name: number for number, pair in reversed([*enumerate(met)]) for name in pair}
    groups.sort(key=lambda group: min(order[name] for name in group))
    return [{pair: own for pair, own in met.items() if pair[0] in group} for group in groups]


def duel_strengths(
    games: Games,
    anchor: str,
    groups: Mapping[Hashable, Hashable] | None = None,
    unranked: Collection[str] = (),
    seed: int = 0,
    confidence: float = LEVEL,
) -> DuelStrengths:
    """Strengths of players who are all connected by games (`connected_games`). `groups`: of samples that share one.
    `unranked`: players that get no rank and are not tested, such as a text that all others are compared with.
    """
    require_confidence(confidence)
    table = _Table(games, anchor, groups or {})
    drawn = [_Resamples(table, unseen, seed) for unseen in _UNSEEN]
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    quantiles = np.array([np.quantile(each.strengths, tails, axis=0) for each in drawn])
    low, high, middle = quantiles[:, 0].min(axis=0), quantiles[:, 1].max(axis=0), drawn[-1].middle
    values = table.most_likely()
    ranked = [index for index, name in enumerate(table.names) if name not in unranked]
    ranks, undecided = _ranks(table, drawn, ranked, 1 - confidence)
    best, worst = table.reached_from_anchor(), table.reaching_anchor()
    players = [
        DuelStrength(
            name,
            values.get(name),
            float(low[index]) if name in worst else None,
            float(high[index]) if name in best else None,
            ranks.get(index),
            *table.counts(name),
        )
        for index, name in enumerate(table.names)
    ]
    strengths = [values.get(name, float(middle[index])) for index, name in enumerate(table.names)]
    order = sorted(range(len(players)), key=lambda index: (-strengths[index], table.names[index]))
    return DuelStrengths([players[index] for index in order], anchor, len(drawn[0].strengths), undecided)


class _Table:
    """The games as numbers: for each unit and pair of players, the sums of wins, losses and missing games."""

    def __init__(self, games: Games, anchor: str, groups: Mapping[Hashable, Hashable]) -> None:
        self.names = sorted({name for pair in games for name in pair})
        if anchor not in self.names:
            raise ValueError(f"{anchor!r} has played no game: one of {', '.join(self.names)}")
        if len(connected_games(games)) > 1:
            raise ValueError("some players never met, not even through others: split them with connected_games")
        self.anchor = anchor
        self.pairs = list(games)
        self._games = games
        self._groups = groups
        sums: dict[Hashable, list[float]] = {}
        width = 3 * len(self.pairs)
        for number, (pair, own) in enumerate(games.items()):
            for sample, value in own.items():
                _require_outcome(pair, value)
                row = sums.setdefault(groups.get(sample, sample), [0.0] * width)
                if value is None:
                    row[3 * number + 2] += 1
                else:
                    row[3 * number] += value
                    row[3 * number + 1] += 1 - value
        units: Floats = np.array(list(sums.values()), dtype=float).reshape(len(sums), width)
        kinds, counts = np.unique(units, axis=0, return_counts=True)
        self.units: Floats = kinds
        self.sizes: Counts = counts
        """How many units are equal: the weight of `n` of them is one draw of a gamma distribution."""

    @property
    def sides(self) -> Floats:
        """One row for each pair: 1 for its first player, -1 for its second. The anchor has no column."""
        columns = {name: index for index, name in enumerate(each for each in self.names if each != self.anchor)}
        found = np.zeros((len(self.pairs), len(columns)))
        for row, (one, other) in zip(found, self.pairs, strict=True):
            if one in columns:
                row[columns[one]] = 1
            if other in columns:
                row[columns[other]] = -1
        return found

    def counts(self, name: str) -> tuple[int, int, int, float]:
        """Wins, ties, losses and the mean of a player."""
        own = [value for value in self._outcomes(name) if value is not None]
        wins, losses = sum(value > 0.5 for value in own), sum(value < 0.5 for value in own)
        return wins, len(own) - wins - losses, losses, math.fsum(own) / len(own)

    def paired_p(self, better: str, worse: str, *, cautious: bool = False) -> float:
        """The p-value of the differences on samples on which both met the same others; 0 if there are none. 1 if the
        worse one is not worse on these. `cautious`: missing games are lost by the better one and won by the other.
        """
        mine, theirs = self._by_other(better), self._by_other(worse)
        differences, units = list[float](), list[Hashable]()
        for other in mine.keys() & theirs.keys():
            for sample in sorted(mine[other].keys() & theirs[other].keys(), key=repr):
                one, two = mine[other][sample], theirs[other][sample]
                if cautious:
                    one, two = (0.0 if one is None else one), (1.0 if two is None else two)
                if one is not None and two is not None:
                    differences.append(one - two)
                    units.append(self._groups.get(sample, sample))
        if not differences:
            return 0.0
        return 1.0 if math.fsum(differences) <= 0 else permutation_test(differences, units).p or 0.0

    def _by_other(self, name: str) -> dict[str, Mapping[Hashable, float | None]]:
        """The games of a player as the first of each pair, by the second."""
        return {pair[1]: own for pair, own in self._games.items() if pair[0] == name}

    def _outcomes(self, name: str) -> Iterator[float | None]:
        for (one, other), own in self._games.items():
            if name == one:
                yield from own.values()
            elif name == other:
                yield from (None if value is None else 1 - value for value in own.values())

    def most_likely(self) -> dict[str, float]:
        """Strengths of the players whom the games bound from both sides. Games with others say nothing about them: in
        the limit these are won or lost for certain.
        """
        bounded = self.reached_from_anchor() & self.reaching_anchor()
        wins = {pair: won for pair, won in self._wins().items() if set(pair) <= bounded}
        found = {each.name: each.value for each in fit_strengths(wins).players}
        # Rounded to the accuracy of the fit: the last bits depend on how the linear algebra is scheduled, and would
        # order equal players at random. The sum removes the sign of -0.0.
        strengths = {name: round(value - found[self.anchor], _DECIMALS) + 0.0 for name, value in found.items()}
        return strengths or {self.anchor: 0.0}

    def reaching_anchor(self) -> set[str]:
        """Players who beat the anchor, or one who did, and so on: they have a lowest strength."""
        return _reach(self.anchor, [(loser, winner) for (winner, loser), won in self._wins().items() if won])

    def reached_from_anchor(self) -> set[str]:
        """Players who lost to the anchor, or to one who did: they have a highest strength."""
        return _reach(self.anchor, [pair for pair, won in self._wins().items() if won])

    def _wins(self) -> dict[tuple[str, str], float]:
        """How often each beat each, half for a tie."""
        found: dict[tuple[str, str], float] = {}
        for (one, other), own in self._games.items():
            known = [value for value in own.values() if value is not None]
            won = math.fsum(known)
            found[one, other] = found.get((one, other), 0.0) + won
            found[other, one] = found.get((other, one), 0.0) + len(known) - won
        return found


class _Resamples:
    """Strengths in each resample, relative to the anchor; also with all missing games lost, and with all won."""

    def __init__(self, table: _Table, unseen: float, seed: int) -> None:
        """`unseen`: the mean weight of a win and of a loss that were not seen, for each pair."""
        count = max(_RESAMPLES_MIN, min(RESAMPLES, _DRAWS_MAX // max(1, len(table.units))))
        random, pairs, sides = np.random.default_rng(seed), len(table.pairs), table.sides
        sums = np.empty((count, 3 * pairs))
        for first, last in batches(count, len(table.units)):
            weights = random.standard_gamma(table.sizes, size=(last - first, len(table.units)))
            sums[first:last] = weights @ table.units
        more = random.standard_gamma(unseen, size=(2, count, pairs))
        won, lost, missing = sums[:, 0::3] + more[0], sums[:, 1::3] + more[1], sums[:, 2::3]
        at = table.names.index(table.anchor)
        self.strengths = _with_anchor(_strengths(won, lost, sides), at)
        self.middle: Floats = np.median(self.strengths, axis=0)
        self.lowest = self.highest = self.strengths
        if table.units[:, 2::3].any():
            self.lowest = _with_anchor(_strengths(won, lost + missing, sides), at)
            self.highest = _with_anchor(_strengths(won + missing, lost, sides), at)

    def p_of(self, one: int, other: int) -> float:
        """Of the difference of two players, two-sided: twice the share of resamples on the other side of 0."""
        return _p_of(self.strengths[:, one] - self.strengths[:, other])

    def cautious_p_of(self, better: int, worse: int) -> float:
        """The same with all missing games against the difference; 1 if its sign changes."""
        apart = self.lowest[:, better] - self.highest[:, worse]
        return _p_of(apart) if np.median(apart) > 0 else 1.0


def _strengths(won: Floats, lost: Floats, sides: Floats) -> Floats:
    """The most likely strengths in each row of games, by Newton's method for all rows at once. Steps are cut, because
    far from the maximum they can be too long.
    """
    values = np.zeros((len(won), sides.shape[1]))
    for pair, row in enumerate(sides):
        (columns,) = row.nonzero()
        if len(columns) == 1:  # a game with the anchor: exact if there are no others
            values[:, columns[0]] = row[columns[0]] * np.log(won[:, pair] / lost[:, pair])
    values = np.clip(values, -_STRENGTH_MAX, _STRENGTH_MAX)
    squares = np.einsum("pi,pj->pij", sides, sides).reshape(len(sides), -1)
    played = won + lost
    for _ in range(_STEPS):
        chances = 0.5 * (1 + np.tanh(values @ sides.T / 2))
        gradient = (won - played * chances) @ sides
        curvature = np.maximum(played * chances * (1 - chances), 1e-12)
        matrix = (curvature @ squares).reshape(len(won), sides.shape[1], sides.shape[1])
        step = np.clip(np.linalg.solve(matrix, gradient[:, :, None])[:, :, 0], -_STEP_MAX, _STEP_MAX)
        before, values = values, np.clip(values + step, -_STRENGTH_MAX, _STRENGTH_MAX)
        if np.abs(values - before).max(initial=0.0) < _CLOSE:
            break
    return values


def _with_anchor(strengths: Floats, at: int) -> Floats:
    found: Floats = np.insert(strengths, at, 0.0, axis=1)
    return found


def _ranks(
    table: _Table, drawn: Sequence[_Resamples], ranked: Sequence[int], alpha: float
) -> tuple[dict[int, int], int]:
    """Ranks by player, and how many significant pairs missing games could undo."""
    middle = drawn[-1].middle
    found: dict[tuple[int, int], float] = {}
    cautious: dict[tuple[int, int], float] = {}
    for better, worse in ((one, other) for one in ranked for other in ranked if middle[one] > middle[other]):
        names = (table.names[better], table.names[worse])
        found[better, worse] = max(table.paired_p(*names), *(each.p_of(better, worse) for each in drawn))
        least = max(each.cautious_p_of(better, worse) for each in drawn)
        cautious[better, worse] = max(least, table.paired_p(*names, cautious=True))
    significant = _up_to(found, alpha)
    decided = significant & _up_to(cautious, alpha)
    ranks = tied_ranks(len(ranked), lambda one, other: (ranked[one], ranked[other]) in decided)
    return dict(zip(ranked, ranks, strict=True)), len(significant) - len(decided)


def _up_to(ps: Mapping[tuple[int, int], float], alpha: float) -> set[tuple[int, int]]:
    adjusted = zip(ps, holm(list(ps.values())), strict=True)
    return {pair for pair, p in adjusted if p is not None and p <= alpha}


def _p_of(differences: Floats) -> float:
    beyond = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(differences) + 1))


def _reach(start: str, edges: Iterable[tuple[str, str]]) -> set[str]:
    """Everything that can be reached from `start` along the edges."""
    after: dict[str, list[str]] = {}
    for one, other in edges:
        after.setdefault(one, []).append(other)
    found, left = {start}, [start]
    while left:
        for each in after.get(left.pop(), ()):
            if each not in found:
                found.add(each)
                left.append(each)
    return found


def _require_outcome(pair: tuple[str, str], value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"a game of {pair[0]!r} and {pair[1]!r} is {value}: 1 is won, 0 lost, 0.5 a tie")
    if pair[0] == pair[1]:
        raise ValueError(f"{pair[0]!r} has played against itself: a game needs two")
