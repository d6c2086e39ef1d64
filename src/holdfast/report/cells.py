"""The report of a run, cell by cell: means with their uncertainty, and how many answers are not part of them.

Failures and missing scores are counted and shown, never averaged in. Repeats of a sample form one group, and so do
samples with the same `dataset.group`: more repeats, or more questions about one passage, do not make the data set
larger. The structs here are what `report --json` prints: fields are only ever added.

How well the judges of a panel agree, for each score that the panel gives.

A panel is a scorer with several `roles`. It records its combined score under its own name and each vote beside it
(`rubric`, `rubric.a`, `rubric.b`). Votes are points on a scale, so alpha is ordinal. For two judges there is also
Cohen's unweighted kappa, where any two different votes are a disagreement.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.journal import Reader, journal_folder
from holdfast.records import JUDGES, Cell, FactDecoder, SampleFinished, Usage, normalized, parse_key
from holdfast.report.anomalies import Anomalies
from holdfast.report.costs import Cost, StoredSpec, cost_lines, total
from holdfast.report.profile import ModelProfile
from holdfast.report.reduction import Reduced, Repeat, SampleGroups, member_of, summarise_reduced, with_groups
from holdfast.report.text import without_scorer_name
from holdfast.score import as_number
from holdfast.spec import MEAN, Counts, Reduction, stored_reductions
from holdfast.state import AnswerRow, Index, ScoreRow
from holdfast.stats import Summary, cohens_kappa, krippendorff_alpha, percent_agreement, summarise

_MODEL_FIELDS = ("provider", "model", "params", "options")


class Agreement(msgspec.Struct, frozen=True):
    """Agreement on `n` answers with at least two votes. A measure is None where disagreement was impossible."""

    scorer: str
    judges: tuple[str, ...]
    n: int
    agreement: float | None
    """The share of pairs of judges with the same vote, not corrected for chance."""
    alpha: float | None
    kappa: float | None = None

    def __str__(self) -> str:
        measures = [f"Krippendorff's alpha {_number(self.alpha)}"]
        if len(self.judges) == 2:
            measures.append(f"Cohen's kappa {_number(self.kappa)}")
        measures.append(f"pairwise agreement {_number(self.agreement)}")
        return f"{self.scorer}: agreement of {', '.join(self.judges)} on {self.n} answers: {', '.join(measures)}"


def panels(scorers: Sequence[Mapping[str, Any]], task: str) -> dict[str, tuple[str, ...]]:
    """The roles of each panel among the scorers of a task. `scorers`: as an evaluation records them."""
    found = {}
    for each in scorers:
        roles = (each.get("args") or {}).get("roles")
        if each.get("task", task) == task and isinstance(roles, list) and len(roles) > 1:
            found[str(each.get("name"))] = tuple(map(str, roles))
    return found


def judges_of(scorer: Mapping[str, Any], roles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The models that a built-in judge calls, by role. They are part of its identity."""
    scorer = normalized(scorer)
    if "version" not in scorer or scorer["function"] not in JUDGES:
        return {}
    args = scorer.get("args") or {}
    named = args.get("roles") or [args.get("role", "judge")]
    return {role: {part: roles[role].get(part) for part in _MODEL_FIELDS} for role in named if role in roles}


def agreements(judges: Mapping[str, tuple[str, ...]], votes: Mapping[str, Mapping[int, Any]]) -> Iterator[Agreement]:
    """The agreement on every score that a panel gives. `votes`: by score name, then by ordinal of the answer."""
    for panel, roles in judges.items():
        for name in votes:
            own = [votes.get(f"{name}.{role}", {}) for role in roles]
            if (name == panel or name.startswith(f"{panel}.")) and all(own):
                answers = dict.fromkeys(answer for each in own for answer in each)
                units = [[as_number(each.get(answer)) for each in own] for answer in answers]
                units = [unit for unit in units if sum(vote is not None for vote in unit) > 1]
                alpha, kappa = krippendorff_alpha(units, "ordinal"), None
                if len(roles) == 2:
                    kappa = cohens_kappa([unit[0] for unit in units], [unit[1] for unit in units])
                yield Agreement(name, roles, len(units), percent_agreement(units), alpha, kappa)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


_finished = FactDecoder(SampleFinished)


class Example(msgspec.Struct, frozen=True):
    """One example of a failure or anomaly: a count alone does not show what to fix."""

    key: str
    message: str


class ScorerReport(msgspec.Struct, frozen=True):
    """One scorer over one cell. `summary` covers all answers, with repeats in groups; `failures` counts answers on
    which the scorer raised an error, `no_score` those to which it gave no score.
    """

    scorer: str
    summary: Summary
    no_score: int
    failures: int
    labels: dict[str, int]
    example: Example | None = None
    """The first failure."""
    reduced: tuple[Reduced, ...] = ()
    """The task's reducers applied to it, sample by sample. Empty if the only reducer is the mean."""
    plain: bool = True
    """Whether the task's reducers include the mean. `summary` is filled in either case."""
    edited: int = 0
    """Scores that were set by hand."""


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
    """Finished answers that are filtered, empty or truncated. The spec's `counts` decides how they count."""
    marked: dict[str, Example] = msgspec.field(default_factory=dict)
    """An example of each mark, with how it counts."""
    cost: Cost = Cost()
    """Of all requests for this cell, including those of roles."""
    agreement: tuple[Agreement, ...] = ()
    """Between the judges of each panel."""
    anomalies: dict[str, int] = msgspec.field(default_factory=dict)
    """How many answers have an anomaly, by kind, without marks."""
    odd: dict[str, Example] = msgspec.field(default_factory=dict)
    """An example of each anomaly, with its reason."""
    groups_unknown: str = ""
    """A sentence, if the spec names a group column but the rows cannot be read. Then each sample is its own group."""


class RunReport(msgspec.Struct, frozen=True):
    """The report of a whole run. Prints as a table, also in a notebook."""

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
    """Every evaluation of the run: its name, or its scorers, by id."""
    cost: Cost = Cost()
    unlooked: int = 0
    """CellAnswers that the current anomaly checks have not seen; a resume or `score --anomalies` checks them."""
    models: tuple[ModelProfile, ...] = ()
    """How fast each model was."""
    damage: tuple[str, ...] = ()
    """What is missing or changed in the run's files, one sentence each."""

    def __str__(self) -> str:
        from holdfast.report.tables import (
            as_text,  # imported late: rich is slow to import
            report_table,
        )

        return as_text(report_table(self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from holdfast.report.tables import report_html

        return report_html(self)


def report_cells(index: Index, evaluation: str = "") -> Iterator[CellReport]:
    """The report of each cell under one evaluation; empty means the newest."""
    story = index.story
    parts: dict[tuple[str, str], list[Cell]] = {}
    for cell in story.cells:  # `extend` adds another block with the same cells
        parts.setdefault((cell.task, cell.model), []).append(cell)
    evaluation = evaluation or story.evaluation
    started = story.evaluations.get(evaluation)
    reductions, repeats = stored_reductions(story.spec), stored_repeats(story.spec)
    costs, spec = cost_lines(story, {}), StoredSpec.of(story.spec)
    anomalies = Anomalies(index, evaluation)
    for (task, model), cells in parts.items():
        cost = total(line for line in costs if (line.task, line.model) == (task, model))
        how = reductions.get(task, (Reduction(),))
        judges = panels(started.scorers, task) if started is not None else {}
        answers = CellAnswers(task, model, cells, evaluation, how, repeats.get(task, 1), judges)
        yield _report_cell(index, answers, cost, (spec.counts(task), anomalies))


def stored_repeats(spec: Mapping[str, Any]) -> dict[str, int]:
    """The number of repeats by task, from a stored spec."""
    return {str(task.get("name")): int(task.get("repeats", 1)) for task in spec.get("tasks", ())}


class CellAnswers(msgspec.Struct, frozen=True):
    """Selects the answers and scores of one task with one model, in every block of the plan."""

    task: str
    model: str
    cells: Sequence[Cell]
    evaluation: str
    reductions: tuple[Reduction, ...] = (Reduction(),)
    repeats: int = 1
    judges: Mapping[str, tuple[str, ...]] = {}
    """The roles of each panel among the scorers."""

    @property
    def planned(self) -> int:
        return sum(cell.count for cell in self.cells)

    def rows(self, index: Index) -> Iterator[AnswerRow]:
        return itertools.chain.from_iterable(index.answers(first=cell.first, count=cell.count) for cell in self.cells)

    def scores(self, index: Index, answers: Container[int]) -> Iterator[ScoreRow]:
        """Scores of these answers only: if another reader rebuilt the index meanwhile, it may contain newer answers."""
        rows = (index.scores(self.evaluation, cell.first, cell.count) for cell in self.cells)
        return (row for row in itertools.chain.from_iterable(rows) if row.o in answers)


class _Finished(msgspec.Struct, frozen=True):
    """The sample of each finished answer, by ordinal, and its group if the sample shares one."""

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


def _report_cell(index: Index, selected: CellAnswers, cost: Cost, checks: tuple[Counts, Anomalies]) -> CellReport:
    counts, anomalies = checks
    statuses: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    examples: dict[str, Example] = {}
    known, groups = _Finished({}, {}), SampleGroups(index.folder, index.story.spec, selected.cells)
    marks: Counter[str] = Counter()
    marked: dict[str, Example] = {}
    anomaly_counts: Counter[str] = Counter()
    anomaly_examples: dict[str, Example] = {}
    usage, seconds = Usage(), 0.0
    for row in selected.rows(index):
        statuses[row.status] += 1
        if row.status == "finished":
            known.add(row, groups.at(row.o))
            usage += Usage(row.input_tokens, row.output_tokens)
            seconds += row.seconds
            for mark in row.marks.split():
                marks[mark] += 1
                marked.setdefault(mark, Example(row.key, f"counts.{mark} is {getattr(counts, mark)}"))
            for kind, reason in anomalies.of(row).items():
                anomaly_counts[kind] += 1
                anomaly_examples.setdefault(kind, Example(row.key, reason))
        elif row.status == "failed":
            kinds[row.kind] += 1
            examples.setdefault(row.kind, Example(row.key, row.message))
    votes: dict[str, dict[int, Any]] = {}
    for score in selected.scores(index, known.samples) if selected.judges else ():
        if not score.failure:
            votes.setdefault(score.scorer, {})[score.o] = score.value
    finished, failed = statuses["finished"], statuses["failed"]
    return CellReport(
        task=selected.task,
        model=selected.model,
        planned=selected.planned,
        finished=finished,
        failed=failed,
        unfinished=selected.planned - finished - failed,
        failures=dict(kinds.most_common()),
        usage=usage,
        seconds=round(seconds, 3),
        scorers=tuple(_scorers(index, selected, known)),
        examples=examples,
        marks=dict(marks),
        marked=marked,
        cost=cost,
        agreement=tuple(agreements(selected.judges, votes)),
        anomalies=dict(anomaly_counts),
        odd=anomaly_examples,
        groups_unknown=groups.unknown.get(selected.task, ""),
    )


def _scorers(index: Index, selected: CellAnswers, known: _Finished) -> Iterator[ScorerReport]:
    values: dict[str, dict[int, float]] = {}
    missing: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    broken: dict[str, ScoreRow] = {}
    labels: dict[str, Counter[str]] = {}
    reduced = _reduced(index, selected, known)
    edited: Counter[str] = Counter()
    for row in selected.scores(index, known.samples):
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
        label_counts = dict(labels.get(name, Counter[str]()).most_common())
        example = None
        if name in broken:
            key = next(index.answers(first=broken[name].o, count=1)).key
            example = Example(key, without_scorer_name(name, broken[name].failure))
        plain = any(each.name == MEAN for each in selected.reductions) or not numbers
        kept = tuple(each for each in reduced.get(name, ()) if numbers or each.labels)
        summary = known.summarise(numbers)
        yield ScorerReport(
            name, summary, missing[name], failures[name], label_counts, example, kept, plain, edited[name]
        )


def _reduced(index: Index, selected: CellAnswers, known: _Finished) -> dict[str, tuple[Reduced, ...]]:
    """Reduced scores by scorer. Answer texts are read only if a reducer (cons@k) compares them."""
    found: dict[str, list[Reduced]] = {}
    ordinals, members = known.samples, known.by_sample()
    for how in selected.reductions:
        if how.name == MEAN:
            continue
        answers = dict(_answers(index, selected, how.answer, ordinals)) if how.name == "cons_at_k" else {}
        repeats: dict[str, dict[str, list[Repeat]]] = {}
        for row in selected.scores(index, ordinals):
            if row.scorer not in repeats:
                repeats[row.scorer] = {sample: [] for sample in ordinals.values()}
            value = None if row.failure else row.value
            repeats[row.scorer][ordinals[row.o]].append(Repeat(value, answers.get(row.o)))
        for name, samples in repeats.items():
            found.setdefault(name, []).append(summarise_reduced(how, samples, selected.repeats, members))
    return {name: tuple(each) for name, each in found.items()}


def _answers(index: Index, selected: CellAnswers, scorer: str, among: Container[int]) -> Iterator[tuple[int, str]]:
    """What identifies each answer for cons@k: the label of the given scorer or, without one, its text."""
    if scorer:
        for score in selected.scores(index, among):
            if score.scorer == scorer and isinstance(score.value, str) and not score.failure:
                yield score.o, score.value
        return
    with contextlib.closing(Reader(journal_folder(index.folder))) as reader:
        for row in selected.rows(index):
            entry = reader.record_at(row.segment, row.at_byte) if row.status == "finished" else None
            if entry is not None and entry.line.n == row.n:
                yield row.o, _finished.decode(entry.line).answer.text
