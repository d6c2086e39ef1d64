"""`leaderboard`: the models of one or several runs, ranked; models that do not differ significantly share a rank."""

import csv
import sys
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.cli.commands.compare import opened_runs
from holdfast.cli.output import end_quietly, print_json, print_line, print_table, warn
from holdfast.errors import UsageError
from holdfast.report import (
    Board,
    Grid,
    LeaderboardResult,
    PairwiseBoard,
    Ranked,
    count_of,
    describe_boards,
    escape_formula,
    format_interval,
    format_mean,
    format_number,
    markdown_table,
    pairwise_methods,
)
from holdfast.runs import leaderboard_of
from holdfast.spec import nearest

_FORMATS = {"table", "md", "csv", "json"}
_TITLES = ("task", "scorer", "rank", "model", "run")
_NUMBERS = ("mean", "95% interval", "n", "left out", "on all keys", "cost")
_DUELS = ("strength", "95% interval", "won", "tied", "lost", "left out", "cost")
_RIGHT = {"rank", *_NUMBERS, *_DUELS}
_ONLY_IF_ANY = ("left out", "on all keys", "cost")
_EXACT = ("mean", "standard_error", "low", "high", "n", "missing", "dollars", "groups", "samples", "lowest", "highest")


_STRENGTHS = ("strength", "strength_low", "strength_high")
Table = tuple[list[str], list[list[str]], int]


class LeaderboardOptions(msgspec.Struct, frozen=True):
    """Which boards to print, and their format."""

    task: str | None = None
    scorer: str | None = None
    evaluation: str = ""
    format: str = "table"


def print_boards(names: Sequence[str], options: LeaderboardOptions, store: str | None) -> None:
    if options.format not in _FORMATS:
        raise UsageError(f"--format {options.format}: there is no such leaderboard{nearest(options.format, _FORMATS)}")
    with opened_runs(names, store) as runs:
        found = leaderboard_of(runs, options.task, options.scorer, options.evaluation)
    if options.format == "json":
        print_json(found)
        return
    for doubt in found.warnings:
        warn(doubt)
    several = len(names) > 1
    if options.format == "csv":
        _print_csv(found)
        return
    tables = [_mean_table(found.mean_boards(), several)] if found.mean_boards() else []
    tables += [_strength_table(each, several) for each in found.pairwise]
    notes = [*describe_boards(found.mean_boards()), *pairwise_methods(found.pairwise)]
    if options.format == "md":
        with end_quietly():
            sys.stdout.write("\n".join(markdown_table(*table) for table in tables))
            sys.stdout.write("".join(f"\n{note}\n" for note in notes))
        return
    for columns, rows, titles in tables:
        right = [name for name in columns if name in _RIGHT]
        print_table(Grid(columns, rows, titles=titles, right=right, whole=("scorer",)))
        print_line("")
    for note in notes:
        print_line(note, "dim")


def _print_csv(found: LeaderboardResult) -> None:
    strengths = {
        (board.task, scorer, each.run, each.model): (each.strength, each.low, each.high)
        for board in found.pairwise
        for scorer in board.scorers
        for each in board.players
        if each.run
    }
    with end_quietly():
        writer = csv.writer(sys.stdout)
        writer.writerow([*_TITLES, *_EXACT, *_STRENGTHS])
        for board, each in _lines(found.boards):
            summary = each.summary
            exact: list[object] = [summary.mean, summary.standard_error, summary.low, summary.high, summary.n]
            exact += [each.missing, each.cost.dollars, summary.groups, summary.samples, *(each.bounds or (None, None))]
            exact += strengths.get((board.task, board.scorer, each.run, each.model), (None, None, None))
            writer.writerow([*map(escape_formula, _titles(board, each)), *exact])


def _mean_table(found: Sequence[Board], several: bool) -> Table:
    """`several`: there are several runs, so the run of each model is shown."""
    rows = []
    for board, each in _lines(found):
        summary = each.summary
        bounds = "unknown" if each.missing else ""
        if each.bounds is not None:
            bounds = " .. ".join(map(format_number, each.bounds))
        missing = str(each.missing) if each.missing else ""
        mean = format_mean(summary.mean, board.scale)
        numbers = [mean, format_interval(summary), count_of(summary), missing, bounds, str(each.cost)]
        rows.append([*_titles(board, each), *numbers])
    return _without_empty((*_TITLES, *_NUMBERS), rows, several)


def _strength_table(board: PairwiseBoard, several: bool) -> Table:
    rows = []
    for each in board.players:
        names = [board.task, board.scorer, str(each.rank or ""), each.label, each.run]
        counts = [str(count) for count in (each.wins, each.ties, each.losses)]
        numbers = [format_number(each.strength), each.interval, *counts, str(each.missing or ""), str(each.cost)]
        rows.append([*names, *numbers])
    return _without_empty((*_TITLES, *_DUELS), rows, several)


def _without_empty(columns: Sequence[str], rows: list[list[str]], several: bool) -> Table:
    """Columns, rows, and the number of columns with names."""
    kept = [
        i
        for i, name in enumerate(columns)
        if (several or name != "run") and (name not in _ONLY_IF_ANY or any(row[i] for row in rows))
    ]
    titles = sum(columns[i] in _TITLES for i in kept)
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows], titles


def _lines(found: Sequence[Board]) -> Iterator[tuple[Board, Ranked]]:
    return ((board, each) for board in found for each in board.ranked)


def _titles(board: Board, each: Ranked) -> list[str]:
    return [board.task, board.scorer, str(each.rank), each.model, each.run]
