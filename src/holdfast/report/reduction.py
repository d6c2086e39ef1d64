"""One number for each sample from the scores of its repeats, as a task's `reduce` says, and their summary over samples.

What is missing (a failed repeat, no score) is missing, never wrong. A sample of which a reducer can say nothing has no
part in the summary; how many those are is told.
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
"""The reducers that take labels too."""
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
    """One answer to a sample: what a scorer says of it (None: nothing), and which one it is (None: nobody says), where
    that is needed.
    """

    value: Any
    answer: str | None = None


class Reduced(msgspec.Struct, frozen=True):
    """One reducer on one scorer over one cell: a value for each sample, summarised over samples."""

    reducer: str
    summary: stats.Summary
    no_value: int
    """Samples with answers of which the reducer can say nothing: too few scores, or a tie of labels."""
    labels: dict[str, int] = msgspec.field(default_factory=dict)


def summarise_reduced(
    how: Reduction, samples: Mapping[str, Sequence[Repeat]], repeats: int, members: Mapping[str, Hashable]
) -> Reduced:
    """`samples` has the answers of each; those that are not there of `repeats` are missing. `members`: of what each
    sample is one.
    """
    values = {sample: reduced_value(how, each, repeats) for sample, each in samples.items()}
    labels = Counter(each for each in values.values() if isinstance(each, str))
    numbers = {sample: each for sample, each in values.items() if isinstance(each, float)}
    summary = summarise_values(how, numbers, members)
    return Reduced(how.label, summary, len(values) - len(numbers) - labels.total(), dict(labels.most_common()))


def summarise_values(
    how: Reduction, values: Mapping[str, float], members: Mapping[str, Hashable], confidence: float = LEVEL
) -> stats.Summary:
    """Of one value a sample. The interval of a chance ends at 0 and 1."""
    groups = [members.get(sample, sample) for sample in values]
    summary = with_groups(stats.summarise(list(values.values()), groups, confidence), values, groups)
    if how.name in _CHANCES and summary.low is not None and summary.high is not None:
        return msgspec.structs.replace(summary, low=max(summary.low, 0.0), high=min(summary.high, 1.0))
    return summary


def reduced_value(how: Reduction, answers: Sequence[Repeat], repeats: int = 0) -> float | str | None:
    """A number, the most frequent label, or None where there is too little to go on."""
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
    """Texts are the same but for blanks around them. Of an answer that is scored both right and wrong (a judge may do
    that) nothing can be said.
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
