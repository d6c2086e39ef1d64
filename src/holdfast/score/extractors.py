"""The built-in extractors: each takes a part out of a text before it is compared. `EXTRACTORS` lists them by name.

An extractor is a function of a text, with optional arguments. It returns a text, or None if the part is missing. Their
running time is linear in the text's length; `regex` is stopped if it takes too long.
"""

import contextlib
import functools
import itertools
import json
import re
import string
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.score.definition import Check, Extractor, Function, Slow
from holdfast.score.letters import extract_letter
from holdfast.score.numbers import last_quantity
from holdfast.score.worker_process import check_pattern, compiled_pattern, first_group, last_group, may_take_long

EXTRACTORS: dict[str, Extractor] = {}
_FENCE = "```"
_OPENINGS_MAX = 100
_NOTHING = object()
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _extractor(check: Check | None = None, slow: Slow | None = None) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        name = function.__name__.removesuffix("_")
        EXTRACTORS[name] = Extractor(name, function, check=check, slow=slow)
        return function

    return register


@_extractor(check=lambda pattern, group=None, **_: check_pattern(pattern, group), slow=may_take_long)
def regex(
    text: str, pattern: str, group: int | str | None = None, first: bool = False, ignore_case: bool = False
) -> str | None:
    """The last match of `pattern`; with `first`, the first. `group` selects a part of the match; default: the first
    group, or the whole match of a pattern without groups.
    """
    chosen = min(compiled_pattern(pattern).groups, 1) if group is None else group
    return (first_group if first else last_group)(text, pattern, chosen, ignore_case)


@_extractor()
def first_line(text: str) -> str | None:
    """The first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), None)


@_extractor()
def last_line(text: str) -> str | None:
    """The last line that is not blank."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)


@_extractor(check=lambda marker, **_: "" if marker else "the marker is empty")
def after(text: str, marker: str, first: bool = False) -> str | None:
    """The text after the last `marker`; with `first`, after the first."""
    found = text.find(marker) if first else text.rfind(marker)
    return None if found < 0 else text[found + len(marker) :].strip()


@_extractor()
def tag(text: str, name: str) -> str | None:
    """The text between the last `<name>` and `</name>`."""
    end = text.rfind(f"</{name}>")
    start = text.rfind(f"<{name}>", 0, max(end, 0))
    return None if start < 0 else text[start + len(name) + 2 : end].strip()


@_extractor()
def without_thinking(text: str) -> str | None:
    """The text after the last `</think>`. Missing if the thinking was begun and never ended."""
    if "</think>" in text:
        return text.rpartition("</think>")[2].strip()
    return None if "<think>" in text else text


@_extractor()
def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` or `\fbox{…}`, which may contain braces."""
    command = max(("\\boxed", "\\fbox"), key=text.rfind)
    start = text.rfind(command)
    opening = text.find("{", start)
    if start < 0 or opening < 0 or text[start + len(command) : opening].strip():
        return None
    depth = 0
    for at in range(opening, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[opening + 1 : at].strip()
    return None


@_extractor()
def code(text: str, language: str = "") -> str | None:
    """The last fenced code block, or the last one in `language`. An unclosed block ends with the text."""
    found = None
    for named, block in fenced_blocks(text):
        if not language or named == language.lower():
            found = block
    return found


@_extractor()
def json_(text: str, path: str = "") -> str | None:
    """The JSON value in a text, or its part at `path` (`a.b.0`). Text is returned unquoted, anything else as JSON."""
    value = json_at(text, path)
    if value is _NOTHING:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


@_extractor()
def number(text: str) -> str | None:
    """The last number, as written."""
    found = last_quantity(text)
    return None if found is None else found.text


@_extractor(check=lambda letters="A", **_: "" if letters.isupper() else "letters must be capital letters, such as ABCD")
def letter(text: str, letters: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ") -> str | None:
    """The letter that the text chooses, read as by the scorer `choice`."""
    return extract_letter(text, letters)


@_extractor()
def normalized(text: str) -> str:
    """Lower case, without punctuation, English articles and extra spaces, as SQuAD compares texts."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def find_json(text: str, path: str) -> tuple[bool, Any]:
    """Return whether a text contains JSON with a value at `path`, and that value."""
    value = json_at(text, path)
    return value is not _NOTHING, None if value is _NOTHING else value


def json_at(text: str, path: str) -> Any:
    """Return the value at `path` in the first JSON of a text that has one: `As [1] says, {"a": 2}` has an `a`."""
    steps = path.split(".") if path else []
    found = (functools.reduce(_step_into, steps, value) for value in _values_in(text))
    return next((each for each in found if each is not _NOTHING), _NOTHING)


def _values_in(text: str) -> Iterator[Any]:
    """Yield the text as JSON; otherwise its last fenced block, then the complete objects and lists in it."""
    whole = _decode(text)
    if whole is not _NOTHING:
        yield whole
        return
    yield _decode(code(text) or "")
    decoder, end = json.JSONDecoder(), 0
    for match in itertools.islice(re.finditer(r"[\[{]", text), _OPENINGS_MAX):
        if match.start() < end:  # inside a value that was yielded
            continue
        with contextlib.suppress(ValueError, RecursionError):
            value, end = decoder.raw_decode(text, match.start())
            yield value


def _decode(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING


def _step_into(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _NOTHING)
    if isinstance(value, list) and step.removeprefix("-").isdecimal() and -len(value) <= int(step[:9]) < len(value):
        return value[int(step[:9])]
    return _NOTHING


def fenced_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the fenced blocks of a text: the language after the opening fence, in lower case, and the content. If
    the fence is indented, as in a list, each line of the content loses as much.
    """
    named: str | None = None
    lines: list[str] = []
    indented = 0
    for line in text.splitlines():
        if not line.lstrip().startswith(_FENCE):
            lines.append(line[min(indented, len(line) - len(line.lstrip())) :])
            continue
        if named is not None:
            yield named, "\n".join(lines)
        words = line.strip().strip("`").split()
        named, lines = (words[0].lower() if words else "") if named is None else None, []
        indented = len(line) - len(line.lstrip()) if named is not None else 0
    if named is not None and lines:
        yield named, "\n".join(lines)
