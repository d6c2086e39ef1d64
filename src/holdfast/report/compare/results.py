"""The results of `compare`, `gate` and `leaderboard`, as a program gets them. They print as tables, also in a notebook.

The fields are those of the commands' `--json`. A table has the columns that most readers need; the fields have the
rest.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.report.compare.comparison import Comparison
from holdfast.report.compare.gate import GateRule, GateVerdict
from holdfast.report.compare.leaderboard import Board
from holdfast.report.compare.pairwise import PairwiseBoard, pairwise_methods
from holdfast.report.compare.sentences import comparison_sentences
from holdfast.report.text import (
    Grid,
    count_of,
    describe_methods,
    format_interval,
    format_mean,
    format_number,
    format_p,
)
from holdfast.stats import Summary

_NUMBERS = {
    *("rank", "was", "is", "difference", "mean", "baseline", "interval", "bound", "adjusted p", "n", "left out"),
    *("strength", "won", "tied", "lost"),
}
Table = tuple[Sequence[str], list[list[str]]]
"""The names of the columns, and the rows."""


def _as_text(table: Table, lines: Iterator[str]) -> str:
    from holdfast.report.tables import as_text  # imported late: rich is slow to import

    columns, rows = table
    right = [name for name in columns if name in _NUMBERS]
    grid = Grid(columns, rows, titles=len(columns) - len(right), right=right, whole=("scorer",))
    return "\n".join((as_text(grid), "", *lines)).rstrip()


def _as_html(table: Table, lines: Iterator[str]) -> str:
    from holdfast.report.tables import html_lines, html_table

    columns, rows = table
    kept = [i for i, name in enumerate(columns) if name not in _NUMBERS or any(row[i] for row in rows)]
    shown = html_table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])
    return f"{shown}{html_lines(lines)}"


class ComparisonResult(msgspec.Struct, frozen=True):
    """What changed between runs, or between the models and variants of one."""

    comparisons: tuple[Comparison, ...]
    comparable: bool
    """Whether rows with the same id are equal and scorers with the same name are the same."""
    warnings: tuple[str, ...]
    adjusted: str
    """How p-values were adjusted: `holm` or `bh`."""
    family: int
    """How many tests were adjusted together."""

    def __str__(self) -> str:
        return _as_text(self.table(), self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _as_html(self.table(), self._lines())

    def table(self) -> Table:
        """The columns that most readers need."""
        models = [each.first.model if each.first.model == each.second.model else "" for each in self.comparisons]
        several = len({*models} - {""}) > 1  # several models, each compared with itself in another run
        columns = ("task", *(("model",) if several else ()), "first", "second", "scorer")
        rows = []
        for model, each in zip(models, self.comparisons, strict=True):
            difference = each.difference
            task = each.first.task if each.first.task == each.second.task else each.first.family
            titles = [task, *([model] if several else ()), each.first.label(each.second)]
            titles += [each.second.label(each.first), each.scorer]
            numbers = [
                *("" if mean is None else format_number(mean) for mean in (each.mean_first, each.mean_second)),
                format_number(difference.mean, "+") if difference is not None else "",
                format_interval(difference, "+") if difference is not None else "",
                format_p(each.adjusted_p, each.p_is_bound),
                count_of(difference) if difference is not None else str(each.common),
            ]
            rows.append([*titles, *numbers])
        return (*columns, "was", "is", "difference", "interval", "adjusted p", "n"), rows

    def _lines(self) -> Iterator[str]:
        yield from comparison_sentences(self.comparisons)
        yield from _describe((each.difference for each in self.comparisons if each.difference is not None), 0.95)
        yield from _warnings(self.warnings)


class GateResult(msgspec.Struct, frozen=True):
    """Whether a run is as good as a baseline, less a margin, or reaches a number."""

    passed: bool
    """Whether every verdict passed."""
    verdicts: tuple[GateVerdict, ...]
    bar: GateRule
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        return _as_text(self._table(), self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _as_html(self._table(), self._lines())

    def _table(self) -> Table:
        columns = ("task", "model", "scorer", "verdict", "baseline", "mean", "difference", "interval", "bound", "n")
        against = self.bar.at_least is None
        sign = "+" if against else ""
        rows = []
        for each in self.verdicts:
            mean = each.interval.mean
            numbers = [
                *("" if mean is None else format_number(mean) for mean in (each.baseline, each.mean)),
                format_number(mean, "+") if against and mean is not None else "",
                format_interval(each.interval, sign),
                format_number(each.bound, sign),
                count_of(each.interval),
                str(sum(each.missing.values()) or ""),
            ]
            rows.append([each.task, each.model, each.scorer, each.outcome, *numbers])
        return (*columns, "left out"), rows

    def _lines(self) -> Iterator[str]:
        yield "passed" if self.passed else "not passed"
        yield from _describe((each.interval for each in self.verdicts), self.bar.confidence)
        yield from _warnings(self.warnings)


class LeaderboardResult(msgspec.Struct, frozen=True):
    """The models of one or several runs, ranked, one board for each task and scorer."""

    boards: tuple[Board, ...]
    comparable: bool
    """Whether rows with the same id are equal and scorers with the same name are the same."""
    warnings: tuple[str, ...]
    pairwise: tuple[PairwiseBoard, ...] = ()
    """The models that pairwise judges compared with other texts, by strength. Their ranks are also those in `boards`,
    unless nothing connects some of the models.
    """

    def __str__(self) -> str:
        parts = [_as_text(table, iter(())) for table in (self._table(), self._strengths()) if table[1]]
        return "\n\n".join([*parts, "\n".join(self._lines())]).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown = [_as_html(table, iter(())) for table in (self._table(), self._strengths()) if table[1]]
        from holdfast.report.tables import html_lines

        return "".join([*shown, html_lines(self._lines())])

    def mean_boards(self) -> list[Board]:
        """The boards without those that are shown as strengths."""
        shown = {(board.task, scorer) for board in self.pairwise for scorer in board.scorers}
        return [board for board in self.boards if (board.task, board.scorer) not in shown]

    def _table(self) -> Table:
        columns = ("task", "scorer", "model", "run", "rank", "mean", "interval", "n", "left out")
        rows = []
        for board in self.mean_boards():
            for each in board.ranked:
                summary = each.summary
                mean = format_mean(summary.mean, board.scale)
                numbers = [str(each.rank), mean, format_interval(summary), count_of(summary)]
                rows.append([board.task, board.scorer, each.model, each.run, *numbers, str(each.missing or "")])
        return columns, rows

    def _strengths(self) -> Table:
        columns = ("task", "scorer", "model", "run", "rank", "strength", "interval", "won", "tied", "lost", "left out")
        rows = []
        for board in self.pairwise:
            for each in board.players:
                counts = [str(count) for count in (each.wins, each.ties, each.losses)]
                numbers = [str(each.rank or ""), format_number(each.strength), each.interval, *counts]
                rows.append([board.task, board.scorer, each.label, each.run, *numbers, str(each.missing or "")])
        return columns, rows

    def _lines(self) -> Iterator[str]:
        yield from _describe((each.summary for board in self.mean_boards() for each in board.ranked), 0.95)
        yield from pairwise_methods(self.pairwise)
        yield from _warnings(self.warnings)


def _describe(summaries: Iterator[Summary], level: float) -> Iterator[str]:
    method = describe_methods(summaries)
    if method:
        yield f"{100 * level:.4g}% intervals: {method}"


def _warnings(warnings: Sequence[str]) -> Iterator[str]:
    return (f"warning: {each}" for each in warnings)
