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
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.journal import Reader, journal_folder
from holdfast.plan import data_path, plan_path
from holdfast.records import COUNT_MAX, JUDGES, Cell, FactDecoder, SampleFinished, Usage, normalized
from holdfast.report.anomalies import Anomalies
from holdfast.report.costs import Cost, StoredSpec, cost_lines, total
from holdfast.report.profile import ModelProfile
from holdfast.report.reduction import (
    Macro,
    Reduced,
    SampleGroups,
    bounds_of,
    group_columns,
    macro_of,
    member_of,
    read_strata,
    reduced_scale,
    with_counts,
)
from holdfast.report.text import format_number, without_scorer_name
from holdfast.report.wrong_answers import (
    FAILED,
    NO_ANSWER,
    WRONG,
    WrongAnswers,
    failed_scores,
    wrong_answers,
    wrong_mark,
)
from holdfast.score import EvaluationScales, as_number, scales_of
from holdfast.spec import MEAN, Counts, Reduction
from holdfast.state import (
    AnswerRow,
    Index,
    ReducedTotals,
    Reducing,
    ScoreRow,
    ScorerTotals,
    Tally,
    score_totals,
    stamp_of_file,
    stored_reducing,
    stored_repeats,
)
from holdfast.stats import (
    BOOL,
    NUMBER,
    GroupSums,
    Scale,
    Summary,
    cohens_kappa,
    krippendorff_alpha,
    percent_agreement,
    summarise_sums,
)

_ROWS_VERSION = 2
"""Of `RowTotals`. Raise it with every change of what is computed: kept ones of other versions are not used."""
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
        measures = [f"Krippendorff's alpha (ordinal) {_number(self.alpha)}"]
        if len(self.judges) == 2:
            measures.append(f"Cohen's kappa (unweighted) {_number(self.kappa)}")
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
    return format_number(value)


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
    """Answers in `summary` that count as wrong because the task's `counts` says so; None if there are none."""
    macro: tuple[Macro, ...] = ()
    """The macro mean of each row of the scorer, if the task names a column with `macro`."""

    def scale_of(self, row: str) -> Scale:
        """Of one of its table rows: `rubric`, or `rubric pass@2`, whose values are chances."""
        by_reducer = {each.reducer: each.scale for each in self.reduced}
        by_name = {f"{self.scorer} {reducer}": scale for reducer, scale in by_reducer.items()}
        by_name |= {each.title: by_reducer[each.reducer] for each in self.macro if each.reducer}
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
    partial: PartialEvaluation | None = None
    """None: the evaluation is for all answers."""
    benchmarks: tuple[str, ...] = ()
    """Which tasks are benchmarks, with their versions and the fields in which they differ, one sentence each."""

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
    anomalies = Anomalies(index, evaluation)
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
        yield _report_cell(index, answers, cost, anomalies)


def _counts_of(index: Index, spec: StoredSpec, task: str, evaluation: str) -> Counts:
    """In an evaluation of chosen answers failed samples have no score: nobody chose them."""
    counts = spec.counts(task)
    return msgspec.structs.replace(counts, failed="no_score") if evaluation in index.story.partial else counts


class CellAnswers(msgspec.Struct, frozen=True):
    """Selects the answers and scores of one task with one model, in every block of the plan."""

    task: str
    model: str
    cells: Sequence[Cell]
    evaluation: str
    scales: EvaluationScales
    reducing: Reducing = Reducing()
    judges: Mapping[str, tuple[str, ...]] = {}
    """The roles of each panel among the scorers."""
    counts: Counts = Counts()
    macro: str = ""
    """The column whose values weigh equally in a macro mean."""

    @property
    def planned(self) -> int:
        return sum(cell.count for cell in self.cells)

    @property
    def planned_samples(self) -> int:
        """Every sample has the same number of repeats, also if `extend` added some."""
        return self.planned // max(self.reducing.repeats, 1)

    def rows(self, index: Index) -> Iterator[AnswerRow]:
        """Of finished answers, and of failed ones if they count as wrong."""
        used = ("finished", FAILED) if self.counts.failed == WRONG else ("finished",)
        rows = (index.answers("", cell.first, cell.count) for cell in self.cells)
        return (row for row in itertools.chain.from_iterable(rows) if row.status in used)

    def scores(self, index: Index) -> Iterator[ScoreRow]:
        rows = (index.scores(self.evaluation, cell.first, cell.count) for cell in self.cells)
        return itertools.chain.from_iterable(rows)


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
    rows = _row_totals(index, selected, has_wrong=has_wrong)
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


class RowTotals(msgspec.Struct, frozen=True):
    """What a report of a cell needs beyond the totals of its pages. It is computed from all rows, and kept in the cache
    for as long as nothing that it depends on changes.
    """

    scorers: dict[str, ScorerTotals] | None = None
    """By scorer; None if the totals of pages are enough."""
    agreement: tuple[Agreement, ...] = ()
    groups_unknown: str = ""
    wrong: dict[str, WrongAnswers] = {}
    """By scorer."""
    macro: dict[str, tuple[Macro, ...]] = {}
    """By scorer."""


_row_totals_decoder = msgspec.json.Decoder(RowTotals)


def _row_totals(index: Index, selected: CellAnswers, *, has_wrong: bool) -> RowTotals:
    """`has_wrong`: whether an answer counts as wrong because of the task's `counts`."""
    spec, cells = index.story.spec, selected.cells
    column = group_columns(spec).get(selected.task)
    crosses = _crosses_pages(index, selected) or has_wrong or bool(selected.macro)
    if not (crosses or column or selected.judges):
        return RowTotals()
    paths = [plan_path(index.folder, each.block) for each in cells]
    paths += [data_path(index.folder, each.rows_block) for each in cells]
    basis = (
        _ROWS_VERSION,
        index.fingerprint_of(cells, selected.evaluation),
        (cells, selected.reducing, selected.judges, column, spec.get("record_data", True)),
        (selected.counts, selected.macro),
        [stamp_of_file(path) for path in paths] if column or selected.macro else (),
    )
    name = f"cell {selected.evaluation} {selected.task}/{selected.model}"
    state = xxhash.xxh3_128_hexdigest(msgspec.json.encode(basis))
    kept = index.kept_results(name).get(state)
    if kept is not None:
        return _row_totals_decoder.decode(kept)
    found = _read_rows(index, selected, crosses=crosses)
    if not found.groups_unknown:  # else the files may be readable next time
        index.keep_results(name, {state: msgspec.json.encode(found).decode()})
    return found


def _read_rows(index: Index, selected: CellAnswers, *, crosses: bool) -> RowTotals:
    groups = SampleGroups(index.folder, index.story.spec, selected.cells)
    votes: dict[str, dict[int, Any]] = {}
    for score in selected.scores(index) if selected.judges else ():
        if not score.failure:
            votes.setdefault(score.scorer, {})[score.o] = score.value
    found = _score_rows(index, selected, groups) if crosses or groups.any else RowTotals()
    unknown = groups.unknown.get(selected.task, "")
    return msgspec.structs.replace(found, agreement=tuple(agreements(selected.judges, votes)), groups_unknown=unknown)


def _score_rows(index: Index, selected: CellAnswers, groups: SampleGroups) -> RowTotals:
    """The totals of all scores of a cell, what counts as wrong in them, and macro means."""
    known: dict[int, str] = {}
    reasons: dict[int, str] = {}
    members: dict[str, Hashable] = {}
    for row in selected.rows(index):
        known[row.o] = row.sample
        why = FAILED if row.status == FAILED else wrong_mark(row, selected.counts)
        if why:
            reasons[row.o] = why
        group = groups.at(row.o)
        if group:
            members[row.sample] = member_of(row.sample, group)
    scores, failed = list(selected.scores(index)), [o for o, why in reasons.items() if why == FAILED]
    scores += failed_scores(scores, failed, selected.scales)
    unanswered = dict.fromkeys(failed, NO_ANSWER)
    cons = [how for how in selected.reducing.reductions if how.is_cons]
    texts = {how.label: {**dict(_texts(index, selected, how)), **unanswered} for how in cons}
    values: list[tuple[str, Reduction, Mapping[str, float]]] = []
    observe = (lambda *each: values.append(each)) if selected.macro else None
    totals = score_totals(scores, known, selected.reducing, members, texts, observe)
    macro: dict[str, tuple[Macro, ...]] = {}
    if selected.macro:
        strata = read_strata(index.folder, index.story.spec, selected.cells, selected.macro)
        for name, how, of_samples in values:
            is_shown = how.name != MEAN or Reduction() in selected.reducing.reductions
            if totals[name].numbers and is_shown:
                scale = reduced_scale(how, _scale_of(selected, name, [totals[name]]))
                reducer = how.label if how.name != MEAN else ""
                made = macro_of(of_samples, known, strata, members, scale, reducer)
                macro[name] = (*macro.get(name, ()), made)
    return RowTotals(totals, wrong=wrong_answers(scores, known, reasons), macro=macro)


def _scale_of(selected: CellAnswers, name: str, parts: Sequence[ScorerTotals]) -> Scale:
    """As declared; else `bool` if all values are bools, else any number."""
    kinds = {kind for part in parts for kind in part.kinds}
    return selected.scales.of(name) or (BOOL if kinds == {"bool"} else NUMBER)


def _crosses_pages(index: Index, selected: CellAnswers) -> bool:
    """Whether the totals of pages are not enough: the repeats of one sample may be on several pages, or a reducer
    (cons@k) compares answers.
    """
    repeats = {stored_repeats(spec).get(selected.task) for spec in index.story.specs} - {None}
    is_repeated = len(selected.cells) > 1 and len(repeats) > 1  # `extend` has added repeats of the same samples
    edges = [page.answers.edges for page in index.totals(selected.cells) if page.answers.finished]
    is_split = any(before[1] == after[0] for before, after in itertools.pairwise(edges))
    return is_repeated or is_split or any(how.is_cons for how in selected.reducing.reductions)


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
        if wrong is not None:
            without[FAILED] -= wrong.counts.get(FAILED, 0)
        found = _report_scorer(index, selected, name, parts, without)
        yield msgspec.structs.replace(found, wrong=wrong, macro=rows.macro.get(name, ()))


def _report_scorer(
    index: Index, selected: CellAnswers, name: str, parts: Sequence[ScorerTotals], left: Mapping[str, int]
) -> ScorerReport:
    broken = next((part.failures.first for part in parts if part.failures.count), None)
    example = None
    if broken is not None:
        failed = (row for row in index.scores(selected.evaluation, broken, 1) if row.scorer == name)
        row, message = index.row(broken), next((each.failure for each in failed), "")
        example = Example(row.key if row is not None else "", without_scorer_name(name, message))
    scale = _scale_of(selected, name, parts)
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


def _texts(index: Index, selected: CellAnswers, how: Reduction) -> Iterator[tuple[int, str]]:
    """What identifies each answer for cons@k: the label of the given scorer or, without one, its text."""
    if how.answer:
        for score in selected.scores(index):
            if score.scorer == how.answer and isinstance(score.value, str) and not score.failure:
                yield score.o, score.value
        return
    with contextlib.closing(Reader(journal_folder(index.folder))) as reader:
        for row in selected.rows(index):
            entry = reader.record_at(row.segment, row.at_byte) if row.status != FAILED else None
            if entry is not None and entry.line.n == row.n:
                yield row.o, _finished.decode(entry.line).answer.text
