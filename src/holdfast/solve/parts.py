"""Files in messages: from the values of a row to the parts of a message's content, in the OpenAI shape.

A part holds the short reference to a file's content; what it stands for is put in when the request is sent.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.datasets.files import ending_of, type_of_name
from holdfast.records.exchange import Message, Row
from holdfast.records.references import parse_reference, with_strings

_TEXTS = {"", "text"}
_SOUNDS = {"audio/wav": "wav", "audio/mpeg": "mp3"}

Part = dict[str, Any]


def file_parts(row: Row, columns: Sequence[str]) -> list[Part]:
    """The files of a row, in the order of the columns; none where there is none."""
    return [_part(column, value) for column in columns for value in _values(row.get(column))]


def with_parts(messages: list[Message], parts: list[Part]) -> list[Message]:
    """The messages, with parts at the end of the last one of the user."""
    at = max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=None)
    if not parts or at is None:
        return messages
    content = messages[at].get("content")
    before = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    return [*messages[:at], {**messages[at], "content": [*before, *parts]}, *messages[at + 1 :]]


def is_in_text(reference: str, messages: list[Message]) -> bool:
    """Whether a reference stands inside a text, where it would reach the model as letters without meaning."""
    found = False

    def look(text: str, name: str) -> str:
        nonlocal found
        found = found or (reference in text and (name in _TEXTS or text != reference))
        return text

    with_strings([message.get("content") for message in messages], look)
    return found


def _values(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _values(each)


def _part(column: str, value: str) -> Part:
    """A URL is a picture unless its name says otherwise: most are, and names of pictures often have no ending."""
    reference = parse_reference(value)
    kind = reference.type if reference is not None else type_of_name(value) or "image/*"
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": value}}
    if kind in _SOUNDS and reference is not None:
        return {"type": "input_audio", "input_audio": {"data": value, "format": _SOUNDS[kind]}}
    name = f"{column}{ending_of(kind)}"  # not the file's own name: the request must not depend on it
    return {"type": "file", "file": {"filename": name, "file_data": value}}
