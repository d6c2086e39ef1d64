"""References to the content of files: `blob:sha256-<64 hex digits>;<type>`, the only form in which rows, messages and
records hold one.

Invariant: a reference depends on the content and its type alone, never on where the file was. It is short, so a
journal does not grow with pictures; what it stands for is put in when a request is sent.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

_PREFIX = "blob:sha256-"
_REFERENCE = re.compile(r"blob:sha256-([0-9a-f]{64});([\w.+-]+/[\w.+-]+)", re.ASCII)


class Reference(msgspec.Struct, frozen=True):
    """Content, by its SHA-256 in hex, and what it is: `image/png`."""

    digest: str
    type: str

    def __str__(self) -> str:
        return f"{_PREFIX}{self.digest};{self.type}"


def parse_reference(text: object) -> Reference | None:
    """None if it is anything else than exactly one reference."""
    if not isinstance(text, str) or not text.startswith(_PREFIX):
        return None
    match = _REFERENCE.fullmatch(text)
    return Reference(match[1], match[2]) if match is not None else None


def references_in(value: Any) -> Iterator[str]:
    """Every reference in plain data, as it stands there."""
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
    """A copy of plain data in which each text is another; `change` is told the name that it has in its mapping."""
    if isinstance(value, str):
        return change(value, name)
    if isinstance(value, dict):
        return {each: with_strings(inner, change, str(each)) for each, inner in value.items()}
    if isinstance(value, list):
        return [with_strings(each, change, name) for each in value]
    return value
