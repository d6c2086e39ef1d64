"""Scorers of plain text: `exact_match`, `includes`, `regex`, `consistency`, `length`, `length_difference`.

A target may be a list; then any entry counts. A sample without a target has no score.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import scorer, shorten, slow_if
from holdfast.score.worker_process import check_pattern, is_match, last_group, may_take_long


@scorer
def exact_match(sample: Sample, answer: Answer, ignore_case: bool = False, strip: bool = True) -> bool | None:
    """The answer equals the target, or one of several targets."""
    return _is_one_of(answer.text, references(sample.target), ignore_case, strip)


@scorer
def includes(sample: Sample, answer: Answer, ignore_case: bool = True) -> bool | None:
    """The answer contains the target, or one of several targets, without surrounding spaces. No score for an empty
    target, because every text contains it.
    """
    text, found = _normalise(answer.text, ignore_case, strip=False), None
    for reference in references(sample.target):
        wanted = _normalise(reference, ignore_case, strip=True)
        if wanted:
            found = found or wanted in text
    return found


@slow_if(may_take_long)
@scorer(check=lambda pattern, group=None, **_: check_pattern(pattern, group))
def regex(
    sample: Sample, answer: Answer, pattern: str, group: int | str | None = None, ignore_case: bool = False
) -> bool | None:
    """The pattern matches in the answer. With `group`, that group of the last match equals the target."""
    if group is None:
        return is_match(answer.text, pattern, ignore_case)
    targets = references(sample.target)
    held = last_group(answer.text, pattern, group, ignore_case)
    return _is_one_of(held, targets, ignore_case, strip=True) if held is not None else (False if targets else None)


def references(target: Any) -> list[str]:
    """Return the texts of a target; empty if it is None. TypeError for an object, which has no obvious text."""
    if target is None:
        return []
    if isinstance(target, str):
        return [target]
    if isinstance(target, bool):
        return ["true", "True"] if target else ["false", "False"]
    if isinstance(target, int | float):
        return [str(target)]
    if isinstance(target, list | tuple):
        return [text for entry in target for text in references(entry)]
    raise TypeError(f"the target is a {type(target).__name__}; expected text, a number or a list of them")


def _is_one_of(text: str, targets: Sequence[str], ignore_case: bool, strip: bool) -> bool | None:
    if not targets:
        return None
    given = _normalise(text, ignore_case, strip)
    return any(given == _normalise(reference, ignore_case, strip) for reference in targets)


def _normalise(text: str, ignore_case: bool, strip: bool) -> str:
    """Normalise a text for comparison. NFC makes composed and decomposed accents equal."""
    text = text if text.isascii() else unicodedata.normalize("NFC", text)
    text = text.strip() if strip else text
    return text.casefold() if ignore_case else text


@scorer(group=True)
def consistency(sample: Sample, answers: Sequence[Answer], ignore_case: bool = True) -> Score:
    """The share of pairs of repeats with equal answers: 1 if all are equal, 0 if all differ. No score for a single
    answer. Use `extract` to compare a part of the answers.
    """
    if len(answers) < 2:
        return Score(None, "there is one answer; consistency needs several repeats")
    texts = [answer.text.strip() for answer in answers]
    counts = Counter(text.casefold() if ignore_case else text for text in texts)
    same = sum(count * (count - 1) for count in counts.values())
    ((most, count),) = counts.most_common(1)
    return Score(same / (len(texts) * (len(texts) - 1)), f"{count} of {len(texts)} say {shorten(most)!r}")


Unit = Literal["characters", "words", "lines"]


@scorer
def length(sample: Sample, answer: Answer, unit: Literal["characters", "words", "lines", "tokens"] = "words") -> Score:
    """The number of words, characters, lines or tokens in the answer. Tokens are counted by the server."""
    if unit == "tokens":
        tokens = answer.usage.output_tokens
        return Score(tokens or None, "" if tokens else "the server did not count tokens")
    return Score(_measure(answer.text, unit))


@scorer
def length_difference(sample: Sample, answer: Answer, unit: Unit = "words", relative: bool = False) -> Score:
    """How much longer the answer is than the target; negative if it is shorter. Of several targets, the nearest counts.
    `relative`: divided by the target's length; no score if that is 0.
    """
    targets = [_measure(each, unit) for each in references(sample.target)]
    if not targets:
        return Score(None, "the sample has no target")
    found = _measure(answer.text, unit)
    nearest = min(targets, key=lambda each: abs(found - each))
    if relative:
        return Score((found - nearest) / nearest if nearest else None, f"{found} {unit}, the target has {nearest}")
    return Score(found - nearest, f"{found} {unit}, the target has {nearest}")


def _measure(text: str, unit: str) -> int:
    if unit == "characters":
        return len(text)
    return len(text.split() if unit == "words" else text.splitlines())
