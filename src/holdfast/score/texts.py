"""Scorers that compare text: `exact_match`, `includes`, `regex`.

A target may be a list: any of its entries will do. A sample without a target has no score.
"""

import unicodedata
from collections.abc import Sequence
from typing import Any

from holdfast.records.exchange import Answer, Sample
from holdfast.score.definition import scorer, slow_if
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
