"""The results of `compare`, `gate` and `leaderboard`, as a program gets them. They print as the commands do, also in a
notebook: sentences, then a table of at most eight columns, then how its numbers were computed.

The fields are those of the commands' `--json`. The commands print the sentences, tables and notes that are made here,
so that a program and a terminal show the same. `print(result.table(all_columns=True))` shows every column.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.report.compare.comparison import Comparison
from holdfast.report.compare.gate import GateRule, GateVerdict
from holdfast.report.compare.leaderboard import Board
from holdfast.report.compare.pairwise import PairwiseBoard, pairwise_methods
from holdfast.report.compare.sentences import (
    common_model,
    comparison_method,
    comparison_sentences,
    describe_boards,
    overlap_line,
)
from holdfast.report.compare.suite import Suite
from holdfast.report.text import (
    Grid,
    count_of,
    describe_methods,
    format_interval,
    format_mean,
    format_number,
    format_p,
    name_parameters,
)

_NAMES = {"task", "model", "first", "second", "scorer", "verdict", "run", "test"}
"""Columns that hold names; the others hold numbers."""
_COMPARED = ("was", "is", "difference", "95% interval", "test", "p", "adjusted p", "dz", "n", "wins", "losses", "ties")
_COMPARED_DETAILS = ("was", "is", "test", "p", "dz", "wins", "losses", "ties")
_COLUMNS_MAX = 8
_EFFECT = "dz: mean difference over its standard deviation between samples"
_GATE_TITLES = ("task", "model", "scorer", "verdict")
_GATE = ("baseline", "mean", "difference", "interval", "bound", "n", "left out", "needed")
_GATE_HIDDEN = ("baseline", "mean", "left out", "needed")
_GATE_HIDDEN_OF_LEVEL = ("baseline", "difference", "left out", "needed")
"""Columns that only --all shows: with a baseline, and with a number to reach."""
_BOARD_TITLES = ("task", "scorer", "rank", "model", "run")
_BOARD = ("mean", "95% interval", "n", "left out", "on all keys", "cost")
_STRENGTH = ("strength", "95% interval", "won", "tied", "lost", "left out", "cost")
_ONLY_IF_ANY = ("left out", "on all keys", "cost")


class ResultTable(msgspec.Struct, frozen=True):
    """The rows of a result as texts. The first `titles` columns name a row. `optional`: columns that a narrow terminal
    leaves out, the first one first; `hint`: how to see them.
    """

    columns: list[str]
    rows: list[list[str]]
    titles: int
    optional: tuple[str, ...] = ()
    hint: str = ""

    def __str__(self) -> str:
        return _as_text(tables=[self])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _as_html(tables=[self])

    def grid(self) -> Grid:
        """For a terminal, or as text."""
        right = [name for name in self.columns if name not in _NAMES]
        grid = Grid(self.columns, self.rows, titles=self.titles, right=right, whole=("scorer",))
        return grid.with_optional(self.optional, self.hint)

    def without(self, hidden: Iterable[str]) -> "ResultTable":
        """The table without some columns."""
        left = set(hidden)
        kept = [i for i, name in enumerate(self.columns) if name not in left]
        return msgspec.structs.replace(
            self,
            columns=[self.columns[i] for i in kept],
            rows=[[row[i] for i in kept] for row in self.rows],
            titles=sum(i < self.titles for i in kept),
        )

    def without_empty(self, names: Sequence[str]) -> "ResultTable":
        """The table without those of the named columns that are empty in every row."""
        filled = {name for i, name in enumerate(self.columns) if any(row[i] for row in self.rows)}
        return self.without(name for name in names if name not in filled)


def _as_text(
    lead: Iterable[str] = (),
    tables: Iterable[ResultTable] = (),
    notes: Iterable[str] = (),
    warnings: Sequence[str] = (),
) -> str:
    """What a person reads first, the tables, and below them how their numbers were computed."""
    from holdfast.report.tables import as_text  # imported late: rich is slow to import

    below = "\n".join(map(name_parameters, [*notes, *_warnings(warnings)]))
    return "\n\n".join(
        filter(None, ["\n".join(map(name_parameters, lead)), *(as_text(each.grid()) for each in tables), below])
    ).rstrip()


def _as_html(
    lead: Iterable[str] = (),
    tables: Iterable[ResultTable] = (),
    notes: Iterable[str] = (),
    warnings: Sequence[str] = (),
) -> str:
    """The same for a notebook."""
    from holdfast.report.tables import html_lines, html_table

    shown = [each.without_empty(each.columns[each.titles :]) for each in tables]
    below = html_lines(map(name_parameters, [*notes, *_warnings(warnings)]))
    return "".join(
        [html_lines(map(name_parameters, lead)), *(html_table(each.columns, each.rows) for each in shown), below]
    )


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
    evaluations: Mapping[str, str] = {}
    """The id of the evaluation whose scores are compared, by run."""

    def __str__(self) -> str:
        return _as_text(self.sentences(), [self.table()], self.notes(), self.warnings)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _as_html(self.sentences(), [self.table()], self.notes(), self.warnings)

    def sentences(self) -> list[str]:
        """What a person would say about each comparison, the clear differences first."""
        return comparison_sentences(self.comparisons)

    def table(self, *, all_columns: bool = False) -> ResultTable:
        """One row for each comparison; without `all_columns`, at most eight columns: those that most readers need."""
        several = len({common_model(each) for each in self.comparisons} - {""}) > 1
        titles = ("task", *(("model",) if several else ()), "first", "second", "scorer")
        rows = []
        for each in self.comparisons:
            task = each.first.task if each.first.task == each.second.task else each.first.family
            names = [task, *([common_model(each)] if several else ())]
            names += [each.first.label(each.second), each.second.label(each.first), each.scorer]
            rows.append([*names, *_compared_numbers(each)])
        found = ResultTable([*titles, *_COMPARED], rows, len(titles))
        if all_columns:
            return found
        shown = found.without(_COMPARED_DETAILS)
        return shown.without(shown.columns[_COLUMNS_MAX:])

    def notes(self, *, all_columns: bool = False) -> list[str]:
        """How the numbers of the table were computed, and on which keys."""
        several = len({common_model(each) for each in self.comparisons} - {""}) > 1
        method = comparison_method(self.comparisons, self.adjusted, self.family)
        parts = (method, _EFFECT if all_columns else "")
        overlaps = dict.fromkeys(overlap_line(each, several) for each in self.comparisons)
        return [line for line in ("; ".join(filter(None, parts)), *overlaps) if line]


def _compared_numbers(each: Comparison) -> list[str]:
    """The texts of the columns `_COMPARED`."""
    difference = each.difference
    numbers = difference is not None
    return [
        _number(each.mean_first),
        _number(each.mean_second),
        _number(difference.mean if difference is not None else None, "+"),
        format_interval(difference, "+") if difference is not None else "",
        each.test if each.exact else f"{each.test}, drawn",
        format_p(each.p, each.p_is_bound),
        format_p(each.adjusted_p, each.p_is_bound),
        _number(each.effect, "+"),
        count_of(difference) if difference is not None else str(each.common),
        str(each.wins) if numbers else "",
        str(each.losses) if numbers else "",
        str(each.ties),
    ]


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else format_number(value, sign)


class GateResult(msgspec.Struct, frozen=True):
    """Whether a run is as good as a baseline, less a margin, or reaches a number."""

    passed: bool
    """Whether every verdict passed."""
    verdicts: tuple[GateVerdict, ...]
    bar: GateRule
    warnings: tuple[str, ...]
    evaluations: Mapping[str, str] = {}
    """The id of the evaluation whose scores are judged, by run."""

    def __str__(self) -> str:
        return _as_text(self.sentences(), [self.table()], self.notes(), self.warnings)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _as_html(self.sentences(), [self.table()], self.notes(), self.warnings)

    def sentences(self) -> list[str]:
        """Whether everything passed, and the reason of each verdict."""
        return ["passed" if self.passed else "not passed", *(each.reason for each in self.verdicts)]

    def table(self, *, all_columns: bool = False) -> ResultTable:
        """One row for each verdict; without `all_columns`, the columns that most readers need."""
        against = self.bar.at_least is None
        sign = "+" if against else ""
        rows = []
        for each in self.verdicts:
            numbers = [
                _number(each.baseline),
                "" if each.mean is None else format_mean(each.mean, each.scale),
                _number(each.interval.mean, "+") if against else "",
                format_interval(each.interval, sign),
                format_number(each.bound, sign),
                count_of(each.interval),
                str(sum(each.missing.values()) or ""),
                str(each.samples_needed or ""),
            ]
            rows.append([each.task, each.model, each.scorer, each.outcome, *numbers])
        found = ResultTable([*_GATE_TITLES, *_GATE], rows, len(_GATE_TITLES))
        if all_columns:
            return found
        shown = found.without(_GATE_HIDDEN if against else _GATE_HIDDEN_OF_LEVEL)
        return msgspec.structs.replace(shown, optional=("bound", "n"), hint="add --all")

    def notes(self) -> list[str]:
        """How the intervals were computed, and how often a run that is not good enough passes."""
        method = describe_methods(each.interval for each in self.verdicts)
        level, error = 100 * self.bar.confidence, 50 * (1 - self.bar.confidence)
        rate = f"; a run exactly at the bound passes in at most {error:.4g}% of cases"
        if self.bar.unsure_passes or self.bar.identical_passes:
            rate = ""
        return [f"{level:.4g}% intervals: {method}{rate}"] if method else []


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
    evaluations: Mapping[str, str] = {}
    """The id of the evaluation whose scores are ranked, by run."""
    suite: Suite | None = None
    """The tasks beside each other, with a mean over tasks; None for one task."""

    def __str__(self) -> str:
        return _as_text((), self.tables(), self.notes(), self.warnings)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return _as_html((), self.tables(), self.notes(), self.warnings)

    def mean_boards(self) -> list[Board]:
        """The boards without those that are shown as strengths."""
        shown = {(board.task, scorer) for board in self.pairwise for scorer in board.scorers}
        return [board for board in self.boards if (board.task, board.scorer) not in shown]

    def tables(self) -> list[ResultTable]:
        """Several tasks beside each other, a table of means, and one of strengths for each pairwise board. Several
        runs have a column.
        """
        several = len(self.evaluations) > 1
        suite = [_suite(self.suite, several_runs=several)] if self.suite is not None else []
        found = [self._means()] if self.mean_boards() else []
        found += [_strengths(board) for board in self.pairwise]
        return [*suite, *(each.without_empty(_ONLY_IF_ANY).without(() if several else ("run",)) for each in found)]

    def notes(self) -> list[str]:
        """How the numbers of the tables were computed."""
        method = self.suite.method() if self.suite is not None else ""
        return [*([method] if method else []), *describe_boards(self.mean_boards()), *pairwise_methods(self.pairwise)]

    def _means(self) -> ResultTable:
        rows = []
        for board in self.mean_boards():
            for each in board.ranked:
                bounds = "unknown" if each.missing else ""
                if each.bounds is not None:
                    bounds = " .. ".join(map(format_number, each.bounds))
                summary, mean = each.summary, format_mean(each.summary.mean, board.scale)
                numbers = [mean, format_interval(summary), count_of(summary), str(each.missing or ""), bounds]
                titles = [board.task, board.scorer, str(each.rank), each.model, each.run]
                rows.append([*titles, *numbers, str(each.cost)])
        return _board_table(_BOARD, rows, ("cost", "on all keys", "n"))


def _suite(suite: Suite, *, several_runs: bool) -> ResultTable:
    """One row for each model, one column for each task. Users name tasks, so columns are left out by their place."""
    titles = ["rank", "model", *(["run"] if several_runs else [])]
    is_whole = len(suite.counted) == len(suite.tasks)
    overall = ["mean" if is_whole else f"mean of {len(suite.counted)}", "± s.e.", "95% interval"]
    rows = []
    for each in suite.models:
        names, summary = [str(each.rank or "-"), each.model, *([each.run] if several_runs else [])], each.summary
        numbers = [_number(summary.mean), _number(summary.standard_error), format_interval(summary)]
        scores = [format_mean(each.scores.get(task.task), task.scale) for task in suite.tasks]
        rows.append([*names, *(numbers if suite.counted else []), *scores])
    columns = [*titles, *(overall if suite.counted else []), *(task.task for task in suite.tasks)]
    return ResultTable(columns, rows, len(titles), ("95% interval", "± s.e."), "add --format md")


def _strengths(board: PairwiseBoard) -> ResultTable:
    rows = []
    for each in board.players:
        titles = [board.task, board.scorer, str(each.rank or ""), each.label, each.run]
        counts = [str(count) for count in (each.wins, each.ties, each.losses)]
        numbers = [format_number(each.strength), each.interval, *counts, str(each.missing or ""), str(each.cost)]
        rows.append([*titles, *numbers])
    return _board_table(_STRENGTH, rows, ("cost", "tied"))


def _board_table(numbers: Sequence[str], rows: list[list[str]], optional: tuple[str, ...]) -> ResultTable:
    return ResultTable([*_BOARD_TITLES, *numbers], rows, len(_BOARD_TITLES), optional, "add --format md")


def _warnings(warnings: Sequence[str]) -> Iterator[str]:
    return (f"warning: {each}" for each in warnings)
