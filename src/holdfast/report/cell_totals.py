"""Totals of a cell that need all of its rows: groups that cross pages, answers that count as wrong, macro means,
weights, grades, agreement of judges.

A report adds up the totals of pages where these are enough. Otherwise it reads all rows of the cell once, and keeps the
result in the user's cache for as long as nothing that it depends on changes. A crash loses nothing: it is derived.
"""

import contextlib
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.journal import Reader, journal_folder
from holdfast.plan import data_path, plan_path
from holdfast.records import Cell, FactDecoder, SampleFinished
from holdfast.report.reduction import (
    Macro,
    SampleGroups,
    Weights,
    bounds_of,
    group_columns,
    macro_of,
    member_of,
    read_strata,
    read_weights,
    reduced_scale,
)
from holdfast.report.summaries.agreement import Agreement, agreements
from holdfast.report.summaries.grades import Grades, correct_scores, count_grades, graded_scorers
from holdfast.report.summaries.wrong_answers import (
    FAILED,
    NO_ANSWER,
    WRONG,
    WrongAnswers,
    failed_scores,
    wrong_answers,
    wrong_mark,
)
from holdfast.score import EvaluationScales, as_number
from holdfast.spec import MEAN, Counts, Reduction
from holdfast.state import (
    AnswerRow,
    Index,
    Reducing,
    RelatedSamples,
    ScoreRow,
    ScorerTotals,
    score_totals,
    stamp_of_file,
    stored_repeats,
)
from holdfast.stats import BOOL, NUMBER, Scale

_ROWS_VERSION = 3
"""Of `RowTotals`. Raise it with every change of what is computed: kept ones of other versions are not used."""
_finished = FactDecoder(SampleFinished)


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


class SampleWeight(msgspec.Struct, frozen=True):
    """Samples weigh by the number of their parts, so that the mean is the share of all parts."""

    column: str
    """Of the rows, which lists the parts."""
    parts: float = 0.0
    """Of all scored samples."""
    unknown: str = ""
    """Why samples weigh equally after all, as a sentence."""


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
    weights: dict[str, SampleWeight] = {}
    """By scorer, if its scores do not weigh equally."""
    bounds: dict[str, tuple[float, float] | None] = {}
    """Of these."""
    grades: dict[str, Grades] = {}
    """By scorer, if its labels are grades."""


_row_totals_decoder = msgspec.json.Decoder(RowTotals)


def row_totals(index: Index, selected: CellAnswers, *, has_wrong: bool) -> RowTotals:
    """`has_wrong`: whether an answer counts as wrong because of the task's `counts`."""
    spec, cells = index.story.spec, selected.cells
    column = group_columns(spec).get(selected.task)
    reads_rows = bool(selected.macro or selected.scales.weights)  # of the data set
    crosses = _crosses_pages(index, selected) or has_wrong or reads_rows or bool(graded_scorers(selected.scales))
    if not (crosses or column or selected.judges):
        return RowTotals()
    paths = [plan_path(index.folder, each.block) for each in cells]
    paths += [data_path(index.folder, each.rows_block) for each in cells]
    basis = (
        _ROWS_VERSION,
        index.fingerprint_of(cells, selected.evaluation),
        (cells, selected.reducing, selected.judges, column, spec.get("record_data", True)),
        (selected.counts, selected.macro),
        [stamp_of_file(path) for path in paths] if column or reads_rows else (),
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
    """The totals of all scores of a cell, and what else the rows are read for."""
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
    graded = graded_scorers(selected.scales)
    grades = {name: count_grades(name, scores, failed, known, members) for name in graded}
    scores += correct_scores(scores, graded)
    scores += failed_scores(scores, failed, selected.scales)
    unanswered = dict.fromkeys(failed, NO_ANSWER)
    cons = [how for how in selected.reducing.reductions if how.is_cons]
    texts = {how.label: {**dict(_texts(index, selected, how)), **unanswered} for how in cons}
    values: list[tuple[str, Reduction, Mapping[str, float]]] = []
    observe = (lambda *each: values.append(each)) if selected.macro else None
    weights = _weights(index, selected)
    by_sample = {name: each.by_sample() for name, each in weights.items() if each.by_key}
    related = RelatedSamples(members, by_sample)
    totals = score_totals(scores, known, selected.reducing, related, texts, observe)
    weighed = {name: each for name, each in weights.items() if name in totals}
    return RowTotals(
        totals,
        wrong=wrong_answers(scores, known, reasons, by_sample),
        macro=_macro_means(index, selected, values, totals, (known, members)),
        weights={
            name: SampleWeight(each.column, totals[name].values.weight, each.unknown) for name, each in weighed.items()
        },
        bounds={
            name: _weighed_bounds(selected, name, scores, each, totals) for name, each in weighed.items() if each.by_key
        },
        grades={name: each for name, each in grades.items() if each is not None},
    )


def _macro_means(
    index: Index,
    selected: CellAnswers,
    values: Sequence[tuple[str, Reduction, Mapping[str, float]]],
    totals: Mapping[str, ScorerTotals],
    samples: tuple[Mapping[int, str], Mapping[str, Hashable]],
) -> dict[str, tuple[Macro, ...]]:
    """By scorer. `values`: of samples, by scorer and reducer. `samples`: by ordinal, and their groups."""
    found: dict[str, tuple[Macro, ...]] = {}
    if not selected.macro:
        return found
    known, members = samples
    strata = read_strata(index.folder, index.story.spec, selected.cells, selected.macro)
    for name, how, of_samples in values:
        is_shown = how.name != MEAN or Reduction() in selected.reducing.reductions
        if totals[name].numbers and is_shown:
            scale = reduced_scale(how, scale_of(selected, name, [totals[name]]))
            reducer = how.label if how.name != MEAN else ""
            found[name] = (*found.get(name, ()), macro_of(of_samples, known, strata, members, scale, reducer))
    return found


def _weighed_bounds(
    selected: CellAnswers, name: str, scores: Sequence[ScoreRow], weights: Weights, totals: Mapping[str, ScorerTotals]
) -> tuple[float, float] | None:
    """The bounds of a mean whose scores do not weigh equally."""
    by_ordinal = weights.by_ordinal(selected.cells)
    own = {row.o: as_number(row.value) for row in scores if row.scorer == name and not row.failure}
    numbers = [(by_ordinal[o], value) for o, value in own.items() if value is not None]
    known, total = math.fsum(weight for weight, _ in numbers), math.fsum(weight * value for weight, value in numbers)
    missing = math.fsum(weights.by_key.values()) - known
    return bounds_of(total, known, missing, scale_of(selected, name, [totals[name]]))


def _weights(index: Index, selected: CellAnswers) -> dict[str, Weights]:
    """By scorer, for those whose scores do not weigh equally."""
    columns = selected.scales.weights
    spec, cells = index.story.spec, selected.cells
    read = {column: read_weights(index.folder, spec, cells, column) for column in set(columns.values())}
    return {name: read[column] for name, column in columns.items()}


def scale_of(selected: CellAnswers, name: str, parts: Sequence[ScorerTotals]) -> Scale:
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
