"""Answers that count as wrong because the task's `counts` says so: failed, empty, filtered, truncated.

The scores of empty, filtered and truncated answers are recorded. A failed sample has no answer and no score: its lowest
scores are made here, when a report is read, so that the journal stays as it is. A scorer whose scale has no lowest
value (any number, a label) gets none, and the sample is missing there.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.score import EvaluationScales, as_number
from holdfast.spec import Counts
from holdfast.state import AnswerRow, ScoreRow, mean_by_sample
from holdfast.stats import BOOL, NUMBER, Scale

WRONG = "wrong"
FAILED = "failed"
NO_ANSWER = "\x00no answer"
"""Identifies the answer of a failed sample for cons@k: failed repeats are one answer."""


class WrongAnswers(msgspec.Struct, frozen=True):
    """Of one scorer over one cell."""

    counts: dict[str, int]
    """By reason: failed, empty, filtered, truncated."""
    answered_mean: float | None
    """The mean without them: samples weigh equally. None if nothing is left."""
    answered: int
    """How many answers that is."""


def lowest_score(scale: Scale) -> float | bool | None:
    """What counts as wrong; None if the scale has no lowest value."""
    return False if scale.is_bool else scale.lowest


def scored_names(scorers: Iterable[str], given: Collection[str]) -> list[str]:
    """The scores that failed samples get: those that answers have, and those of scorers without any."""
    known = {*given, *(name[:at] for name in given for at, letter in enumerate(name) if letter == ".")}
    return [*given, *(name for name in scorers if name not in known)]


def failed_scores(scores: Iterable[ScoreRow], failed: Iterable[int], scales: EvaluationScales) -> Iterator[ScoreRow]:
    """The lowest scores of failed answers. `failed`: their ordinals."""
    types: dict[str, set[type]] = {}
    for row in scores:
        given = types.setdefault(row.scorer, set())
        if not row.failure and row.value is not None:
            given.add(type(row.value))
    ordinals = list(failed)
    for name in scored_names(scales.names, list(types)):
        lowest = lowest_score(scales.of(name) or (BOOL if types.get(name) == {bool} else NUMBER))
        if lowest is not None:
            yield from (ScoreRow(o, name, lowest, "", "") for o in ordinals)


def wrong_mark(row: AnswerRow, counts: Counts) -> str:
    """The mark for which the answer counts as wrong; empty if it has none. The first that is not scored as is counts,
    as in the engine.
    """
    for mark in row.marks.split():
        rule = getattr(counts, mark, "as_is")
        if rule != "as_is":
            return mark if rule == WRONG else ""
    return ""


def wrong_answers(
    scores: Sequence[ScoreRow], samples: Mapping[int, str], reasons: Mapping[int, str]
) -> dict[str, WrongAnswers]:
    """By scorer. `samples`: by ordinal. `reasons`: why an answer counts as wrong, by ordinal. A score that was set by
    hand counts as it was set.
    """
    counts: dict[str, dict[str, int]] = {}
    others: dict[str, dict[int, float]] = {}
    for row in scores:
        reason = reasons.get(row.o, "") if not row.author else ""
        number = None if row.failure else as_number(row.value)
        if reason and number is not None and (reason == FAILED or row.value is False):
            found = counts.setdefault(row.scorer, {})
            found[reason] = found.get(reason, 0) + 1
        elif number is not None:
            others.setdefault(row.scorer, {})[row.o] = number
    made = {}
    for scorer, found in counts.items():
        numbers = others.get(scorer, {})
        means = mean_by_sample([samples[o] for o in numbers], list(numbers.values()))
        mean = math.fsum(means.values()) / len(means) if means else None
        made[scorer] = WrongAnswers(dict(sorted(found.items())), mean, len(numbers))
    return made
