"""Multiple choice by likelihood: scores of answers of the solver `choice_likelihood`.

All of them read the same recorded log-probabilities, so that none needs another request. Names and definitions are
those of lm-eval: the first choice wins a tie, and lengths are those of the choice without its leading space.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.records import Answer, Sample, Score
from holdfast.score.definition import scorer


class ScoredChoice(msgspec.Struct, frozen=True):
    """One choice as the solver recorded it."""

    text: str
    label: str
    logprob: float
    tokens: int
    characters: int
    bytes: int


@scorer
def acc(sample: Sample, answer: Answer) -> Score:
    """The choice with the greatest sum of log-probabilities is the target. A target is a label, the text of a choice,
    an index from 0, or a list of these.
    """
    return _score(sample, answer, lambda choice: choice.logprob)


@scorer
def acc_norm(sample: Sample, answer: Answer) -> Score:
    """Like `acc`, with each sum divided by the number of characters of the choice, without the delimiter before it."""
    return _score(sample, answer, lambda choice: choice.logprob / choice.characters)


@scorer
def acc_bytes(sample: Sample, answer: Answer) -> Score:
    """Like `acc`, with each sum divided by the number of bytes of the choice in UTF-8, without the delimiter."""
    return _score(sample, answer, lambda choice: choice.logprob / choice.bytes)


@scorer
def mc2(sample: Sample, answer: Answer) -> Score:
    """The probability of all correct choices, divided by that of all choices. The target names the correct ones, or is
    a list with 1 or 0 for each choice, or a mapping with such `labels` (TruthfulQA).
    """
    if sample.target is None:
        return Score(None, "the sample has no target")
    choices = _choices(answer)
    correct = _correct(sample.target, choices)
    # Relative to the likeliest choice, because exp(-1000) is 0.
    highest = max(choice.logprob for choice in choices)
    masses = [math.exp(choice.logprob - highest) for choice in choices]
    share = math.fsum(masses[index] for index in correct) / math.fsum(masses)
    return Score(min(share, 1.0), f"{len(correct)} of {len(choices)} choices are correct")


def _score(sample: Sample, answer: Answer, value: Callable[[ScoredChoice], float]) -> Score:
    if sample.target is None:
        return Score(None, "the sample has no target")
    choices = _choices(answer)
    values = [value(choice) for choice in choices]
    best = values.index(max(values))
    return Score(best in _correct(sample.target, choices), f"chose {choices[best].label} ({values[best]:.4f})")


def _choices(answer: Answer) -> list[ScoredChoice]:
    recorded = answer.message.get("likelihood")
    if not isinstance(recorded, dict):
        raise ValueError("the answer has no likelihoods of choices: use the solver choice_likelihood")
    return msgspec.convert(recorded["choices"], list[ScoredChoice])


def _correct(target: Any, choices: list[ScoredChoice]) -> set[int]:
    """The indexes of the correct choices."""
    if isinstance(target, dict):
        target = target.get("labels")
    entries = list(target) if isinstance(target, list | tuple) else [target]
    if len(entries) == len(choices) and all(isinstance(each, int) and each in (0, 1) for each in entries):
        found = {index for index, each in enumerate(entries) if each}
    else:
        found = {_index(each, choices) for each in entries}
    if not found:
        raise ValueError("the target names no correct choice")
    return found


def _index(target: Any, choices: list[ScoredChoice]) -> int:
    """A target is a label, the text of a choice, or an index from 0. A label counts first: ARC has "1" to "4"."""
    index = target
    if isinstance(target, str):
        text = target.strip()
        for known in ([each.label for each in choices], [each.text.strip() for each in choices]):
            if known.count(text) == 1:
                return known.index(text)
        index = int(text) if text.isdecimal() else None
    if not isinstance(index, int) or not 0 <= index < len(choices):
        labels = ", ".join(each.label for each in choices)
        raise ValueError(f"the target {target!r} is none of the choices: use a label ({labels}), a text or an index")
    return int(index)
