"""What went wrong in a run, grouped by cause: failed samples, failed scorers, missing scores, marks and anomalies.

Counts come from the report, so they add up with every other page. The list of samples tells the causes of one kind
apart by their messages; until it is complete, each kind is one cause.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

import msgspec

from holdfast.errors import HoldfastError
from holdfast.printable import clean
from holdfast.records import Anomaly, parse_key
from holdfast.report import (
    CellReport,
    Example,
    Question,
    RunReport,
    counted,
    readable_input,
    shortened,
    status_text,
    without_scorer_name,
)
from holdfast.score import KINDS
from holdfast.view.layout import table
from holdfast.view.links import Links
from holdfast.view.markup import Child, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.pages.evaluations import evaluation_choice, evaluation_labels, evaluation_note
from holdfast.view.sources import Durability, RunRef, RunStatus, ViewedRun
from holdfast.view.table import FAILURES, CauseCount, TableProgress, count_causes, is_damage

_CAUSES_MAX = 20
"""Causes that are shown of each group; the others are counted."""
_WHOLE_MAX = 10
"""Causes whose example is read in full. Each costs reading a page of the index."""
_TEXT_MAX = 2000
_QUESTION_MAX = 300
_SEARCHED_MAX = 100_000
"""Samples of a plan that is searched for the questions of examples."""
_LINES_MAX = 25
_PROBLEMS = ("failed", "interrupted", "cancelled", "stalled")
_MARKS = {
    "filtered": "the provider filtered the answer",
    "empty": "the answer is empty",
    "truncated": "the answer was cut off at the token limit",
}


class CellCount(msgspec.Struct, frozen=True):
    """How much of a cause is in one task with one model."""

    task: str
    model: str
    count: int


class Cause(msgspec.Struct, frozen=True):
    """One cause. `query`: of the list of samples with it. `text`: at most a screen."""

    title: str
    message: str
    count: int
    query: dict[str, str]
    key: str = ""
    """Of an example."""
    text: str = ""
    """What the example says."""
    question: str = ""
    """The beginning of the example's question."""
    cells: list[CellCount] = []


class ErrorGroup(msgspec.Struct, frozen=True):
    """Causes of the same type. Their counts and `others` add up to `count`."""

    name: str
    title: str
    count: int
    causes: list[Cause]
    others: int = 0
    """In causes that are not shown."""
    note: str = ""


class ErrorList(msgspec.Struct, frozen=True):
    ref: RunRef
    groups: list[ErrorGroup]
    damage: list[str]
    """Of the run's files and journal."""
    unlooked: int
    """Answers that the current anomaly checks have not seen."""
    progress: TableProgress
    status: RunStatus
    durability: Durability
    live: bool
    left: int = 0
    """Samples that are neither finished nor failed."""
    evaluation: str = ""
    """The id of the evaluation whose scorers are shown."""
    evaluations: dict[str, str] = {}
    """What to call each, by id."""
    other: str = ""
    """The same id, if it is not the current one: links keep it."""


def load(request: PageRequest) -> ErrorList:
    with request.sources.open(request.run) as run:
        other = run.find_evaluation(request.query.get("evaluation", ""))
        progress, of_samples, of_scorers = _causes(request, run, other)
        report = run.report(other)
        groups = [
            _failed(run, report, of_samples.get("failed", [])),
            _unfinished(run, of_samples.get("unfinished", [])),
            *_scorers(run, report, of_scorers),
            _missing(report),
            _marks(report),
            _anomalies(report),
        ]
        lost = [lost_records(each) for each in run.index.story.anomalies]
        return ErrorList(
            request.run,
            _with_questions(run, [group for group in groups if group.count]),
            [*report.damage, *lost],
            report.unlooked,
            progress,
            run.shown_status(),
            run.durability(),
            run.is_live,
            run.index.unfinished,
            report.evaluation,
            evaluation_labels(run),
            other,
        )


_Causes = dict[str, list[CauseCount]]


def _causes(request: PageRequest, run: ViewedRun, evaluation: str) -> tuple[TableProgress, _Causes, _Causes]:
    """Causes from the list of samples; none if it cannot be read, because this page has its counts from the report."""
    sample_table, planned = request.sources.tables.of(run, evaluation), run.index.story.planned
    if run.withheld_tasks or (run.damage and run.damage_report.plan):  # its messages may quote what is withheld
        return TableProgress(0, planned, building=False), {}, {}
    try:
        with contextlib.closing(sample_table.file.connect()) as connection:
            sample_table.update(request.sources, request.run, run)
            progress = sample_table.progress(connection, planned)
            return (progress, *count_causes(connection)) if progress.is_complete else (progress, {}, {})
    except FAILURES as error:
        if isinstance(error, HoldfastError):
            raise
        if is_damage(error):
            sample_table.file.discard()
        return TableProgress(0, planned, building=True), {}, {}


class _Kind(msgspec.Struct):
    """One kind of failure, mark or anomaly over all cells."""

    cells: list[CellCount] = []
    example: Example | None = None

    @property
    def count(self) -> int:
        return sum(each.count for each in self.cells)


_Counts = tuple[Mapping[str, int], Mapping[str, Example]]


def _by_kind(cells: Iterable[CellReport], choose: Callable[[CellReport], _Counts]) -> dict[str, _Kind]:
    """Counts by kind over all cells, the most frequent first. `choose`: the counts of a cell, and its examples."""
    found: dict[str, _Kind] = {}
    for cell in cells:
        counts, examples = choose(cell)
        for kind, count in ((kind, count) for kind, count in counts.items() if count):
            each = found.setdefault(kind, _Kind([]))
            each.cells.append(CellCount(cell.task, cell.model, count))
            each.example = each.example or examples.get(kind)
    return dict(sorted(found.items(), key=lambda item: -item[1].count))


def _of_kind(title: str, kind: _Kind, query: dict[str, str], message: str = "") -> Cause:
    example = kind.example
    key, text = ("", "") if example is None else (example.key, example.message)
    return Cause(title, message, kind.count, query, key, _screen(text), cells=kind.cells)


def _failed(run: ViewedRun, report: RunReport, causes: Sequence[CauseCount]) -> ErrorGroup:
    total = sum(cell.failed for cell in report.cells)
    kinds = _by_kind(report.cells, lambda cell: (cell.failures, cell.examples))
    if sum(each.count for each in causes) == total:
        return _from_table(run, "failed", "Failed samples", causes, {"status": "failed"})
    found = [_of_kind(kind, each, {"status": "failed", "kind": kind}) for kind, each in kinds.items()]
    return ErrorGroup("failed", "Failed samples", total, found, note="Messages of one kind are not compared yet.")


def _unfinished(run: ViewedRun, causes: Sequence[CauseCount]) -> ErrorGroup:
    title = "Unfinished samples whose last attempt failed"
    return _from_table(run, "unfinished", title, causes, {"status": "unfinished"})


def _scorers(run: ViewedRun, report: RunReport, causes: _Causes) -> Iterator[ErrorGroup]:
    """Failures of each scorer."""
    kinds = _by_kind(
        report.cells,
        lambda cell: (
            {each.scorer: each.failures for each in cell.scorers if each.failures},
            {each.scorer: each.example for each in cell.scorers if each.example is not None},
        ),
    )
    for scorer, kind in kinds.items():
        name, title = f"scorer-{scorer}", f"Answers on which the scorer {scorer} failed"
        query = {"scorer": scorer, "score": "failed"}
        known = causes.get(scorer, [])
        if sum(each.count for each in known) == kind.count:
            group = _from_table(run, name, title, known, query, report.evaluation)
            keyed = [msgspec.structs.replace(each, title=scorer) for each in group.causes]
            yield msgspec.structs.replace(group, causes=keyed)
        else:
            yield ErrorGroup(name, title, kind.count, [_of_kind(scorer, kind, query)])


def _from_table(
    run: ViewedRun, name: str, title: str, causes: Sequence[CauseCount], query: dict[str, str], evaluation: str = ""
) -> ErrorGroup:
    """`evaluation`: for failures of a scorer."""
    found = []
    firsts = [each.first for each in causes[:_WHOLE_MAX]]
    asked = run.questions_at(firsts)
    for number, each in enumerate(causes[:_CAUSES_MAX]):
        key, text = _example(run, each, query.get("scorer", ""), evaluation) if number < _WHOLE_MAX else ("", "")
        question = _excerpt(asked[each.first]) if key and each.first in asked else ""
        named = {**query, "cause": each.id}
        found.append(Cause(each.kind, each.message, each.count, named, key, _screen(text), question))
    others = sum(each.count for each in causes[_CAUSES_MAX:])
    return ErrorGroup(name, title, sum(each.count for each in causes), found, others)


def _example(run: ViewedRun, cause: CauseCount, scorer: str, evaluation: str) -> tuple[str, str]:
    """The key of the first sample with a cause, and its whole message."""
    row = run.index.row(cause.first)
    if row is None:
        return "", ""
    if not scorer:
        return row.key, row.message
    scores = run.index.scores(evaluation, cause.first, 1)
    return row.key, next((without_scorer_name(scorer, each.failure) for each in scores if each.scorer == scorer), "")


def _with_questions(run: ViewedRun, groups: list[ErrorGroup]) -> list[ErrorGroup]:
    """With the questions of examples whose place in the plan is not known. A large plan is not searched for them."""
    keys = [parse_key(each.key) for group in groups for each in group.causes if each.key and not each.question]
    if not keys or run.index.story.planned > _SEARCHED_MAX:
        return groups
    asked = dict[tuple[str, str], str]()
    for task in {key.task for key in keys}:
        found = run.questions(task, {key.sample_id for key in keys if key.task == task})
        asked |= {(task, sample): _excerpt(question) for sample, question in found.items()}

    def fill(cause: Cause) -> Cause:
        key = parse_key(cause.key) if cause.key and not cause.question else None
        question = asked.get((key.task, key.sample_id), "") if key is not None else cause.question
        return msgspec.structs.replace(cause, question=question)

    return [msgspec.structs.replace(group, causes=[fill(each) for each in group.causes]) for group in groups]


def _excerpt(question: Question) -> str:
    return clean(" ".join(shortened(readable_input(question), _QUESTION_MAX).split()))


def _missing(report: RunReport) -> ErrorGroup:
    kinds = _by_kind(report.cells, lambda cell: ({each.scorer: each.no_score for each in cell.scorers}, {}))
    found = [_of_kind(name, each, {"scorer": name, "score": "none"}) for name, each in kinds.items()]
    return ErrorGroup("no-score", "Missing scores", sum(each.count for each in found), found)


def _marks(report: RunReport) -> ErrorGroup:
    kinds = _by_kind(report.cells, lambda cell: (cell.marks, cell.marked))
    found = [_of_kind(name, each, {"anomaly": name}, _MARKS.get(name, "")) for name, each in kinds.items()]
    return _answers("marks", "Marked answers", found)


def _anomalies(report: RunReport) -> ErrorGroup:
    kinds = _by_kind(report.cells, lambda cell: (cell.anomalies, cell.odd))
    found = [_of_kind(name, each, {"anomaly": name}, KINDS.get(name, "")) for name, each in kinds.items()]
    return _answers("anomalies", "Anomalies of answers", found)


def _answers(name: str, title: str, causes: list[Cause]) -> ErrorGroup:
    note = "An answer can have several, and is counted once for each." if len(causes) > 1 else ""
    return ErrorGroup(name, title, sum(each.count for each in causes), causes, note=note)


def _screen(text: str) -> str:
    """At most one screen of a text."""
    lines = clean(shortened(text, _TEXT_MAX)).splitlines()
    return "\n".join(lines[:_LINES_MAX]) + ("\n…" if len(lines) > _LINES_MAX else "")


# The page.


def render(found: ErrorList, links: Links) -> Body:
    groups = [h("section", _group(found, links, each), id=each.name) for each in found.groups]
    parts = [
        h("h1", "Errors"),
        evaluation_note(found.evaluations, found.evaluation, found.ref.run_id)
        if links.is_static
        else evaluation_choice(
            found.evaluations, found.evaluation, lambda each: links.run(found.ref, "errors", evaluation=each)
        ),
        [h("p", sentence, class_="problem", role="alert") for sentence in found.damage],
        h("section", _stop(found, links), _overview(found), id="overview", data_live=True),
        h("div", groups, id="groups", data_live=True),  # one region: groups come and go while the run is live
    ]
    return Body(
        f"Errors of {found.ref.run_id}",
        join(parts),
        found.ref,
        "errors",
        found.status,
        found.durability,
        found.other,
        is_live=found.live and found.ref.at is None,
    )


def _stop(found: ErrorList, links: Links) -> Iterator[Child]:
    """The status of the run, what stopped it, and what is left to do."""
    status = found.status
    text = status_text(status.status, status.failed, status.planned)
    is_problem = status.status in _PROBLEMS
    reason = f"The run is {text}{f': {status.reason}' if status.reason else ''}. "
    address = links.run(found.ref, "samples", status="unfinished", evaluation=found.other)
    left = h("a", f"{counted(found.left, 'sample')} unfinished", href=address) if found.left else None
    yield h("p", reason, left, class_="problem" if is_problem else None)


def _overview(found: ErrorList) -> Iterator[Child]:
    if not found.groups:
        yield h("p", "No sample failed, no scorer failed, and no answer is marked or anomalous.")
    else:
        items = [h("li", h("a", each.title, href=f"#{quote(each.name)}"), f": {each.count:,}") for each in found.groups]
        yield h("ul", items)
    if found.unlooked:
        yield h("p", f"{found.unlooked:,} answers were not checked with the current anomaly rules.", class_="note")
    if found.progress.building:
        share = 100 * found.progress.listed // max(found.progress.planned, 1)
        yield h("p", f"Messages are being compared: {share}% of the samples so far.", class_="note")
        yield h("span", data_poll="2", hidden=True)


def _group(found: ErrorList, links: Links, group: ErrorGroup) -> Iterator[Child]:
    yield h("h2", f"{group.title}: {group.count:,}")
    if group.note:
        yield h("p", group.note, class_="quiet")
    for number, cause in enumerate(group.causes):
        yield h("article", _cause(found, links, cause, f"{group.name}-{number}"), class_="cause")
    if group.others:
        yield h("p", f"And {group.others:,} with other causes.", class_="quiet")


def _cause(found: ErrorList, links: Links, cause: Cause, name: str) -> Iterator[Child]:
    count = "1 sample" if cause.count == 1 else f"{cause.count:,} samples"
    query = {**cause.query, "evaluation": found.other}
    address = links.run(found.ref, "samples", **query)
    yield h("h3", cause.title, f": {cause.message}" if cause.message else "")
    yield h("p", h("a", count, href=address, class_="count"))
    if len(cause.cells) > 1:
        rows = [
            h(
                "tr",
                h("td", each.task),
                h("td", each.model),
                h(
                    "td",
                    h(
                        "a",
                        f"{each.count:,}",
                        href=links.run(found.ref, "samples", **query, task=each.task, model=each.model),
                    ),
                    class_="number",
                ),
            )
            for each in cause.cells
        ]
        cells = table(["task", "model", "count"], rows)
        yield h("details", h("summary", f"in {len(cause.cells):,} cells"), cells, id=f"cells-{name}")
    if cause.key:
        sample = links.sample(found.ref, cause.key, evaluation=found.other)
        yield h("p", "For example ", h("a", cause.key, href=sample), class_="quiet")
    if cause.question:
        yield h("p", h("span", "Question: ", class_="quiet"), cause.question)
    if cause.text:
        yield h("pre", cause.text)


def lost_records(loss: Anomaly) -> str:
    """What a journal has lost. A loss in a journal of a shard has its numbers only in its detail."""
    which = "records" if loss.n_last < loss.n_first else f"records {loss.n_first:,} to {loss.n_last:,}"
    return f"The journal has lost {which}: {loss.kind} {loss.detail}".rstrip()
