"""Scorers composed of other scorers: `all_of`, `any_of`, `none_of`, `weighted`, `when`, `at_least`, `taxonomy`, and
`row_is`, a condition on the sample for use in `when`.

A part is an ordinary scorer entry, and may itself be composed. Parts run in order and stop as soon as the result is
decided, so put cheap ones first. A part with several scores, such as a rubric with several criteria, counts with all of
them; a panel of judges counts with its combined score. Invariant: if a part fails, the whole fails; "no score" of a
part is unknown, never zero.

Parts with different scales cannot be combined: `check` and a new run refuse them. With `normalise`, each value is
mapped from its declared scale to 0..1 first.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records import Answer, Sample, Score
from holdfast.score.anomalies import refusal_in
from holdfast.score.definition import Scorer, scorer, shorten
from holdfast.score.results import as_number, score_answer
from holdfast.score.scales import normalised, why_not_normalised
from holdfast.score.scorers.text import exact_match

Number = bool | float


def _check_parts(of: Sequence[Scorer], normalise: bool = False, **_: Any) -> str:
    if not of:
        return "of: give at least one scorer"
    return why_not_normalised(of) if normalise else ""


@scorer(check=_check_parts)
async def all_of(
    sample: Sample, answer: Answer, ctx: Any = None, *, of: list[Scorer], normalise: bool = False
) -> Score:
    """All parts are true. For numbers: the lowest. `normalise`: map each scale to 0..1 first."""
    return await _extreme(of, (sample, answer, ctx, normalise), lowest=True)


@scorer(check=_check_parts)
async def any_of(
    sample: Sample, answer: Answer, ctx: Any = None, *, of: list[Scorer], normalise: bool = False
) -> Score:
    """At least one part is true. For numbers: the highest. `normalise`: map each scale to 0..1 first."""
    return await _extreme(of, (sample, answer, ctx, normalise), lowest=False)


@scorer(check=_check_parts)
async def none_of(
    sample: Sample, answer: Answer, ctx: Any = None, *, of: list[Scorer], normalise: bool = False
) -> Score:
    """No part is true. For numbers: 1 minus the highest. `normalise`: map each scale to 0..1 first."""
    found = await _extreme(of, (sample, answer, ctx, normalise), lowest=False)
    value = found.value
    assert not isinstance(value, dict | str)
    return Score(not value if isinstance(value, bool) else None if value is None else 1 - value, found.reason)


def _check_weights(of: Sequence[Scorer], weights: Sequence[float], normalise: bool = False) -> str:
    if len(of) != len(weights):
        return f"{len(weights)} weights for {len(of)} scorers; give one weight per scorer"
    fine = all(weight >= 0 for weight in weights) and 0 < sum(weights) < float("inf")
    return _check_parts(of, normalise) if fine else "weights must not be negative, and not all 0"


@scorer(check=_check_weights)
async def weighted(
    sample: Sample,
    answer: Answer,
    ctx: Any = None,
    *,
    of: list[Scorer],
    weights: list[float],
    normalise: bool = False,
) -> Score:
    """The weighted mean of the parts. A part with several scores counts with their mean. `normalise`: map each scale to
    0..1 first.
    """
    reasons, total = [], 0.0
    for part, weight in zip(of, weights, strict=True):
        values = await _values(part, sample, answer, ctx, normalise)
        reasons.append(_describe(values))
        known = _known(values)
        if len(known) < len(values):
            return Score(None, "; ".join(reasons))
        total += weight * statistics.fmean(known)
    return Score(total / sum(weights), "; ".join(reasons))


@scorer
async def when(
    sample: Sample, answer: Answer, ctx: Any = None, *, test: Scorer, then: Scorer, otherwise: Scorer | None = None
) -> Score | dict[str, Score]:
    """The score of `then` if `test` is true, else the score of `otherwise`; no score if that is not set."""
    holds = await _truth(test, sample, answer, ctx)
    if holds is None:
        return Score(None, f"{test.name} gives no score")
    chosen = then if holds else otherwise
    if chosen is None:
        return Score(None, f"{test.name} does not hold")
    scores = await score_answer(chosen, sample, answer, ctx)
    return {name.removeprefix(chosen.name).removeprefix("."): score for name, score in scores.items()}


@scorer
async def at_least(sample: Sample, answer: Answer, ctx: Any = None, *, of: Scorer, value: float) -> Score:
    """The score of `of` is `value` or more. If it gives several scores, all of them are."""
    values = await _values(of, sample, answer, ctx)
    return Score(
        _all_true({name: None if each is None else each >= value for name, each in values.items()}), _describe(values)
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
    """A label: `correct` if that scorer is true; else the first of `labels` whose scorer is true; else `empty`,
    `truncated`, `refused` or `wrong`. No score without a target, unless one of `labels` applies.
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
    """The sample's row has this value in a column. A condition for `when`; it does not look at the answer."""
    if column not in sample.row:
        raise KeyError(f"the row has no column {column!r}; it has {', '.join(sample.row)}")
    found = sample.row[column]
    return bool(found == equals) if type(found) is type(equals) else str(found) == str(equals)


async def _extreme(of: Sequence[Scorer], given: tuple[Sample, Answer, Any, bool], lowest: bool) -> Score:
    """Return the lowest or highest value. Stops at the first bool that decides. If none decides and one value is
    unknown, the result is unknown.
    """
    values: list[Number | None] = []
    reasons = []
    for part in of:
        found = await _values(part, *given)
        values += found.values()
        reasons.append(_describe(found))
        if any(value is not lowest for value in found.values() if isinstance(value, bool)):
            break
    else:
        if None in values:
            return Score(None, "; ".join(reasons))
    return Score((min if lowest else max)(value for value in values if value is not None), "; ".join(reasons))


async def _values(
    part: Scorer, sample: Sample, answer: Answer, ctx: Any, normalise: bool = False
) -> dict[str, Number | None]:
    """Return the values of a part's scores by name. Bools stay bools."""
    scores = await score_answer(part, sample, answer, ctx)
    if part.name in scores:  # the other scores are single votes of a panel
        scores = {part.name: scores[part.name]}
    values: dict[str, Number | None] = {}
    for name, score in scores.items():
        value = score.value
        if value is None or isinstance(value, bool):
            values[name] = value
            continue
        values[name] = number = as_number(value)
        if number is None:
            shown = shorten(repr(value))
            raise ValueError(f"{name} gives {shown}, not a number, so it cannot be a part of this scorer")
    return normalised(part, values) if normalise else values


async def _truth(part: Scorer, sample: Sample, answer: Answer, ctx: Any) -> bool | None:
    values = await _values(part, sample, answer, ctx)
    for name, value in values.items():
        if value not in (None, 0, 1):
            raise ValueError(
                f"{name} gives {value}, which is neither true nor false; use at_least: {{of: …, value: …}}"
            )
    return _all_true(values)


def _all_true(values: Mapping[str, Number | None]) -> bool | None:
    """Whether all values are true; None if one is unknown and no other is false."""
    known = _known(values)
    return False if not all(known) else (True if len(known) == len(values) else None)


def _known(values: Mapping[str, Number | None]) -> list[Number]:
    return [value for value in values.values() if value is not None]


def _describe(values: Mapping[str, Number | None]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())
