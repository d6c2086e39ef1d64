"""Renders the messages of a sample's first request from its row.

A template names columns in braces: `Compute: {question}`. Only a plain name in single braces is a field, so literal
JSON survives; `{{name}}` becomes `{name}`. With `template: jinja` it is a sandboxed Jinja template. A column that the
row does not have is an error, never empty text.

Files of a row that no message refers to are appended to the question as parts of its content.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.datasets.files import ending_of, type_of_name
from holdfast.records.references import parse_reference, with_strings
from holdfast.records.samples import Message, Row, Sample
from holdfast.solve.templates import compile_jinja

_TEXTS = {"", "text"}
_SOUNDS = {"audio/wav": "wav", "audio/mpeg": "mp3"}

Part = dict[str, Any]


def file_parts(row: Row, columns: Sequence[str]) -> list[Part]:
    """Return the files of a row as content parts, in the order of the columns."""
    return [_part(column, value) for column in columns for value in _values(row.get(column))]


def with_parts(messages: list[Message], parts: list[Part]) -> list[Message]:
    """Return the messages with the parts appended to the last user message."""
    at = max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=None)
    if not parts or at is None:
        return messages
    content = messages[at].get("content")
    before = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    return [*messages[:at], {**messages[at], "content": [*before, *parts]}, *messages[at + 1 :]]


def is_in_text(reference: str, messages: list[Message]) -> bool:
    """Whether a reference is inside a text, where the model would see the reference instead of the file."""
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
    """A URL is an image unless its name has another extension: most are, and image URLs often have no extension."""
    reference = parse_reference(value)
    kind = reference.type if reference is not None else type_of_name(value) or "image/*"
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": value}}
    if kind in _SOUNDS and reference is not None:
        return {"type": "input_audio", "input_audio": {"data": value, "format": _SOUNDS[kind]}}
    name = f"{column}{ending_of(kind)}"  # not the file's own name: the request must not depend on it
    return {"type": "file", "file": {"filename": name, "file_data": value}}


_FIELD = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")

Render = Callable[[Row], str]


class Prompt(msgspec.Struct, frozen=True):
    """The prompt of a task. With empty `prompt` and `messages` the sample's input is used as it is."""

    system: str = ""
    prompt: str = ""
    messages: list[Message] = msgspec.field(default_factory=list)
    template: str = "fields"
    shots: tuple[Sample, ...] = ()
    files: tuple[str, ...] = ()
    """Columns that hold files."""


class Renderer:
    """A prompt that is compiled once and filled in for every sample."""

    def __init__(self, prompt: Prompt) -> None:
        compile_template = compile_jinja if prompt.template == "jinja" else compile_fields
        self._system = compile_template(prompt.system) if prompt.system else None
        self._prompt = compile_template(prompt.prompt) if prompt.prompt else None
        self._messages = [(message, _content(message.get("content"), compile_template)) for message in prompt.messages]
        self._shots = prompt.shots
        self._files = prompt.files
        self._appended = tuple(column for column in prompt.files if not _is_placed(column, prompt))

    def messages(self, sample: Sample) -> list[Message]:
        """Return the first messages of a sample. KeyError names a column that its row does not have."""
        made: list[Message] = []
        if self._system is not None:
            made.append({"role": "system", "content": self._system(sample.row)})
        for shot in self._shots:
            made += self._question(shot)
            made.append({"role": "assistant", "content": as_text(shot.target)})
        for message, fill in self._messages:
            own = copy.deepcopy(message)  # a solver may change it
            made.append(own if fill is None else {**own, "content": fill(sample.row)})
        if self._prompt is not None or not self._messages:
            made += self._question(sample)
        return made

    def _question(self, sample: Sample) -> list[Message]:
        if not self._files:
            return self._text_question(sample)
        return with_parts(self._text_question(sample), file_parts(sample.row, self._appended))

    def _text_question(self, sample: Sample) -> list[Message]:
        if self._prompt is not None:
            return [{"role": "user", "content": self._prompt(sample.row)}]
        if self._files and any(sample.input == sample.row.get(column) for column in self._files):
            return [{"role": "user", "content": ""}]  # the file alone is the question
        if isinstance(sample.input, list):  # a conversation, already in messages
            return copy.deepcopy(sample.input)
        return [{"role": "user", "content": as_text(sample.input)}]


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def compile_fields(template: str) -> Render:
    """Compile a template. The returned function raises KeyError for a column that a row does not have."""
    parts: list[tuple[str, str]] = []  # a column, and the text before it
    text, at = "", 0
    for match in _FIELD.finditer(template):
        text += template[at : match.start()]
        at = match.end()
        if match[2]:
            parts.append((text, match[2]))
            text = ""
        else:
            text += f"{{{match[1]}}}"
    return partial(_fill, parts, text + template[at:])


def columns_of(template: Any) -> list[str]:
    """Return the columns that a template names; it may be a list of content parts."""
    found: list[str] = []

    def note(text: str, name: str) -> str:
        found.extend(match[2] for match in _FIELD.finditer(text) if match[2])
        return text

    with_strings(template, note)
    return found


def _content(content: Any, compile_template: Callable[[str], Render]) -> Callable[[Row], Any] | None:
    """Return a function that fills in a message's content, a text or parts; None if there is nothing to fill in."""
    if isinstance(content, str):
        return compile_template(content)
    if not isinstance(content, list):
        return None
    compiled: dict[str, Render] = {}

    def compile_text(text: str, name: str) -> str:
        compiled[text] = compile_template(text)
        return text

    with_strings(content, compile_text)
    return lambda row: with_strings(content, lambda text, name: compiled[text](row))


def _is_placed(column: str, prompt: Prompt) -> bool:
    """Whether a message refers to the file of a column."""
    every = [message.get("content") for message in prompt.messages]
    if prompt.template == "jinja":
        return re.search(rf"\b{re.escape(column)}\b", str(every)) is not None
    return column in columns_of(every)


def _fill(parts: list[tuple[str, str]], end: str, row: Row) -> str:
    made = ""
    for text, column in parts:
        value = row[column]
        made += text + (value if isinstance(value, str) else as_text(value))
    return made + end
