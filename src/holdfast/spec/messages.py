"""Errors and warnings about a spec: the place as the user wrote it, the problem, a remedy or the nearest valid name.

Warnings are for valid specs that probably contain a mistake. Pure: the environment is a parameter.
"""

import copy
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.spec.providers import needs_key, placed_models, unset_variable
from holdfast.spec.sampling_parameters import KNOWN as SAMPLING_PARAMETERS
from holdfast.spec.sampling_parameters import unknown_params
from holdfast.spec.types import Dataset, Fewshot, Model, Spec, Task, nested_type

_AT = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_NULL = "Expected `object`, got `null`"
_OFF = "{} removes all limits; null switches a single limit off"
_DEFAULTS = "leave it out or write {} to use the defaults"
_SIMILARITY_MIN = 0.8
"""Similarity cutoff for typos of a field. `api_key` and `api_key_env` are below it."""
_SUBSET = "subset"
"""Tasks of benchmarks have it, until it has become a selection of rows."""
_WRITTEN: dict[type[msgspec.Struct], set[str]] = {
    Spec: {"defaults", "include"},
    Task: {"when", _SUBSET},
    Model: {"when"},
}
"""What a spec may write beside the fields of the effective spec."""
_ABSENT = object()
_EXPECTED = {
    "Expected `object | null`, got `int`": "expected a mapping, got a number; write one",
    "Expected `object | null`, got `str`": "expected a mapping, got text; write one",
    "Expected `object`, got `str`": "expected a mapping, got text; write one",
    "Expected `array`, got `str`": "expected a list, got text; write one",
    "Expected `array` of length >= 1": "the list is empty; give at least one",
}
_EXAMPLES = {
    "models": "models: [openai/gpt-x]",
    "tasks": "tasks: [gsm8k]",
    "dataset": "dataset: {path: data.jsonl}",
    "scorers": "scorers: [exact_match]",
    "fewshot": "fewshot: {path: examples.jsonl, n: 3}",
    "params": "params: {temperature: 0}",
    "mirror": "mirror: {url: s3://bucket/evals}",
}
_ELSEWHERE = {
    "prompts": "tasks: [{prompt: …}]",
    "providers": "models: [{name: …, provider: …}]",
}
"""Fields at the top of specs of other tools, and where their content belongs here."""
_PARTS: dict[type[msgspec.Struct], str] = {Model: "a model", Task: "a task", Dataset: "dataset", Spec: "the spec"}
_SECRET_WORDS = ("api_key", "apikey", "token", "secret", "password")
_SECRET_ADVICE = "; a secret belongs in the environment: name its variable with api_key_env"


def explain(error: msgspec.ValidationError, where: str) -> SpecError:
    """Translate one msgspec error into a SpecError with the place and the nearest valid name."""
    message = str(error)
    at = _AT.search(message)
    place = at[1] if at else ""
    message = _AT.sub("", message)
    unknown = _UNKNOWN.search(message)
    if unknown:
        kind: type[msgspec.Struct] = Spec
        for part in filter(None, place.split(".")):
            name = part.split("[")[0]
            if name in {each.name for each in msgspec.structs.fields(kind)}:
                kind = nested_type(kind, name) or kind
        names = {each.name for each in msgspec.structs.fields(kind)}
        names |= _WRITTEN.get(kind, set()) if not place.startswith("roles") else set()
        is_typo = difflib.get_close_matches(unknown[1], names, n=1, cutoff=_SIMILARITY_MIN)
        is_secret = any(word in unknown[1].lower() for word in _SECRET_WORDS) and not is_typo
        hint = "" if is_typo or is_secret else _place_of(unknown[1], kind)
        hint = _SECRET_ADVICE if is_secret else hint or nearest(unknown[1], names)
        message = f"unknown field {unknown[1]!r}{hint}"
    elif message in _EXPECTED:
        shown = _EXAMPLES.get(re.sub(r"\[\d+\]", "", place.rpartition(".")[2]), "")
        message = f"{_EXPECTED[message]}{f', such as {shown}' if shown else ''}"
    elif message == _NULL:
        message = f"expected a mapping, got null; {_OFF if place.startswith('limits') else _DEFAULTS}"
    problem = f"{message[:1].lower()}{message[1:]}"
    return SpecError(": ".join(filter(None, (where, place, problem))))


def _place_of(field: str, kind: type[msgspec.Struct]) -> str:
    """Where a field belongs that was written in another part; empty if nowhere."""
    if kind is Spec and field in _ELSEWHERE:
        return f"; write {_ELSEWHERE[field]}"
    if kind is Model and field in SAMPLING_PARAMETERS:
        return f"; it is a sampling parameter: write params: {{{field}: …}}"
    for part, name in _PARTS.items():
        names = {each.name for each in msgspec.structs.fields(part)} | ({_SUBSET} if part is Task else set())
        if part is not kind and field in names:
            above = {Task: "tasks", Model: "models"}.get(part) if kind is Spec else None
            return f"; it is a field of {name}{f': {above}.NAME.{field}' if above else ''}"
    return ""


def explain_all(
    error: msgspec.ValidationError, mapping: Mapping[str, Any], where: str
) -> tuple[SpecError, Spec | None]:
    """Report all unknown fields, and the other mistakes of all tasks and models, in one SpecError. msgspec alone stops
    at the first. Also returns the spec without the unknown fields, if nothing else is wrong with it.
    """
    found: dict[str, None] = {}
    spec = None
    mapping, left = copy.deepcopy(dict(mapping)), error
    while found.setdefault(str(explain(left, where))) is None and _remove_unknown(mapping, str(left)):
        try:
            spec = msgspec.convert(mapping, Spec, strict=False)
        except msgspec.ValidationError as other:
            left = other
        else:
            break
    parts = []
    for name, kind in (("models", Model), ("tasks", Task)):
        every = mapping.get(name)
        parts += [(name, kind, i, part) for i, part in enumerate(every if isinstance(every, list) else ())]
    for name, kind, i, part in parts:
        try:
            msgspec.convert(part, kind, strict=False)
        except msgspec.ValidationError as other:
            # The same error with its place in the whole spec instead of in one part.
            message, _, at = str(other).partition(" - at `$")
            relocated = msgspec.ValidationError(f"{message} - at `$.{name}[{i}]{at.removesuffix('`')}`")
            found[str(explain(relocated, where))] = None
    return SpecError("\n".join(found)), spec


def _remove_unknown(mapping: Any, message: str) -> bool:
    """Remove the unknown field that an error is about, so that the next one can be found. False if it is not about
    one.
    """
    unknown, at = _UNKNOWN.search(_AT.sub("", message)), _AT.search(message)
    if unknown is None:
        return False
    for step in re.findall(r"[^.\[\]]+", at[1] if at else ""):
        if isinstance(mapping, list) and step.isdecimal() and int(step) < len(mapping):
            mapping = mapping[int(step)]
        else:
            mapping = mapping.get(step) if isinstance(mapping, dict) else None
    return isinstance(mapping, dict) and mapping.pop(unknown[1], _ABSENT) is not _ABSENT


def nearest(name: str, valid: set[str]) -> str:
    """Return a did-you-mean hint, or the list of valid names."""
    close = difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; valid are {', '.join(sorted(valid))}"


def nearest_file(path: str) -> str:
    """Return a did-you-mean hint with a similar file in the same folder; empty if there is none."""
    folder = os.path.dirname(path) or "."
    names = os.listdir(folder) if os.path.isdir(folder) else []
    close = difflib.get_close_matches(os.path.basename(path), names, n=1)
    return f"; did you mean {os.path.join(os.path.dirname(path), close[0])}?" if close else ""


def kind_of(value: object) -> str:
    """Return the kind of a YAML value for a message, such as `a list`."""
    return {"NoneType": "empty", "list": "a list", "str": "text", "int": "a number", "float": "a number"}.get(
        type(value).__name__, type(value).__name__
    )


_WHOLE = re.compile(r"\{\{[A-Za-z_]\w*\}\}|\{[A-Za-z_]\w*\}")
_OPENING = re.compile(r"\{([A-Za-z_]\w*)")
_CLOSING = re.compile(r"([A-Za-z_]\w*)\}\Z")


def find_warnings(spec: Spec, environ: Mapping[str, str]) -> list[str]:
    """Return the warnings, each with its place in the spec and a remedy."""
    found: list[str] = []
    for index, task in enumerate(spec.tasks):
        templates: dict[str, object] = {"system": task.system, "prompt": task.prompt}
        templates |= {f"messages[{i}].content": message.get("content") for i, message in enumerate(task.messages)}
        before = len(found)
        for name, text in templates.items() if task.template == "fields" else ():
            for field, column in _half_fields(text) if isinstance(text, str) else ():
                problem = f"{field!r} has only one brace and is sent unchanged"
                found.append(f"tasks[{index}].{name}: {problem}; if {column!r} is a column, write {{{column}}}")
        if len(found) == before and task.solver == "chat" and not task.dataset.files and _names_no_column(task):
            where = "messages" if task.messages else "prompt"
            problem = "it names no column, so every sample gets the same text"
            found.append(f"tasks[{index}].{where}: {problem}; write a column in one pair of braces, as in {{question}}")
        if task.fewshot is not None and _shows_evaluated_rows(task, task.fewshot):
            name = "split" if task.fewshot.split else "path"
            problem = "the examples are rows of the evaluated data, so the answers of some samples are shown to others"
            found.append(f"tasks[{index}].fewshot.{name}: {problem}; name another {name}")
    for place, model in placed_models(spec).items():
        variable = unset_variable(model, environ)
        if variable and not needs_key(model):  # a model that needs a key is an error, not a warning
            unset = f"the environment variable {variable} is not set; requests are sent without a key"
            found.append(f"{place}.api_key_env: {unset}")
        found += [f"{place}.{warning}" for warning in unknown_params(model.params)]
    return found


def _shows_evaluated_rows(task: Task, fewshot: Fewshot) -> bool:
    return fewshot.split == task.dataset.split if fewshot.split else fewshot.path == task.dataset.path


def _names_no_column(task: Task) -> bool:
    """Whether a task has templates, and none of them is filled in from the row."""
    texts = [task.prompt] if not task.messages else [str(message.get("content")) for message in task.messages]
    texts.append(task.system)
    is_filled = any(not name.startswith("{{") for text in texts for name in _WHOLE.findall(text))
    return task.template == "fields" and any(texts[:-1]) and not is_filled


def _half_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield names next to an unpaired brace. Paired braces, as in JSON and code, are taken as intended."""
    text = _WHOLE.sub(lambda match: " " * len(match[0]), text)
    opened: list[int] = []
    single: list[int] = []
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            opened.append(match.start())
        elif opened:
            opened.pop()
        else:
            single.append(match.start())
    for at in sorted(opened + single):
        half = _OPENING.match(text, at) or _CLOSING.search(text[: at + 1])
        if half is not None:
            yield half[0], half[1]
