"""Texts as the list stores and searches them: excerpts, words, and the shape of error messages."""

import contextlib
import math
import re
from typing import Any

import msgspec

from holdfast.report import first_line

EXCERPT = 200
"""Characters of an input, a target, an answer or a message that the list shows."""
SEARCHED = 2000
"""Characters of each text that full-text search covers."""
_QUOTED = re.compile(r"(?<!\w)(?:'[^']{21,}'|\"[^\"]{21,}\")(?!\w)")
_LONG_NAME = re.compile(r"\b(?=\w*\d)[\w-]{12,}\b")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_AS_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WORD = re.compile(r"[^\W_]+\*?")
"""As the tokenizer of the database splits texts: an underscore is no part of a word."""
_ALONE = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f])")
"""Scripts without spaces between words: each sign is a word of its own."""


def excerpt(text: str, length: int = EXCERPT) -> str:
    """The beginning of a text in one line. Lone surrogates, which a database cannot hold, are shown as escapes."""
    short = " ".join(text[: 2 * length].split())
    if len(short) > length or len(text) > 2 * length:
        short = f"{short[: length - 1]}…"
    return short if short.isascii() else short.encode("utf-8", "backslashreplace").decode()


def column_text(value: Any) -> str:
    """A value of a row or a score as it is compared and shown: a text as it is, anything else as JSON."""
    return excerpt(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def column_rank(value: Any) -> float | str:
    """What a value of a row is sorted by: numbers, also those in texts, come before other texts."""
    if isinstance(value, bool | int | float) or (isinstance(value, str) and _AS_NUMBER.fullmatch(value)):
        with contextlib.suppress(OverflowError):
            if math.isfinite(number := float(value)):
                return number
    return column_text(value)


def searchable(*texts: str) -> str:
    """The part of some texts that search covers."""
    text = "\n".join(each[:SEARCHED] for each in texts if each)
    if text.isascii():
        return text
    return _ALONE.sub(r" \1 ", text).encode("utf-8", "backslashreplace").decode()


def search_words(text: str) -> list[str]:
    """The words of a search. A word that ends in `*` is the beginning of one."""
    return _WORD.findall(_ALONE.sub(r" \1 ", text))


def match_expression(words: list[str]) -> str:
    """What SQLite's full-text search needs to find rows with all words."""
    return " AND ".join(f'"{word[:-1]}"*' if word.endswith("*") else f'"{word}"' for word in words)


def shape(message: str) -> str:
    """A message without what differs between samples: numbers, ids and long quotations."""
    text = first_line(message, EXCERPT)
    return _NUMBER.sub("#", _LONG_NAME.sub("…", _QUOTED.sub("'…'", text)))
