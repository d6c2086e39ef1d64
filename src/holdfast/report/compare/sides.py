"""What is compared: one task with one model in one run, as far as a comparison needs it.

A measure is a scorer, or a scorer and a reducer (`numeric pass@5`). Its values are by key: (sample, repeat), or, where
repeats are reduced, (sample, 0). Of a key that has no value it is known why.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.report.formats.lines import ExportLine
from holdfast.report.groups import member_of, with_groups
from holdfast.report.reduction import OF_LABELS, Repeat, reduced_value, summarise_values
from holdfast.score import as_number
from holdfast.spec.reductions import MEAN, Reduction
from holdfast.stats import Summary, summarise
from holdfast.stats.intervals import LEVEL

_EXCERPT = 500
Pair = tuple[str, int]
"""A sample and a repeat of it; 0 for all of them."""
Cell = tuple[str, str]
"""A task and a model."""


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
        """What tells it apart from the other one."""
        parts = [(self.run, other.run), (self.task, other.task), (self.model, other.model)]
        return " ".join(mine for mine, theirs in parts if mine != theirs) or self.run


class Measure(msgspec.Struct, frozen=True):
    """What one scorer says of one side, perhaps reduced."""

    name: str
    scorer: str
    values: dict[Pair, Any]
    """A number (also a bool), or a label."""
    missing: dict[Pair, str]
    """Why a planned key has no value: unfinished, failed, no_score, scorer_failed, label (where others have a number);
    of a sample: no_value.
    """
    reduction: Reduction = Reduction()
    groups: Mapping[str, Hashable] = {}
    """By sample, of those that may share one."""

    def member(self, pair: Pair) -> Hashable:
        """What is independent: a group, or a sample that has none."""
        return self.groups.get(pair[0], pair[0])

    def members(self, pairs: Iterable[Pair]) -> list[Hashable]:
        return [self.member(pair) for pair in pairs]

    def numbers(self) -> dict[Pair, float] | None:
        """None if they are labels, or there are none."""
        found = {pair: as_number(value) for pair, value in self.values.items()}
        return {pair: value for pair, value in found.items() if value is not None} or None

    def summary(self, confidence: float = LEVEL) -> Summary:
        """As a report has it: of all answers with repeats in groups, or of one value a sample."""
        numbers = self.numbers() or {}
        if self.reduction.name != MEAN:
            by_sample = {sample: value for (sample, _), value in numbers.items()}
            return summarise_values(self.reduction, by_sample, self.groups, confidence)
        members = self.members(numbers)
        summary = summarise(list(numbers.values()), members, confidence)
        return with_groups(summary, [sample for sample, _ in numbers], members)


class Answers:
    """One side: what was planned, answered and scored."""

    def __init__(self, side: Side, reductions: Sequence[Reduction] = (Reduction(),)) -> None:
        self.side = side
        self._reductions = reductions
        self._statuses: dict[Pair, str] = {}
        self._scores: dict[Pair, dict[str, Any]] = {}
        self._texts: dict[Pair, str] | None = {} if any(each.name == "cons_at_k" for each in reductions) else None
        self._groups: dict[str, Hashable] = {}
        self.outputs: dict[Pair, str] = {}

    def add(self, line: ExportLine) -> None:
        pair = (line.sample_id, line.repeat)
        self._statuses[pair] = line.status
        if line.group:
            self._groups[line.sample_id] = member_of(line.sample_id, line.group)
        if line.status == "finished":
            self._scores[pair] = line.scores
            self.outputs[pair] = (line.output or "")[:_EXCERPT]
            if self._texts is not None:
                self._texts[pair] = line.output or ""

    def measures(self) -> dict[str, Measure]:
        """By name, as a report has them: in the order of scorers, then of reducers."""
        found: dict[str, Measure] = {}
        for scorer in dict.fromkeys(name for scores in self._scores.values() for name in scores):
            plain = self._plain(scorer)
            for each in self._reductions:
                takes = plain.numbers() is not None or each.name in OF_LABELS
                if each.name == MEAN or not takes:
                    found[scorer] = plain
                if each.name != MEAN and (takes or not plain.values):  # without a value nobody knows which of the two
                    found[f"{scorer} {each.label}"] = self._reduced(plain, each)
        return found

    def unscored(self, scorer: str, how: Reduction | None = None) -> Measure | None:
        """Of a side that has not a single score, so that nobody knows its scorers: a measure without a value."""
        if any(self._scores.values()):
            return None
        plain = self._plain(scorer)
        return plain if how is None or how.name == MEAN else self._reduced(plain, how)

    def _plain(self, scorer: str) -> Measure:
        measure = Measure(scorer, scorer, {}, {}, groups=self._groups)
        for pair, status in self._statuses.items():
            if status != "finished":
                measure.missing[pair] = status
                continue
            value = self._scores[pair].get(scorer)
            if isinstance(value, dict):
                measure.missing[pair] = "scorer_failed"
            elif value is None or (not isinstance(value, str) and as_number(value) is None):
                measure.missing[pair] = "no_score"
            else:
                measure.values[pair] = value
        labels = [pair for pair, value in measure.values.items() if isinstance(value, str)]
        if len(labels) < len(measure.values):  # a scorer of numbers, as in a report
            for pair in labels:
                del measure.values[pair]
                measure.missing[pair] = "label"
        return measure

    def _reduced(self, plain: Measure, how: Reduction) -> Measure:
        samples: dict[str, list[Repeat]] = {}
        answers = self._labels(how.answer) if how.answer else (self._texts or {})
        for pair in self._statuses:
            samples.setdefault(pair[0], []).append(Repeat(plain.values.get(pair), answers.get(pair)))
        values = {(sample, 0): reduced_value(how, repeats) for sample, repeats in samples.items()}
        return Measure(
            f"{plain.scorer} {how.label}",
            plain.scorer,
            {pair: value for pair, value in values.items() if value is not None},
            {pair: "no_value" for pair, value in values.items() if value is None},
            how,
            self._groups,
        )

    def _labels(self, scorer: str) -> dict[Pair, str]:
        found = {pair: scores.get(scorer) for pair, scores in self._scores.items()}
        return {pair: label for pair, label in found.items() if isinstance(label, str)}


def sides_of(
    run: str, lines: Iterable[ExportLine], reductions: Mapping[str, Sequence[Reduction]] | None = None
) -> dict[Cell, Answers]:
    """By task and model, in plan order. `reductions`: by task."""
    found: dict[Cell, Answers] = {}
    how = reductions or {}
    for line in lines:
        cell = (line.task, line.model)
        if cell not in found:
            found[cell] = Answers(Side(run, *cell), how.get(line.task, (Reduction(),)))
        found[cell].add(line)
    return found


def chosen(measures: Mapping[str, Measure], scorer: str | None) -> dict[str, Measure]:
    """Those that a name means: a measure's own (`numeric pass@5`), else all of a scorer. All without a name."""
    if scorer is None or scorer in measures:
        return dict(measures) if scorer is None else {scorer: measures[scorer]}
    return {name: each for name, each in measures.items() if each.scorer == scorer}


def pairs_between(first: Mapping[Cell, Answers], second: Mapping[Cell, Answers]) -> Iterator[tuple[Answers, Answers]]:
    """What two runs have in common; where their models differ, and each has one for a task, those are compared."""
    for key, answers in first.items():
        if key in second:
            yield answers, second[key]
            continue
        mine = [each for task, each in first if task == key[0]]
        theirs = [each for task, each in second if task == key[0]]
        if len(mine) == len(theirs) == 1:
            yield answers, second[key[0], theirs[0]]


def pairs_within(answers: Mapping[Cell, Answers]) -> Iterator[tuple[Answers, Answers]]:
    """The first model of a task with each other one, and the first variant of a task with each other one."""
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
