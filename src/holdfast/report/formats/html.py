"""A report as one self-contained HTML file: tables, figures, failures, cost, origin.

Invariant: the page loads nothing (its content security policy forbids it too), runs no script, and escapes every
answer, error and name.
"""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

import msgspec

from holdfast.printable import clean
from holdfast.report.cells import RunReport
from holdfast.report.costs import CostLine, unpriced_line
from holdfast.report.formats import ReportSource
from holdfast.report.formats.plots import Plot
from holdfast.report.questions import UNKNOWN, Question, readable_input, value_text
from holdfast.report.tables import (
    anomaly_lines,
    duration,
    edited_lines,
    html_table,
    marked_lines,
    notice_lines,
    reading_lines,
    report_rows,
    result_sentences,
    short,
)
from holdfast.report.text import counted, dollars, shortened, status_text, status_tone


class RunOrigin(msgspec.Struct, frozen=True):
    """Where a run comes from: facts as names and values, and the spec as text."""

    facts: tuple[tuple[str, str], ...]
    spec: str = ""


class RunPage(msgspec.Struct, frozen=True):
    """One run on the page."""

    report: RunReport
    costs: tuple[CostLine, ...]
    origin: RunOrigin
    questions: Mapping[str, Question] = {}
    """What the samples of failures were asked, by key."""

    def asked(self, key: str) -> list[str]:
        """The question and the target of a key; empty texts if they are not known."""
        found = self.questions.get(key, UNKNOWN)
        return [shortened(text, _MESSAGE_MAX) for text in (readable_input(found), value_text(found.target) or "")]


_MESSAGE_MAX = 2_000
_FAILURE_COLUMNS = ("task", "model", "what", "kind", "count", "example", "it says", "question", "target")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin-top: 1.75rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #e4e4e4; vertical-align: top;
  overflow-wrap: break-word; max-width: 28rem; }
th { border-bottom: 2px solid #888; }
pre { background: #f5f5f5; padding: .75rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
.status { padding: .1rem .5rem; border-radius: .5rem; background: #eee; }
.completed { background: #d9f2df; } .failed, .stalled { background: #f8d7d7; } .interrupted { background: #fdf0cc; }
""".strip()
_SVG = re.compile(r"<svg\b.*</svg>", re.DOTALL)
_NO_HTML = re.compile("[\ud800-\udfff\ufffe\uffff]")


def failure_examples(report: RunReport) -> Iterator[str]:
    """The keys that a page names as examples of failures."""
    for cell in report.cells:
        yield from (example.key for example in cell.examples.values())
        yield from (each.example.key for each in cell.scorers if each.failures and each.example is not None)


def report_html(source: ReportSource, out: IO[str]) -> None:
    """The writer of `report --format html`."""
    out.writelines(html_page(source.pages(), source.plots()))


def html_page(pages: Sequence[RunPage], figures: Iterable[Plot]) -> Iterator[str]:
    """The file in pieces. `figures`: SVG, for all runs together."""
    title = ", ".join(f"{each.report.experiment}/{each.report.run_id}" for each in pages)
    yield f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_text(title)}</title>\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<h1>{_text(title)}</h1>\n"
    for each in pages:
        yield from _run(each)
    for number, figure in enumerate(figures):
        # Only the <svg> element, without the XML declaration and document type.
        found = _SVG.search(figure.content.decode())
        heading = "" if number else "<h2>Figures</h2>\n"
        label = f'role="img" aria-label="{_text(figure.title)}"'
        yield f"{heading}<figure {label}>{found[0] if found else ''}</figure>\n"
    yield "</body>\n</html>\n"


def _run(page: RunPage) -> Iterator[str]:
    report = page.report
    failed, planned = sum(cell.failed for cell in report.cells), sum(cell.planned for cell in report.cells)
    tone, status = status_tone(report.status, failed, planned), status_text(report.status, failed, planned)
    yield f'<section>\n<h2>{_text(report.run_id)} <span class="status {_text(tone)}">'
    yield f"{_text(status)}</span></h2>\n"
    for line in (report.reason, *notice_lines(report), *result_sentences(report)):
        if line:
            yield f"<p>{_text(line)}</p>\n"
    yield _table(*report_rows(report))
    cells = report.cells
    for line in (*reading_lines(cells), *edited_lines(cells), *marked_lines(cells), *anomaly_lines(report)):
        yield f"<p>{_text(line)}</p>\n"
    if report.anomalies:
        yield f"<p>{counted(report.anomalies, 'anomaly', 'anomalies')} in the journal: see holdfast verify</p>\n"
    failures = list(_failures(page))
    if failures:
        yield f"<h3>Failures</h3>\n{_table(_FAILURE_COLUMNS, failures)}"
    yield from _costs(page)
    yield f"<h3>Origin</h3>\n{_table(('fact', 'value'), page.origin.facts)}"
    if page.origin.spec:
        yield f"<details><summary>The spec</summary><pre>{_text(page.origin.spec)}</pre></details>\n"
    yield "</section>\n"


def _failures(page: RunPage) -> Iterator[list[str]]:
    """Failures by kind with an example: of samples, and of scorers on finished answers."""
    for cell in page.report.cells:
        for kind, count in cell.failures.items():
            example = cell.examples[kind]
            message = shortened(example.message, _MESSAGE_MAX)
            yield [cell.task, cell.model, "sample", kind, str(count), example.key, message, *page.asked(example.key)]
        for each in cell.scorers:
            if each.failures and each.example is not None:
                message = shortened(each.example.message, _MESSAGE_MAX)
                row = [f"scorer {each.scorer}", "scorer", str(each.failures), each.example.key, message]
                yield [cell.task, cell.model, *row, *page.asked(each.example.key)]


def _costs(page: RunPage) -> Iterator[str]:
    if not page.costs:
        return
    yield "<h3>Cost</h3>\n"
    names = ("task", "model", "role", "requests", "tokens in", "tokens out", "cost", "for each answer")
    rows = [
        [
            line.task,
            line.model,
            line.role,
            str(line.requests),
            short(line.usage.input_tokens),
            short(line.usage.output_tokens),
            "" if line.cost.dollars is None else dollars(line.cost.dollars),
            "" if line.dollars_per_sample is None else dollars(line.dollars_per_sample),
        ]
        for line in page.costs
    ]
    yield _table(names, rows)
    cost = page.report.cost
    if cost.dollars is not None:
        saved = f"; replay saved {dollars(cost.saved_dollars)}" if cost.saved_dollars else ""
        worked = duration(sum(cell.seconds for cell in page.report.cells))
        yield f"<p>In all {dollars(cost.dollars)}{saved}, {worked} of work.</p>\n"
    if cost.unpriced:
        yield f"<p>{_text(unpriced_line(cost.unpriced))}</p>\n"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cleaned = [[_clean(cell) for cell in row] for row in rows]
    return f'<div class="wide">{html_table(names, cleaned)}</div>\n'


def _text(text: str) -> str:
    return html.escape(_clean(text))


def _clean(text: str) -> str:
    """With control characters and everything that HTML cannot hold shown as escapes."""
    return _NO_HTML.sub(lambda found: f"\\u{ord(found[0]):04x}", clean(text))
