"""Scores that people set by hand: an answer's score in one evaluation, with who did it and why.

Nothing is replaced in the journal: it is one more `score` record, and the last one that was set by hand counts. What
cannot be meant is refused before anything is written: another key, a scorer that said nothing of this answer, a text
where the scorer gives numbers, or a number between where it says right or wrong.
"""

import math
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.api.runs import Run
from holdfast.errors import UsageError
from holdfast.records.facts import ScoreGiven

_NO_SCORE = frozenset({"null", "none"})
_TRUE_FALSE = {"true": True, "false": False}


class Edit(msgspec.Struct, frozen=True):
    """What a person wants a score to be. `value` as it was typed."""

    key: str
    scorer: str
    value: str
    reason: str
    author: str
    evaluation: str = ""
    """Its name or id; empty means the newest."""


def edited(run: Run, edit: Edit) -> ScoreGiven:
    """The record that makes it so."""
    for what, text in (("reason", edit.reason), ("author", edit.author)):
        if not text.strip():
            raise UsageError(f"a score that is set by hand needs its {what}: it stays with the score for good")
    planned = run.planned(edit.key)
    found = run.scored(edit.key, edit.evaluation)
    if found is None:
        raise UsageError(f"{edit.key} has no answer in {run.run_id}: there is nothing to score")
    if edit.scorer not in found.values:
        there = ", ".join(sorted(found.values)) or "none"
        raise UsageError(
            f"{edit.key} has no score of {edit.scorer!r} in the evaluation {found.evaluation}; it has: {there}"
        )
    value = _value(edit, found.examples[edit.scorer])
    given = ScoreGiven(planned.o, found.of, found.evaluation, edit.scorer, value, edit.reason)
    return msgspec.structs.replace(given, author=edit.author, at=datetime.now(UTC).isoformat(timespec="milliseconds"))


def _value(edit: Edit, example: Any) -> bool | int | float | str | None:
    """As the scorer gives it. `example`: what it gave, here or elsewhere; None if it never gave anything."""
    text = edit.value.strip()
    if text.lower() in _NO_SCORE:
        return None
    if isinstance(example, str):
        return text
    found = _TRUE_FALSE[text.lower()] if text.lower() in _TRUE_FALSE else _number(text)
    if isinstance(found, float) and not math.isfinite(found):
        raise UsageError(f"{edit.scorer}={edit.value}: a score must be finite; write null for no score")
    if example is None and text:
        return text if found is None else found
    if isinstance(example, bool) and found in (0, 1):
        return bool(found)
    if found is None or isinstance(example, bool) or isinstance(found, bool):
        gives, wanted = ("right or wrong", "true, false") if isinstance(example, bool) else ("numbers", "a number")
        problem = f"{edit.scorer} gives {gives}; write {wanted}, or null for no score"
        raise UsageError(f"{edit.scorer}={edit.value}: {problem}")
    return found


def _number(text: str) -> int | float | None:
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None
