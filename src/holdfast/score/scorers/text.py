"""Scorers that compare text: `exact_match`, `includes`, `regex`.

A target may be a list: any of its entries will do. A sample without a target has no score.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from holdfast.records.samples import Answer, Sample, Score
from holdfast.score.definition import scorer, shortened, slow_if
from holdfast.score.patterns import found_in, last_group, may_take_long, problem_of


@scorer
def exact_match(sample: Sample, answer: Answer, ignore_case: bool = False, strip: bool = True) -> bool | None:
    """The answer is the target, or one of several."""
    return _is_one_of(answer.text, references(sample.target), ignore_case, strip)


@scorer
def includes(sample: Sample, answer: Answer, ignore_case: bool = True) -> bool | None:
    """The answer contains the target, or one of several, without the blanks around it. An empty target is in every
    text, so it is no score.
    """
    wanted = [reference for reference in references(sample.target) if reference.strip()]
    if not wanted:
        return None
    text = _folded(answer.text, ignore_case, strip=False)
    return any(_folded(reference, ignore_case, strip=True) in text for reference in wanted)


@slow_if(may_take_long)
@scorer(check=lambda pattern, group=None, **_: problem_of(pattern, group))
def regex(
    sample: Sample, answer: Answer, pattern: str, group: int | str | None = None, ignore_case: bool = False
) -> bool | None:
    """The pattern is found in the answer; with `group`, what that group holds in the last place where it is found is
    the target.
    """
    if group is None:
        return found_in(answer.text, pattern, ignore_case)
    wanted = references(sample.target)
    held = last_group(answer.text, pattern, group, ignore_case)
    return _is_one_of(held, wanted, ignore_case, strip=True) if held is not None else (False if wanted else None)


def references(target: Any) -> list[str]:
    """The texts that a target stands for; none if it is None. TypeError for an object: which text would it be?"""
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


def _is_one_of(text: str, wanted: Sequence[str], ignore_case: bool, strip: bool) -> bool | None:
    if not wanted:
        return None
    given = _folded(text, ignore_case, strip)
    return any(given == _folded(reference, ignore_case, strip) for reference in wanted)


def _folded(text: str, ignore_case: bool, strip: bool) -> str:
    """As it is compared: an accent is the same, whether it is a sign of its own or not."""
    text = text if text.isascii() else unicodedata.normalize("NFC", text)
    text = text.strip() if strip else text
    return text.casefold() if ignore_case else text


@scorer(group=True)
def consistency(sample: Sample, answers: Sequence[Answer], ignore_case: bool = True) -> Score:
    """The share of pairs of repeats that say the same: 1 if all do, 0 if all differ. One answer has no score. Say with
    `extract` what of an answer is compared.
    """
    if len(answers) < 2:
        return Score(None, "there is one answer; consistency needs several repeats")
    texts = [answer.text.strip() for answer in answers]
    counts = Counter(text.casefold() if ignore_case else text for text in texts)
    same = sum(count * (count - 1) for count in counts.values())
    ((most, count),) = counts.most_common(1)
    return Score(same / (len(texts) * (len(texts) - 1)), f"{count} of {len(texts)} say {shortened(most)!r}")


Unit = Literal["characters", "words", "lines"]


@scorer
def length(sample: Sample, answer: Answer, unit: Literal["characters", "words", "lines", "tokens"] = "words") -> Score:
    """How many words, characters, lines or tokens the answer has. Tokens are those that the server counted."""
    if unit == "tokens":
        told = answer.usage.output_tokens
        return Score(told or None, "" if told else "the server did not count tokens")
    return Score(_measured(answer.text, unit))


@scorer
def length_difference(sample: Sample, answer: Answer, unit: Unit = "words", relative: bool = False) -> Score:
    """How much longer than the target the answer is; below 0 if it is shorter. Of several references the nearest
    counts. `relative`: divided by the target's length, and without a score if that is 0.
    """
    wanted = [_measured(each, unit) for each in references(sample.target)]
    if not wanted:
        return Score(None, "the sample has no target")
    found = _measured(answer.text, unit)
    nearest = min(wanted, key=lambda each: abs(found - each))
    if relative:
        return Score((found - nearest) / nearest if nearest else None, f"{found} {unit}, the target has {nearest}")
    return Score(found - nearest, f"{found} {unit}, the target has {nearest}")


def _measured(text: str, unit: str) -> int:
    if unit == "characters":
        return len(text)
    return len(text.split() if unit == "words" else text.splitlines())
