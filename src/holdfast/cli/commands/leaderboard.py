"""`leaderboard`: the models of one or several runs, ranked; models that do not differ significantly share a rank."""

import csv
import sys
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.cli.app import BOARD_FORMATS
from holdfast.cli.commands.compare import opened_runs
from holdfast.cli.output import end_quietly, print_json, print_line, print_sentence, print_table, warn
from holdfast.errors import UsageError
from holdfast.report import (
    Board,
    LeaderboardResult,
    Ranked,
    escape_formula,
    latex_notes,
    latex_table,
    markdown_table,
)
from holdfast.runs import leaderboard_of
from holdfast.spec import nearest

_SHORT = {"md": "markdown", "tex": "latex"}
_TITLES = ("task", "scorer", "rank", "model", "run")
_EXACT = ("mean", "standard_error", "low", "high", "n", "missing", "dollars", "groups", "samples", "lowest", "highest")
_STRENGTHS = ("strength", "strength_low", "strength_high")


class LeaderboardOptions(msgspec.Struct, frozen=True):
    """Which boards to print, and their format."""

    task: str | None = None
    scorer: str | None = None
    evaluation: str = ""
    format: str = "table"


def print_boards(names: Sequence[str], options: LeaderboardOptions, store: str | None) -> None:
    format = _SHORT.get(options.format, options.format)
    if format not in BOARD_FORMATS:
        raise UsageError(f"--format {format}: there is no such leaderboard{nearest(format, set(BOARD_FORMATS))}")
    with opened_runs(names, store) as runs:
        found = leaderboard_of(runs, options.task, options.scorer, options.evaluation)
    if format == "json":
        print_json(found)
        return
    for doubt in found.warnings:
        warn(doubt)
    if format == "csv":
        _print_csv(found)
        return
    if format != "table":
        with end_quietly():
            sys.stdout.write(_written(found, format))
        return
    for table in found.tables():
        print_table(table.grid())
        print_line("")
    for note in found.notes():
        print_sentence(note, "dim")


def _written(found: LeaderboardResult, name: str) -> str:
    """For a document."""
    if name == "html":
        return f"{found._repr_html_()}\n"
    write = markdown_table if name == "markdown" else latex_table
    tables = "\n".join(write(each.columns, each.rows, each.titles) for each in found.tables())
    notes = "".join(f"\n{note}\n" for note in found.notes()) if name == "markdown" else latex_notes(found.notes())
    return tables + notes


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


def _lines(found: Sequence[Board]) -> Iterator[tuple[Board, Ranked]]:
    return ((board, each) for board in found for each in board.ranked)


def _titles(board: Board, each: Ranked) -> list[str]:
    return [board.task, board.scorer, str(each.rank), each.model, each.run]
