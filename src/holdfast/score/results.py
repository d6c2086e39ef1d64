"""Applies a scorer to an answer, and converts whatever it returns into `Score` objects.

Invariant: None and NaN are "no score". An exception, or a return value that is not a score, raises `ScoringFailed` with
the user's own traceback, and never counts as zero. Other Holdfast errors propagate: a failed judge model or a failed
journal is not the scorer's fault.
"""

import asyncio
import concurrent.futures.thread
import inspect
import math
import numbers
import traceback
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, describe_error
from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import Extractor, Scorer, ScoringFailed, shorten
from holdfast.score.scales import describe_scale, is_on_scale, scorer_scales

MAGNITUDE_MAX = 1e150
_MESSAGE_MAX = 1000
_DETAIL_MAX = 8000
_FRAMES_MAX = 20
_OUR_SCORERS = "holdfast.score."
_NOT_AWAITABLE = {bool, int, float, str, dict, Score, type(None)}


async def score_answer(scorer: Scorer, sample: Sample, answer: Answer, ctx: Any = None) -> dict[str, Score]:
    """Apply a scorer to an answer. Returns scores by name: the scorer's name, or `name.key` for each key of a dict.

    Sync functions of users are called directly, so they block the event loop while they run.
    Slow built-in functions run in a thread.
    """
    read: Any = answer
    if scorer.extract or scorer.extract_target:
        sample, read = await _read(scorer, sample, answer)
    scores = _scores(scorer, await _call(scorer, sample, read, ctx))
    return _with_extracted(scorer, scores, read) if scorer.extract else scores


def score_at_once(scorer: Scorer, sample: Sample, answer: Answer) -> dict[str, Score] | None:
    """Apply a quick scorer (`is_quick`) without awaiting anything; None if its work on this answer may take long."""
    if scorer.slow is not None and _is_slow([scorer], answer):
        return None
    read: Any = answer
    try:
        if scorer.extract or scorer.extract_target:
            if _is_slow(scorer.extract, answer) or _is_slow(scorer.extract_target, Answer(str(sample.target))):
                return None
            sample, read = scorer.read(sample, answer)
        scores = _scores(scorer, scorer.function(sample, read, **scorer.args))
    except HoldfastError:
        raise
    except Exception as error:
        raise _failed(scorer, error) from error
    return _with_extracted(scorer, scores, read) if scorer.extract else scores


def is_quick(scorer: Scorer) -> bool:
    """Whether a scorer is built in, calls no model and awaits nothing, so that `score_at_once` can apply it."""
    if scorer.group or scorer.needs_ctx or scorer.parts() or inspect.iscoroutinefunction(scorer.function):
        return False
    functions = [scorer.function, *(each.function for each in (*scorer.extract, *scorer.extract_target))]
    return all(each.__module__.startswith(_OUR_SCORERS) for each in functions)


def _with_extracted(scorer: Scorer, scores: dict[str, Score], read: Answer) -> dict[str, Score]:
    """Add what was extracted as the reason: the answer alone does not show what was compared. If nothing was extracted,
    scores that count as wrong are marked as unreadable.
    """
    reason = f"extracted {shorten(read.text)!r}"
    found = {}
    for name, score in scores.items():
        is_marked = score.unreadable or (not read.text and _is_lowest(scorer, name, score.value))
        if is_marked != score.unreadable or not score.reason:
            score = msgspec.structs.replace(score, reason=score.reason or reason, unreadable=is_marked)
        found[name] = score
    return found


def _is_lowest(scorer: Scorer, name: str, value: Any) -> bool:
    """Whether a score counts as wrong: false, or the lowest value of a scale with two ends. No length is wrong."""
    scale = scorer_scales(scorer).of(name.removeprefix(scorer.name).removeprefix("."))
    return value is False or (scale is not None and scale.width is not None and as_number(value) == scale.lowest)


async def score_group(
    scorer: Scorer, sample: Sample, answers: Sequence[Answer], ctx: Any = None
) -> list[dict[str, Score]]:
    """Apply a group scorer to all repeats of a sample. A returned list has one result per answer; any other result
    counts for all of them.
    """
    sample, read = await _read(scorer, sample, list(answers))
    result = await _call(scorer, sample, read, ctx)
    if not isinstance(result, list | tuple):
        return [_scores(scorer, result) for _ in answers]
    if len(result) != len(answers):
        raise _invalid_result(scorer, f"{len(result)} results for {len(answers)} answers")
    return [_scores(scorer, each) for each in result]


async def _read(scorer: Scorer, sample: Sample, judged: Answer | list[Answer]) -> tuple[Sample, Any]:
    slow = _is_slow(scorer.extract, judged) or _is_slow(scorer.extract_target, Answer(str(sample.target)))
    try:
        return await asyncio.to_thread(scorer.read, sample, judged) if slow else scorer.read(sample, judged)
    except HoldfastError:
        raise
    except Exception as error:
        raise _failed(scorer, error) from error


async def _call(scorer: Scorer, sample: Sample, judged: Answer | list[Answer], ctx: Any) -> Any:
    given = (sample, judged, ctx) if scorer.needs_ctx else (sample, judged)
    try:
        if scorer.slow is not None and _is_slow([scorer], judged):
            result = await asyncio.to_thread(scorer.function, *given, **scorer.args)
        else:
            result = scorer.function(*given, **scorer.args)
        # The set lookup is a shortcut for the usual results: this runs once per sample and scorer.
        if type(result) not in _NOT_AWAITABLE and inspect.isawaitable(result):
            result = await result
    except HoldfastError:
        raise
    except Exception as error:
        raise _failed(scorer, error) from error
    return result


def _is_slow(parts: Sequence[Scorer | Extractor], judged: Answer | list[Answer]) -> bool:
    answers = judged if isinstance(judged, list) else [judged]
    return any(each.slow(answer.text, **each.args) for each in parts if each.slow is not None for answer in answers)


def as_number(value: Any) -> float | None:
    """Return a score's value as a number that can be averaged: a bool is 1 or 0. None for labels, "no score", and
    numbers that are not finite or whose square is not.
    """
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= MAGNITUDE_MAX else None


def _scores(scorer: Scorer, result: Any) -> dict[str, Score]:
    if result is None or type(result) is bool:  # most results
        return {scorer.name: Score(result)}
    parts = result
    if isinstance(result, Score) and isinstance(result.value, dict):
        parts = {key: msgspec.structs.replace(result, value=value) for key, value in result.value.items()}
    if not isinstance(parts, dict):
        return {scorer.name: _score(scorer, parts)}
    if not parts:
        raise _invalid_result(scorer, "an empty dict")
    scores = {}
    for key, value in parts.items():
        if not isinstance(key, str):
            raise _invalid_result(scorer, f"a dict with the key {key!r}; keys must be text")
        scores[f"{scorer.name}.{key}" if key else scorer.name] = _score(scorer, value, key)
    return scores


def _score(scorer: Scorer, result: Any, part: str = "") -> Score:
    value = _value(scorer, result.value if isinstance(result, Score) else result)
    if scorer.scale is not None:
        _check_scale(scorer, part, value)
    if not isinstance(result, Score):
        return Score(value)
    is_unread = bool(result.unreadable) and as_number(value) is not None
    if not result.metadata and isinstance(result.metadata, dict):
        return Score(value, str(result.reason or ""), unreadable=is_unread)
    try:
        msgspec.json.encode(result.metadata)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _invalid_result(scorer, f"metadata that cannot be stored as JSON ({error})") from error
    return Score(value, str(result.reason or ""), result.metadata, is_unread)


def _check_scale(scorer: Scorer, part: str, value: Any) -> None:
    """ScoringFailed if a value is not on the scale that the user declared."""
    scale = scorer.scale.get(part) if isinstance(scorer.scale, dict) else scorer.scale
    if scale is not None and value is not None and not is_on_scale(scale, value):
        of = f" for {part!r}" if part else ""
        problem = f"returned {shorten(repr(value))}{of}, which is not on its scale, {describe_scale(scale)}"
        raise ScoringFailed(scorer.name, f"{problem}; correct the value, or the declared scale", _place_of(scorer))


def _value(scorer: Scorer, value: Any) -> bool | int | float | str | None:
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real | Decimal):
        try:
            number = float(value)
        except (ValueError, OverflowError) as error:
            raise _invalid_result(scorer, f"a number that is out of range ({error})") from error
        if math.isinf(number):
            raise _invalid_result(scorer, "an infinite number")
        return None if math.isnan(number) else number
    raise _invalid_result(scorer, f"a {type(value).__name__}")


def _invalid_result(scorer: Scorer, what: str) -> ScoringFailed:
    expected = "a bool, a number, a text, a dict of them, a Score, or None for no score"
    return ScoringFailed(scorer.name, f"returned {what}; return {expected}", _place_of(scorer))


def _place_of(scorer: Scorer) -> str:
    code = getattr(inspect.unwrap(scorer.function), "__code__", None)
    return f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}' if code else ""


def _failed(scorer: Scorer, error: Exception) -> ScoringFailed:
    """Describe an exception with a traceback without Holdfast's own frames."""
    ours = {
        __file__,
        Scorer.__call__.__code__.co_filename,
        asyncio.threads.__file__,
        concurrent.futures.thread.__file__,
    }
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in ours]
    lines = traceback.format_list(frames[-_FRAMES_MAX:]) + traceback.format_exception_only(error)
    return ScoringFailed(scorer.name, describe_error(error)[:_MESSAGE_MAX], "".join(lines)[:_DETAIL_MAX])
