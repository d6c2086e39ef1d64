"""The history of an experiment: its scores with intervals, run by run."""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.report import format_number
from holdfast.view.charts import SERIES_MAX, TrendPoint, figure, trend_chart
from holdfast.view.layout import badge, table
from holdfast.view.links import Links, run_name
from holdfast.view.markup import Child, Markup, h
from holdfast.view.page import Body, PageRequest
from holdfast.view.pages.runs import choice, cost_text
from holdfast.view.sources import ListedRun, RunRef

_RUNS_MAX = 100
_BOARDS_MAX = 20


class HistoryPoint(msgspec.Struct, frozen=True):
    """The score of one model in one run."""

    run: int
    """The number of the run in `runs`."""
    mean: float
    low: float | None
    high: float | None
    n: int
    change: float | None
    """From the run before that has this score; None for the first."""
    since: int | None
    """The number of that run."""


class HistorySeries(msgspec.Struct, frozen=True):
    """One model over time."""

    model: str
    points: list[HistoryPoint]


class HistoryBoard(msgspec.Struct, frozen=True):
    """One task and scorer."""

    task: str
    scorer: str
    series: list[HistorySeries]


class HistoryRun(msgspec.Struct, frozen=True):
    """One run of the experiment."""

    ref: RunRef
    status: str
    created: str
    description: str
    finished: int
    planned: int
    cost: str
    failed: int = 0


class HistoryView(msgspec.Struct, frozen=True):
    """Everything that the page shows. Runs are in the order of time."""

    experiment: str
    experiments: list[str]
    runs: list[HistoryRun]
    total: int
    boards: list[HistoryBoard]


def load(request: PageRequest) -> HistoryView:
    every = [each for each in request.sources.list() if each.summary.run_id]
    newest = every[0].summary.experiment if every else ""
    experiment = request.query.get("experiment", "") or newest
    own = [each for each in every if each.summary.experiment == experiment and each.summary.planned]
    shown = own[:_RUNS_MAX][::-1]
    task, scorer = request.query.get("task", ""), request.query.get("scorer", "")
    boards = [each for each in _boards(shown) if task in ("", each.task) and scorer in ("", each.scorer)]
    return HistoryView(
        experiment,
        sorted({each.summary.experiment for each in every}),
        [_run(each) for each in shown],
        len(own),
        boards[:_BOARDS_MAX],
    )


def _run(each: ListedRun) -> HistoryRun:
    summary = each.summary
    return HistoryRun(
        each.ref,
        summary.status,
        summary.created,
        summary.description,
        summary.finished,
        summary.planned,
        cost_text(summary.cost),
        summary.failed,
    )


def _boards(runs: list[ListedRun]) -> Iterator[HistoryBoard]:
    found: dict[tuple[str, str], dict[str, list[HistoryPoint]]] = {}
    for number, each in enumerate(runs):
        for score in each.summary.scores:
            if score.get("mean") is not None:
                points = found.setdefault((score["task"], score["scorer"]), {}).setdefault(score["model"], [])
                points.append(_point(number, score, points[-1] if points else None))
    for (task, scorer), models in found.items():
        yield HistoryBoard(task, scorer, [HistorySeries(model, points) for model, points in models.items()])


def _point(number: int, score: dict[str, Any], before: HistoryPoint | None) -> HistoryPoint:
    change = None if before is None else score["mean"] - before.mean
    since = None if before is None else before.run
    return HistoryPoint(number, score["mean"], score.get("low"), score.get("high"), score.get("n", 0), change, since)


def render(found: HistoryView, links: Links) -> Body:
    parts: list[Child] = [h("h1", f"History of {found.experiment}" if found.experiment else "History")]
    if len(found.experiments) > 1 and not links.is_static:
        parts.append(
            h(
                "form",
                choice("experiment", found.experiment, found.experiments),
                h("button", "Show"),
                class_="filters",
                method="get",
                action=links.page("history"),
            )
        )
    more = f"the last {len(found.runs):,} of {found.total:,}" if found.total > len(found.runs) else f"{found.total:,}"
    parts.append(h("p", f"{more} runs", class_="quiet"))
    parts += [_board(board, found, links) for board in found.boards]
    if not found.boards:
        parts.append(h("p", "No run of this experiment has scores yet."))
    return Body("History", h("div", parts, id="history", data_live="5"), part="history")


def _board(board: HistoryBoard, found: HistoryView, links: Links) -> Markup:
    shown = sorted({point.run for each in board.series for point in each.points})
    places = {run: place for place, run in enumerate(shown)}
    series = [
        (each.model, [TrendPoint(places[p.run], p.mean, p.low, p.high, _hint(p, found)) for p in each.points])
        for each in board.series
    ]
    labels = [found.runs[run].ref.run_id for run in shown]
    chart = figure(
        trend_chart(series, labels),
        "Means with 95% intervals over the runs of the experiment, the oldest first.",
        [name for name, _ in series][:SERIES_MAX],
    )
    rows = [_row(number, board, found, links) for number in reversed(range(len(found.runs)))]
    columns = ["run", "started", "status", *(each.model for each in board.series), "samples", "cost"]
    return h(
        "section",
        h("h2", f"{board.task}, {board.scorer}"),
        chart,
        table(columns, [row for row in rows if row is not None], numbers=range(3, len(columns))),
    )


def _hint(point: HistoryPoint, found: HistoryView) -> str:
    interval = "" if point.low is None or point.high is None else f" ({_range(point)})"
    return f"{found.runs[point.run].ref.run_id}: {format_number(point.mean)}{interval}, n {point.n:,}"


def _range(point: HistoryPoint) -> str:
    return f"{format_number(point.low)} .. {format_number(point.high)}"


def _row(number: int, board: HistoryBoard, found: HistoryView, links: Links) -> Markup | None:
    run = found.runs[number]
    points = {each.model: next((p for p in each.points if p.run == number), None) for each in board.series}
    if not any(points.values()):
        return None
    cells = []
    for model, point in points.items():
        scorer = board.scorer.partition(" ")[0]
        address = links.run(run.ref, "samples", task=board.task, model=model, scorer=scorer, status="finished")
        cells.append(h("td", _value(point, address, run, found, links), class_="number"))
    return h(
        "tr",
        h("td", h("a", run.ref.run_id, href=links.run(run.ref)), h("div", run.description, class_="quiet")),
        h("td", h("time", run.created[:16].replace("T", " "), datetime=run.created)),
        h("td", badge(run.status, "", run.failed, run.planned)),
        cells,
        h("td", f"{run.finished:,} / {run.planned:,}", class_="number"),
        h("td", run.cost, class_="number"),
    )


def _value(point: HistoryPoint | None, address: str, run: HistoryRun, found: HistoryView, links: Links) -> list[Child]:
    """A mean, as a link to the samples behind it, with its interval and the change since the run before."""
    if point is None:
        return []
    parts: list[Child] = [h("a", format_number(point.mean), href=address)]
    if point.low is not None and point.high is not None:
        parts.append(h("div", _range(point), class_="quiet"))
    if point.change is not None and point.since is not None:
        names = [run_name(found.runs[point.since].ref), run_name(run.ref)]
        text = format_number(point.change, "+")
        parts.append(h("div", h("a", text, href=links.page("compare", run=names), title="Compare with the run before")))
    return parts
