"""Answers that count as wrong without a comparison: failed, empty, filtered and truncated ones because the task's
`counts` says so, and those that a scorer cannot read.

The scores of empty, filtered, truncated and unreadable answers are recorded. A failed sample has no answer and no
score: its lowest scores are made here, when a report is read, so that the journal stays as it is. A scorer whose scale
has no lowest value (any number, a label) gets none, and the sample is missing there.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from holdfast.report.summaries.grades import correct_row, graded_scorers
from holdfast.report.text import counted, format_number
from holdfast.score import EvaluationScales, as_number
from holdfast.spec import Counts
from holdfast.state import AnswerRow, ScoreRow, ScorerTotals, mean_by_sample
from holdfast.stats import BOOL, NUMBER, Scale

WRONG = "wrong"
FAILED = "failed"
UNREADABLE = "unreadable"
NO_ANSWER = "\x00no answer"
"""Identifies the answer of a failed sample for cons@k: failed repeats are one answer."""
_WRONG_NOUNS = {
    FAILED: "failed sample",
    "empty": "empty answer",
    "filtered": "filtered answer",
    "truncated": "truncated answer",
    UNREADABLE: "unreadable answer",
}


class WrongAnswers(msgspec.Struct, frozen=True):
    """Of one scorer over one cell."""

    counts: dict[str, int]
    """By reason: failed, empty, filtered, truncated, unreadable."""
    answered_mean: float | None
    """The mean without them: samples weigh as in the mean. None if nothing is left."""
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
    for name in scored_names([*scales.names, *map(correct_row, graded_scorers(scales))], list(types)):
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
    scores: Sequence[ScoreRow],
    samples: Mapping[int, str],
    reasons: Mapping[int, str],
    weights: Mapping[str, Mapping[str, float]],
) -> dict[str, WrongAnswers]:
    """By scorer. `samples`: by ordinal. `reasons`: why an answer counts as wrong, by ordinal. A score that was set by
    hand counts as it was set. `weights`: of samples, for scorers whose scores do not weigh equally.
    """
    counts: dict[str, dict[str, int]] = {}
    others: dict[str, dict[int, float]] = {}
    for row in scores:
        reason = reasons.get(row.o, "") if not row.author else ""
        number = None if row.failure else as_number(row.value)
        if reason not in ("", FAILED) and row.value is not False:
            reason = ""
        reason = reason or (UNREADABLE if row.unreadable else "")
        if reason and number is not None:
            found = counts.setdefault(row.scorer, {})
            found[reason] = found.get(reason, 0) + 1
        elif number is not None:
            others.setdefault(row.scorer, {})[row.o] = number
    made = {}
    for scorer, found in counts.items():
        numbers = others.get(scorer, {})
        means = mean_by_sample([samples[o] for o in numbers], list(numbers.values()))
        weighed = {sample: weights.get(scorer, {}).get(sample, 1.0) for sample in means}
        total = math.fsum(weighed[sample] * value for sample, value in means.items())
        mean = total / math.fsum(weighed.values()) if means else None
        made[scorer] = WrongAnswers(dict(sorted(found.items())), mean, len(numbers))
    return made


def unreadable_answers(parts: Sequence[ScorerTotals]) -> WrongAnswers | None:
    """The same from totals of pages, where nothing else counts as wrong; None if all answers can be read."""
    count = sum(part.unreadable for part in parts)
    if not count:
        return None
    # A page has a separate sum only if an answer on it is unreadable.
    read = [part.read if part.unreadable else (part.values.n, part.values.total) for part in parts]
    samples, total = sum(each for each, _ in read), math.fsum(each for _, each in read)
    answered = sum(part.numbers for part in parts) - count
    return WrongAnswers({UNREADABLE: count}, total / samples if samples else None, answered)


def describe_wrong(wrong: WrongAnswers) -> str:
    """As a sentence: counts, rates, and the mean over the other answers."""
    count = sum(wrong.counts.values())
    whole = wrong.answered + count
    rates = ", ".join(f"{100 * each / whole:.1f}% {why}" for why, each in wrong.counts.items())
    verb = "counts" if count == 1 else "count"
    kinds = [counted(each, _WRONG_NOUNS[why]) for why, each in wrong.counts.items()]
    mean = format_number(wrong.answered_mean)
    rest = (
        f"the mean over the other {counted(wrong.answered, 'answer')} is {mean}" if wrong.answered else "none is left"
    )
    return f"{', '.join(kinds)} {verb} as wrong ({rates} of {whole}); {rest}"
