"""Scorers that are made of others: `all_of`, `any_of`, `none_of`, `weighted`, `when`, `at_least`, `taxonomy`, and
`row_is`, which tells samples apart for them.

A part is written as any scorer is, and may itself be made of parts. Parts are asked in their order, and no further than
needed: put the cheap ones first. Invariant: a part that fails fails the whole; "no score" is unknown, never a zero.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.records.exchange import Answer, Sample, Score
from holdfast.score.definition import Scorer, scorer, shortened
from holdfast.score.judging import as_number, judge
from holdfast.score.patterns import found_in
from holdfast.score.texts import exact_match

_REFUSAL = (
    r"(?i)\b(I'?m sorry|I apologi[sz]e|(I|we) (can(no|')t|am (not able|unable)|'m (not able|unable)|won't|will not)"
    r"|as an AI|not able to (help|assist|comply))"
)
_BEGINNING = 300
"""Refusals come first; a later "I can't" is part of an answer."""


def _some(of: Sequence[Scorer], **_: Any) -> str:
    return "" if of else "of: give at least one scorer"


@scorer(check=_some)
async def all_of(sample: Sample, answer: Answer, ctx: Any = None, *, of: list[Scorer]) -> Score:
    """All of them hold. Of numbers, the lowest."""
    return await _extreme(of, (sample, answer, ctx), lowest=True)


@scorer(check=_some)
async def any_of(sample: Sample, answer: Answer, ctx: Any = None, *, of: list[Scorer]) -> Score:
    """At least one of them holds. Of numbers, the highest."""
    return await _extreme(of, (sample, answer, ctx), lowest=False)


@scorer(check=_some)
async def none_of(sample: Sample, answer: Answer, ctx: Any = None, *, of: list[Scorer]) -> Score:
    """None of them holds. Of numbers, 1 less the highest."""
    found = await _extreme(of, (sample, answer, ctx), lowest=False)
    value = found.value
    assert not isinstance(value, dict | str)
    return Score(not value if isinstance(value, bool) else None if value is None else 1 - value, found.reason)


def _weights_fit(of: Sequence[Scorer], weights: Sequence[float], **_: Any) -> str:
    if len(of) != len(weights):
        return f"{len(weights)} weights for {len(of)} scorers; give each its own"
    fine = all(weight >= 0 for weight in weights) and 0 < sum(weights) < float("inf")
    return "" if fine else "weights must not be negative, and not all 0"


@scorer(check=_weights_fit)
async def weighted(sample: Sample, answer: Answer, ctx: Any = None, *, of: list[Scorer], weights: list[float]) -> Score:
    """The weighted mean of their values."""
    told, total = [], 0.0
    for part, weight in zip(of, weights, strict=True):
        value = await _number(part, sample, answer, ctx)
        told.append(f"{part.name}: {value}")
        if value is None:
            return Score(None, "; ".join(told))
        total += weight * value
    return Score(total / sum(weights), "; ".join(told))


@scorer
async def when(
    sample: Sample, answer: Answer, ctx: Any = None, *, test: Scorer, then: Scorer, otherwise: Scorer | None = None
) -> Score:
    """What `then` says where `test` holds, and what `otherwise` says elsewhere; without it, no score there."""
    holds = await _truth(test, sample, answer, ctx)
    if holds is None:
        return Score(None, f"{test.name} gives no score")
    chosen = then if holds else otherwise
    return Score(None, f"{test.name} does not hold") if chosen is None else await _one(chosen, sample, answer, ctx)


@scorer
async def at_least(sample: Sample, answer: Answer, ctx: Any = None, *, of: Scorer, value: float) -> Score:
    """The number that `of` gives is `value` or more."""
    found = await _number(of, sample, answer, ctx)
    return Score(None if found is None else found >= value, f"{of.name}: {found}")


@scorer
async def taxonomy(
    sample: Sample,
    answer: Answer,
    ctx: Any = None,
    *,
    correct: Scorer = exact_match,
    labels: dict[str, Scorer] | None = None,
) -> Score:
    """A label: `correct` if that scorer holds; else the first of `labels` whose scorer does; else `empty`, `truncated`,
    `refused` or `wrong`. Without a target, and no label of yours, no score.
    """
    right = await _truth(correct, sample, answer, ctx)
    if right:
        return Score("correct", f"{correct.name} holds")
    for label, part in (labels or {}).items():
        if await _truth(part, sample, answer, ctx):
            return Score(label, f"{part.name} holds")
    if not answer.text.strip():
        return Score("empty")
    if answer.finish_reason == "length":
        return Score("truncated", "it was cut off at max_tokens")
    if found_in(answer.text[:_BEGINNING], _REFUSAL):
        return Score("refused", "it reads like a refusal")
    return Score(None if right is None else "wrong", f"{correct.name}: {right}")


@scorer
def row_is(sample: Sample, answer: Answer, column: str, equals: Any) -> bool:
    """The sample's row has this value in a column. For `when`: it says nothing of the answer."""
    if column not in sample.row:
        raise KeyError(f"the row has no column {column!r}; it has {', '.join(sample.row)}")
    found = sample.row[column]
    return bool(found == equals) if type(found) is type(equals) else str(found) == str(equals)


async def _extreme(of: Sequence[Scorer], given: tuple[Sample, Answer, Any], lowest: bool) -> Score:
    """The lowest or highest value. One that decides by itself, 0 or 1, is the last that is asked for; if none does and
    one is unknown, so is the whole.
    """
    values, told = [], []
    for part in of:
        value = await _number(part, *given)
        values.append(value)
        told.append(f"{part.name}: {value}")
        if value is not None and (value <= 0 if lowest else value >= 1):
            break
    else:
        if None in values:
            return Score(None, "; ".join(told))
    known = [value for value in values if value is not None]
    found = (min if lowest else max)(known)
    return Score(found if isinstance(found, bool) or not _booleans(known) else bool(found), "; ".join(told))


def _booleans(values: Sequence[float]) -> bool:
    return all(isinstance(value, bool) for value in values)


async def _number(part: Scorer, sample: Sample, answer: Answer, ctx: Any) -> float | None:
    """A bool stays one."""
    value = (await _one(part, sample, answer, ctx)).value
    if value is None or isinstance(value, bool):
        return value
    number = as_number(value)
    if number is None:
        raise ValueError(f"{part.name} says {shortened(repr(value))}, which is no number: it cannot be a part of this")
    return number


async def _truth(part: Scorer, sample: Sample, answer: Answer, ctx: Any) -> bool | None:
    value = await _number(part, sample, answer, ctx)
    if value is None or value in (0, 1):
        return None if value is None else bool(value)
    raise ValueError(f"{part.name} says {value}, which is neither true nor false; use at_least: {{of: …, value: …}}")


async def _one(part: Scorer, sample: Sample, answer: Answer, ctx: Any) -> Score:
    scores = await judge(part, sample, answer, ctx)
    if len(scores) != 1:
        raise ValueError(f"{part.name} gives several scores, {', '.join(scores)}; a part of another must give one")
    return next(iter(scores.values()))
