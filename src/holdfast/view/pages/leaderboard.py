"""The leaderboard: the models of one or several runs, ranked; models that do not differ significantly share a rank."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.report import (
    Board,
    LeaderboardResult,
    Ranked,
    count_of,
    describe_boards,
    format_interval,
    format_number,
)
from holdfast.runs import command_with_runs
from holdfast.view.computations import Job, JobRun
from holdfast.view.figures import interval_figure
from holdfast.view.layout import badge, table
from holdfast.view.links import Links, parse_run_name, run_name
from holdfast.view.markup import Child, Markup, h
from holdfast.view.page import Body, PageRequest
from holdfast.view.pages.evaluations import without_option
from holdfast.view.pages.runs import age, choice
from holdfast.view.sources import ListedRun, NotFoundError, RunRef

_RUNS_MAX = 12
_DEFAULT_RUNS = 4
_CANDIDATES_MAX = 60


class Candidate(msgspec.Struct, frozen=True):
    """A run that can be ranked."""

    ref: RunRef
    status: str
    created: str
    finished: int
    is_chosen: bool
    failed: int = 0
    planned: int = 0


class LeaderboardView(msgspec.Struct, frozen=True):
    """Everything that the page shows."""

    experiment: str
    experiments: list[str]
    candidates: list[Candidate]
    runs: list[RunRef]
    is_computing: bool = False
    is_current: bool = True
    is_live: bool = False
    """Whether a process works on one of the runs."""
    problem: str = ""
    result: LeaderboardResult | None = None
    """As `holdfast leaderboard --format json`."""
    task: str = ""
    scorer: str = ""
    command: str = ""


def load(request: PageRequest) -> LeaderboardView:
    every = [each for each in request.sources.list() if each.summary.run_id]
    named = [parse_run_name(text) for text in request.lists.get("run", ())][:_RUNS_MAX]
    experiment = request.query.get("experiment", "")
    if not experiment:
        newest = every[0].summary.experiment if every else ""
        experiment = named[0].experiment if named else newest
    own = [each for each in every if each.summary.experiment == experiment]
    chosen = named or [each.ref for each in own if _is_rankable(each)][:_DEFAULT_RUNS]
    view = LeaderboardView(
        experiment,
        sorted({each.summary.experiment for each in every}),
        [_candidate(each, chosen) for each in own[:_CANDIDATES_MAX]],
        chosen,
        task=request.query.get("task", ""),
        scorer=request.query.get("scorer", ""),
    )
    return _ranked(request, view) if chosen else view


def _ranked(request: PageRequest, view: LeaderboardView) -> LeaderboardView:
    jobs, states, keys = list[JobRun](), list[tuple[str, int]](), 0
    is_live = False
    for ref in view.runs:
        try:
            with request.sources.open(ref) as run:
                jobs.append(JobRun(run.place, ref.at))
                states.append((run.uid, run.index.last_n))
                keys += run.planned_count()
                is_live |= run.is_live and ref.at is None
        except NotFoundError as error:
            return msgspec.structs.replace(view, problem=str(error))
    found = request.compute(Job("leaderboard", tuple(jobs), "", view.task, view.scorer), tuple(states), keys)
    outcome = found.computed.outcome if found.computed is not None else None
    return msgspec.structs.replace(
        view,
        is_computing=found.is_running,
        is_current=found.is_current,
        is_live=is_live,
        problem=outcome.problem if outcome is not None else "",
        result=outcome.leaderboard if outcome is not None else None,
        command=command_with_runs("leaderboard", [each.place for each in jobs]),
    )


def _is_rankable(each: ListedRun) -> bool:
    return bool(each.summary.finished and each.summary.scores and not each.summary.damage)


def _candidate(each: ListedRun, chosen: Sequence[RunRef]) -> Candidate:
    ref = each.ref
    is_chosen = any(msgspec.structs.replace(one, at=None) == ref for one in chosen)
    found = each.summary
    return Candidate(ref, found.status, found.created, found.finished, is_chosen, found.failed, found.planned)


def render(found: LeaderboardView, links: Links) -> Body:
    parts: list[Child] = [h("h1", "Leaderboard"), _choose(found, links), list(_boards(found, links))]
    seconds = "1" if found.is_computing else "5" if found.is_live or not found.is_current else "0"
    return Body("Leaderboard", h("div", parts, id="leaderboard", data_live=seconds), part="leaderboard")


def _choose(found: LeaderboardView, links: Links) -> Markup | None:
    if links.is_static:
        return None
    address = links.page("leaderboard")
    other = h(
        "form",
        choice("experiment", found.experiment, found.experiments),
        h("button", "Show"),
        class_="filters",
        method="get",
        action=address,
    )
    boxes = [
        h(
            "label",
            h("input", type="checkbox", name="run", value=run_name(each.ref), checked=each.is_chosen),
            f" {each.ref.run_id} ",
            badge(each.status, "", each.failed, each.planned),
            h("span", f" {age(each.created)} ago, {each.finished:,} finished", class_="quiet"),
        )
        for each in found.candidates
    ]
    runs = h(
        "details",
        h("summary", f"{len(found.runs)} of {len(found.candidates)} runs are ranked"),
        h("form", boxes, h("div", h("button", "Rank these")), class_="boxes", method="get", action=address),
        id="runs",
    )
    return h("div", other if len(found.experiments) > 1 else None, runs if len(boxes) > 1 else None)


def _boards(found: LeaderboardView, links: Links) -> Iterator[Child]:
    if found.problem:
        yield h("p", found.problem, class_="problem", role="alert")
    if not found.runs:
        yield h("p", "There is no run with scores here. Start one with: holdfast run SPEC")
    if found.result is None:
        if found.is_computing:
            yield h("p", "Computing the ranks. This page shows them as soon as they are ready.", class_="computing")
        return
    for warning in found.result.warnings:
        yield h("p", without_option(warning), class_="warning")
    if found.result.suite is not None:
        yield _suite(found.result)
    for board in found.result.boards:
        yield _board(board, found, links)
    for note in describe_boards(found.result.boards):
        yield h("p", note, class_="quiet")
    yield h("details", h("summary", "Command"), h("pre", found.command), id="command")


def _suite(result: LeaderboardResult) -> Markup:
    """The tasks beside each other."""
    shown = result.tables()[0]
    names = shown.columns[: shown.titles]
    rows = [
        h("tr", [h("td", text, class_=None if at < len(names) else "number") for at, text in enumerate(row)])
        for row in shown.rows
    ]
    method = result.suite.method() if result.suite is not None else ""
    return h(
        "section",
        h("h2", "All tasks"),
        table(shown.columns, rows, numbers=frozenset(shown.columns) - {*names}, class_="rows"),
        h("p", method, class_="quiet") if method else None,
    )


def _board(board: Board, found: LeaderboardView, links: Links) -> Markup:
    rows = [_row(each, board, found, links) for each in board.ranked]
    columns = ["rank", "model", "run", "mean", "95% interval", "n", "left out", "on all keys", "cost"]
    several = len({each.run for each in board.ranked}) > 1
    points = [(f"{each.model} {each.run}" if several else each.model, each.summary) for each in board.ranked]
    chart = interval_figure(points) if len(points) > 1 else None
    common = f"On the {board.common_min:,} keys that all have scored. " if board.common_min is not None else ""
    return h(
        "section",
        h("h2", f"{board.task}, {board.scorer}"),
        table(columns, rows, numbers=frozenset(columns) - {"model", "run"}, class_="rows"),
        h("figure", chart, h("figcaption", f"{common}Means with 95% intervals.")) if chart is not None else None,
    )


def _row(each: Ranked, board: Board, found: LeaderboardView, links: Links) -> Markup:
    assert found.result is not None
    ref = dict(zip(found.result.evaluations, found.runs, strict=True))[each.run]  # both in the order of the command
    address = links.run(ref, "samples", task=board.task, model=each.model, scorer=board.scorer.partition(" ")[0])
    bounds = "" if each.bounds is None or not each.missing else " .. ".join(map(format_number, each.bounds))
    values: list[Child] = [
        str(each.rank),
        each.model,
        h("a", each.run, href=links.run(ref)),
        h("a", format_number(each.summary.mean), href=address),
        format_interval(each.summary),
        count_of(each.summary),
        f"{each.missing:,}" if each.missing else "",
        bounds or ("unknown" if each.missing else ""),
        str(each.cost),
    ]
    return h("tr", [h("td", value, class_="number" if at not in (1, 2) else None) for at, value in enumerate(values)])
