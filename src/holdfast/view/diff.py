"""What changed between two texts, word by word. Bounded: texts of models are hostile and may be long."""

import difflib
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

_WORDS = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")
_PRODUCT_MAX = 60_000
"""Words on one side times words on the other: comparing more would take too long."""


class DiffPart(msgspec.Struct, frozen=True):
    """A piece of text that both have, or only the first (`deleted`), or only the second (`inserted`)."""

    kind: Literal["same", "deleted", "inserted"]
    text: str


def word_diff(before: str, after: str) -> list[DiffPart]:
    """The parts in order. The texts of `same` and `deleted` make up the first text, `same` and `inserted` the second.
    Texts that differ too much are one deletion and one insertion.
    """
    first, second = _WORDS.findall(before), _WORDS.findall(after)
    start = _common(first, second)
    end = _common(first[start:][::-1], second[start:][::-1])
    old, new = first[start : len(first) - end], second[start : len(second) - end]
    parts = [("same", first[:start]), *_middle(old, new), ("same", first[len(first) - end :])]
    return [DiffPart(kind, "".join(words)) for kind, words in parts if words]  # type: ignore[arg-type]  # from literals


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """How many words are equal from the beginning on."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _middle(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    if len(old) * len(new) > _PRODUCT_MAX:
        return [("deleted", old), ("inserted", new)]
    found: list[tuple[str, Sequence[str]]] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            found.append(("same", old[i:j]))
        else:
            found += [("deleted", old[i:j]), ("inserted", new[k:m])]
    return found
