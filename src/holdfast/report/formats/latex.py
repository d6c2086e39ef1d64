r"""A report as a LaTeX table with booktabs rules: one row per scorer and reducer, as in the report.

Invariant: names are escaped, so nothing in them is a LaTeX command or ends a row. Needs `\usepackage{booktabs}`.
Non-ASCII letters stay as they are: LaTeX reads UTF-8.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from holdfast.printable import clean
from holdfast.report.cells import CellReport, PartialEvaluation, RunReport, unscored_counts
from holdfast.report.formats import ReportSource
from holdfast.report.tables import evaluation_lines, left_out, marked_lines, reading_lines, scorer_summaries
from holdfast.report.text import count_of, format_mean, format_number

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedblright{}",  # the straight one is missing from LaTeX's default encoding
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": "-{}",
    **{each: f"\\{each}" for each in "#$%&_{}"},
}
_SOUGHT = re.compile(f"-(?=-)|[{re.escape(''.join(each for each in _SPECIAL if each != '-'))}]")
"""LaTeX joins several hyphens into a dash, so only those are escaped."""
_HEAD = ("task", "model", "scorer", "mean", r"95\% interval", "$n$", "left out")


def latex(reports: Sequence[RunReport]) -> str:
    """All runs in one table; with several, the first column names the run."""
    several = len(reports) > 1
    priced = any(cell.cost.dollars is not None for report in reports for cell in report.cells)
    names = [*(["run"] if several else []), *_HEAD, *(["cost"] if priced else [])]
    titles = 3 + several
    lines = [
        r"% needs \usepackage{booktabs}",
        *(f"% damaged: {_text(sentence)}" for report in reports for sentence in report.damage),
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{'l' * titles}{'r' * (len(names) - titles)}}}",
        r"\toprule",
        _row(names),
    ]
    for report in reports:
        lines.append(r"\midrule")
        for cell in report.cells:
            rows = _rows(cell, report.partial, priced=priced)
            lines += [_row([*([_text(report.run_id)] if several else []), *row]) for row in rows]
    cells = [cell for report in reports for cell in report.cells]
    partial = [line for report in reports for line in evaluation_lines(report)]
    found = (*partial, *reading_lines(cells, advise=False), *marked_lines(cells))
    caption = ", ".join(
        f"{_text(report.experiment)}/{_text(report.run_id)} ({report.status}{', damaged' if report.damage else ''}"
        f"{', partial evaluation' if report.partial is not None else ''})"
        for report in reports
    )
    lines += [r"\bottomrule", r"\end{tabular}", latex_notes(found).rstrip("\n")]
    lines += [rf"\caption{{{caption}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def latex_table(names: Sequence[str], rows: Iterable[Sequence[str]], titles: int) -> str:
    """A LaTeX table; the first `titles` columns hold names, the others numbers."""
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{'l' * titles}{'r' * (len(names) - titles)}}}",
        r"\toprule",
        _row([_text(name) for name in names]),
        r"\midrule",
        *(_row([_text(cell) for cell in row]) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def latex_notes(lines: Iterable[str]) -> str:
    """Sentences below a table."""
    notes = [rf"{_text(line)}\par" for line in lines]
    return "\n".join([r"{\par\smallskip\footnotesize\raggedright", *notes, "}"]) + "\n"


def report_latex(source: ReportSource, out: IO[str]) -> None:
    """The writer of `report --format latex`."""
    out.write(latex(source.reports))


def _rows(cell: CellReport, partial: PartialEvaluation | None, *, priced: bool) -> Iterator[list[str]]:
    names = [_text(cell.task), _text(cell.model)]
    cost = [_text(str(cell.cost)) or "--"] if priced else []
    if not cell.scorers:
        yield [*names, "--", "--", "--", *map(str, unscored_counts(cell, partial)), *cost]
    for each in cell.shown_scorers():
        for name, summary, labels in scorer_summaries(each):
            shown = ", ".join(f"{label} {count}" for label, count in list(labels.items())[:4])
            mean, interval, n = _text(shown) or "--", "--", str(sum(labels.values()))
            if summary.mean is not None:
                number, _, scale = format_mean(summary.mean, each.scale_of(name)).partition(" ")
                mean, n = f"${number}$ {scale}".rstrip(), count_of(summary).replace(" x ", r" $\times$ ")
                if summary.low is not None and summary.high is not None:
                    interval = f"$[{format_number(summary.low)}, {format_number(summary.high)}]$"
            yield [*names, _text(cell.marked_name(name)), mean, interval, n, str(left_out(each, name)), *cost]


def _row(cells: Sequence[str]) -> str:
    return rf"{' & '.join(cells)} \\"


def _text(text: str) -> str:
    """On one line, with control characters shown."""
    plain = " ".join(clean(text).split())
    return _SOUGHT.sub(lambda found: _SPECIAL[found[0]], plain)
