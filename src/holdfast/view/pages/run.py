"""The overview of one run: results by cell, failures by cause, cost, speed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.report import (
    CellReport,
    RunReport,
    ScorerReport,
    brief,
    count_of,
    counted,
    format_interval,
    format_number,
    status_text,
)
from holdfast.report.tables import (
    cost_sentences,
    duration,
    edited_lines,
    marked_lines,
    partial_lines,
    reading_lines,
    result_sentences,
    scorer_summaries,
    speed_lines,
    tokens,
)
from holdfast.runs import EvaluationLine, RunSummary, ShardStatus, count_shards
from holdfast.stats import Summary
from holdfast.view.charts import ScatterPoint, figure, scatter_chart
from holdfast.view.figures import interval_figure
from holdfast.view.layout import facts, table
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.pages.errors import lost_records
from holdfast.view.pages.evaluations import evaluation_choice, evaluation_labels, evaluation_note
from holdfast.view.pages.profile import Distribution, distributions, latency_figure
from holdfast.view.pages.runs import cost_text, progress_bar
from holdfast.view.sources import Durability, RunRef, RunStatus, ViewedRun
from holdfast.view.travel import Stop, ref_of, timeline_stops, travel_form

_ADVICE = "to see whether"
"""The sentence that names the command `compare`: here it is a link."""
_SHARDS_MAX = 200


class RunView(msgspec.Struct, frozen=True):
    """Everything that the overview shows."""

    ref: RunRef
    summary: RunSummary
    report: RunReport
    durability: Durability
    live: bool
    rate: float | None
    """Samples a second: of the process that is running, else over all sessions; None if unknown."""
    seconds_left: float | None
    """At that rate; None if no process is running, or the rate is unknown."""
    evaluations: list[EvaluationLine] = []
    """The oldest first."""
    labels: dict[str, str] = {}
    """What to call each evaluation, by id."""
    latency: list[Distribution] = []
    processes: int = 0
    """How many worked on the run, as its lineage counts them."""
    resumes: int = 0
    stops: list[Stop] = []
    """Records to travel to."""
    commands: list[str] = []


def load(request: PageRequest) -> RunView:
    ref, evaluation = ref_of(request), request.query.get("evaluation", "")
    with request.sources.open(ref) as run:
        report = run.report(evaluation)
        summary = run.summary_of(report)
        if ref.at is not None:  # what their leases say is of now
            summary = msgspec.structs.replace(summary, shards=[])
        rate = samples_per_second(run, summary, report)
        lineage = run.lineage()
        return RunView(
            ref,
            summary,
            report,
            run.durability(),
            run.is_live,
            rate,
            summary.unfinished / rate if rate and run.is_live else None,
            run.evaluations(),
            evaluation_labels(run),
            distributions(run.index.profile),
            lineage.processes,
            lineage.resumes,
            timeline_stops(run.index.lives, run.index.last_n),
            list(_commands_of(run, summary)),
        )


def _commands_of(run: ViewedRun, summary: RunSummary) -> Iterator[str]:
    """What can be done with the run, ready to be copied."""
    if summary.status in ("interrupted", "failed", "cancelled") or summary.failed:
        yield run.suggest_resume_command(summary.reason)
    place = run.place
    for verb, *options in (("show",), ("report",), ("compare",), ("export", "--format", "parquet"), ("verify",)):
        yield place.command(verb, *options)
    if not place.url:
        yield place.fork_command()


def samples_per_second(run: ViewedRun, summary: RunSummary, report: RunReport) -> float | None:
    done, lease = summary.finished + summary.failed, run.standing.lease
    if not run.is_live:
        return done / report.worked_seconds if done and report.worked_seconds else None
    if report.summed_seconds:  # of a sharded run: workers begin at different times
        return done / report.worked_seconds if done else None
    if lease is None or lease.at <= lease.began or not run.index.lives:
        return None
    own = done - run.index.lives[-1].before.finished  # samples that had failed before are tried again
    return own / (lease.at - lease.began) if own > 0 else None


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.1f} samples/s" if rate >= 1 else f"{60 * rate:.1f} samples/min"


def render(found: RunView, links: Links) -> Body:
    summary = found.summary
    parts = [
        h("h1", f"{summary.experiment} / {summary.run_id}"),
        h("p", summary.description) if summary.description else None,
        [h("p", sentence, class_="problem", role="alert") for sentence in summary.damage],
        _live("head", [_facts(found, links)]),
        _live("results", _results(found, links)),
        _live("failures", _failures(found, links)),
        _live("more", _cost_and_speed(found)),
        _live("anomalies", _anomalies(found, links)),
        _live("shards", _shards(summary.shards)),
        travel_form(found.ref, found.stops, links),
        h("details", h("summary", "Commands"), h("pre", "\n".join(found.commands)), id="commands"),
    ]
    status = RunStatus(summary.status, summary.reason, summary.failed, summary.planned)
    return Body(
        f"{summary.run_id}",
        join(parts),
        found.ref,
        "",
        status,
        found.durability,
        _other(found),
        is_live=found.live and found.ref.at is None,
    )


def _live(name: str, children: Iterable[Child]) -> Markup:
    """A region that is replaced while the run is live."""
    return h("section", children, id=name, data_live=True)


def _facts(found: RunView, links: Links) -> Markup:
    summary = found.summary
    pairs: list[tuple[str, Child]] = [
        ("status", _status_text(summary)),
        ("progress", progress_bar(summary.finished, summary.failed, summary.planned)),
        (
            "samples",
            [_counted(found, links, each) for each in ("finished", "failed", "unfinished")]
            + [f" = {summary.planned:,} planned"],
        ),
        ("rate", _rate_text(found.rate)),
        ("time left", duration(found.seconds_left) if found.seconds_left else "") if found.live else ("", ""),
        ("tokens", _sorted_by("-tokens", tokens(summary.usage), found, links)),
        ("cost", _sorted_by("-cost", cost_text(summary.cost), found, links)),
        ("tags", [h("span", tag, class_="tag") for tag in summary.tags]),
        ("processes", h("a", _processes(found), href=links.run(found.ref, "lineage")) if found.processes else ""),
        ("shards", h("a", count_shards(summary.shards), href="#shards") if summary.shards else ""),
        ("folder", h("code", summary.folder)),
    ]
    return facts([(name, value) for name, value in pairs if name and value not in ("", [])])


def _sorted_by(sort: str, text: str, found: RunView, links: Links) -> Child:
    """A sum over all samples, as a link to them, those that add most first."""
    return h("a", text, href=links.run(found.ref, "samples", sort=sort)) if text else ""


def _status_text(summary: RunSummary) -> str:
    text = status_text(summary.status, summary.failed, summary.planned)
    return f"{text}: {summary.reason}" if summary.reason else text


def _processes(found: RunView) -> str:
    return f"{found.processes:,}" + (f", {counted(found.resumes, 'resume')}" if found.resumes else "")


def _counted(found: RunView, links: Links, status: str) -> Markup:
    """How many samples have a status, as a link to them."""
    count = getattr(found.summary, status)
    plus = "" if status == "finished" else " + "
    return join([plus, h("a", f"{count:,} {status}", href=links.run(found.ref, "samples", status=status))])


def _results(found: RunView, links: Links) -> Iterator[Child]:
    report = found.report
    yield h("h2", "Results")
    if links.is_static:
        yield evaluation_note(found.labels, report.evaluation, found.ref.run_id)
    else:
        yield evaluation_choice(
            found.labels,
            report.evaluation,
            lambda each: links.run(found.ref, evaluation=each),
            {each.evaluation: _scored(each) for each in found.evaluations},
        )
    yield [h("p", line, class_="warning") for line in partial_lines(report)]
    sentences = [each for each in result_sentences(report) if not each.startswith(_ADVICE)]
    yield [h("p", sentence, class_="sentence") for sentence in sentences]
    if len({cell.model for cell in report.cells}) > 1 and sentences:
        address = links.run(found.ref, "compare", evaluation=_other(found))
        yield h("p", h("a", "See whether the models differ", href=address))
    rows = [row for cell in report.cells for row in _cell_rows(cell, found, links)]
    columns = ["task", "model", "score", "mean", "interval", "n", "finished", "failed", "unfinished", "cost", "latency"]
    numbers = frozenset(columns[3:])
    yield table(columns, rows, numbers=numbers)
    chart = interval_figure(
        [
            (f"{cell.task} {cell.model} {name}", summary)
            for cell in report.cells
            for scorer in cell.scorers
            for name, summary, _ in scorer_summaries(scorer)
        ]
    )
    costs = "Scores with 95% intervals against the cost of 1,000 samples."
    figures = [figure(chart, "Means with 95% intervals."), figure(scatter_chart(list(_costs(report))), costs)]
    yield h("div", figures, class_="figures")
    cells = report.cells
    for line in (*reading_lines(cells), *edited_lines(cells), *marked_lines(cells)):
        yield h("p", line, class_="quiet")


def _scored(each: EvaluationLine) -> str:
    return counted(each.counts.scored, "score") + (", current" if each.current else "")


def _other(found: RunView) -> str:
    """The evaluation that is shown, if it is not the current one: links keep it."""
    is_current = all(each.current == (each.evaluation == found.report.evaluation) for each in found.evaluations)
    return "" if is_current else found.report.evaluation


def _costs(report: RunReport) -> Iterator[ScatterPoint]:
    """The first score of each cell, and what a thousand of its samples cost."""
    scorers = {scorer.scorer for cell in report.cells for scorer in cell.scorers[:1]}
    several = len({cell.task for cell in report.cells}) > 1
    for cell in report.cells:
        if not cell.finished or cell.cost.dollars is None or not cell.scorers:
            continue
        name, summary, _ = next(iter(scorer_summaries(cell.scorers[0])), ("", None, None))
        if summary is not None and summary.mean is not None:
            parts = [cell.task if several else "", cell.model, name if len(scorers) > 1 else ""]
            label, cost = " ".join(filter(None, parts)), 1000 * cell.cost.dollars / cell.finished
            yield ScatterPoint(label, cost, summary.mean, summary.low, summary.high)


def _cell_rows(cell: CellReport, found: RunView, links: Links) -> Iterator[Markup]:
    """Every number is a link to the samples behind it."""

    def link(text: str, **query: str) -> Child:
        given = {"task": cell.task, "model": cell.model, "evaluation": _other(found), **query}
        return h("a", text, href=links.run(found.ref, "samples", **given)) if text else ""

    named: list[tuple[str, Summary | None, ScorerReport | None]] = [
        (name, summary, scorer) for scorer in cell.scorers for name, summary, _ in scorer_summaries(scorer)
    ]
    for number, (name, summary, scorer) in enumerate(named or [("", None, None)]):
        mean: Child = format_number(summary.mean) if summary is not None else ""
        if scorer is not None:
            mean = link(str(mean), scorer=scorer.of or scorer.scorer, status="finished")
        counts = [
            link(f"{cell.finished:,}", status="finished"),
            link(f"{cell.failed:,}" if cell.failed else "", status="failed"),
            link(f"{cell.unfinished:,}" if cell.unfinished else "", status="unfinished"),
        ]
        latency = brief(cell.seconds / cell.finished) if cell.finished else ""
        values: list[Child] = [
            cell.task,
            cell.model,
            name,
            mean,
            format_interval(summary) if summary is not None else "",
            count_of(summary) if summary is not None else "",
            *(counts if not number else ["", "", ""]),
            link(cost_text(cell.cost), sort="-cost") if not number else "",
            link(latency, sort="-seconds") if not number else "",
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
            h("td", _count_of(each, found, links, status="failed", kind=each["kind"]), class_="number"),
            h("td", h("a", each["example"]["key"], href=links.sample(found.ref, each["example"]["key"]))),
            h("td", each["example"]["message"], class_="text"),
        )
        for each in failures
    ]
    yield table(["task", "model", "cause", "count", "example", "message"], rows, numbers=frozenset({"count"}))


def _count_of(each: Mapping[str, Any], found: RunView, links: Links, **query: str) -> Markup:
    """How many samples of a cell have a cause or an anomaly, as a link to them."""
    address = links.run(found.ref, "samples", task=each["task"], model=each["model"], **query)
    return h("a", f"{each['count']:,}", href=address)


def _lines(title: str, lines: Iterable[str]) -> list[Child]:
    found = list(lines)
    return [h("h2", title), [h("p", line) for line in found]] if found else []


def _cost_and_speed(found: RunView) -> list[Child]:
    lines = [*cost_sentences(found.report.cost), *speed_lines(found.report)]
    return [*_lines("Cost and speed", lines), latency_figure(found.latency)]


def _shards(shards: Sequence[ShardStatus]) -> Iterator[Child]:
    """The parts of a sharded run, each with the process that works on it, or did last."""
    if not shards:
        return
    yield h("h2", "Shards")
    columns = ["shard", "status", "finished", "failed", "planned", "worker", "reason"]
    rows = [
        h(
            "tr",
            h("td", each.shard),
            h("td", each.status),
            [h("td", f"{count:,}", class_="number") for count in (each.finished, each.failed, each.planned)],
            h("td", each.worker),
            h("td", each.reason, class_="text"),
        )
        for each in sorted(shards, key=lambda each: each.status == "completed")[:_SHARDS_MAX]
    ]
    yield table(columns, rows, numbers=frozenset(columns[2:5]))
    if len(shards) > _SHARDS_MAX:
        yield h("p", f"{len(shards) - _SHARDS_MAX:,} more shards are not listed here: holdfast show lists them.")


def _anomalies(found: RunView, links: Links) -> list[Child]:
    """Anomalies of answers, each with an example, and what the journal has lost."""
    rows = [
        h(
            "tr",
            h("td", each["task"]),
            h("td", each["model"]),
            h("td", h("a", each["kind"], href=links.run(found.ref, "samples", anomaly=each["kind"]))),
            h("td", _count_of(each, found, links, anomaly=each["kind"]), class_="number"),
            h("td", h("a", each["example"]["key"], href=links.sample(found.ref, each["example"]["key"]))),
            h("td", each["example"]["message"], class_="text"),
        )
        for each in found.summary.answer_anomalies
    ]
    columns = ["task", "model", "kind", "count", "example", "message"]
    parts: list[Child] = [table(columns, rows, numbers=frozenset({"count"}))] if rows else []
    if found.report.unlooked:
        left = counted(found.report.unlooked, "answer")
        parts.append(h("p", f"{left} not checked with the current anomaly rules.", class_="quiet"))
    parts += [h("p", lost_records(each)) for each in found.summary.anomalies]
    return [h("h2", "Anomalies"), *parts] if parts else []
