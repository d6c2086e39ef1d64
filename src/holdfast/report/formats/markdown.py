"""A run's report as Markdown, for pull requests and job summaries, with the facts of the terminal report.

Invariant: names and errors are escaped, so nothing in them is markup, a link or the end of a row.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from holdfast.printable import clean
from holdfast.report.cells import CellReport, PartialEvaluation, RunReport, unscored_counts
from holdfast.report.formats import ReportSource
from holdfast.report.tables import (
    STRATA,
    anomaly_lines,
    cost_sentences,
    duration,
    edited_lines,
    failure_lines,
    left_out,
    marked_lines,
    notice_lines,
    reading_lines,
    result_sentences,
    scorer_rows,
    speed_lines,
    strata_rows,
    tokens,
)
from holdfast.report.text import counted

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&$!]|:(?=//)|(?<=\bwww)\.)", re.IGNORECASE)
"""Includes entities, formulas, and addresses, which GitHub turns into links."""
_HEAD = ("task", "model", "scorer", "mean", "95% interval", "n", "left out", "tokens", "cost", "summed time")
_MARKS = {"completed": "✅", "running": "⏳", "failed": "❌", "stalled": "❌"}


def markdown(report: RunReport, *, all_columns: bool = False) -> str:
    """The report of one run. It ends with a blank line, so that several can be appended to one file. `all_columns`:
    also the mean of each stratum of macro means.
    """
    failed = sum(cell.failed for cell in report.cells)
    mark = "⚠️" if report.damage or (failed and report.status == "completed") else _MARKS.get(report.status, "⚠️")
    lines = [f"### {mark} {_text(f'{report.experiment}/{report.run_id}')}: {report.status}", ""]
    if report.reason:
        lines += [_text(report.reason), ""]
    for line in (*notice_lines(report), *result_sentences(report)):
        lines += [_text(line), ""]
    lines += [_row(_HEAD), _row("---" if name in _HEAD[:3] else "--:" for name in _HEAD)]
    lines += [row for cell in report.cells for row in _rows(cell, report.partial)]
    titles, parts = strata_rows(report.cells)
    if parts and all_columns:
        lines += ["", markdown_table([*titles, *STRATA], parts, len(titles)).rstrip("\n")]
    elif parts:
        lines += ["", _text(f"The mean of each {titles[-1]}: holdfast report {report.run_id} --all")]
    found = [
        *cost_sentences(report.cost),
        *speed_lines(report),
        *reading_lines(report.cells),
        *edited_lines(report.cells),
    ]
    found += [*marked_lines(report.cells), *anomaly_lines(report), *failure_lines(report.cells)]
    if report.anomalies:
        found.append(f"{counted(report.anomalies, 'anomaly', 'anomalies')} in the journal: see `holdfast verify`")
    if found:
        lines += ["", *(f"- {_text(line)}" for line in found)]
    return "\n".join(lines) + "\n\n"


def report_markdown(source: ReportSource, out: IO[str]) -> None:
    """The writer of `report --format markdown`."""
    out.writelines(markdown(report, all_columns=source.all_columns) for report in source.reports)


def _rows(cell: CellReport, partial: PartialEvaluation | None) -> Iterator[str]:
    rest = (tokens(cell.usage), _text(str(cell.cost)) or "-", duration(cell.seconds))
    if not cell.scorers:
        n, left = map(str, unscored_counts(cell, partial))
        yield _row((_text(cell.task), _text(cell.model), "-", "-", "-", n, left, *rest))
    for each in cell.shown_scorers():
        for name, (mean, _, interval, n, *_) in scorer_rows(each):
            left = str(left_out(each, name))
            called = _text(cell.marked_name(name))
            yield _row((_text(cell.task), _text(cell.model), called, _text(mean), interval, n, left, *rest))


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]], titles: int) -> str:
    """A Markdown table; the first `titles` columns hold names, the others numbers."""
    head = [_row(names), _row("---" if index < titles else "--:" for index in range(len(names)))]
    return "\n".join([*head, *(_row(map(_text, row)) for row in rows)]) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Escape Markdown, put the text on one line, and show control characters."""
    return _SPECIAL.sub(r"\\\1", " ".join(clean(text).split()))
