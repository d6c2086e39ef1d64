"""Renders the messages of a sample's first request from its row.

A template names columns in braces: `Compute: {question}`. Only a plain name in single braces is a field, so literal
JSON survives; `{{name}}` becomes `{name}`. With `template: jinja` it is a sandboxed Jinja template. A column that the
row does not have is an error, never empty text.

Files of a row that no message refers to are appended to the question as parts of its content.

Jinja templates with limits on time and memory.

A template can multiply (`{{ 'a' * 10**10 }}`, nested loops), and its numbers may come from a data row. Jinja's sandbox
limits neither time nor memory, and evaluates constants already when it compiles. So templates are compiled and rendered
in the worker process of `score.worker_process`, which has a memory limit and is killed when it takes too long. Most
templates cannot produce more text than the template and the row together; these are rendered here, in microseconds.
"""

import copy
import functools
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.datasets import ending_of, type_of_name
from holdfast.errors import SpecError
from holdfast.records import Message, Row, Sample, parse_reference, with_strings
from holdfast.score import run_in_worker

if TYPE_CHECKING:
    from jinja2 import Template, nodes


SECONDS_MAX = 5.0
CHARACTERS_MAX = 16_000_000
_MISSING, _TEXT = "missing", "text"
_LINEAR_NODES = frozenset(
    [
        "Template",
        "Output",
        "TemplateData",
        "Const",
        "Name",
        "Getattr",
        "Getitem",
        "If",
        "Compare",
        "Operand",
        "And",
        "Or",
        "Not",
        "Test",
        "Filter",
        "For",
    ]
)
_LINEAR_FILTERS = frozenset(
    [
        "capitalize",
        "default",
        "e",
        "escape",
        "first",
        "float",
        "int",
        "last",
        "length",
        "lower",
        "string",
        "title",
        "tojson",
        "trim",
        "upper",
    ]
)


def compile_jinja(template: str) -> Callable[[Row], str]:
    """Compile a template; SpecError if it is invalid. The returned function raises KeyError for a missing column, and
    SpecError if rendering takes too long or the text becomes too large.
    """
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import SandboxedEnvironment
    except ImportError as error:
        raise SpecError("`template: jinja` needs one more package: pip install 'holdfast[jinja]'") from error
    try:
        parsed = SandboxedEnvironment().parse(template)  # parsing evaluates nothing
    except TemplateError as error:
        raise _invalid(error) from error
    except RecursionError:
        raise SpecError("the template is nested too deeply; simplify it") from None
    if _is_linear(parsed):
        try:
            return functools.partial(_render_here, _compiled(template))
        except TemplateError as error:
            raise _invalid(error) from error
    problem = _run_in_child("check", template)
    if problem:
        raise _invalid(problem)
    return functools.partial(_render_in_child, template)


def _invalid(problem: object) -> SpecError:
    return SpecError(f"the template is not valid Jinja: {problem}; correct it, or leave out `template: jinja`")


def _is_linear(node: "nodes.Node", targets: Collection[str] | None = None) -> bool:
    """Whether its text is at most as long as the template and the row together. `targets`: inside a loop, the names
    that the loop sets; any other value would be repeated for every item.
    """
    kind, own = type(node).__name__, vars(node)
    if kind not in _LINEAR_NODES:
        return False
    if kind == "Name" and targets is not None and own["name"] not in targets:
        return False
    if kind == "Filter" and own["name"] not in _LINEAR_FILTERS:
        return False
    if kind == "For":
        if targets is not None or own["recursive"]:
            return False
        names = {"loop", *(name.name for name in _names_in(own["target"]))}
        inside = [*own["body"], *([own["test"]] if own["test"] is not None else [])]
        outside = [own["iter"], *own["else_"]]
        return all(_is_linear(each, names) for each in inside) and all(map(_is_linear, outside))
    return all(_is_linear(each, targets) for each in node.iter_child_nodes())


def _names_in(target: "nodes.Node") -> "list[nodes.Name]":
    from jinja2 import nodes

    return [target] if isinstance(target, nodes.Name) else list(target.find_all(nodes.Name))


def _render_here(compiled: "Template", row: Row) -> str:
    from jinja2 import UndefinedError

    try:
        return compiled.render(row)
    except UndefinedError as error:
        raise KeyError(str(error)) from error


def _render_in_child(template: str, row: Row) -> str:
    kind, text = _run_in_child("render", template, row)
    if kind == _MISSING:
        raise KeyError(text)
    return str(text)


def _run_in_child(function: str, *args: Any) -> Any:
    try:
        return run_in_worker(SECONDS_MAX, f"{__name__}:{function}", *args)
    except TimeoutError:
        raise SpecError(f"the template takes longer than {SECONDS_MAX:g} s; look for loops in it") from None
    except ValueError as error:
        why = "it needs too much memory" if "MemoryError" in str(error) else error
        raise SpecError(f"the template cannot be filled in: {why}") from None


def check(template: str) -> str:
    """Return what is wrong with a template; empty if nothing. Runs in the child."""
    from jinja2 import TemplateError

    try:
        _compiled(template)
    except TemplateError as error:
        return str(error) or type(error).__name__
    return ""


def render(template: str, row: Row) -> tuple[str, str]:
    """Return the text, or the name of a missing column. Runs in the child."""
    from jinja2 import UndefinedError

    pieces: list[str] = []
    size = 0
    try:
        for piece in _compiled(template).generate(row):
            pieces.append(piece)
            size += len(piece)
            if size > CHARACTERS_MAX:
                raise ValueError(f"it becomes longer than {CHARACTERS_MAX:,} characters")
    except UndefinedError as error:
        return _MISSING, str(error)
    return _TEXT, "".join(pieces)


@functools.lru_cache(maxsize=256)
def _compiled(template: str) -> "Template":
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    return SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True).from_string(template)


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


class ShotRule(msgspec.Struct, frozen=True):
    """Which examples a sample is shown, and how. The default shows all of them as turns, with their targets."""

    n: int = 0
    """Number of examples; 0: all. Those beyond it replace the sample itself and its group."""
    by: str = ""
    """Column whose value examples share with the sample."""
    group: str = ""
    """Column whose equal values mark related samples, which are never shown."""
    style: str = "turns"
    answer: str = ""
    """Template of an example's answer; empty: its target."""


class Prompt(msgspec.Struct, frozen=True):
    """The prompt of a task. With empty `prompt` and `messages` the sample's input is used as it is."""

    system: str = ""
    prompt: str = ""
    messages: list[Message] = msgspec.field(default_factory=list)
    template: str = "fields"
    shots: tuple[Sample, ...] = ()
    shot_rule: ShotRule = ShotRule()
    files: tuple[str, ...] = ()
    """Columns that hold files."""


class Renderer:
    """A prompt that is compiled once and filled in for every sample."""

    def __init__(self, prompt: Prompt) -> None:
        compile_template = compile_jinja if prompt.template == "jinja" else compile_fields
        self._system = compile_template(prompt.system) if prompt.system else None
        self._prompt = compile_template(prompt.prompt) if prompt.prompt else None
        self._messages = [(message, _content(message.get("content"), compile_template)) for message in prompt.messages]
        self._shots = _Shots(prompt.shots, prompt.shot_rule) if prompt.shots else None
        self._shot_style = prompt.shot_rule.style
        self._shot_answer = compile_template(prompt.shot_rule.answer) if prompt.shot_rule.answer else None
        self._files = prompt.files
        self._appended = tuple(column for column in prompt.files if not _is_placed(column, prompt))

    def messages(self, sample: Sample) -> list[Message]:
        """Return the first messages of a sample. KeyError names a column that its row does not have."""
        made: list[Message] = []
        if self._system is not None:
            made.append({"role": "system", "content": self._system(sample.row)})
        shown = self._shots.shown_to(sample) if self._shots is not None else ()
        if self._shot_style == "turns":
            for shot in shown:
                made += self._question(shot)
                made.append({"role": "assistant", "content": self._answer(shot)})
        for message, fill in self._messages:
            own = copy.deepcopy(message)  # a solver may change it
            made.append(own if fill is None else {**own, "content": fill(sample.row)})
        if self._prompt is not None or not self._messages:
            made += self._question(sample)
        return self._with_text(made, shown) if shown and self._shot_style == "text" else made

    def _with_text(self, messages: list[Message], shown: Sequence[Sample]) -> list[Message]:
        """The messages with the examples as text before the last one."""
        texts = [*(self._question(shot)[0]["content"] for shot in shown), messages[-1].get("content")]
        if not all(isinstance(text, str) for text in texts):
            raise SpecError("fewshot.style: examples with files cannot be part of a text; use `turns`")
        answers = [f" {self._answer(shot)}\n\n" for shot in shown]
        text = "".join(question + answer for question, answer in zip(texts, [*answers, ""], strict=True))
        return [*messages[:-1], {**messages[-1], "content": text}]

    def _answer(self, shot: Sample) -> str:
        return as_text(shot.target) if self._shot_answer is None else self._shot_answer(shot.row)

    def last_question(self) -> Callable[[Row, Any], Any]:
        """A function of a row and its input that returns the content of the last user message, None if there is none.
        It renders no other message and appends no files; KeyError as in `messages`.
        """
        if (prompt := self._prompt) is not None:
            return lambda row, given: prompt(row)
        if self._messages:
            of_user = [(own, fill) for own, fill in self._messages if own.get("role") == "user"]
            own, fill = of_user[-1] if of_user else ({}, None)
            return lambda row, given: own.get("content") if fill is None else fill(row)
        return self._last_input

    def _last_input(self, row: Row, given: Any) -> Any:
        if isinstance(given, list):
            messages = (each for each in reversed(given) if isinstance(each, dict) and each.get("role") == "user")
            return next(messages, {}).get("content")
        if given is None:
            return None
        return "" if any(given == row.get(column) for column in self._files) else as_text(given)

    def _question(self, sample: Sample) -> list[Message]:
        if self._prompt is not None:
            made: list[Message] = [{"role": "user", "content": self._prompt(sample.row)}]
        elif self._files and any(sample.input == sample.row.get(column) for column in self._files):
            made = [{"role": "user", "content": ""}]  # the file alone is the question
        elif isinstance(sample.input, list):  # a conversation, already in messages
            made = copy.deepcopy(sample.input)
        else:
            made = [{"role": "user", "content": as_text(sample.input)}]
        return with_parts(made, file_parts(sample.row, self._appended)) if self._files else made


class _Shots:
    """The examples of a task, by the value of the column that they share with samples."""

    def __init__(self, shots: Sequence[Sample], rule: ShotRule) -> None:
        self._rule = rule
        self._pools: dict[str, list[Sample]] = {}
        for shot in shots:
            self._pools.setdefault(self._value_of(shot), []).append(shot)

    def shown_to(self, sample: Sample) -> Sequence[Sample]:
        """The examples of a sample: never itself nor one of its group. SpecError if there are not enough."""
        rule = self._rule
        pool = self._pools.get(self._value_of(sample), [])
        if not rule.n:
            return pool
        shown = [shot for shot in pool if not self._is_related(shot, sample)][: rule.n]
        if len(shown) < rule.n:
            which = f" with {rule.by} {sample.row.get(rule.by)!r}" if rule.by else ""
            raise SpecError(f"fewshot: there are only {len(shown)} examples{which}, {rule.n} are needed; lower n")
        return shown

    def _value_of(self, sample: Sample) -> str:
        return as_text(sample.row[self._rule.by]) if self._rule.by else ""

    def _is_related(self, shot: Sample, sample: Sample) -> bool:
        group = sample.row.get(self._rule.group) if self._rule.group else None
        return shot.row == sample.row or (group is not None and shot.row.get(self._rule.group) == group)


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
