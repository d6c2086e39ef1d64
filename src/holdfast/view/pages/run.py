"""The overview of one run: results by cell, failures by cause, cost, speed."""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.report import CellReport, RunReport
from holdfast.report.cells import ScorerReport
from holdfast.report.tables import (
    anomaly_lines,
    cost_sentences,
    duration,
    edited_lines,
    left_out_lines,
    marked_lines,
    reading_lines,
    result_sentences,
    scorer_summaries,
    speed_lines,
    tokens,
)
from holdfast.report.text import format_interval, format_number
from holdfast.runs import RunSummary
from holdfast.state import Standing
from holdfast.stats import Summary
from holdfast.view.figures import interval_figure
from holdfast.view.layout import facts, table
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.pages.runs import cost_text, progress_bar
from holdfast.view.sources import Durability, RunRef


class RunView(msgspec.Struct, frozen=True):
    """Everything that the overview shows."""

    ref: RunRef
    summary: RunSummary
    report: RunReport
    durability: Durability
    live: bool
    seconds_left: float | None
    """At the speed of the process that is running; None if unknown."""


def load(request: PageRequest) -> RunView:
    with request.sources.open(request.run) as run:
        report = run.report(request.query.get("evaluation", ""))
        summary = run.summary(request.query.get("evaluation", ""))
        return RunView(
            request.run, summary, report, run.durability(), run.is_live, _seconds_left(run.standing, summary)
        )


def _seconds_left(standing: Standing, summary: RunSummary) -> float | None:
    lease = standing.lease
    if lease is None or not standing.held or lease.at <= lease.began:
        return None
    done = summary.finished + summary.failed
    speed = done / (lease.at - lease.began) if done else 0.0
    return summary.unfinished / speed if speed else None


def render(found: RunView, links: Links) -> Body:
    summary, report = found.summary, found.report
    parts = [
        h("h1", f"{summary.experiment} / {summary.run_id}"),
        h("p", summary.description) if summary.description else None,
        [h("p", sentence, class_="problem", role="alert") for sentence in summary.damage],
        _live("head", [_facts(found, links)]),
        _live("results", _results(found, links)),
        _live("failures", _failures(found, links)),
        _live("more", _lines("Cost and speed", [*cost_sentences(report.cost), *speed_lines(report)])),
        _live("anomalies", _lines("Anomalies", anomaly_lines(report))),
        _commands(found),
    ]
    status = (summary.status, summary.reason)
    return Body(
        f"{summary.run_id}",
        join(parts),
        found.ref,
        "",
        status,
        found.durability,
        is_live=found.live and found.ref.at is None,
    )


def _live(name: str, children: Iterable[Child]) -> Markup:
    """A region that is replaced while the run is live."""
    return h("section", children, id=name, data_live=True)


def _facts(found: RunView, links: Links) -> Markup:
    summary = found.summary
    pairs: list[tuple[str, Child]] = [
        ("status", f"{summary.status}{f': {summary.reason}' if summary.reason else ''}"),
        ("progress", progress_bar(summary.finished, summary.failed, summary.planned)),
        (
            "samples",
            [_counted(found, links, each) for each in ("finished", "failed", "unfinished")]
            + [f" = {summary.planned:,} planned"],
        ),
        ("time left", duration(found.seconds_left) if found.seconds_left else "") if found.live else ("", ""),
        ("tokens", tokens(summary.usage)),
        ("cost", cost_text(summary.cost)),
        ("tags", [h("span", tag, class_="tag") for tag in summary.tags]),
        ("resumes", h("a", str(len(summary.resumes)), href=links.run(found.ref, "lineage")) if summary.resumes else ""),
        ("folder", h("code", summary.folder)),
    ]
    return facts([(name, value) for name, value in pairs if name and value not in ("", [])])


def _counted(found: RunView, links: Links, status: str) -> Markup:
    """How many samples have a status, as a link to them."""
    count = getattr(found.summary, status)
    plus = "" if status == "finished" else " + "
    return join([plus, h("a", f"{count:,} {status}", href=links.run(found.ref, "samples", status=status))])


def _results(found: RunView, links: Links) -> Iterator[Child]:
    report = found.report
    yield h("h2", "Results")
    yield [h("p", sentence, class_="sentence") for sentence in result_sentences(report)]
    rows = [row for cell in report.cells for row in _cell_rows(cell, found.ref, links)]
    columns = ["task", "model", "score", "mean", "interval", "n", "finished", "failed", "unfinished", "cost", "latency"]
    numbers = frozenset(columns[3:])
    yield table(columns, rows, numbers=numbers)
    figure = interval_figure(
        [
            (f"{cell.task} {cell.model} {name}", summary)
            for cell in report.cells
            for scorer in cell.scorers
            for name, summary, _ in scorer_summaries(scorer)
        ]
    )
    if figure:
        yield h("figure", figure, h("figcaption", "Means with 95% intervals."))
    cells = report.cells
    for line in (*reading_lines(cells), *left_out_lines(cells), *edited_lines(cells), *marked_lines(cells)):
        yield h("p", line, class_="quiet")


def _cell_rows(cell: CellReport, ref: RunRef, links: Links) -> Iterator[Markup]:
    named: list[tuple[str, Summary | None, ScorerReport | None]] = [
        (name, summary, scorer) for scorer in cell.scorers for name, summary, _ in scorer_summaries(scorer)
    ]
    for number, (name, summary, scorer) in enumerate(named or [("", None, None)]):
        address = links.run(ref, "samples", task=cell.task, model=cell.model, scorer=scorer.scorer if scorer else "")
        counts = [
            f"{cell.finished:,}",
            f"{cell.failed:,}" if cell.failed else "",
            f"{cell.unfinished:,}" if cell.unfinished else "",
        ]
        latency = duration(cell.seconds / cell.finished) if cell.finished else ""
        values: list[Child] = [
            cell.task,
            cell.model,
            name,
            h("a", format_number(summary.mean), href=address) if summary is not None else "",
            format_interval(summary) if summary is not None else "",
            f"{summary.n:,}" if summary is not None else "",
            *(counts if not number else ["", "", ""]),
            cost_text(cell.cost) if not number else "",
            latency if not number else "",
        ]
        yield h("tr", [h("td", value, class_="number" if at > 2 else None) for at, value in enumerate(values)])


def _failures(found: RunView, links: Links) -> Iterator[Child]:
    failures = found.summary.failures
    if not failures:
        return
    yield h("h2", "Failures")
    rows = [
        h(
            "tr",
            h("td", each["task"]),
            h("td", each["model"]),
            h("td", h("a", each["kind"], href=links.run(found.ref, "samples", status="failed", kind=each["kind"]))),
            h("td", f"{each['count']:,}", class_="number"),
            h("td", h("a", each["example"]["key"], href=links.sample(found.ref, each["example"]["key"]))),
            h("td", each["example"]["message"], class_="text"),
        )
        for each in failures
    ]
    yield table(["task", "model", "cause", "count", "example", "message"], rows, numbers=frozenset({"count"}))


def _lines(title: str, lines: Iterable[str]) -> list[Child]:
    found = list(lines)
    return [h("h2", title), [h("p", line) for line in found]] if found else []


def _commands(found: RunView) -> Markup:
    name = found.summary.run_id
    commands = [f"holdfast show {name}", f"holdfast report {name}", f"holdfast export {name} --format parquet"]
    if found.summary.status in ("interrupted", "failed"):
        commands.insert(0, f"holdfast resume {name}")
    return h("details", h("summary", "Commands"), h("pre", "\n".join(commands)))
