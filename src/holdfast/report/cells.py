"""What a run found, cell by cell: means with their uncertainty, and how many answers have no part in them.

Failures and missing scores are counted and shown, never averaged in. Repeats of a sample are one group, and so are
samples that share one: more repeats, or more questions about one passage, do not make the data set larger.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.journal import Reader, journal_folder
from holdfast.records.decoder import FactDecoder
from holdfast.records.facts import Cell, SampleFinished
from holdfast.records.keys import parse_key
from holdfast.records.samples import Usage
from holdfast.report.agreement import Agreement, agreements, panels
from holdfast.report.anomalies import Anomalies
from holdfast.report.costs import Cost, Told, cost_lines, total
from holdfast.report.groups import Groups, member_of, with_groups
from holdfast.report.profile import ModelProfile
from holdfast.report.reduction import Reduced, Repeat, summarise_reduced
from holdfast.report.text import own_words
from holdfast.score import as_number
from holdfast.spec import Counts
from holdfast.spec.reductions import MEAN, Reduction, stored_reductions
from holdfast.state import AnswerRow, Index, ScoreRow
from holdfast.stats import Summary, summarise

_finished = FactDecoder(SampleFinished)


class Example(msgspec.Struct, frozen=True):
    """One of several failures of a kind: a count alone does not say what to mend."""

    key: str
    message: str


class ScorerReport(msgspec.Struct, frozen=True):
    """One scorer over one cell. `summary` is of all answers, repeats in groups; `failures` are answers on which it
    broke; `no_score` those of which it said nothing.
    """

    scorer: str
    summary: Summary
    no_score: int
    failures: int
    labels: dict[str, int]
    example: Example | None = None
    """The first of its failures."""
    reduced: tuple[Reduced, ...] = ()
    """What the task's reducers make of it, sample by sample. Empty where that is only the mean."""
    plain: bool = True
    """Whether the mean is among what the task asks for; its numbers are here anyway."""
    edited: int = 0
    """Scores that people have set by hand."""


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
    agreement: tuple[Agreement, ...] = ()
    """Of the judges of each panel."""
    anomalies: dict[str, int] = msgspec.field(default_factory=dict)
    """How many of its answers are odd, by kind; marks are not among them."""
    odd: dict[str, Example] = msgspec.field(default_factory=dict)
    """The first of each, with what shows it."""
    groups_unknown: str = ""
    """A sentence, if the spec names a column of groups and the rows cannot be read: then each sample stands alone."""


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
    models: tuple[ModelProfile, ...] = ()
    """How fast each model was."""
    damage: tuple[str, ...] = ()
    """What is missing or changed in the run's files, a sentence each."""

    def __str__(self) -> str:
        from holdfast.report.tables import (
            as_text,  # rich is brought in only when something is shown
            report_table,
        )

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
    evaluation = evaluation or story.evaluation
    started = story.evaluations.get(evaluation)
    reductions, repeats = stored_reductions(story.spec), stored_repeats(story.spec)
    costs, told = cost_lines(story, {}), Told.of(story.spec)
    anomalies = Anomalies(index, evaluation)
    for (task, model), cells in parts.items():
        cost = total(line for line in costs if (line.task, line.model) == (task, model))
        how = reductions.get(task, (Reduction(),))
        judges = panels(started.scorers, task) if started is not None else {}
        answers = Answers(task, model, cells, evaluation, how, repeats.get(task, 1), judges)
        yield _report(index, answers, cost, (told.counts(task), anomalies))


def stored_repeats(spec: Mapping[str, Any]) -> dict[str, int]:
    """By task, of a stored spec."""
    return {str(task.get("name")): int(task.get("repeats", 1)) for task in spec.get("tasks", ())}


class Answers(msgspec.Struct, frozen=True):
    """Which answers and scores belong to a report: those of a task with a model, in every block of the plan."""

    task: str
    model: str
    cells: Sequence[Cell]
    evaluation: str
    reductions: tuple[Reduction, ...] = (Reduction(),)
    repeats: int = 1
    judges: Mapping[str, tuple[str, ...]] = {}
    """Of the panels among the scorers."""

    @property
    def planned(self) -> int:
        return sum(cell.count for cell in self.cells)

    def rows(self, index: Index) -> Iterator[AnswerRow]:
        return itertools.chain.from_iterable(index.answers(first=cell.first, count=cell.count) for cell in self.cells)

    def scores(self, index: Index, answers: Container[int]) -> Iterator[ScoreRow]:
        """Of these answers alone: another reader may have brought in more of a run at work since we looked at them."""
        rows = (index.scores(self.evaluation, cell.first, cell.count) for cell in self.cells)
        return (row for row in itertools.chain.from_iterable(rows) if row.o in answers)


class _Finished(msgspec.Struct, frozen=True):
    """Of which sample each answer is, by ordinal, and in which group that is, if it shares one."""

    samples: dict[int, str]
    shared: dict[int, Hashable]

    def add(self, row: AnswerRow, group: str) -> None:
        self.samples[row.o] = sample = parse_key(row.key).sample_id
        if group:
            self.shared[row.o] = member_of(sample, group)

    def summarise(self, numbers: Mapping[int, float]) -> Summary:
        samples = [self.samples[o] for o in numbers]
        members = [self.shared.get(o, sample) for o, sample in zip(numbers, samples, strict=True)]
        return with_groups(summarise(list(numbers.values()), members), samples, members)

    def by_sample(self) -> dict[str, Hashable]:
        return {self.samples[o]: member for o, member in self.shared.items()}


def _report(index: Index, wanted: Answers, cost: Cost, looked: tuple[Counts, Anomalies]) -> CellReport:
    counts, anomalies = looked
    statuses: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    examples: dict[str, Example] = {}
    known, groups = _Finished({}, {}), Groups(index.folder, index.story.spec, wanted.cells)
    marks: Counter[str] = Counter()
    marked: dict[str, Example] = {}
    kinds_of_odd: Counter[str] = Counter()
    odd: dict[str, Example] = {}
    usage, seconds = Usage(), 0.0
    for row in wanted.rows(index):
        statuses[row.status] += 1
        if row.status == "finished":
            known.add(row, groups.at(row.o))
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
        scorers=tuple(_scorers(index, wanted, known)),
        examples=examples,
        marks=dict(marks),
        marked=marked,
        cost=cost,
        agreement=tuple(_agreement(index, wanted, known.samples)),
        anomalies=dict(kinds_of_odd),
        odd=odd,
        groups_unknown=groups.unknown.get(wanted.task, ""),
    )


def _scorers(index: Index, wanted: Answers, known: _Finished) -> Iterator[ScorerReport]:
    values: dict[str, dict[int, float]] = {}
    missing: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    broken: dict[str, ScoreRow] = {}
    labels: dict[str, Counter[str]] = {}
    reduced = _reduced(index, wanted, known)
    edited: Counter[str] = Counter()
    for row in wanted.scores(index, known.samples):
        numbers = values.setdefault(row.scorer, {})
        edited[row.scorer] += bool(row.author)
        number = as_number(row.value)
        if row.failure:
            failures[row.scorer] += 1
            broken.setdefault(row.scorer, row)
        elif number is not None:
            numbers[row.o] = number
        elif isinstance(row.value, str):
            labels.setdefault(row.scorer, Counter())[row.value] += 1
        else:
            missing[row.scorer] += 1
    for name, numbers in sorted(values.items()):
        told = dict(labels.get(name, Counter[str]()).most_common())
        example = _example(index, broken[name]) if name in broken else None
        plain = any(each.name == MEAN for each in wanted.reductions) or not numbers
        kept = tuple(each for each in reduced.get(name, ()) if numbers or each.labels)
        summary = known.summarise(numbers)
        yield ScorerReport(name, summary, missing[name], failures[name], told, example, kept, plain, edited[name])


def _reduced(index: Index, wanted: Answers, known: _Finished) -> dict[str, tuple[Reduced, ...]]:
    """By scorer. Answers are read for it only where a reducer needs their texts."""
    found: dict[str, list[Reduced]] = {}
    ordinals, members = known.samples, known.by_sample()
    for how in wanted.reductions:
        if how.name == MEAN:
            continue
        answers = dict(_answers(index, wanted, how.answer, ordinals)) if how.name == "cons_at_k" else {}
        repeats: dict[str, dict[str, list[Repeat]]] = {}
        for row in wanted.scores(index, ordinals):
            if row.scorer not in repeats:
                repeats[row.scorer] = {sample: [] for sample in ordinals.values()}
            value = None if row.failure else row.value
            repeats[row.scorer][ordinals[row.o]].append(Repeat(value, answers.get(row.o)))
        for name, samples in repeats.items():
            found.setdefault(name, []).append(summarise_reduced(how, samples, wanted.repeats, members))
    return {name: tuple(each) for name, each in found.items()}


def _answers(index: Index, wanted: Answers, scorer: str, among: Container[int]) -> Iterator[tuple[int, str]]:
    """Which answer each one is: as a scorer's label says, or, without one, its text."""
    if not scorer:
        yield from _texts(index, wanted)
        return
    for row in wanted.scores(index, among):
        if row.scorer == scorer and isinstance(row.value, str) and not row.failure:
            yield row.o, row.value


def _texts(index: Index, wanted: Answers) -> Iterator[tuple[int, str]]:
    with contextlib.closing(Reader(journal_folder(index.folder))) as reader:
        for row in wanted.rows(index):
            entry = reader.record_at(row.segment, row.at_byte) if row.status == "finished" else None
            if entry is not None and entry.line.n == row.n:
                yield row.o, _finished.decode(entry.line).answer.text


def _agreement(index: Index, wanted: Answers, answers: Container[int]) -> Iterator[Agreement]:
    if not wanted.judges:
        return
    votes: dict[str, dict[int, Any]] = {}
    for row in wanted.scores(index, answers):
        if not row.failure:
            votes.setdefault(row.scorer, {})[row.o] = row.value
    yield from agreements(wanted.judges, votes)


def _example(index: Index, row: ScoreRow) -> Example:
    answer = next(index.answers(first=row.o, count=1))
    return Example(answer.key, own_words(row.scorer, row.failure))
