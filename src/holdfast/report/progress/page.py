"""Progress as HTML, for the output of a notebook cell: no widgets, no scripts, no style sheets."""

import html
from collections.abc import Iterable

from holdfast.printable import one_line
from holdfast.report.progress.lines import UNKNOWN, note_lines, plain_line, texts_of, time_taken
from holdfast.report.progress.view import ProgressRow, ProgressView

_NUMBER = ' style="text-align: right"'


def progress_html(view: ProgressView) -> str:
    """A bar with its line; with several models, a table with a bar for each."""
    shown = _table(view) if view.models else f"<div>{_bar(view.total)} {_escaped(plain_line(view))}</div>"
    notes = [*note_lines(view)]
    if view.models and view.activity:
        notes.insert(0, " · ".join(view.activity))
    if view.last_failure and not view.ended:
        notes.append(f"last failure: {view.last_failure}")
    return shown + "".join(f"<div><small>{_escaped(note)}</small></div>" for note in notes)


def _table(view: ProgressView) -> str:
    has_cost = view.total.dollars is not None
    head = ["model", "", "done", "", "rate", "left", *(["cost"] if has_cost else []), *view.scorers, "failed"]
    rows = []
    for row in (*view.models, view.total):
        texts = texts_of(row, view)
        left = time_taken(view) if view.ended and row is view.total else texts.left
        cells = [texts.done, texts.percent, texts.rate, left]
        if has_cost:
            cells.append(texts.cost or UNKNOWN)
        cells += [*texts.scores, *[""] * (len(view.scorers) - len(texts.scores)), texts.failed]
        rows.append(f"<tr><td>{_escaped(row.name)}</td><td>{_bar(row)}</td>{_cells(cells)}</tr>")
    names = "".join(f"<th>{_escaped(name)}</th>" for name in head)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"<td{_NUMBER}>{_escaped(text)}</td>" for text in texts)


def _bar(row: ProgressRow) -> str:
    return f'<progress value="{row.done}" max="{max(row.planned, 1)}"></progress>'


def _escaped(text: str) -> str:
    return html.escape(one_line(text))
