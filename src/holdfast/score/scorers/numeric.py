"""Numbers and mathematical expressions: the scorers `numeric` and `maths`."""

import functools
from fractions import Fraction
from typing import Any

from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import requires, scorer, shorten
from holdfast.score.numbers import Quantity, last_quantity
from holdfast.score.scorers.text import references
from holdfast.score.worker_process import run_in_worker_async


@scorer
def numeric(
    sample: Sample, answer: Answer, tolerance: float = 1e-6, relative: float = 0.0, whole: bool = False
) -> Score:
    """The last number in the answer equals the target, within `tolerance` or within `relative` times the target.

    If only one of the two is a percentage, 50% equals both 0.5 and 50. A target without a number is an error in the
    data and fails. In the answer, `1.234` is less than 2 and `1 234` are two numbers; with `whole`, for targets that
    are whole numbers, both are 1234, and `18,00` is 18.
    """
    if sample.target is None:
        return Score(None, "the sample has no target")
    entries = sample.target if isinstance(sample.target, list | tuple) else [sample.target]
    targets = [_target(entry) for entry in entries]
    found = last_quantity(answer.text, whole)
    if found is None:
        return Score(False, "no number in the answer", unreadable=True)
    same = any(found.value == each.value for each in targets) or any(
        _agree(found, each, tolerance, relative) for each in targets
    )
    return Score(same, f"read {found.text}")


def _target(target: Any) -> Quantity:
    if isinstance(target, str):
        found = last_quantity(target)
        if found is None:
            raise ValueError(f"the target {shorten(target)!r} contains no number")
        return found
    if isinstance(target, bool) or not isinstance(target, int | float):
        raise TypeError(f"the target is a {type(target).__name__}; expected a number, or text with one")
    return Quantity(_exact(target), False, str(target))


def _exact(number: float) -> int | Fraction:
    """Return the exact decimal value, not the binary one: 0.3 is 3/10."""
    return int(number) if isinstance(number, int) else _fraction(repr(float(number)))


@functools.lru_cache(maxsize=64)  # tolerances are the same for every sample
def _fraction(text: str) -> Fraction:
    return Fraction(text)


def _agree(found: Quantity, target: Quantity, tolerance: float, relative: float) -> bool:
    allowed = _exact(tolerance)
    if relative:
        allowed = max(allowed, _exact(relative) * _distance(target.value, 0))
    if _distance(found.value, target.value) <= allowed:
        return True
    if found.percent == target.percent:
        return False
    of_hundred, plain = (found.value, target.value) if found.percent else (target.value, found.value)
    return _distance(Fraction(of_hundred, 100), plain) <= allowed


def _distance(one: int | Fraction, other: int | Fraction) -> int | Fraction:
    return one - other if one > other else other - one


_SECONDS_MAX = 10.0
_READ = 10_000
"""Characters at the end of an answer that are parsed, because the result is there."""


@requires("math", "math-verify")
@scorer
async def maths(sample: Sample, answer: Answer, digits: int = 6) -> Score:
    r"""The last expression in the answer (preferably in `\boxed{…}` or `$…$`) equals the target by the rules of
    math-verify: 1/2 equals 0.5 and \frac{1}{2}, x+1 equals 1+x, {1,2} equals {2,1}. `digits`: precision of decimals.
    """
    targets = references(sample.target)
    if not targets:
        return Score(None, "the sample has no target")
    same, read = await run_in_worker_async(_SECONDS_MAX, f"{__name__}:equals", answer.text[-_READ:], targets, digits)
    if not read:
        return Score(same, "no expression in the answer", unreadable=True)
    return Score(same, f"read {shorten(read)}")


def equals(text: str, targets: list[str], digits: int) -> tuple[bool, str]:
    """Return whether the expression in a text equals a target, and the expression. ValueError for an invalid target."""
    from math_verify import verify

    found = _parse(text)
    same = False
    for each in targets:
        gold = _parse(each)
        if not gold:
            raise ValueError(f"the target {shorten(each)!r} is not a mathematical expression")
        same = same or (bool(found) and verify(gold, found, float_rounding=digits, timeout_seconds=None))
    return same, str(found[-1]) if found else ""


def _parse(text: str) -> list[object]:
    """Parse a text with math-verify. Also accepts bare LaTeX, as in the content of a box."""
    from math_verify import parse

    bare = [f"${text.strip()}$"] if "$" not in text and "\\boxed" not in text and len(text) < 200 else []
    for candidate in (*bare, text) if "\\" in text else (text, *bare):
        found: list[object] = parse(candidate, parsing_timeout=None)  # the worker process enforces the limit
        if found:
            return found
    return []
