"""Boards of pairwise judges: models ranked by how often a judge preferred their answers to another text.

The players are the models and the texts that they were compared with (the target, or a column of the row). Scorers that
ask the same judges the same question are one board, whatever text they compare with. Strengths, intervals and ranks are
those of `stats.duels`, over the samples that all models have a verdict for. Models that no chain of comparisons
connects are on different boards, because nothing says how they compare.
"""

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.report.compare.leaderboard import Board
from holdfast.report.compare.sides import CellName, Measure, SideAnswers
from holdfast.report.costs import Cost
from holdfast.report.text import counted, format_number

if TYPE_CHECKING:
    from holdfast.stats import DuelStrength

_NO_END = "no end"


class PairwiseRule(msgspec.Struct, frozen=True):
    """One pairwise scorer of a run. `question`: equal for scorers that ask the same judges the same."""

    question: bytes
    against: str


class PairwisePlayer(msgspec.Struct, frozen=True):
    """A model in a run, or a text (`run` is empty) that models were compared with."""

    model: str
    run: str
    rank: int | None
    """1 + the number of significantly stronger models; None for a text."""
    strength: float | None
    """Log-odds of beating the text `anchor`; None if it has no end: the player never lost, or never won."""
    low: float | None
    """None: no lower end."""
    high: float | None
    """None: no upper end."""
    share: float
    """The share of its games that it won, with ties as halves."""
    wins: int
    ties: int
    losses: int
    missing: int = 0
    """Samples without a verdict that other models have, or that were planned and could not be judged."""
    cost: Cost = Cost()

    @property
    def interval(self) -> str:
        """`0.1200 .. 0.9000`; `1.6500 .. no end` for a player who never lost."""
        if not self.run and self.low == self.high:
            return ""  # the anchor: 0 by definition
        low, high = (_NO_END if end is None else format_number(end) for end in (self.low, self.high))
        return f"{low} .. {high}"

    @property
    def label(self) -> str:
        return self.model if self.run else f"{self.model} (text)"


class PairwiseBoard(msgspec.Struct, frozen=True):
    """One task and judge, strongest player first."""

    task: str
    scorers: tuple[str, ...]
    players: tuple[PairwisePlayer, ...]
    anchor: str
    """The text whose strength is 0."""
    samples: int
    """How many samples have a verdict."""
    resamples: int
    undecided: int = 0
    """Pairs of models with a significant difference that missing verdicts could undo. They count as not different."""
    part: int = 1
    parts: int = 1
    """How many boards the task and judge have, because no chain of comparisons connects their models."""

    @property
    def scorer(self) -> str:
        return ", ".join(self.scorers)

    def ranks(self) -> dict[tuple[str, str], int]:
        """Of models, by run and model."""
        return {(each.run, each.model): each.rank for each in self.players if each.rank is not None}


class _Entry(msgspec.Struct, frozen=True):
    """One model's verdicts by one scorer."""

    run: str
    model: str
    scorer: str
    against: str
    measure: Measure
    cost: Cost

    @property
    def player(self) -> str:
        return f"model {self.run}/{self.model}"

    @property
    def pair(self) -> tuple[str, str]:
        return self.player, f"text {self.against}"


def pairwise_boards(
    runs: Sequence[Mapping[CellName, SideAnswers]],
    rules: Sequence[Mapping[tuple[str, str], PairwiseRule]],
    costs: Sequence[Mapping[CellName, Cost]],
    task: str | None = None,
    scorer: str | None = None,
) -> Iterator[PairwiseBoard]:
    """`rules`: by run, the pairwise scorers by task and name. `task` and `scorer` choose some of them."""
    found: dict[tuple[str, bytes], list[_Entry]] = {}
    for sides, known, cost in zip(runs, rules, costs, strict=True):
        for cell, side in sides.items():
            own = {name: rule for (of, name), rule in known.items() if of == cell[0] and scorer in (None, name)}
            measures = side.measures() if own and task in (None, cell[0]) else {}
            for name, rule in own.items():
                measure = measures.get(name)
                if measure is not None and measure.numbers() is not None:
                    entry = _Entry(side.side.run, side.side.model, name, rule.against, measure, cost[cell])
                    found.setdefault((cell[0], rule.question), []).append(entry)
    for (of, _), entries in found.items():
        yield from _boards(of, entries)


def _boards(task: str, entries: Sequence[_Entry]) -> Iterator[PairwiseBoard]:
    groups: dict[Hashable, Hashable] = {
        sample: group for each in entries for sample, group in each.measure.groups.items()
    }
    games: dict[tuple[str, str], dict[Hashable, float | None]] = {}
    for against in dict.fromkeys(each.against for each in entries):
        games |= _games([each for each in entries if each.against == against])
    from holdfast.stats import connected_games, duel_strengths  # imported late: scipy is slow to import

    parts = connected_games(games)
    for number, part in enumerate(parts, 1):
        own = [each for each in entries if each.pair in part]
        texts = {each.pair[1]: each.against for each in own}
        anchor = max(texts, key=lambda text: sum(len(part[pair]) for pair in part if pair[1] == text))
        drawn = duel_strengths(part, anchor, groups, unranked=texts)
        known = {sample for pair in part.values() for sample, value in pair.items() if value is not None}
        yield PairwiseBoard(
            task=task,
            scorers=tuple(dict.fromkeys(each.scorer for each in own)),
            players=tuple(_player(each, own, texts) for each in drawn.players),
            anchor=texts[anchor],
            samples=len(known),
            resamples=drawn.resamples,
            undecided=drawn.undecided,
            part=number,
            parts=len(parts),
        )


def _games(entries: Sequence[_Entry]) -> dict[tuple[str, str], dict[Hashable, float | None]]:
    """The games against one text, on the samples that all of these models have; those that a model lacks are missing.
    Samples that nobody was judged on, such as those without the other text, are no games.
    """
    means = [each.measure.sample_means(each.measure.numbers() or {}) for each in entries]
    played = set().union(*means)
    common: Container[str] = set.intersection(*map(set, means)) or played
    found: dict[tuple[str, str], dict[Hashable, float | None]] = {}
    for entry, own in zip(entries, means, strict=True):
        planned = {sample for sample, _ in entry.measure.planned}
        games: dict[Hashable, float | None] = {sample: value for sample, value in own.items() if sample in common}
        games |= dict.fromkeys(sorted((planned & played) - own.keys()))
        found[entry.pair] = games
    return found


def _player(rated: "DuelStrength", entries: Iterable[_Entry], texts: Mapping[str, str]) -> PairwisePlayer:
    own = [each for each in entries if each.player == rated.name]
    model, run = (own[0].model, own[0].run) if own else (texts[rated.name], "")
    return PairwisePlayer(
        model=model,
        run=run,
        rank=rated.rank,
        strength=rated.value,
        low=rated.low,
        high=rated.high,
        share=rated.share,
        wins=rated.wins,
        ties=rated.ties,
        losses=rated.losses,
        missing=sum(len(each.measure.missing) for each in own),
        cost=own[0].cost if own else Cost(),
    )


def pairwise_methods(boards: Sequence[PairwiseBoard]) -> Iterator[str]:
    """How strengths, intervals and ranks were computed, and what they do not say."""
    if not boards:
        return
    anchors = ", ".join(dict.fromkeys(board.anchor for board in boards))
    strength = f"strength: Bradley-Terry, log-odds of beating the text ({anchors}), a tie is half a win"
    resamples = ", ".join(dict.fromkeys(str(board.resamples) for board in boards))
    interval = f"95% intervals: Bayesian bootstrap over samples ({resamples} resamples), with unseen wins and losses"
    yield f"{strength}; {interval}; rank: 1 + the number of significantly stronger models (Holm, 0.05)"
    for board in boards:
        yield from _board_notes(board)


def _board_notes(board: PairwiseBoard) -> Iterator[str]:
    place = f"{board.task} {board.scorer}"
    if board.part == 1 and board.parts > 1:
        yield f"{place}: nothing connects the models of {board.parts} tables, so these cannot be compared"
    for each in board.players:
        for end, what, side in ((each.high, "lost", "upper"), (each.low, "won", "lower")):
            if end is None:
                yield f"{place}: {each.label} never {what}, also not through others: its strength has no {side} end"
    if board.undecided:
        yield f"{place}: {counted(board.undecided, 'pair')} of models share a rank because of missing verdicts"


def ranked_by_strength(boards: Iterable[Board], pairwise: Sequence[PairwiseBoard]) -> Iterator[Board]:
    """The boards with the ranks of pairwise judges where all models of a board have one."""
    ranks = {(board.task, scorer): board.ranks() for board in pairwise for scorer in board.scorers if board.parts == 1}
    for board in boards:
        known = ranks.get((board.task, board.scorer), {})
        if known and all((each.run, each.model) in known for each in board.ranked):
            ranked = [msgspec.structs.replace(each, rank=known[each.run, each.model]) for each in board.ranked]
            ranked.sort(key=lambda each: (each.rank, -(each.summary.mean or 0.0)))
            board = msgspec.structs.replace(board, ranked=tuple(ranked))
        yield board
