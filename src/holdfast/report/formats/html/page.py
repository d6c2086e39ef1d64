"""A report as one self-contained HTML file. Sections, from the result to the details: summary, scores, comparison,
example answers, failures, cost and time, provenance.

Invariant: the page loads nothing and runs no script (its content security policy forbids both), and escapes every
answer, error and name. Its size does not grow with the number of samples.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import IO

import msgspec

from holdfast.records import Usage
from holdfast.report.cells import RunReport
from holdfast.report.compare.results import ComparisonResult
from holdfast.report.costs import unpriced_line
from holdfast.report.formats import ReportSource
from holdfast.report.formats.html.cards import example_cards, failure_cards
from holdfast.report.formats.html.elements import escaped, heading, notes, pairs, sentences, table
from holdfast.report.formats.html.figures import (
    cost_figure,
    curve_figures,
    difference_figures,
    latency_figure,
    score_figures,
)
from holdfast.report.formats.html.style import STYLE
from holdfast.report.formats.run_page import RunPage, run_names
from holdfast.report.tables import (
    STRATA,
    anomaly_lines,
    duration,
    edited_lines,
    marked_lines,
    notice_lines,
    reading_lines,
    report_rows,
    request_lines,
    score_sentences,
    strata_rows,
    tokens,
    wall_time_lines,
)
from holdfast.report.text import counted, dollars, status_text, status_tone

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_FACTS_MAX = 60
_SPEC_MAX = 50_000
_TITLES = 3
"""The first columns of a table of scores hold names."""
_SECONDS_SHOWN = 0.05
_LIVE = ("running", "stalled")
_COSTS = ("task", "model", "role", "requests", "tokens", "cost", "for 1,000 answers", "summed latency")


def report_html(source: ReportSource, out: IO[str]) -> None:
    """The writer of `report --format html`."""
    out.writelines(html_page(source.pages(), source.comparison()))


def html_page(pages: Sequence[RunPage], comparison: ComparisonResult | None = None) -> Iterator[str]:
    """The file in pieces. `comparison`: between the models of one run, or between several runs."""
    yield from _head(pages)
    yield from _notices(pages)
    yield from _summary(pages, comparison)
    yield from _scores(pages)
    yield from _comparison(comparison)
    yield from _examples(pages)
    yield from _failures(pages)
    yield from _costs(pages)
    yield from _provenance(pages)
    yield "</main>\n</body>\n</html>\n"


def _head(pages: Sequence[RunPage]) -> Iterator[str]:
    names = ", ".join(each.report.run_id for each in pages)
    experiments = ", ".join(dict.fromkeys(each.report.experiment for each in pages))
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="referrer" content="no-referrer">\n'
    yield f"<title>{escaped(f'{experiments}: {names}')}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n<main>\n"
    yield f'<header>\n<p class="eyebrow">Evaluation report · {escaped(experiments)}</p>\n'
    status = _status(pages[0].report) if len(pages) == 1 else ""
    yield f"<h1>{escaped(names)} {status}</h1>\n"
    facts = [_scope(each) for each in pages] if len(pages) == 1 else [counted(len(pages), "run")]
    yield f'<p class="muted">{escaped(" ".join(facts))}</p>\n</header>\n'


def _status(report: RunReport) -> str:
    failed, planned = _count(report, "failed"), _count(report, "planned")
    tone, text = status_tone(report.status, failed, planned), status_text(report.status, failed, planned)
    return f'<span class="status {escaped(tone)}">{escaped(text)}</span>'


def _scope(page: RunPage) -> str:
    """`3 models, 1 task, started 2025-01-01 12:00:00Z`."""
    cells = page.report.cells
    parts = [
        counted(len({cell.model for cell in cells}), "model"),
        counted(len({cell.task for cell in cells}), "task"),
        *(f"started {_readable(value)}" for name, value in page.origin.facts if name == "started"),
    ]
    return ", ".join(parts if cells else parts[2:])


def _readable(time: str) -> str:
    """`2025-01-01 12:00 UTC`, from `2025-01-01T12:00:07Z`."""
    return f"{time[:10]} {time[11:16]} UTC" if time.endswith("Z") else time


def _notices(pages: Sequence[RunPage]) -> Iterator[str]:
    """What a reader must know before the numbers."""
    for name, page in _named(pages):
        lines = [*_progress_lines(page.report), *notice_lines(page.report)]
        if lines:
            yield _notice(f"{name}: {line}" if name else line for line in lines)


def _notice(lines: Iterable[str]) -> str:
    inner = "".join(f"<p>{escaped(line)}</p>\n" for line in lines)
    return f'<div class="notice" role="note">\n{inner}</div>\n'


def _named(pages: Sequence[RunPage]) -> Iterator[tuple[str, RunPage]]:
    """Each run with its name on the page."""
    return zip(run_names([page.report for page in pages]), pages, strict=True)


def _progress_lines(report: RunReport) -> Iterator[str]:
    planned, finished, failed = (_count(report, name) for name in ("planned", "finished", "failed"))
    done = f"{finished:,} of {planned:,} answers are finished, {failed:,} failed"
    why = f": {report.reason}" if report.reason else ""
    if report.status in _LIVE:
        yield f"This run is still in progress ({report.status}{why}). {done}. The numbers below will change."
    elif report.status not in ("", "completed"):
        yield f"This run is not complete ({report.status}{why}). {done}. The numbers below cover what is finished."
    elif report.reason:
        yield report.reason


def _count(report: RunReport, name: str) -> int:
    return sum(getattr(cell, name) for cell in report.cells)


def _facts(pages: Sequence[RunPage]) -> str:
    """A few numbers about the whole run; for several runs a table."""
    if len(pages) > 1:
        names = ("run", "status", "answers", "failed", "cost", "tokens", "wall time")
        rows = []
        for each in pages:
            report = each.report
            failed, planned = _count(report, "failed"), _count(report, "planned")
            status = status_text(report.status, failed, planned)
            rows.append([f"{report.experiment}/{report.run_id}", status, *(value for _, value in _amounts(report))])
        return table(names, rows, titles=2)
    amounts = [(name, escaped(value)) for name, value in _amounts(pages[0].report) if value]
    return f'<dl class="facts">\n{_grouped(amounts)}</dl>\n'


def _grouped(facts: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<div>{pairs([each])}</div>\n" for each in facts)


def _amounts(report: RunReport) -> Iterator[tuple[str, str]]:
    planned, finished = _count(report, "planned"), _count(report, "finished")
    yield "Answers", f"{finished:,}" if finished == planned else f"{finished:,} of {planned:,}"
    yield "Failed", f"{_count(report, 'failed'):,}"
    yield "Cost", str(report.cost)
    yield "Tokens", tokens(report.usage) if report.usage.input_tokens or report.usage.output_tokens else ""
    yield "Wall time", duration(report.worked_seconds) if report.worked_seconds >= _SECONDS_SHOWN else ""


def _summary(pages: Sequence[RunPage], comparison: ComparisonResult | None) -> Iterator[str]:
    lines = []
    for name, page in _named(pages):
        lines += [f"{name}: {line}" if name else line for line in score_sentences(page.report)]
    lines += comparison.sentences() if comparison is not None else ()
    yield f"<section>\n{heading(2, 'Summary')}{sentences(lines) if lines else ''}{_facts(pages)}</section>\n"


def _scores(pages: Sequence[RunPage]) -> Iterator[str]:
    if not any(page.report.cells for page in pages):
        return
    yield f"<section>\n{heading(2, 'Scores')}"
    reports = [page.report for page in pages]
    yield _figures([*score_figures(reports)])
    for page in pages:
        report = page.report
        yield _run_heading(page, pages)
        yield table(*report_rows(report, all_columns=False), titles=_TITLES)
        yield notes(reading_lines(report.cells), "What the means leave out")
        all_columns = table(*report_rows(report), titles=_TITLES)
        yield f'<details class="again"><summary>All columns</summary>{all_columns}</details>\n'
        titles, parts = strata_rows(report.cells)
        if parts:
            strata = table([*titles, *STRATA], parts, titles=len(titles))
            yield f"<details><summary>The mean of each {escaped(titles[-1])}</summary>{strata}</details>\n"
        remarks = [*edited_lines(report.cells), *marked_lines(report.cells), *anomaly_lines(report)]
        if report.anomalies:
            count = counted(report.anomalies, "anomaly", "anomalies")
            remarks.append(f"{count} in the journal: see holdfast verify {report.run_id}")
        yield notes(remarks)
    curves = [
        msgspec.structs.replace(each, label=f"{name} {each.label}".lstrip())
        for name, page in _named(pages)
        for each in page.answers.curves
    ]
    yield _figures([*curve_figures(curves)])
    yield "</section>\n"


def _comparison(comparison: ComparisonResult | None) -> Iterator[str]:
    if comparison is None:
        return
    found = comparison.comparisons
    compared = comparison.table()
    yield f"<section>\n{heading(2, 'Comparison')}"
    if comparison.warnings:
        yield _notice(comparison.warnings)
    yield _figures([*difference_figures(found)])
    yield table(compared.columns, compared.rows, compared.titles)
    yield notes(comparison.notes(), "What was compared")
    yield "</section>\n"


def _examples(pages: Sequence[RunPage]) -> Iterator[str]:
    shown = [page for page in pages if page.answers.groups]
    if not shown:
        return
    yield f"<section>\n{heading(2, 'Example answers')}"
    yield '<p class="small muted">Examples are drawn with a fixed seed: the same run always shows the same ones. '
    yield "Long texts are cut in the middle.</p>\n"
    for page in shown:
        yield _run_heading(page, pages)
        if not page.holds_data:
            why = "Questions and targets are not shown: this run does not record its data (record_data: false)."
            yield f'<p class="small muted">{why}</p>\n'
        yield from example_cards(page, 3 if len(pages) == 1 else 4)
        run = page.report.run_id
        yield f'<p class="small muted">All answers: <code>{escaped(f"holdfast export {run}")}</code></p>\n'
    yield "</section>\n"


def _failures(pages: Sequence[RunPage]) -> Iterator[str]:
    found = [(page, [*failure_cards(page, 3 if len(pages) == 1 else 4)]) for page in pages]
    if not any(cards for _, cards in found):
        return
    yield f"<section>\n{heading(2, 'Failures')}"
    yield '<p class="small muted">One example of each cause. Failed samples are not part of any mean.</p>\n'
    for page, cards in found:
        if cards:
            yield f'{_run_heading(page, pages)}<div class="cards">\n{"".join(cards)}</div>\n'
    yield "</section>\n"


def _costs(pages: Sequence[RunPage]) -> Iterator[str]:
    shown = [page for page in pages if page.costs]
    if not shown:
        return
    yield f"<section>\n{heading(2, 'Cost and time')}"
    for page in shown:
        yield _run_heading(page, pages)
        yield _cost_table(page)
        yield notes(_cost_lines(page.report), "More about cost and time", shown=3)
    latencies = [
        (f"{name} {each.label}".lstrip(), each) for name, page in _named(pages) for each in page.answers.latencies
    ]
    yield _figures([latency_figure(latencies), cost_figure([page.report for page in pages])])
    yield "</section>\n"


def _cost_table(page: RunPage) -> str:
    seconds = {(cell.task, cell.model): duration(cell.seconds) for cell in page.report.cells}
    rows = [
        [
            line.task,
            line.model,
            line.role or "evaluated",
            f"{line.requests:,}",
            tokens(line.usage),
            "" if line.cost.dollars is None else dollars(line.cost.dollars),
            "" if line.dollars_per_sample is None else dollars(1_000 * line.dollars_per_sample),
            seconds.get((line.task, line.model), "") if not line.role else "",
        ]
        for line in page.costs
    ]
    usage = sum((line.usage for line in page.costs), Usage())
    requests = sum(line.requests for line in page.costs)
    worked = duration(sum(cell.seconds for cell in page.report.cells))
    foot = ["Total", "", "", f"{requests:,}", tokens(usage), str(page.report.cost), "", worked]
    return table(_COSTS, rows, _TITLES, foot if len(rows) > 1 else ())


def _cost_lines(report: RunReport) -> Iterator[str]:
    """The wall time and the summed latency are different things, so both are named."""
    yield from wall_time_lines(report)
    worked = duration(sum(cell.seconds for cell in report.cells))
    yield f"summed latency: {worked} over all samples, of which many run at the same time"
    cost = report.cost
    if cost.dollars is not None:
        orphaned = f", {dollars(cost.orphaned_dollars)} of it for orphaned steps" if cost.orphaned_dollars else ""
        saved = f"; replay saved {dollars(cost.saved_dollars)}" if cost.saved_dollars else ""
        yield f"cost: {dollars(cost.dollars)}{orphaned}{saved}"
    if cost.unpriced:
        yield unpriced_line(cost.unpriced)
    yield from request_lines(report)


def _provenance(pages: Sequence[RunPage]) -> Iterator[str]:
    shown = [page for page in pages if page.origin.facts]
    if not shown:
        return
    yield f'<section>\n<details class="provenance"><summary>{heading(2, "Provenance").strip()}</summary>\n'
    for page in shown:
        origin = page.origin
        yield _run_heading(page, pages)
        facts = [*origin.facts[:_FACTS_MAX]]
        if len(origin.facts) > _FACTS_MAX:
            facts.append(("more", counted(len(origin.facts) - _FACTS_MAX, "fact")))
        rows = "".join(f'<tr><th scope="row">{escaped(n)}</th><td>{escaped(value)}</td></tr>\n' for n, value in facts)
        yield f'<div class="wide" tabindex="0"><table>\n<tbody>\n{rows}</tbody>\n</table></div>\n'
        if origin.spec:
            spec, cut = origin.spec[:_SPEC_MAX], len(origin.spec) - _SPEC_MAX
            more = f"\n… {cut:,} more characters" if cut > 0 else ""
            text = f"<summary>The spec</summary><pre>\n{escaped(spec + more)}</pre>"
            yield f'<details class="spec">{text}</details>\n'
    yield "</details>\n</section>\n"


def _figures(figures: Sequence[str]) -> str:
    drawn = "".join(figures)
    return f'<div class="figures">\n{drawn}</div>\n' if drawn else ""


def _run_heading(page: RunPage, pages: Sequence[RunPage]) -> str:
    """The name of a run, if the page shows several."""
    return heading(3, f"{page.report.experiment}/{page.report.run_id}") if len(pages) > 1 else ""
