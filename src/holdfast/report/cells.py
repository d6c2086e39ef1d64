"""What a run found, cell by cell: means with their uncertainty, and how many answers have no part in them.

Failures and missing scores are counted and shown, never averaged in. Repeats of a sample are one group: more repeats
do not make the data set larger.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.records.exchange import Usage
from holdfast.records.facts import Cell
from holdfast.records.keys import parse_key
from holdfast.report.anomalies import Anomalies
from holdfast.report.costs import Cost, Told, cost_lines, total
from holdfast.report.wording import own_words
from holdfast.score import as_number
from holdfast.spec import Counts
from holdfast.state import AnswerRow, Index, ScoreRow
from holdfast.stats import Summary, summarise


class Example(msgspec.Struct, frozen=True):
    """One of several failures of a kind: a count alone does not say what to mend."""

    key: str
    message: str


class ScorerReport(msgspec.Struct, frozen=True):
    """One scorer over one cell. `failures` are answers on which it broke; `no_score` those of which it said nothing."""

    scorer: str
    summary: Summary
    no_score: int
    failures: int
    labels: dict[str, int]
    example: Example | None = None
    """The first of its failures."""


class CellReport(msgspec.Struct, frozen=True):
    """One task with one model."""

    task: str
    model: str
    planned: int
    finished: int
    failed: int
    unfinished: int
    failures: dict[str, int]
    usage: Usage
    seconds: float
    scorers: tuple[ScorerReport, ...]
    examples: dict[str, Example] = msgspec.field(default_factory=dict)
    """The first failure of each kind."""
    marks: dict[str, int] = msgspec.field(default_factory=dict)
    """Finished answers that are no ordinary ones: filtered, empty, truncated. How they count, the spec says."""
    marked: dict[str, Example] = msgspec.field(default_factory=dict)
    """The first of each, with how it counts."""
    cost: Cost = Cost()
    """Of all requests that were made for it, those of roles too."""
    anomalies: dict[str, int] = msgspec.field(default_factory=dict)
    """How many of its answers are odd, by kind; marks are not among them."""
    odd: dict[str, Example] = msgspec.field(default_factory=dict)
    """The first of each, with what shows it."""


class RunReport(msgspec.Struct, frozen=True):
    """All of a run, ready to be shown or written as JSON. Prints as a table, in a notebook too."""

    run_id: str
    experiment: str
    status: str
    reason: str
    evaluation: str
    cells: tuple[CellReport, ...]
    steps: dict[str, int]
    usage: Usage
    saved: Usage
    anomalies: int
    evaluations: dict[str, str] = msgspec.field(default_factory=dict)
    """All that the run has: what each is called, or its scorers."""
    cost: Cost = Cost()
    unlooked: int = 0
    """Answers that the list of anomalies in force was not used on; it is, with a resume or `score --anomalies`."""

    def __str__(self) -> str:
        from holdfast.report.tables import as_text, report_table  # rich is brought in only when something is shown

        return as_text(report_table(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from holdfast.report.tables import report_html

        return report_html(self)


def report_cells(index: Index, evaluation: str = "") -> Iterator[CellReport]:
    """Each cell of a run under one evaluation; empty means the newest."""
    story = index.story
    parts: dict[tuple[str, str], list[Cell]] = {}
    for cell in story.cells:  # one in each block of the plan
        parts.setdefault((cell.task, cell.model), []).append(cell)
    costs, told = cost_lines(story, {}), Told.of(story.spec)
    anomalies = Anomalies(index, evaluation or story.evaluation)
    for (task, model), cells in parts.items():
        cost = total(line for line in costs if (line.task, line.model) == (task, model))
        answers = Answers(task, model, cells, evaluation or story.evaluation)
        yield _report(index, answers, cost, (told.counts(task), anomalies))


class Answers(msgspec.Struct, frozen=True):
    """Which answers and scores belong to a report: those of a task with a model, in every block of the plan."""

    task: str
    model: str
    cells: Sequence[Cell]
    evaluation: str

    @property
    def planned(self) -> int:
        return sum(cell.count for cell in self.cells)

    def rows(self, index: Index) -> Iterator[AnswerRow]:
        return itertools.chain.from_iterable(index.answers(first=cell.first, count=cell.count) for cell in self.cells)

    def scores(self, index: Index) -> Iterator[ScoreRow]:
        return itertools.chain.from_iterable(
            index.scores(self.evaluation, cell.first, cell.count) for cell in self.cells
        )


def _report(index: Index, wanted: Answers, cost: Cost, looked: tuple[Counts, Anomalies]) -> CellReport:
    counts, anomalies = looked
    statuses: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    examples: dict[str, Example] = {}
    groups: dict[int, str] = {}
    marks: Counter[str] = Counter()
    marked: dict[str, Example] = {}
    kinds_of_odd: Counter[str] = Counter()
    odd: dict[str, Example] = {}
    usage, seconds = Usage(), 0.0
    for row in wanted.rows(index):
        statuses[row.status] += 1
        if row.status == "finished":
            groups[row.o] = parse_key(row.key).sample_id
            usage += Usage(row.input_tokens, row.output_tokens)
            seconds += row.seconds
            for mark in row.marks.split():
                marks[mark] += 1
                marked.setdefault(mark, Example(row.key, f"counts.{mark} is {getattr(counts, mark)}"))
            for kind, reason in anomalies.of(row).items():
                kinds_of_odd[kind] += 1
                odd.setdefault(kind, Example(row.key, reason))
        elif row.status == "failed":
            kinds[row.kind] += 1
            examples.setdefault(row.kind, Example(row.key, row.message))
    finished, failed = statuses["finished"], statuses["failed"]
    return CellReport(
        task=wanted.task,
        model=wanted.model,
        planned=wanted.planned,
        finished=finished,
        failed=failed,
        unfinished=wanted.planned - finished - failed,
        failures=dict(kinds.most_common()),
        usage=usage,
        seconds=round(seconds, 3),
        scorers=tuple(_scorers(index, wanted, groups)),
        examples=examples,
        marks=dict(marks),
        marked=marked,
        cost=cost,
        anomalies=dict(kinds_of_odd),
        odd=odd,
    )


def _scorers(index: Index, wanted: Answers, groups: dict[int, str]) -> Iterator[ScorerReport]:
    values: dict[str, tuple[list[float], list[str]]] = {}
    missing: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    broken: dict[str, ScoreRow] = {}
    labels: dict[str, Counter[str]] = {}
    for row in wanted.scores(index):
        numbers, members = values.setdefault(row.scorer, ([], []))
        number = as_number(row.value)
        if row.failure:
            failures[row.scorer] += 1
            broken.setdefault(row.scorer, row)
        elif number is not None:
            numbers.append(number)
            members.append(groups[row.o])
        elif isinstance(row.value, str):
            labels.setdefault(row.scorer, Counter())[row.value] += 1
        else:
            missing[row.scorer] += 1
    for name, (numbers, members) in sorted(values.items()):
        told = dict(labels.get(name, Counter[str]()).most_common())
        example = _example(index, broken[name]) if name in broken else None
        yield ScorerReport(name, summarise(numbers, members), missing[name], failures[name], told, example)


def _example(index: Index, row: ScoreRow) -> Example:
    answer = next(index.answers(first=row.o, count=1))
    return Example(answer.key, own_words(row.scorer, row.failure))
