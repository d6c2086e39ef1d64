"""Scorers that are made of others: `all_of`, `any_of`, `none_of`, `weighted`, `when`, `at_least`, `taxonomy`, and
`row_is`, which tells samples apart for them.

A part is written as any scorer is, and may itself be made of parts. Parts are asked in their order, and no further than
needed: put the cheap ones first. A part that gives several scores, as a rubric of several criteria does, counts with
all of them; a panel of judges with what follows from its votes. Invariant: a part that fails fails the whole; "no
score" is unknown, never a zero.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.samples import Answer, Sample, Score
from holdfast.score.anomalies import refusal_in
from holdfast.score.definition import Scorer, scorer, shortened
from holdfast.score.results import as_number, judge
from holdfast.score.scorers.text import exact_match

Number = bool | float


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
    """The weighted mean of their values. Of a part with several scores their mean."""
    told, total = [], 0.0
    for part, weight in zip(of, weights, strict=True):
        values = await _values(part, sample, answer, ctx)
        told.append(_told(values))
        known = _known(values)
        if len(known) < len(values):
            return Score(None, "; ".join(told))
        total += weight * statistics.fmean(known)
    return Score(total / sum(weights), "; ".join(told))


@scorer
async def when(
    sample: Sample, answer: Answer, ctx: Any = None, *, test: Scorer, then: Scorer, otherwise: Scorer | None = None
) -> Score | dict[str, Score]:
    """What `then` says where `test` holds, and what `otherwise` says elsewhere; without it, no score there."""
    holds = await _truth(test, sample, answer, ctx)
    if holds is None:
        return Score(None, f"{test.name} gives no score")
    chosen = then if holds else otherwise
    if chosen is None:
        return Score(None, f"{test.name} does not hold")
    said = await judge(chosen, sample, answer, ctx)
    return {name.removeprefix(chosen.name).removeprefix("."): score for name, score in said.items()}


@scorer
async def at_least(sample: Sample, answer: Answer, ctx: Any = None, *, of: Scorer, value: float) -> Score:
    """The number that `of` gives is `value` or more. If it gives several, all of them are."""
    values = await _values(of, sample, answer, ctx)
    return Score(
        _all_hold({name: None if each is None else each >= value for name, each in values.items()}), _told(values)
    )


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
    if refusal := refusal_in(answer):
        return Score("refused", refusal)
    return Score(None if right is None else "wrong", f"{correct.name}: {right}")


@scorer
def row_is(sample: Sample, answer: Answer, column: str, equals: Any) -> bool:
    """The sample's row has this value in a column. For `when`: it says nothing of the answer."""
    if column not in sample.row:
        raise KeyError(f"the row has no column {column!r}; it has {', '.join(sample.row)}")
    found = sample.row[column]
    return bool(found == equals) if type(found) is type(equals) else str(found) == str(equals)


async def _extreme(of: Sequence[Scorer], given: tuple[Sample, Answer, Any], lowest: bool) -> Score:
    """The lowest or highest value. A truth that decides by itself is the last that is asked for; if none does and one
    is unknown, so is the whole.
    """
    values: list[Number | None] = []
    told = []
    for part in of:
        found = await _values(part, *given)
        values += found.values()
        told.append(_told(found))
        if any(value is not lowest for value in found.values() if isinstance(value, bool)):
            break
    else:
        if None in values:
            return Score(None, "; ".join(told))
    return Score((min if lowest else max)(value for value in values if value is not None), "; ".join(told))


async def _values(part: Scorer, sample: Sample, answer: Answer, ctx: Any) -> dict[str, Number | None]:
    """By name. A bool stays one."""
    scores = await judge(part, sample, answer, ctx)
    if part.name in scores:  # beside it stand the votes that led to it
        scores = {part.name: scores[part.name]}
    return {name: _value(name, score.value) for name, score in scores.items()}


def _value(name: str, value: Any) -> Number | None:
    if value is None or isinstance(value, bool):
        return value
    number = as_number(value)
    if number is None:
        raise ValueError(f"{name} says {shortened(repr(value))}, which is no number: it cannot be a part of this")
    return number


async def _truth(part: Scorer, sample: Sample, answer: Answer, ctx: Any) -> bool | None:
    values = await _values(part, sample, answer, ctx)
    for name, value in values.items():
        if value not in (None, 0, 1):
            raise ValueError(f"{name} says {value}, which is neither true nor false; use at_least: {{of: …, value: …}}")
    return _all_hold(values)


def _all_hold(values: Mapping[str, Number | None]) -> bool | None:
    """Unknown, if one is and no other decides."""
    known = _known(values)
    return False if not all(known) else (True if len(known) == len(values) else None)


def _known(values: Mapping[str, Number | None]) -> list[Number]:
    return [value for value in values.values() if value is not None]


def _told(values: Mapping[str, Number | None]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())
