"""The report of a run, cell by cell: means with their uncertainty, and how many answers are not part of them.

Failures and missing scores are counted and shown, never averaged in. Repeats of a sample form one group, and so do
samples with the same `dataset.group`: more repeats, or more questions about one passage, do not make the data set
larger. The structs here are what `report --json` prints: fields are only ever added.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.records import COUNT_MAX, Cell, Usage
from holdfast.report.anomalies import Anomalies
from holdfast.report.cell_totals import CellAnswers, RowTotals, SampleWeight, row_totals, scale_of
from holdfast.report.costs import Cost, StoredSpec, cost_lines, total
from holdfast.report.profile import ModelProfile
from holdfast.report.reduction import Macro, Reduced, bounds_of, reduced_scale, with_counts
from holdfast.report.summaries.agreement import Agreement, panels
from holdfast.report.summaries.grades import Grades, graded_scorer
from holdfast.report.summaries.wrong_answers import FAILED, WRONG, WrongAnswers, unreadable_answers
from holdfast.report.text import without_scorer_name
from holdfast.score import scales_of
from holdfast.spec import MEAN, Counts, Reduction
from holdfast.state import Index, ReducedTotals, Reducing, ScorerTotals, Tally, stored_reducing
from holdfast.stats import NUMBER, UNIT, GroupSums, Scale, Summary, summarise_sums


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
    missing: dict[str, int] = msgspec.field(default_factory=dict)
    """Planned answers that are not in `summary`, by reason: unfinished, failed, scorer_failed, no_score, label (while
    others have numbers), not_scored.
    """
    bounds: tuple[float, float] | None = None
    """The mean if all missing scores were the lowest of the scale, or the highest."""
    scale: Scale = NUMBER
    is_declared: bool = False
    """Whether the scorer declares its scale. If not: `bool` if all values are bools, else any number."""
    wrong: WrongAnswers | None = None
    """Answers in `summary` that count as wrong because the task's `counts` says so, or because the scorer cannot read
    them; None if there are none.
    """
    macro: tuple[Macro, ...] = ()
    """The macro mean of each row of the scorer, if the task names a column with `macro`."""
    weight: SampleWeight | None = None
    """By what samples weigh in the mean; None: equally."""
    grades: Grades | None = None
    """If its labels are grades: how many there are, and their F1."""
    of: str = ""
    """The scorer whose grades it counts: right if `correct`. Empty for all others."""

    def scale_of(self, row: str) -> Scale:
        """Of one of its table rows: `rubric`, or `rubric pass@2`, whose values are chances."""
        by_reducer = {each.reducer: each.scale for each in self.reduced}
        by_name = {f"{self.scorer} {reducer}": scale for reducer, scale in by_reducer.items()}
        by_name |= {each.title: by_reducer[each.reducer] for each in self.macro if each.reducer}
        by_name |= {f"{self.scorer} F1": UNIT}
        return by_name.get(row, self.scale)


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
    result: str = ""
    """Of a benchmark: the scorer that gives its result."""

    def shown_scorers(self) -> list[ScorerReport]:
        """The scorers in the order of tables: the result of a benchmark comes first."""
        return sorted(self.scorers, key=lambda each: self.result not in (each.scorer, each.of or each.scorer))

    def marked_name(self, row: str) -> str:
        """The name of a table row: that of the result says so, if there are other scorers."""
        return f"{row} (result)" if row == self.result and len(self.scorers) > 1 else row


def unscored_counts(cell: CellReport, partial: "PartialEvaluation | None") -> tuple[int, int]:
    """For a cell without scores: n and how many are left out. Without scorers every finished answer counts; in a
    partial evaluation none, because none of them was chosen.
    """
    n = cell.finished if partial is None else 0
    return n, cell.planned - n


class PartialEvaluation(msgspec.Struct, frozen=True):
    """An evaluation in which only chosen answers are scored. `chosen`: how, as options of `score`."""

    scored: int
    answers: int
    """How many answers the run has."""
    chosen: tuple[str, ...] = ()


class BenchmarkData(msgspec.Struct, frozen=True):
    """The data of a task that is a benchmark."""

    task: str
    benchmark: str
    version: int
    revision: str = ""
    """As the run stores it: a commit of the Hub, or `main@COMMIT`."""
    commit: str = ""
    """The commit, or the SHA-256 of the file."""
    unverified: bool = False
    """The benchmark names no commit: the run resolved the revision when it began."""


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
    worked_seconds: float = 0.0
    """Wall time: how long processes worked on the run. The seconds of cells are sums over samples that overlap."""
    summed_seconds: float = 0.0
    """Of a sharded run: the same summed over all workers, which work at the same time; else 0."""
    partial: PartialEvaluation | None = None
    """None: the evaluation is for all answers."""
    benchmarks: tuple[str, ...] = ()
    """Which tasks are benchmarks, with their versions and the fields in which they differ, one sentence each."""
    benchmark_data: tuple[BenchmarkData, ...] = ()
    """Which data the tasks that are benchmarks have."""

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
    reducing = stored_reducing(story.spec)
    costs, spec = cost_lines(story, {}), StoredSpec.of(story.spec)
    anomalies, benchmarks = Anomalies(index, evaluation), spec.benchmarks()
    for (task, model), cells in parts.items():
        cost = total(line for line in costs if (line.task, line.model) == (task, model))
        scorers = started.scorers if started is not None else ()
        answers = CellAnswers(
            task,
            model,
            cells,
            evaluation,
            scales_of(scorers, task),
            reducing.get(task, Reducing()),
            panels(scorers, task),
            _counts_of(index, spec, task, evaluation),
            spec.macro(task),
        )
        result = "" if task not in benchmarks else benchmarks[task].metric
        yield msgspec.structs.replace(_report_cell(index, answers, cost, anomalies), result=result)


def _counts_of(index: Index, spec: StoredSpec, task: str, evaluation: str) -> Counts:
    """In an evaluation of chosen answers failed samples have no score: nobody chose them."""
    counts = spec.counts(task)
    return msgspec.structs.replace(counts, failed="no_score") if evaluation in index.story.partial else counts


def _report_cell(index: Index, selected: CellAnswers, cost: Cost, anomalies: Anomalies) -> CellReport:
    counts = selected.counts
    pages = [page.answers for page in index.totals(selected.cells)]
    finished, failed = sum(page.finished for page in pages), sum(page.failed for page in pages)
    failures = _merge_tallies(page.failures for page in pages)
    marks = _merge_tallies(page.marks for page in pages)
    anomaly_counts = anomalies.count(selected.cells)
    examples: dict[str, dict[str, Example]] = {"failures": {}, "marks": {}, "anomalies": {}}
    for what, tallies in (("failures", failures), ("marks", marks), ("anomalies", anomaly_counts)):
        for kind, tally in tallies.items():
            row = index.row(tally.first)
            if row is not None:
                message = row.message if what == "failures" else f"counts.{kind} is {getattr(counts, kind, '')}"
                message = anomalies.of(row).get(kind, "") if what == "anomalies" else message
                examples[what][kind] = Example(row.key, message)
    reasons = {mark: tally.count for mark, tally in marks.items()} | {FAILED: failed}
    has_wrong = any(count and getattr(counts, why, "") == WRONG for why, count in reasons.items())
    rows = row_totals(index, selected, has_wrong=has_wrong)
    unfinished = selected.planned - finished - failed
    left = {"unfinished": unfinished, "failed": failed}
    tokens = (sum(page.input_tokens for page in pages), sum(page.output_tokens for page in pages))
    return CellReport(
        task=selected.task,
        model=selected.model,
        planned=selected.planned,
        finished=finished,
        failed=failed,
        unfinished=unfinished,
        failures={kind: tally.count for kind, tally in sorted(failures.items(), key=lambda each: -each[1].count)},
        usage=Usage(min(tokens[0], COUNT_MAX), min(tokens[1], COUNT_MAX)),
        seconds=round(math.fsum(page.seconds for page in pages), 3),
        scorers=tuple(_report_scorers(index, selected, rows, left)),
        examples=examples["failures"],
        marks={mark: tally.count for mark, tally in marks.items()},
        marked=examples["marks"],
        cost=cost,
        agreement=rows.agreement,
        anomalies={kind: tally.count for kind, tally in anomaly_counts.items()},
        odd=examples["anomalies"],
        groups_unknown=rows.groups_unknown,
    )


def _merge_tallies(pages: Iterable[Mapping[str, Tally]]) -> dict[str, Tally]:
    found: dict[str, Tally] = {}
    for page in pages:
        for kind, tally in page.items():
            found.setdefault(kind, Tally()).add(tally.first, tally.count)
    return found


def _report_scorers(
    index: Index, selected: CellAnswers, rows: RowTotals, left: Mapping[str, int]
) -> Iterator[ScorerReport]:
    """`rows`: has the totals of the whole cell, if those of its pages are not enough. `left`: how many planned answers
    do not exist, by reason.
    """
    scorers: dict[str, list[ScorerTotals]] = {name: [each] for name, each in (rows.scorers or {}).items()}
    for page in index.totals(selected.cells) if rows.scorers is None else ():
        for name, each in page.evaluations.get(selected.evaluation, {}).items():
            scorers.setdefault(name, []).append(each)
    for name, parts in sorted(scorers.items()):
        wrong, without = rows.wrong.get(name), dict(left)
        if rows.scorers is None:
            wrong = unreadable_answers(parts)
        if wrong is not None:
            without[FAILED] -= wrong.counts.get(FAILED, 0)
        found = _report_scorer(index, selected, name, parts, without)
        bounds = rows.bounds.get(name, found.bounds)
        yield msgspec.structs.replace(
            found,
            wrong=wrong,
            bounds=bounds,
            macro=rows.macro.get(name, ()),
            weight=rows.weights.get(name),
            grades=rows.grades.get(name),
            of=graded_scorer(name, selected.scales.of),
        )


def _report_scorer(
    index: Index, selected: CellAnswers, name: str, parts: Sequence[ScorerTotals], left: Mapping[str, int]
) -> ScorerReport:
    broken = next((part.failures.first for part in parts if part.failures.count), None)
    example = None
    if broken is not None:
        failed = (row for row in index.scores(selected.evaluation, broken, 1) if row.scorer == name)
        row, message = index.row(broken), next((each.failure for each in failed), "")
        example = Example(row.key if row is not None else "", without_scorer_name(name, message))
    scale = scale_of(selected, name, parts)
    numbers, labels = sum(part.numbers for part in parts), _merge_labels(part.labels for part in parts)
    no_score, failures = sum(part.missing for part in parts), sum(part.failures.count for part in parts)
    missing = {**left, "scorer_failed": failures, "no_score": no_score, "label": sum(labels.values()) if numbers else 0}
    missing["not_scored"] = selected.planned - (numbers or sum(labels.values())) - sum(missing.values())
    missing = {why: count for why, count in missing.items() if count > 0}
    reductions = [how for how in selected.reducing.reductions if how.name != MEAN]
    reduced = [_reduce(selected, how, [part.reduced.get(how.label) for part in parts], scale) for how in reductions]
    total = math.fsum(part.total for part in parts)
    return ScorerReport(
        scorer=name,
        summary=_summarise([part.values for part in parts], scale, numbers),
        no_score=no_score,
        failures=failures,
        labels=labels,
        example=example,
        reduced=tuple(each for each in reduced if numbers or each.labels),
        plain=len(reductions) < len(selected.reducing.reductions) or not numbers,
        edited=sum(part.edited for part in parts),
        missing=missing,
        bounds=bounds_of(total, numbers, sum(missing.values()), scale),
        scale=scale,
        is_declared=selected.scales.of(name) is not None,
    )


def _summarise(sums: Sequence[GroupSums], scale: Scale, answers: int) -> Summary:
    """`sums`: over one value per sample, from `answers` answers."""
    return with_counts(summarise_sums(sums, scale=scale, answers=answers), answers, sum(each.groups for each in sums))


def _reduce(selected: CellAnswers, how: Reduction, parts: Sequence[ReducedTotals | None], scale: Scale) -> Reduced:
    known = [part for part in parts if part is not None]
    labels, scale = _merge_labels(part.labels for part in known), reduced_scale(how, scale)
    sums = [part.values for part in known]
    numbers = sum(each.n for each in sums)
    no_value = selected.planned_samples - numbers - sum(labels.values())
    summary = summarise_sums(sums, scale=scale, answers=numbers * selected.reducing.repeats)
    summary = with_counts(summary, numbers, sum(each.groups for each in sums))
    bounds = bounds_of(math.fsum(each.total for each in sums), numbers, no_value, scale)
    return Reduced(how.label, summary, no_value, labels, bounds, scale)


def _merge_labels(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part)
    return dict(found.most_common())
