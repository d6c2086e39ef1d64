"""Totals of a page of the index: everything that a report needs of its answers and scores, without the rows.

A report adds up the totals of pages, so it costs the same for any number of samples in a page. Totals are always
computed from all rows of a page, never only incremented, so they cannot drift. Their parts are the same for a page and
for a whole cell: a report computes those of a whole cell where groups of samples cross pages (`score_totals`).
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from holdfast.records import Durations
from holdfast.score import Repeat, as_number, reduced_value
from holdfast.spec import MEAN, Reduction, stored_reductions
from holdfast.state.rows import AnswerRow, ScoreRow
from holdfast.stats import GroupSums, sum_groups

ObserveValues = Callable[[str, Reduction, Mapping[str, float]], None]
"""Gets a scorer, a reducer and its value of each sample."""
LONG = 100
"""Two answers of this many characters are hardly equal by chance; a shorter one may be the only correct answer."""


class Tally(msgspec.Struct, array_like=True):
    """How many, and the ordinal of the first, to show it as an example."""

    count: int = 0
    first: int = -1

    def add(self, o: int, count: int = 1) -> None:
        if self.first < 0:
            self.first = o
        self.count += count


class RepeatTotals(msgspec.Struct, array_like=True):
    """Samples with several answers: how many, how many whose answers differ, and the answers that are equal."""

    samples: int = 0
    differing: int = 0
    equal: Tally = msgspec.field(default_factory=Tally)
    long: Tally = msgspec.field(default_factory=Tally)
    """The equal ones that are long."""


class AnswerTotals(msgspec.Struct, array_like=True):
    """Of the answers of a page."""

    finished: int = 0
    failed: int = 0
    failures: dict[str, Tally] = msgspec.field(default_factory=dict)
    """By kind."""
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    durations: Durations = msgspec.field(default_factory=Durations)
    """Of finished answers."""
    marks: dict[str, Tally] = msgspec.field(default_factory=dict)
    anomalies: dict[str, Tally] = msgspec.field(default_factory=dict)
    """Recorded with the answers, by kind."""
    looked: dict[int, int] = msgspec.field(default_factory=dict)
    """Finished answers by the version of the anomaly checks that last saw them."""
    repeats: RepeatTotals = msgspec.field(default_factory=RepeatTotals)
    samples: int = 0
    """With a finished answer."""
    first: int = -1
    """The ordinal of the first finished answer; -1 if there is none."""
    edges: tuple[str, str] = ("", "")
    """The samples of the first and the last finished answer, to notice a sample that is on two pages."""


class ReducedTotals(msgspec.Struct, array_like=True):
    """One reducer on one scorer: a value per sample."""

    values: GroupSums
    labels: dict[str, int]


class ScorerTotals(msgspec.Struct, array_like=True):
    """The scores of one scorer. See `EvaluationCounts` and `report.ScorerReport`."""

    values: GroupSums = GroupSums()
    """One value per sample with a number: the mean of its repeats. So samples weigh equally, also if repeats failed."""
    numbers: int = 0
    total: float = 0.0
    """Of the numbers of all answers."""
    missing: int = 0
    """Scores that are neither numbers nor labels, and no failures."""
    failures: Tally = msgspec.field(default_factory=Tally)
    labels: dict[str, int] = msgspec.field(default_factory=dict)
    edited: int = 0
    taken: int = 0
    scored: int = 0
    no_score: int = 0
    complete: int = 0
    """Answers whose scores this one completes."""
    kinds: list[str] = msgspec.field(default_factory=list)
    """The types of its values: bool, number, label."""
    reduced: dict[str, ReducedTotals] = msgspec.field(default_factory=dict)
    """By the reducer's label."""
    unreadable: int = 0
    """Numbers that count as wrong because the scorer could not read the answer."""
    read: tuple[int, float] = (0, 0.0)
    """Only if some are unreadable: how many samples have other numbers, and the sum of their means."""


class PageTotals(msgspec.Struct, array_like=True):
    answers: AnswerTotals = msgspec.field(default_factory=AnswerTotals)
    evaluations: dict[str, dict[str, ScorerTotals]] = msgspec.field(default_factory=dict)
    """By evaluation, then by scorer."""


class Reducing(msgspec.Struct, frozen=True):
    """How the scores of a task's repeats are reduced."""

    reductions: tuple[Reduction, ...] = (Reduction(),)
    repeats: int = 1

    def of_pages(self) -> "Reducing":
        """Without cons@k, which compares the texts of answers: they are not in the index."""
        return Reducing(tuple(each for each in self.reductions if not each.is_cons), self.repeats)


class RelatedSamples(msgspec.Struct, frozen=True):
    """Which samples are related, and how much they weigh."""

    members: Mapping[str, Hashable] = {}
    """The group of each sample that shares one."""
    weights: Mapping[str, Mapping[str, float]] = {}
    """By scorer, for scorers whose scores do not weigh equally: of each sample."""


def stored_reducing(spec: Mapping[str, Any]) -> dict[str, Reducing]:
    """By task, from a stored spec."""
    repeats = stored_repeats(spec)
    return {task: Reducing(how, repeats.get(task, 1)) for task, how in stored_reductions(spec).items()}


def stored_repeats(spec: Mapping[str, Any]) -> dict[str, int]:
    """By task, from a stored spec. Leaves out what is not a task: only a run's newest spec has been checked."""
    tasks = spec.get("tasks")
    known = [task for task in tasks if isinstance(task, Mapping)] if isinstance(tasks, list) else []
    found = {str(task.get("name")): task.get("repeats", 1) for task in known}
    return {name: repeats for name, repeats in found.items() if isinstance(repeats, int)}


def answer_totals(rows: Iterable[AnswerRow], samples: Mapping[int, str]) -> AnswerTotals:
    """`rows`: in plan order. `samples`: of all finished answers, by ordinal, in the same order."""
    found, finished = AnswerTotals(), list[AnswerRow]()
    for row in rows:
        if row.status == "finished":
            finished.append(row)
        elif row.status == "failed":
            found.failed += 1
            found.failures.setdefault(row.kind, Tally()).add(row.o)
    if not finished:
        return found
    found.finished, found.first = len(finished), finished[0].o
    found.input_tokens = sum([row.input_tokens for row in finished])
    found.output_tokens = sum([row.output_tokens for row in finished])
    found.seconds = math.fsum([row.seconds for row in finished])
    for row in finished:
        found.durations.add(row.seconds)
    found.looked = dict(Counter([row.looked for row in finished]))
    for row in finished:
        for mark in row.marks.split() if row.marks else ():
            found.marks.setdefault(mark, Tally()).add(row.o)
        for kind in row.found() if len(row.anomalies) > 2 else ():
            found.anomalies.setdefault(kind, Tally()).add(row.o)
    found.edges = (samples[finished[0].o], samples[finished[-1].o])
    found.samples = len(set(samples.values()))
    if found.samples < len(finished):
        _count_repeats(finished, found.repeats)
    return found


def _count_repeats(finished: Sequence[AnswerRow], found: RepeatTotals) -> None:
    for answers in repeated(finished):
        found.samples += 1
        if len({row.said for row in answers}) > 1:
            found.differing += 1
            continue
        for row in answers:
            found.equal.add(row.o)
            if row.characters >= LONG:
                found.long.add(row.o)


def repeated(finished: Iterable[AnswerRow]) -> Iterator[list[AnswerRow]]:
    """The answers of each sample that has several."""
    for _, each in groupby(finished, key=lambda row: row.sample):
        answers = list(each)
        if len(answers) > 1:
            yield answers


def score_totals(
    rows: Iterable[ScoreRow],
    samples: Mapping[int, str],
    reducing: Reducing,
    related: RelatedSamples | None = None,
    texts: Mapping[str, Mapping[int, str]] | None = None,
    observe: ObserveValues | None = None,
) -> dict[str, ScorerTotals]:
    """By scorer. `samples`: of all answers, by ordinal. `texts`: what identifies an answer, by reducer (only cons@k
    needs it) and ordinal. `observe`: gets the values behind the totals. Reduced values weigh equally.
    """
    members, weights = (related.members, related.weights) if related is not None else (None, {})
    by_scorer: dict[str, list[ScoreRow]] = {}
    for row in rows:
        by_scorer.setdefault(row.scorer, []).append(row)
    found = {}
    for scorer, scores in by_scorer.items():
        totals, numbers = _count_scores(scores)
        totals.numbers, totals.total = len(numbers), math.fsum(numbers.values())
        means = mean_by_sample([samples[o] for o in numbers], list(numbers.values()))
        totals.values = _sum(means, members, weights.get(scorer))
        unread = {row.o for row in scores if row.unreadable and row.o in numbers}
        if unread:
            totals.unreadable = len(unread)
            read = {o: number for o, number in numbers.items() if o not in unread}
            of_samples = mean_by_sample([samples[o] for o in read], list(read.values()))
            totals.read = (len(of_samples), math.fsum(of_samples.values()))
        if observe is not None:
            observe(scorer, Reduction(), means)
        for how in reducing.reductions:
            if how.name != MEAN:
                repeats: dict[str, list[Repeat]] = {sample: [] for sample in samples.values()}
                said = texts.get(how.label, {}) if texts else {}
                for row in scores:
                    given = None if row.failure else row.value
                    repeats[samples[row.o]].append(Repeat(given, said.get(row.o)))
                values = {sample: reduced_value(how, each, reducing.repeats) for sample, each in repeats.items()}
                labels = Counter(each for each in values.values() if isinstance(each, str))
                reduced = {sample: each for sample, each in values.items() if isinstance(each, float)}
                totals.reduced[how.label] = ReducedTotals(_sum(reduced, members), dict(labels.most_common()))
                if observe is not None:
                    observe(scorer, how, reduced)
        found[scorer] = totals
    return found


def _count_scores(scores: Sequence[ScoreRow]) -> tuple[ScorerTotals, dict[int, float]]:
    """Everything but the sums, and the numbers by ordinal."""
    totals, numbers, kinds = ScorerTotals(), dict[int, float](), set[str]()
    totals.edited = sum([row.author != "" for row in scores])
    totals.taken = sum([row.taken for row in scores])
    totals.complete = sum([row.last for row in scores])
    totals.scored = sum([row.value is not None for row in scores])
    for row in scores:
        value = row.value
        if row.failure:
            totals.failures.add(row.o)
            continue
        number = as_number(value)
        if number is not None:
            numbers[row.o] = number
            kinds.add("bool" if value is True or value is False else "number")
        elif isinstance(value, str):
            totals.labels[value] = totals.labels.get(value, 0) + 1
            kinds.add("label")
        else:
            totals.missing += 1
            if value is None:
                totals.no_score += 1
            else:
                kinds.add("number" if isinstance(value, float) else "label")
    totals.kinds = sorted(kinds)
    return totals, numbers


def mean_by_sample(samples: Sequence[str], values: Sequence[float]) -> dict[str, float]:
    """The mean of the values of each sample. `samples[i]` is the sample of `values[i]`."""
    found = dict(zip(samples, values, strict=True))
    if len(found) == len(values):  # one value each, the most frequent case
        return found
    several: dict[str, list[float]] = {sample: [] for sample in found}
    for sample, value in zip(samples, values, strict=True):
        several[sample].append(value)
    return {sample: math.fsum(each) / len(each) for sample, each in several.items()}


def _sum(
    values: Mapping[str, float], members: Mapping[str, Hashable] | None, weights: Mapping[str, float] | None = None
) -> GroupSums:
    """`values`: one per sample."""
    groups = [members.get(sample, sample) for sample in values] if members else None
    return sum_groups(list(values.values()), groups, [weights[sample] for sample in values] if weights else None)
