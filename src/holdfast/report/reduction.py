"""Reduces the scores of a sample's repeats to one number, as the task's `reduce` specifies, and summarises over
samples.

A missing score (failed repeat, no score) is missing, never wrong. A sample without a reduced value is left out of the
summary and counted.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import stats
from holdfast.report.groups import with_groups
from holdfast.score import as_number
from holdfast.spec.reductions import MEAN, Reduction
from holdfast.stats.intervals import LEVEL

OF_LABELS = ("mode", "majority")
"""The reducers that also accept labels."""
_CHANCES = ("pass_at_k", "pass_power_k", "cons_at_k")
_PLAIN: dict[str, Callable[[Sequence[float | None]], float | None]] = {
    MEAN: stats.mean,
    "median": stats.median,
    "mode": stats.mode,
    "majority": stats.mode,
    "max": stats.maximum,
}
_COUNTING: dict[str, Callable[..., float | None]] = {
    "pass_at_k": stats.pass_at_k,
    "pass_power_k": stats.pass_power_k,
    "at_least": stats.at_least,
}


class Repeat(msgspec.Struct, frozen=True):
    """One repeat: its score (None: no score), and what identifies its answer (None: unknown), which only cons@k
    needs.
    """

    value: Any
    answer: str | None = None


class Reduced(msgspec.Struct, frozen=True):
    """One reducer on one scorer over one cell: one value per sample, summarised over samples."""

    reducer: str
    summary: stats.Summary
    no_value: int
    """Samples with answers but without a reduced value: too few scores, or a tie between labels."""
    labels: dict[str, int] = msgspec.field(default_factory=dict)


def summarise_reduced(
    how: Reduction, samples: Mapping[str, Sequence[Repeat]], repeats: int, members: Mapping[str, Hashable]
) -> Reduced:
    """`samples`: the recorded repeats of each; up to `repeats`, the others are missing. `members`: the independent unit
    of each sample.
    """
    values = {sample: reduced_value(how, each, repeats) for sample, each in samples.items()}
    labels = Counter(each for each in values.values() if isinstance(each, str))
    numbers = {sample: each for sample, each in values.items() if isinstance(each, float)}
    summary = summarise_values(how, numbers, members)
    return Reduced(how.label, summary, len(values) - len(numbers) - labels.total(), dict(labels.most_common()))


def summarise_values(
    how: Reduction, values: Mapping[str, float], members: Mapping[str, Hashable], confidence: float = LEVEL
) -> stats.Summary:
    """The summary of one value per sample. The interval of a probability is cut at 0 and 1."""
    groups = [members.get(sample, sample) for sample in values]
    summary = with_groups(stats.summarise(list(values.values()), groups, confidence), values, groups)
    if how.name in _CHANCES and summary.low is not None and summary.high is not None:
        return msgspec.structs.replace(summary, low=max(summary.low, 0.0), high=min(summary.high, 1.0))
    return summary


def reduced_value(how: Reduction, answers: Sequence[Repeat], repeats: int = 0) -> float | str | None:
    """A number, the most frequent label, or None if there are too few scores."""
    if how.name in OF_LABELS and any(isinstance(each.value, str) for each in answers):
        return stats.mode_label([each.value if isinstance(each.value, str) else None for each in answers])
    values: list[float | None] = [as_number(each.value) for each in answers]
    values += [None] * (repeats - len(values))
    if how.name == "cons_at_k":
        return _most_frequent_right(how, answers)
    if how.name in _PLAIN:
        return _PLAIN[how.name](values)
    return _COUNTING[how.name](values, k=how.k, threshold=how.threshold)


def _most_frequent_right(how: Reduction, answers: Sequence[Repeat]) -> float | None:
    """cons@k. Answers are equal up to surrounding blanks. None if equal answers have different scores, as a judge may
    give.
    """
    given = [None if each.answer is None else each.answer.strip() for each in answers]
    values = [as_number(each.value) for each in answers]
    verdicts: dict[str, set[bool]] = {}
    for answer, value in zip(given, values, strict=True):
        if answer is not None and value is not None:
            verdicts.setdefault(answer, set()).add(value >= how.threshold)
    if any(len(each) > 1 for each in verdicts.values()):
        return None
    return stats.cons_at_k(given, values, how.k, how.threshold)
