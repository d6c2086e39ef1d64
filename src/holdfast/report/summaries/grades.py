"""Grades: labels of which `correct` is the right one, as the scorer `grade` gives for SimpleQA.

Labels have no mean, so that a report, a comparison or a leaderboard of them would have no number. A scorer whose scale
declares the part `correct` beside its labels gets a row of its own, `grade correct`: whether each answer is correct. It
is derived when scores are read, and never recorded. F1 is computed from all grades, with a bootstrap over groups.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.report.text import format_number
from holdfast.score import EvaluationScales
from holdfast.state import ScoreRow
from holdfast.stats import BOOL, LABEL, Scale, Summary

CORRECT = "correct"
NOT_ATTEMPTED = "not_attempted"


class Grades(msgspec.Struct, frozen=True):
    """Of one scorer over one cell. Failed samples are incorrect if the task's `counts` says that they are wrong."""

    correct: int
    incorrect: int
    not_attempted: int
    f1: Summary
    """The harmonic mean of the shares of correct answers, of all and of those attempted."""

    def __str__(self) -> str:
        attempted = self.correct + self.incorrect
        shares = f"{100 * self.correct / (attempted + self.not_attempted):.1f}% of all answers are correct"
        if attempted:
            shares += f", {100 * self.correct / attempted:.1f}% of those attempted"
        unit = "answers" if self.f1.groups is None else "groups of related answers"
        interval = ""
        if self.f1.low is not None:
            ends = f"{format_number(self.f1.low)} to {format_number(self.f1.high)}"
            interval = f" (95%: {ends}, bootstrap over {unit})"
        return f"{shares}; F1 {format_number(self.f1.mean)}{interval}"


def correct_row(scorer: str) -> str:
    """The name of the row that says which answers are correct."""
    return f"{scorer} {CORRECT}"


def is_graded(scorer: str, scale_of: Callable[[str], Scale | None]) -> bool:
    """Whether the labels of a scorer are grades. `scale_of`: from the name of a score or row to its scale."""
    return scale_of(scorer) == LABEL and scale_of(correct_row(scorer)) == BOOL


def graded_scorers(scales: EvaluationScales) -> list[str]:
    return [name for name in scales.names if is_graded(name, scales.of)]


def graded_scorer(row: str, scale_of: Callable[[str], Scale | None]) -> str:
    """The scorer whose grades a row counts; empty if it is another row."""
    scorer = row.removesuffix(f" {CORRECT}")
    return scorer if scorer != row and is_graded(scorer, scale_of) else ""


def correct_value(grade: Any) -> Any:
    """Whether a grade is the right one; what is no label stays as it is."""
    return grade == CORRECT if isinstance(grade, str) else grade


def correct_scores(scores: Iterable[ScoreRow], graded: Sequence[str]) -> Iterator[ScoreRow]:
    """Whether each answer is correct, for each of these scorers."""
    for row in scores:
        if row.scorer in graded:
            yield ScoreRow(row.o, correct_row(row.scorer), correct_value(row.value), row.reason, row.failure)


def count_grades(
    scorer: str,
    scores: Iterable[ScoreRow],
    failed: Iterable[int],
    samples: Mapping[int, str],
    members: Mapping[str, Hashable],
) -> Grades | None:
    """None without grades. `failed`: ordinals of failed samples that count as wrong. `samples`: by ordinal. `members`:
    the group of each sample that shares one.
    """
    groups: dict[Hashable, list[int]] = {}
    labels = [(row.o, row.value) for row in scores if row.scorer == scorer and not row.failure]
    for o, label in [*labels, *((o, "") for o in failed)]:
        if isinstance(label, str):
            own = groups.setdefault(members.get(samples[o], samples[o]), [0, 0, 0])
            own[0 if label == CORRECT else 2 if label == NOT_ATTEMPTED else 1] += 1
    if not groups:
        return None
    from holdfast.stats import graded_f1  # late: scipy is slow to import

    correct, incorrect, others = (sum(each) for each in zip(*groups.values(), strict=True))
    f1 = graded_f1(Counter((right, wrong, rest) for right, wrong, rest in groups.values()))
    return Grades(correct, incorrect, others, f1)
