"""From a row to the messages of its first request.

A template names columns in braces: `Compute: {question}`. Only a plain name in single braces is a field, so literal
JSON survives; `{{name}}` stands for `{name}`. With `template: jinja` it is a sandboxed Jinja template. Naming a
column that a row does not have is an error, never an empty place.

Files of a row that no message places are appended to the question as parts of its content.
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


_FIELD = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")

Render = Callable[[Row], str]


class Prompt(msgspec.Struct, frozen=True):
    """How a task asks. Empty `prompt` and `messages` mean: the sample's input, as it is."""

    system: str = ""
    prompt: str = ""
    messages: list[Message] = msgspec.field(default_factory=list)
    template: str = "fields"
    shots: tuple[Sample, ...] = ()
    files: tuple[str, ...] = ()
    """Columns that hold files."""


class Renderer:
    """A prompt that was read once and is filled in for every sample."""

    def __init__(self, prompt: Prompt) -> None:
        compile_template = compile_jinja if prompt.template == "jinja" else compile_fields
        self._system = compile_template(prompt.system) if prompt.system else None
        self._prompt = compile_template(prompt.prompt) if prompt.prompt else None
        self._messages = [(message, _content(message.get("content"), compile_template)) for message in prompt.messages]
        self._shots = prompt.shots
        self._files = prompt.files
        self._appended = tuple(column for column in prompt.files if not _is_placed(column, prompt))

    def messages(self, sample: Sample) -> list[Message]:
        """The messages that a sample begins with. KeyError names a column that its row does not have."""
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
            return self._plain_question(sample)
        return with_parts(self._plain_question(sample), file_parts(sample.row, self._appended))

    def _plain_question(self, sample: Sample) -> list[Message]:
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
    """A template of fields, read once. What it returns raises KeyError for a column that a row does not have."""
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
    """The columns that a template of fields names; also one with parts."""
    found: list[str] = []

    def note(text: str, name: str) -> str:
        found.extend(match[2] for match in _FIELD.finditer(text) if match[2])
        return text

    with_strings(template, note)
    return found


def _content(content: Any, compile_template: Callable[[str], Render]) -> Callable[[Row], Any] | None:
    """How a message's content is filled in: a text, or every text in its parts. None: there is nothing to fill in."""
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
    """Whether a message says where a file goes."""
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
