"""References to the content of files: `blob:sha256-<64 hex digits>;<type>`. Rows, messages and records contain only
these, never the content.

Invariant: a reference depends only on the content and its type, never on the path of the file. It is short, so
pictures do not enlarge the journal. The content replaces it when a request is sent.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

_PREFIX = "blob:sha256-"
_REFERENCE = re.compile(r"blob:sha256-([0-9a-f]{64});([\w.+-]+/[\w.+-]+)", re.ASCII)


class Reference(msgspec.Struct, frozen=True):
    """The SHA-256 of a content in hex, and its media type, such as `image/png`."""

    digest: str
    type: str

    def __str__(self) -> str:
        return f"{_PREFIX}{self.digest};{self.type}"


def parse_reference(text: object) -> Reference | None:
    """The reference; None if the value is not exactly one reference."""
    if not isinstance(text, str) or not text.startswith(_PREFIX):
        return None
    match = _REFERENCE.fullmatch(text)
    return Reference(match[1], match[2]) if match is not None else None


def references_in(value: Any) -> Iterator[str]:
    """Every reference in plain data, as text."""
    if isinstance(value, str):
        if parse_reference(value) is not None:
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from references_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from references_in(each)


def with_strings(value: Any, change: Callable[[str, str], str], name: str = "") -> Any:
    """A copy of plain data with every text replaced by `change(text, name)`; `name` is its key in the mapping."""
    if isinstance(value, str):
        return change(value, name)
    if isinstance(value, dict):
        return {each: with_strings(inner, change, str(each)) for each, inner in value.items()}
    if isinstance(value, list):
        return [with_strings(each, change, name) for each in value]
    return value
