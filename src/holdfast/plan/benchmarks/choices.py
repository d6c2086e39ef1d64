"""Multiple choice: the columns that the prompts of benchmarks use, and their common prompts."""

import string
from collections.abc import Sequence
from typing import Any

import xxhash

from holdfast.records import Row

CHAT = (
    "Answer the multiple-choice question below. You may reason first. The last line of your reply must be "
    "`Answer: X`, where X is the letter of one choice.\n\n{question}\n\n{options}"
)
"""The prompt for chat models. `options` has one line for each choice: `A. text`."""
COLUMNS = ("choices", "options", "letter")


def lettered(choices: Sequence[str], correct: int, *, shuffle: str = "") -> Row:
    """Return the columns of a question: its `choices` as a list, the same as `options` with letters, the `letter` of
    the correct one and its `index`. `shuffle`: an id that decides the order, for sources that always have the correct
    choice in the same place; empty: the order of the source.
    """
    if not 0 <= correct < len(choices) or len(choices) > len(string.ascii_uppercase):
        raise ValueError(f"the correct choice is {correct}, but there are {len(choices)} choices")
    if any(not isinstance(choice, str) or not choice.strip() for choice in choices):
        raise ValueError(f"a choice is empty: {list(choices)!r}")
    order = list(range(len(choices)))
    if shuffle:
        order.sort(key=lambda index: xxhash.xxh3_64_intdigest(f"{shuffle}:{index}".encode()))
    texts = [choices[index] for index in order]
    lines = [f"{letter}. {text}" for letter, text in zip(string.ascii_uppercase, texts, strict=False)]
    at = order.index(correct)
    return {"choices": texts, "options": "\n".join(lines), "letter": string.ascii_uppercase[at], "index": at}


def labelled(choices: Any, key: str) -> tuple[list[str], int]:
    """Return the texts of `{text: […], label: […]}`, and the index of the label `key`: ARC has labels 1 to 4 in some
    rows. Empty choices, which pad some copies, are left out.
    """
    pairs = [(text, str(label)) for text, label in zip(choices["text"], choices["label"], strict=True) if text]
    labels = [label for _, label in pairs]
    if labels.count(str(key)) != 1:
        raise ValueError(f"the answer {key!r} is not one of the labels {labels}")
    return [text for text, _ in pairs], labels.index(str(key))
