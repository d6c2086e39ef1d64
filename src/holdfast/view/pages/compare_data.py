"""The data of the comparison page: the result, the counts of changes, and the samples behind one of its numbers."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.records import parse_key
from holdfast.report import ComparisonResult, Question, Side, comparison_sentences, readable_input, value_text
from holdfast.runs import CHANGES, Change, ChangedValues, KeyTable, TableRow, command_with_runs
from holdfast.view.computations import Computed, Job, JobRun
from holdfast.view.diff import DiffPart, word_diff
from holdfast.view.links import parse_run_name
from holdfast.view.page import PageRequest
from holdfast.view.pages.evaluations import evaluation_labels
from holdfast.view.sources import Durability, RunRef, Sources, ViewedRun

_RUNS_MAX = 6
_ROWS = 20
_TEXT_MAX = 2000
_QUESTION_MAX = 1000
_OTHERS_MAX = 200


class ComparedRun(msgspec.Struct, frozen=True):
    """One of the runs."""

    ref: RunRef
    status: str
    records: int
    """The number of its last record."""
    is_live: bool = False
    durability: Durability | None = None
    failed: int = 0
    planned: int = 0


class ChangeCounts(msgspec.Struct, frozen=True):
    """How the common keys of a comparison changed."""

    counts: dict[Change, int]
    """They add up to `common`."""
    matrix: list[ChangedValues]
    """By pair of values, if there are few values."""
    is_right_or_wrong: bool


class ChangedSample(msgspec.Struct, frozen=True):
    """One key on both sides."""

    first_key: str
    second_key: str
    before: Any
    after: Any
    change: Change
    question: str = ""
    target: str | None = None
    first_answer: str = ""
    second_answer: str = ""
    """The beginning of each answer."""
    first_length: int = 0
    second_length: int = 0
    diff: list[DiffPart] = []


class ChangeList(msgspec.Struct, frozen=True):
    """One page of the samples behind a number."""

    row: int
    """The number of the comparison."""
    change: str
    before: str
    after: str
    """JSON of a value: only this cell of the matrix."""
    total: int
    samples: list[ChangedSample]
    is_reduced: bool = False
    next: int | None = None
    """For `after_key`; None on the last page."""
    previous: int | None = None
    """For `before_key`; None on the first page."""


class CompareView(msgspec.Struct, frozen=True):
    """Everything that the page shows."""

    runs: list[ComparedRun]
    is_computing: bool
    is_current: bool
    """Whether `result` is of the last record of each run."""
    problem: str = ""
    records: list[int] = []
    """The records that `result` is of."""
    result: ComparisonResult | None = None
    """As `holdfast compare --json`, without the changed keys: these are in `listed`."""
    sentences: list[str] = []
    changes: list[ChangeCounts] = []
    listed: ChangeList | None = None
    others: Sequence[RunRef] = ()
    """Runs that can be compared with the first."""
    evaluation: str = ""
    command: str = ""
    evaluations: dict[str, str] = {}
    """Of a run whose models are compared: what to call each, by id."""
    shown: str = ""
    """The id of the one that is compared."""


def load(request: PageRequest) -> CompareView:
    """The runs that the query names."""
    refs = [parse_run_name(text) for text in request.lists.get("run", ())][:_RUNS_MAX]
    return _load(request, refs)


def load_models(request: PageRequest) -> CompareView:
    """The models and variants of one run."""
    return _load(request, [request.run])


def _load(request: PageRequest, refs: Sequence[RunRef]) -> CompareView:
    sources = request.sources
    runs, jobs, states, keys = list[ComparedRun](), list[JobRun](), list[Any](), 0
    evaluation, evaluations, shown = request.query.get("evaluation", ""), dict[str, str](), ""
    for ref in refs:
        with sources.open(ref) as run:
            (status, _, *counts), last = run.shown_status(), run.index.last_n
            runs.append(ComparedRun(ref, status, last, run.is_live, run.durability(), *counts))
            jobs.append(JobRun(run.place, ref.at))
            states.append((run.uid, run.index.last_n))
            keys += run.planned_count()
            if "run" in request.path:
                evaluations, shown = evaluation_labels(run), evaluation or run.index.story.evaluation
    others = _others(sources, refs)
    if not refs or ("run" not in request.path and len(refs) < 2):
        return CompareView(runs, is_computing=False, is_current=True, others=others)
    found = request.compute(Job("compare", tuple(jobs), evaluation), tuple(states), keys)
    view = CompareView(
        runs,
        is_computing=found.is_running,
        is_current=found.is_current,
        others=others,
        evaluation=evaluation,
        command=command_with_runs("compare", [each.place for each in jobs]),
        evaluations=evaluations,
        shown=shown,
    )
    if found.computed is None:
        return view
    outcome = found.computed.outcome
    if outcome.comparison is None:
        return msgspec.structs.replace(view, problem=outcome.problem)
    return msgspec.structs.replace(
        view,
        records=[*outcome.records],
        result=outcome.comparison,
        sentences=comparison_sentences(outcome.comparison.comparisons),
        changes=[_counts(table) for table in found.computed.tables],
        listed=_list(request, refs, found.computed),
    )


def _others(sources: Sources, refs: Sequence[RunRef]) -> list[RunRef]:
    """Other runs that have begun: of the same experiment first, the newest first."""
    chosen = {msgspec.structs.replace(ref, at=None) for ref in refs}
    found = [each.ref for each in sources.list() if each.summary.run_id and each.summary.planned]
    found = [ref for ref in found if ref not in chosen]
    own = refs[0].experiment if refs else ""
    return sorted(found, key=lambda ref: ref.experiment != own)[:_OTHERS_MAX]


def _counts(table: KeyTable) -> ChangeCounts:
    values = table.head.values
    return ChangeCounts(table.counts(), table.matrix(), bool(values) and all(isinstance(each, bool) for each in values))


def _list(request: PageRequest, refs: Sequence[RunRef], computed: Computed) -> ChangeList | None:
    """The samples behind the number that the query names; by default all that changed in the first comparison."""
    tables: Sequence[KeyTable] = computed.tables
    changed = [sum(count for change, count in table.counts().items() if change != "equal") for table in tables]
    first = next((number for number, count in enumerate(changed) if count), 0)
    row = request.number("row")
    row = first if row is None else min(row, len(tables) - 1)
    table = tables[row]
    change = request.query.get("change", "") or "changed"
    before, after = request.query.get("before", ""), request.query.get("after", "")
    kinds = table.kinds(_named(change), (parse_value(before), parse_value(after)) if before and after else None)
    total = sum(table.head.kinds[kind] for kind in kinds)
    behind, in_front = request.number("after_key"), request.number("before_key")
    rows = _take(table, kinds, behind, in_front)
    assert computed.outcome.comparison is not None
    second = run_of(refs, computed.outcome.comparison, table.head.second)
    at_start = not rows or next(table.rows(kinds, before=rows[0].first), None) is None
    at_end = not rows or next(table.rows(kinds, after=rows[-1].first), None) is None
    return ChangeList(
        row,
        change,
        before,
        after,
        total,
        _samples(request.sources, (refs[0], second), table, rows),
        table.head.is_reduced,
        None if at_end else rows[-1].first,
        None if at_start else rows[0].first,
    )


def _take(table: KeyTable, kinds: frozenset[int], behind: int | None, in_front: int | None) -> list[TableRow]:
    found = [each for _, each in zip(range(_ROWS), table.rows(kinds, after=behind, before=in_front), strict=False)]
    return found[::-1] if in_front is not None else found


def _named(change: str) -> Sequence[Change]:
    if change == "all":
        return CHANGES
    return [each for each in CHANGES if each == change or (change == "changed" and each != "equal")]


def parse_value(text: str) -> Any:
    """A score in an address: JSON, or a text as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def run_of(refs: Sequence[RunRef], result: ComparisonResult, side: Side) -> RunRef:
    """The run of a side."""
    return dict(zip(result.evaluations, refs, strict=True))[side.run]  # both in the order of the command


class _Asked(msgspec.Struct, frozen=True):
    key: str
    text: str
    question: Question | None


def _samples(
    sources: Sources, refs: tuple[RunRef, RunRef], table: KeyTable, rows: Sequence[TableRow]
) -> list[ChangedSample]:
    with sources.open(refs[0]) as run:
        first = _read(run, [row.first for row in rows])
    missing = {row.second for row in rows if row.first not in first or first[row.first].question is None}
    with sources.open(refs[1]) as run:
        second = _read(run, [row.second for row in rows], missing)
    found = []
    for row in rows:
        one, other = first.get(row.first), second.get(row.second)
        if one is None or other is None:
            continue
        before, after = one.text[:_TEXT_MAX], other.text[:_TEXT_MAX]
        question = one.question or other.question
        found.append(
            ChangedSample(
                one.key,
                other.key,
                row.before,
                row.after,
                row.change,
                readable_input(question)[:_QUESTION_MAX] if question is not None else "",
                (value_text(question.target) or "")[:_QUESTION_MAX] if question is not None else None,
                before,
                after,
                len(one.text),
                len(other.text),
                [] if table.head.is_reduced else word_diff(before, after),
            )
        )
    return found


def _read(run: ViewedRun, ordinals: Sequence[int], asked: set[int] | None = None) -> dict[int, _Asked]:
    """Keys, answers and questions of a few ordinals. `asked`: only these need a question; None means all."""
    questions = run.questions_at([o for o in ordinals if asked is None or o in asked])
    texts = run.answer_texts(ordinals)
    found = {}
    for o in ordinals:
        row = run.index.row(o) if o >= 0 else None
        if row is not None:
            found[o] = _Asked(row.key, texts.get(o, ""), questions.get(o))
    return found


def sample_name(key: str) -> str:
    parts = parse_key(key)
    return parts.sample_id if parts.repeat <= 1 else f"{parts.sample_id} ({parts.repeat})"
