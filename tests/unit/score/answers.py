"""Short ways to make the samples and answers of these tests."""

import asyncio
from typing import Any

from holdfast.records.samples import Answer, Row, Sample, Score
from holdfast.score import resolve, score_answer


def sample(target: Any, row: Row | None = None) -> Sample:
    return Sample("1", "question", target, row or {})


def answer(text: str) -> Answer:
    return Answer(text)


def value(entry: Any, target: Any, text: str, row: Row | None = None) -> Any:
    """What a scorer, written as in a spec, says of an answer."""
    return score(entry, target, text, row).value


def score(entry: Any, target: Any, text: str, row: Row | None = None) -> Score:
    made = resolve(entry, "here")
    (said,) = asyncio.run(score_answer(made, sample(target, row), answer(text))).values()
    return said


PAIRS = [
    ("the cat sat on the mat", "The cat sat on a mat."),
    ("the cat sat on the mat", "the cat sat on the mat"),
    ("It is raining cats and dogs.", "Cats and dogs are what it rains."),
    ("The quick brown fox jumps over the lazy dog", "A slow green turtle"),
    ("Paris", "The capital of France is Paris, of course."),
    ("naïve café, 42 %", "naive cafe 42%"),
    ("one two three four five six seven", "seven six five four three two one"),
    ("running runners run", "run runner running"),
    ("first line\nsecond line", "second line\nfirst line"),
    ("x", "y"),
]
"""Targets and answers on which each metric is held against its reference library."""
