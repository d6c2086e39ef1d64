"""`leaderboard`: the models of one or several runs, ranked; models that do not differ significantly share a rank."""

import csv
import sys
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.cli.commands.compare import opened_runs
from holdfast.cli.output import end_quietly, print_json, print_line, print_table, warn
from holdfast.errors import UsageError
from holdfast.report import Grid, count_of, describe_boards, format_interval, format_number
from holdfast.report.compare.leaderboard import Board, Ranked
from holdfast.report.formats.lines import escape_formula
from holdfast.report.formats.markdown import markdown_table
from holdfast.runs import leaderboard_of
from holdfast.spec import nearest

_FORMATS = {"table", "md", "csv", "json"}
_TITLES = ("task", "scorer", "rank", "model", "run")
_NUMBERS = ("mean", "95% interval", "n", "left out", "on all keys", "cost")
_ONLY_IF_ANY = ("left out", "on all keys", "cost")
_EXACT = ("mean", "standard_error", "low", "high", "n", "missing", "dollars", "groups", "samples", "lowest", "highest")


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
    _print(found.boards, options.format, several=len(names) > 1)


def _print(found: Sequence[Board], form: str, several: bool) -> None:
    if form == "csv":
        with end_quietly():
            writer = csv.writer(sys.stdout)
            writer.writerow([*_TITLES, *_EXACT])
            for board, each in _lines(found):
                summary = each.summary
                exact: list[object] = [summary.mean, summary.standard_error, summary.low, summary.high, summary.n]
                exact += [
                    each.missing,
                    each.cost.dollars,
                    summary.groups,
                    summary.samples,
                    *(each.bounds or (None, None)),
                ]
                writer.writerow([*map(escape_formula, _titles(board, each)), *exact])
        return
    shown = [i for i, title in enumerate(_TITLES) if several or title != "run"]
    rows = []
    for board, each in _lines(found):
        summary, titles = each.summary, _titles(board, each)
        bounds = "unknown" if each.missing else ""
        if each.bounds is not None:
            bounds = " .. ".join(map(format_number, each.bounds))
        missing = str(each.missing) if each.missing else ""
        numbers = [format_number(summary.mean), format_interval(summary), count_of(summary), missing, bounds]
        numbers.append(str(each.cost))
        rows.append([*(titles[i] for i in shown), *numbers])
    titles = [_TITLES[i] for i in shown]
    kept = [i for i, name in enumerate((*titles, *_NUMBERS)) if name not in _ONLY_IF_ANY or any(r[i] for r in rows)]
    names = [(*titles, *_NUMBERS)[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    notes = list(describe_boards(found))
    if form == "md":
        with end_quietly():
            sys.stdout.write(markdown_table(names, rows, len(titles)))
            sys.stdout.write("".join(f"\n{note}\n" for note in notes))
        return
    print_table(Grid(names, rows, titles=len(titles), right=("rank", *_NUMBERS), whole=("scorer",)))
    print_line("")
    for note in notes:
        print_line(note, "dim")


def _lines(found: Sequence[Board]) -> Iterator[tuple[Board, Ranked]]:
    return ((board, each) for board in found for each in board.ranked)


def _titles(board: Board, each: Ranked) -> list[str]:
    return [board.task, board.scorer, str(each.rank), each.model, each.run]
