"""The list of runs of all open stores: status, progress, scores, cost, tags."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.report.tables import duration
from holdfast.report.text import dollars, format_number
from holdfast.spec import nearest
from holdfast.view.layout import badge, table
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.sources import ListedRun

_SORTS = {
    "newest": lambda each: each.summary.created or each.summary.updated,
    "name": lambda each: (each.summary.experiment, each.summary.run_id),
    "cost": lambda each: each.summary.cost.dollars or 0.0,
    "failed": lambda each: each.summary.failed,
    "samples": lambda each: each.summary.planned,
}
FILTERS = ("q", "status", "experiment", "tag", "sort")
_DESCENDING = frozenset({"newest", "cost", "failed", "samples"})
_SHOWN_MAX = 500
_SCORES_MAX = 3


class RunList(msgspec.Struct, frozen=True):
    """The runs that match, in order. `total`: how many there are without the filter."""

    runs: list[ListedRun]
    total: int
    matching: int
    sources: list[str]
    filters: dict[str, str]
    choices: dict[str, list[str]] = {}
    """Values that filters can have, of all runs."""


def load(request: PageRequest) -> RunList:
    every = request.sources.list()
    filters = {name: request.query.get(name, "") for name in FILTERS}
    if filters["sort"] not in ("", *_SORTS):
        raise UsageError(f"sort: {filters['sort'][:40]!r} is not known{nearest(filters['sort'], set(_SORTS))}")
    choices = {
        "status": sorted({each.summary.status for each in every}),
        "experiment": sorted({each.summary.experiment for each in every if each.summary.experiment}),
        "tag": sorted({tag for each in every for tag in each.summary.tags}),
    }
    found = [each for each in every if _matches(each, filters)]
    order = filters["sort"] or "newest"
    found.sort(key=_SORTS[order], reverse=order in _DESCENDING)
    return RunList(found[:_SHOWN_MAX], len(every), len(found), request.sources.names, filters, choices)


def _matches(each: ListedRun, filters: dict[str, str]) -> bool:
    summary, words = each.summary, filters["q"].lower().split()
    text = " ".join((summary.experiment, summary.run_id, summary.description, *summary.tags)).lower()
    return (
        all(word in text for word in words)
        and filters["status"] in ("", summary.status)
        and filters["experiment"] in ("", summary.experiment)
        and (not filters["tag"] or filters["tag"] in summary.tags)
    )


def render(found: RunList, links: Links) -> Body:
    if not found.total:
        content = h("p", f"There are no runs in {', '.join(found.sources)}. Start one with: holdfast run SPEC")
        return Body("Runs", content, part="runs")
    numbers = frozenset({"samples", "failed", "cost", "age", "started"})
    since = "started" if links.is_static else "age"  # a copy may be looked at much later
    columns = ["status", "run", "progress", "samples", "failed", "scores", "cost", "tags", since]
    several = len(found.sources) > 1
    rows = [_row(each, links, several) for each in found.runs]
    shown = f"{len(found.runs):,} of {found.matching:,} runs" if found.matching > len(found.runs) else ""
    content = join(
        [
            h("h1", "Runs"),
            None if links.is_static else _filters(found),
            h("p", shown or f"{found.matching:,} of {found.total:,} runs", class_="quiet"),
            table([*columns, *(["store"] if several else [])], rows, numbers=numbers, class_="rows"),
        ]
    )
    return Body("Runs", h("div", content, id="runs", data_live="5"), part="runs")


def _filters(found: RunList) -> Markup:
    return h(
        "form",
        h(
            "input",
            type="search",
            name="q",
            value=found.filters["q"],
            placeholder="Search runs",
            aria_label="Search runs",
        ),
        [choice(name, found.filters[name], values) for name, values in found.choices.items()],
        choice("sort", found.filters["sort"], [name for name in _SORTS if name != "newest"]),
        h("button", "Apply"),
        class_="filters",
        method="get",
    )


def choice(name: str, chosen: str, values: Sequence[str]) -> Markup:
    """A list to choose from; empty means any."""
    known = [*values, *([chosen] if chosen and chosen not in values else [])]
    options = [h("option", f"any {name}" if name != "sort" else "sort: newest", value="")]
    options += [h("option", value, value=value, selected=value == chosen) for value in known if value]
    return h("select", options, name=name, aria_label=name)


def _row(each: ListedRun, links: Links, several: bool) -> Markup:
    summary = each.summary
    ref = each.ref
    name: Child = (
        h("a", f"{summary.experiment} / {summary.run_id}", href=links.run(ref)) if summary.run_id else summary.folder
    )

    def link(text: str, **query: str) -> Child:
        """A number, as a link to the samples behind it."""
        return h("a", text, href=links.run(ref, "samples", **query)) if text and summary.run_id else text

    cells: list[Child] = [
        badge(summary.status, summary.reason, summary.failed, summary.planned),
        join([name, h("div", summary.reason or summary.description, class_="quiet")]),
        progress_bar(summary.finished, summary.failed, summary.planned),
        [link(f"{summary.finished:,}", status="finished"), " / ", link(f"{summary.planned:,}")],
        link(f"{summary.failed:,}" if summary.failed else "", status="failed"),
        _scores(summary.scores, link),
        link(cost_text(summary.cost), sort="-cost"),
        [h("span", tag, class_="tag") for tag in summary.tags],
        h("time", _since(summary.created, links), datetime=summary.created, title=summary.created),
        *([each.source] if several else []),
    ]
    classes = ("", "", "", "number", "number", "", "number", "", "number", "")
    shown = [h("td", cell, class_=name or None) for cell, name in zip(cells, classes, strict=False)]
    damage = [h("tr", h("td", sentence, colspan=str(len(cells)), class_="damage")) for sentence in summary.damage]
    return join([h("tr", shown), *damage])


def _since(created: str, links: Links) -> str:
    return f"{created[:10]} {created[11:16]}" if links.is_static else age(created)


def progress_bar(finished: int, failed: int, planned: int) -> Markup:
    """How much of the plan is done, and how much of that failed."""
    total = max(planned, 1)
    label = f"{finished:,} finished, {failed:,} failed, of {planned:,}"
    return h(
        "span",
        h("meter", min=0, max=total, value=finished + failed, aria_label=label, title=label),
        f" {100 * (finished + failed) // total}%",
        class_="progress",
    )


def _scores(scores: Iterable[dict[str, Any]], link: Callable[..., Child]) -> Markup:
    """The first scores of a run; the page of the run has all. `link`: of a number, with the query of its samples."""
    shown = [each for each in scores if each.get("mean") is not None]
    lines = []
    for each in shown[:_SCORES_MAX]:
        of = {"task": each["task"], "model": each["model"], "scorer": each.get("of") or each["scorer"]}
        mean = link(format_number(each["mean"]), status="finished", **of)
        lines.append(h("div", f"{each['model']} {each['scorer']} ", mean))
    more = len(shown) - _SCORES_MAX
    return join([*lines, h("div", f"and {more} more", class_="quiet") if more > 0 else None])


def cost_text(cost: Any) -> str:
    if cost.dollars is None:
        return "unpriced" if cost.unpriced else ""
    return dollars(cost.dollars) + ("+" if cost.unpriced else "")


def age(created: str) -> str:
    """How long ago."""
    if not created:
        return ""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(created.replace("Z", "+00:00"))).total_seconds()
    except ValueError:
        return ""
    return f"{seconds / 86400:.0f} days" if seconds > 2 * 86400 else duration(max(seconds, 0.0))
