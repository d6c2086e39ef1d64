"""`leaderboard`: the models of one run, or of several, with ranks that respect ties."""

import csv
import sys
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.cli.commands.comparability import all_sides, opened_runs, unfinished, unlike, without_data, without_groups
from holdfast.cli.output import end_quietly, print_json, print_table, say, warn
from holdfast.errors import UsageError
from holdfast.report.compare.leaderboard import Board, Ranked, boards
from holdfast.report.formats.lines import harmless
from holdfast.report.formats.markdown import markdown_table
from holdfast.report.grid import Grid
from holdfast.report.text import count_of
from holdfast.spec.source.messages import nearest

_FORMATS = {"table", "md", "csv", "json"}
_TITLES = ("task", "scorer", "rank", "model", "run")
_NUMBERS = ("mean", "95% interval", "n", "no score", "cost")
_EXACT = ("mean", "standard_error", "low", "high", "n", "missing", "dollars", "groups")


class Wanted(msgspec.Struct, frozen=True):
    """Which boards, and how they are printed."""

    task: str | None = None
    scorer: str | None = None
    evaluation: str = ""
    format: str = "table"


def print_boards(names: Sequence[str], wanted: Wanted, store: str | None) -> None:
    if wanted.format not in _FORMATS:
        raise UsageError(f"--format {wanted.format}: there is no such leaderboard{nearest(wanted.format, _FORMATS)}")
    with opened_runs(names, store) as runs:
        sides = all_sides(runs, wanted.evaluation)
        costs = [{(cell.task, cell.model): cell.cost for cell in run.cells()} for run in runs]
        reasons = [why for other in runs[1:] for why in unlike(runs[0], other, wanted.evaluation)]
        doubts = [*unfinished(runs), *without_data(runs), *(f"{why}; ranked all the same" for why in reasons)]
        doubts += without_groups(runs)
    found = list(boards(sides, costs, wanted.task, wanted.scorer))
    if not found:
        known = {task: None for each in sides for task, _ in each}
        raise UsageError(_nothing(names, wanted, list(known)))
    alone = [f"{each.task} {each.scorer}" for each in found if each.common_min == 0]
    doubts += [f"{each}: two of them have no key in common: neither ranks below the other" for each in alone]
    left = [(f"{board.task} {board.scorer}", name) for board in found for name in board.unranked]
    doubts += [f"{board}: {name} has no score, and so no rank" for board, name in left]
    if wanted.format == "json":
        print_json({"boards": found, "comparable": not reasons, "warnings": doubts})
        return
    for doubt in doubts:
        warn(doubt)
    _print(found, wanted.format, several=len(names) > 1)


def _nothing(names: Sequence[str], wanted: Wanted, tasks: Sequence[str]) -> str:
    if wanted.task is not None and wanted.task not in tasks:
        return f"--task {wanted.task}: there is no such task{nearest(wanted.task, set(tasks))}"
    if wanted.scorer is not None:
        return f"--scorer {wanted.scorer}: no numbers under that name; leave it out to see all"
    return f"{' and '.join(names)}: no scorer has given a number: there is nothing to rank"


def _print(found: Sequence[Board], form: str, several: bool) -> None:
    if form == "csv":
        with end_quietly():
            writer = csv.writer(sys.stdout)
            writer.writerow([*_TITLES, *_EXACT])
            writer.writerows([*map(harmless, _titles(board, each)), *_exact(each)] for board, each in _lines(found))
        return
    shown = [i for i, title in enumerate(_TITLES) if several or title != "run"]
    rows = [[*(_titles(*line)[i] for i in shown), *_numbers(line[1])] for line in _lines(found)]
    titles = [_TITLES[i] for i in shown]
    kept = [
        i for i, name in enumerate((*titles, *_NUMBERS)) if name not in ("no score", "cost") or any(r[i] for r in rows)
    ]
    names = [(*titles, *_NUMBERS)[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    if form == "md":
        with end_quietly():
            sys.stdout.write(markdown_table(names, rows, len(titles)))
        return
    print_table(Grid(names, rows, titles=len(titles), right=("rank", *_NUMBERS), whole=("scorer",)))
    say("")
    say("rank: 1 + the number of those that are significantly better on common keys (Holm, 0.05)", "dim")


def _lines(found: Sequence[Board]) -> Iterator[tuple[Board, Ranked]]:
    return ((board, each) for board in found for each in board.ranked)


def _titles(board: Board, each: Ranked) -> list[str]:
    return [board.task, board.scorer, str(each.rank), each.model, each.run]


def _exact(each: Ranked) -> list[object]:
    summary = each.summary
    told = [summary.mean, summary.standard_error, summary.low, summary.high, summary.n]
    return [*told, each.missing, each.cost.dollars, summary.groups]


def _numbers(each: Ranked) -> list[str]:
    summary = each.summary
    interval = "-" if summary.low is None or summary.high is None else f"{summary.low:.4f} .. {summary.high:.4f}"
    mean = "-" if summary.mean is None else f"{summary.mean:.4f}"
    return [mean, interval, count_of(summary), str(each.missing) if each.missing else "", str(each.cost)]
