"""The sides of a comparison: one task with one model in one run, with its measures.

A measure is a scorer, or a scorer with a reducer (`numeric pass@5`). Its values are by key: (sample, repeat), or
(sample, 0) if repeats are reduced. Each key without a value has a reason.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from holdfast.garbage import fewer_collections
from holdfast.records import parse_key
from holdfast.report.lines import ExportLine, KeyScores, key_scores
from holdfast.report.reduction import (
    bounds_of,
    group_columns,
    member_of,
    reduced_scale,
    with_counts,
)
from holdfast.report.summaries.grades import correct_row, correct_value, graded_scorer, is_graded
from holdfast.report.summaries.wrong_answers import FAILED, NO_ANSWER, lowest_score, scored_names
from holdfast.score import OF_LABELS, Repeat, as_number, reduced_value
from holdfast.spec import MEAN, Reduction
from holdfast.state import Index, ScoredPage, mean_by_sample
from holdfast.stats import BOOL, LEVEL, NUMBER, Scale, Summary, sum_groups, summarise_sums

_EXCERPT = 500
_COLLECT_AFTER = 1_000_000
"""Objects: the keys of a run are all kept, so collecting finds nothing."""
Pair = tuple[str, int]
"""A sample and a repeat of it; 0 for all of them."""
TextAt = Callable[[int], str]
"""From the ordinal of a key to the text of its answer."""
ScaleOf = Callable[[str], Scale | None]
"""From the name of a score to its scale; None if it is not declared."""
CellName = tuple[str, str]
"""A task and a model."""
_OPEN = ("unfinished", "failed", "scorer_failed")
"""Reasons for a missing score that a resume may remove."""


class Side(msgspec.Struct, frozen=True):
    """One task with one model in one run."""

    run: str
    task: str
    model: str

    @property
    def family(self) -> str:
        """The task that this one is, or is a variant of."""
        return self.task.partition("+")[0]

    def label(self, other: "Side") -> str:
        """The parts that differ from the other side."""
        parts = [(self.run, other.run), (self.task, other.task), (self.model, other.model)]
        return " ".join(mine for mine, theirs in parts if mine != theirs) or self.run


class Measure(msgspec.Struct, frozen=True, dict=True):
    """One scorer's values on one side, perhaps reduced."""

    name: str
    scorer: str
    values: dict[Pair, Any]
    """A number (also a bool), or a label."""
    missing: dict[Pair, str]
    """Why a planned key has no value: unfinished, failed, no_score, scorer_failed, label (while others have numbers);
    for a reduced sample: no_value.
    """
    reduction: Reduction = Reduction()
    groups: Mapping[str, Hashable] = {}
    """The group of each sample that may share one."""
    declared: Scale | None = None
    """The scale of the scorer, if it declares one."""
    repeats: int = 1
    """How many answers a reduced value comes from."""
    weights: Mapping[str, float] = {}
    """How much each sample weighs in the mean; empty: equally."""

    def numbers(self) -> dict[Pair, float] | None:
        """The numeric values; None for labels, or without values. Do not change them."""
        return self._numbers

    @cached_property
    def _numbers(self) -> dict[Pair, float] | None:
        if set(map(type, self.values.values())) == {bool}:
            return {pair: 1.0 if value else 0.0 for pair, value in self.values.items()}  # two floats for all of them
        found = {pair: as_number(value) for pair, value in self.values.items()}
        return {pair: value for pair, value in found.items() if value is not None} or None

    @cached_property
    def scale(self) -> Scale:
        """As in a report: the declared one, or `bool` if all values are bools, else any number."""
        scale = self.declared
        if scale is None:
            scale = BOOL if set(map(type, self.values.values())) == {bool} else NUMBER
        return reduced_scale(self.reduction, scale)

    @property
    def planned(self) -> set[Pair]:
        return {*self.values, *self.missing}

    def fill(self, value: float, keys: Iterable[Pair]) -> "Measure":
        """The same measure with a value for each of the keys that has none."""
        values = {**dict.fromkeys(keys, value), **self.values}
        return msgspec.structs.replace(self, values=values, missing={}, declared=self.scale)

    def bounds(self) -> tuple[float, float] | None:
        """The mean if every missing score were the lowest of the scale, or the highest."""
        numbers = self.numbers() or {}
        weigh = [{pair: self.weights.get(pair[0], 1.0) for pair in pairs} for pairs in (numbers, self.missing)]
        total = sum(weigh[0][pair] * value for pair, value in numbers.items())
        return bounds_of(total, sum(weigh[0].values()), sum(weigh[1].values()), self.scale)

    def sample_means(self, numbers: Mapping[Pair, float]) -> dict[str, float]:
        """One value per sample: samples weigh equally, also if repeats failed."""
        return mean_by_sample([sample for sample, _ in numbers], list(numbers.values()))

    def summary(self, confidence: float = LEVEL, exact: bool = False, keys: Container[Pair] | None = None) -> Summary:
        """The summary as in a report: over one value per sample, the mean of its answers or a reduced value. `keys`:
        only these. `exact`: see `stats.summarise_sums`.
        """
        numbers = self.numbers() or {}
        if keys is not None:
            numbers = {pair: value for pair, value in numbers.items() if pair in keys}
        values = self.sample_means(numbers)
        answers = len(numbers) * (self.repeats if self.reduction.name != MEAN else 1)
        groups = [self.groups.get(sample, sample) for sample in values]
        weights = [self.weights[sample] for sample in values] if self.weights else None
        sums = sum_groups(list(values.values()), groups, weights)
        found = summarise_sums([sums], confidence, self.scale, answers, exact)
        return with_counts(found, len(numbers), len(set(groups)))


class SideAnswers:
    """The planned, answered and scored keys of one side."""

    def __init__(
        self,
        side: Side,
        reductions: Sequence[Reduction] = (Reduction(),),
        scale_of: ScaleOf | None = None,
        wrong: Sequence[str] | None = None,
        *,
        text_at: TextAt | None = None,
    ) -> None:
        """`wrong`: failed keys count as wrong; the names of the scorers. `text_at`: reads the text of an answer that
        was added without it.
        """
        self.side = side
        self._wrong = wrong
        self._scale_of = scale_of
        self._reductions = reductions
        self._statuses: dict[Pair, str | int] = {}
        """Of all planned keys, in plan order. An ordinal: of a finished key whose answer is not in `_outputs`."""
        self._scores: dict[str, dict[Pair, Any]] = {}
        """By scorer: of finished keys. A dict is a failure of the scorer."""
        self._texts: dict[Pair, str] | None = {} if any(each.is_cons for each in reductions) else None
        self._groups: dict[str, Hashable] = {}
        self._outputs: dict[Pair, str] = {}
        """The beginning of an answer's text."""
        self._text_at = text_at
        self._weights: dict[str, Mapping[str, float]] = {}
        """By scorer: how much each sample weighs; without scorers for which all weigh the same."""

    def weigh(self, scorer: str, weights: Mapping[str, float]) -> None:
        """Let samples weigh differently in the mean of a scorer. `weights`: of all planned samples, by id."""
        self._weights[scorer] = weights

    def output(self, pair: Pair) -> str:
        """The beginning of the answer's text."""
        found = self._statuses.get(pair)
        if isinstance(found, int) and self._text_at is not None:
            return self._text_at(found)[:_EXCERPT]
        return self._outputs.get(pair, "")

    def ordinal(self, pair: Pair) -> int | None:
        """Of a finished key, or of the first repeat if all are reduced to one value; None if it is not known."""
        sample, repeat = pair
        found = self._statuses.get(pair if repeat else (sample, 1))
        return found if isinstance(found, int) else None

    def add(self, line: ExportLine | KeyScores, ordinal: int | None = None) -> None:
        """`ordinal`: of the key, if the line does not have it."""
        pair = (line.sample_id, line.repeat)
        self._statuses[pair] = line.status
        if line.group:
            self._groups[line.sample_id] = member_of(line.sample_id, line.group)
        if line.status != "finished":
            return
        for scorer, value in line.scores.items():
            self._scores.setdefault(scorer, {})[pair] = value
        if isinstance(line, KeyScores):
            self._statuses[pair] = line.o
        else:
            self._statuses[pair] = line.status if ordinal is None else ordinal
            self._outputs[pair] = (line.output or "")[:_EXCERPT]
            if self._texts is not None:
                self._texts[pair] = line.output or ""

    def add_page(self, page: ScoredPage, shared: list[Pair], first: int) -> None:
        """Add many keys at once, all of them without a group. `shared`: the keys of another model of the task, by their
        place in the cell, which begins at the ordinal `first`. Equal keys are kept once, because they take most of the
        memory.
        """
        answers, scores = page
        pairs = {}
        for row in answers:
            o, key = row.o, row.key
            _, sample, repeat = key.rsplit("/", 2) if "%" not in key else parse_key(key)[1:]
            pair, at = (sample, int(repeat)), o - first
            if at == len(shared):
                shared.append(pair)
            elif at < len(shared) and shared[at] == pair:
                pair = shared[at]
            pairs[o] = pair
            self._statuses[pair] = o if row.status == "finished" else row.status
        for o, scorer, value, failure in scores:
            given = self._scores.get(scorer)
            if given is None:
                given = self._scores[scorer] = {}
            given[pairs[o]] = {"failure": failure} if failure else value

    def measures(self) -> dict[str, Measure]:
        """Measures by name, in the order of a report: by scorer, then by reducer."""
        found: dict[str, Measure] = {}
        names = [name for scorer in self._scores for name in self._rows_of(scorer)]
        if self._wrong is not None and FAILED in self._statuses.values():
            known = [name for scorer in self._wrong for name in self._rows_of(scorer)]
            names = [name for name in scored_names(known, names) if name in names or self._plain(name).values]
        for scorer in names:
            plain = self._plain(scorer)
            for each in self._reductions:
                takes = plain.numbers() is not None or each.name in OF_LABELS
                if each.name == MEAN or not takes:
                    found[scorer] = plain
                if each.name != MEAN and (
                    takes or not plain.values
                ):  # without any value it is unknown whether the scorer gives numbers or labels
                    found[f"{scorer} {each.label}"] = self._reduced(plain, each)
        return found

    def unscored(self, scorer: str, how: Reduction | None = None) -> Measure | None:
        """For a side without any score, whose scorers are therefore unknown: a measure without values. None
        otherwise.
        """
        if self._scores or self.measures():
            return None
        plain = self._plain(scorer)
        return plain if how is None or how.name == MEAN else self._reduced(plain, how)

    @property
    def has_ended(self) -> bool:
        """Whether every planned key is finished or failed."""
        return "unfinished" not in self._statuses.values()

    def has_open_keys(self, scorer: str) -> bool:
        """Whether a resume may add scores: a key is unfinished or failed, or its scorer failed."""
        if FAILED in self._statuses.values():
            return True
        return any(reason in _OPEN for reason in self._plain(scorer).missing.values())

    def _rows_of(self, scorer: str) -> list[str]:
        """The scorer, and the row that says which of its grades are correct."""
        is_own = self._scale_of is not None and is_graded(scorer, self._scale_of)
        return [scorer, correct_row(scorer)] if is_own else [scorer]

    def _given(self, scorer: str) -> dict[Pair, Any]:
        """The scores of a row. Those of a graded row are made from the labels."""
        graded = graded_scorer(scorer, self._scale_of) if self._scale_of is not None else ""
        if not graded or scorer in self._scores:
            return self._scores.get(scorer, {})
        return {pair: correct_value(grade) for pair, grade in self._scores.get(graded, {}).items()}

    def _plain(self, scorer: str) -> Measure:
        given, weights = self._given(scorer), self._weights.get(scorer, {})
        declared = self._scale_of(scorer) if self._scale_of is not None else None
        if len(given) == len(self._statuses) and set(map(type, given.values())) == {bool}:
            # the most frequent case, without a loop
            return Measure(scorer, scorer, given, {}, groups=self._groups, declared=declared, weights=weights)
        measure = Measure(scorer, scorer, {}, {}, groups=self._groups, declared=declared, weights=weights)
        for pair, status in self._statuses.items():
            if isinstance(status, str) and status != "finished":
                measure.missing[pair] = status
                continue
            value = given.get(pair)
            if isinstance(value, dict):
                measure.missing[pair] = "scorer_failed"
            elif value is None or (not isinstance(value, str) and as_number(value) is None):
                measure.missing[pair] = "no_score"
            else:
                measure.values[pair] = value
        labels = [pair for pair, value in measure.values.items() if isinstance(value, str)]
        if len(labels) < len(measure.values):  # some are numbers, so labels count as missing, as in a report
            for pair in labels:
                del measure.values[pair]
                measure.missing[pair] = "label"
        if self._wrong is not None:
            self._count_failed(measure)
        return measure

    def _count_failed(self, measure: Measure) -> None:
        """Give failed keys the lowest score, if the scale has one."""
        values = measure.values.values()
        scale = measure.declared or (BOOL if set(map(type, values)) == {bool} else NUMBER)
        lowest = lowest_score(scale)
        failed = [pair for pair, why in measure.missing.items() if why == FAILED] if lowest is not None else ()
        for pair in failed:
            del measure.missing[pair]
            measure.values[pair] = lowest

    def _reduced(self, plain: Measure, how: Reduction) -> Measure:
        samples: dict[str, list[Repeat]] = {}
        answers = self._texts or {}
        if how.answer:
            labels = self._scores.get(how.answer, {})
            answers = {pair: label for pair, label in labels.items() if isinstance(label, str)}
        for pair, status in self._statuses.items():
            answer = NO_ANSWER if status == FAILED and pair in plain.values else answers.get(pair)
            samples.setdefault(pair[0], []).append(Repeat(plain.values.get(pair), answer))
        values = {(sample, 0): reduced_value(how, repeats) for sample, repeats in samples.items()}
        return Measure(
            f"{plain.scorer} {how.label}",
            plain.scorer,
            {pair: value for pair, value in values.items() if value is not None},
            {pair: "no_value" for pair, value in values.items() if value is None},
            how,
            self._groups,
            plain.scale,
            max(map(len, samples.values()), default=1),
        )


Rules = Mapping[str, tuple[Sequence[Reduction], ScaleOf] | tuple[Sequence[Reduction], ScaleOf, Sequence[str] | None]]
"""By task: its reducers, the scales of its scores, and its scorers if failed keys count as wrong."""


def sides_of(run: str, lines: Iterable[ExportLine], rules: Rules | None = None) -> dict[CellName, SideAnswers]:
    """The sides of a run by task and model, from all lines of the run in plan order."""
    found: dict[CellName, SideAnswers] = {}
    for ordinal, line in enumerate(lines):
        cell = (line.task, line.model)
        if cell not in found:
            found[cell] = SideAnswers(Side(run, *cell), *(rules or {}).get(line.task, ()))
        found[cell].add(line, ordinal)
    return found


def sides_in(run: str, index: Index, evaluation: str, rules: Rules, text_at: TextAt) -> dict[CellName, SideAnswers]:
    """The same from an index, without the texts of answers. Not for cons@k, which compares them."""
    found: dict[CellName, SideAnswers] = {}
    grouped = {task for task, column in group_columns(index.story.spec).items() if column}
    shared: dict[str, list[Pair]] = {}
    with fewer_collections(_COLLECT_AFTER):
        for cell in index.story.cells:
            name = (cell.task, cell.model)
            if name not in found:
                found[name] = SideAnswers(Side(run, *name), *rules.get(cell.task, ()), text_at=text_at)
            ended = sum(page.answers.finished + page.answers.failed for page in index.totals([cell]))
            if ended == cell.count and cell.task not in grouped:  # all keys are in the index: the plan is not needed
                keys = shared.setdefault(cell.task, [])
                for page in index.scored_pages(evaluation, cell):
                    found[name].add_page(page, keys, cell.first)
            else:
                for line in key_scores(index.folder, index, evaluation, cell):
                    found[name].add(line)
    return found


def choose_measures(measures: Mapping[str, Measure], scorer: str | None) -> dict[str, Measure]:
    """The measure with this name (`numeric pass@5`), else all measures of the scorer; all without a name. Grades come
    with the measure that says which are correct.
    """
    graded = correct_row(scorer or "")
    if scorer is None or (scorer in measures and graded not in measures):
        return dict(measures) if scorer is None else {scorer: measures[scorer]}
    return {name: each for name, each in measures.items() if each.scorer in (scorer, graded)}


def pairs_between(
    first: Mapping[CellName, SideAnswers], second: Mapping[CellName, SideAnswers]
) -> Iterator[tuple[SideAnswers, SideAnswers]]:
    """Cells that two runs share. If their models differ and each run has one model for a task, those two are paired."""
    for key, answers in first.items():
        if key in second:
            yield answers, second[key]
            continue
        mine = [each for task, each in first if task == key[0]]
        theirs = [each for task, each in second if task == key[0]]
        if len(mine) == len(theirs) == 1:
            yield answers, second[key[0], theirs[0]]


def pairs_within(answers: Mapping[CellName, SideAnswers]) -> Iterator[tuple[SideAnswers, SideAnswers]]:
    """Pairs inside one run: the first model of a task with every other, and the first variant with every other."""
    tasks = dict.fromkeys(task for task, _ in answers)
    for task in tasks:
        models = [model for each, model in answers if each == task]
        yield from ((answers[task, models[0]], answers[task, other]) for other in models[1:])
    for model in dict.fromkeys(model for _, model in answers):
        families: dict[str, list[str]] = {}
        for task in (task for task in tasks if (task, model) in answers):
            families.setdefault(answers[task, model].side.family, []).append(task)
        for names in families.values():
            yield from ((answers[names[0], model], answers[other, model]) for other in names[1:])
