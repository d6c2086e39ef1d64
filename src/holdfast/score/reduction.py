"""Reduces the scores of a sample's repeats to one value, as the task's `reduce` specifies.

A missing score (failed repeat, no score) is missing, never wrong, unless the task's `counts` says so. The reducers
themselves are in `stats.reducers`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast import stats
from holdfast.score.results import as_number
from holdfast.spec import MEAN, Reduction

OF_LABELS = ("mode", "majority")
"""The reducers that also accept labels."""
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
