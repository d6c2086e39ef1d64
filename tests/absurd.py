"""Absurd values for every field of a JSON document: numbers, texts and lists that no server should send."""

import json
from collections.abc import Iterator
from typing import Any

NUMBERS = ["9223372036854775808", "9007199254740993", "18446744073709551616", "-1", "-9223372036854775809", "1e308"]
NUMBERS += ["1e999", "2.5", "NaN", "-Infinity", "true", '"7"', "null", '{"a":1}', "[1,2]", "1" + "0" * 5000]
TEXTS = [r'"\ud800"', r'"\udc00 and more"', r'"\u0000"', r'"\u001b[31m"', '""', "null", "17", "[]", '{"a":null}']
LISTS = ["null", "{}", '"text"', "17", "[]", "[null]", "[[]]", '["a", 5, {"a": 1}]']
HUGE_TEXT, HUGE_LIST = '"HUGE"', "MANY"
LONG = {"finish_reason", "stop_reason", "finishReason", "status", "id", "call_id", "name", "arguments", "model"}
"""Text fields that also get a text of 10 MB: ids, names and reasons, the fields that nobody expects to be long."""


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every field of a body, with its place."""
    if path:
        yield path, value
    each = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in each:
        yield from paths_in(inner, (*path, name))


def absurd_values(path: tuple[Any, ...], value: Any) -> list[str]:
    """JSON to put in place of a value, by its type."""
    if isinstance(value, list | dict):
        return [*LISTS, *([HUGE_LIST] if isinstance(value, list) else [])]
    if isinstance(value, str):
        return TEXTS
    return NUMBERS


def put(value: Any, path: tuple[Any, ...], token: str) -> Any:
    """The same body with a token at one place."""
    if not path:
        return token
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = put(value[path[0]], path[1:], token)
    return copy


def rewritten(document: Any, path: tuple[Any, ...], absurd: str, characters: int, items: int = 100_000) -> bytes:
    """The document with an absurd value at one place. `characters` and `items`: of huge texts and lists."""
    value = document
    for part in path:
        value = value[part]
    if absurd == HUGE_TEXT:
        absurd = json.dumps("x" * characters)
    elif absurd == HUGE_LIST:
        absurd = json.dumps(value * (items // max(len(value), 1)) or [0] * items)
    return json.dumps(put(document, path, "@@")).replace('"@@"', absurd).encode()


def absurd_documents(document: Any, size: int = 1_500) -> Iterator[bytes]:
    """The document with each absurd value at each of its places."""
    for path, value in paths_in(document):
        huge = [HUGE_TEXT] if isinstance(value, str) else []
        for absurd in (*absurd_values(path, value), *huge):
            yield rewritten(document, path, absurd, size, size)
