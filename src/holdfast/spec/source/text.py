"""Texts of a spec: YAML without repeated keys, `${VAR}` from the environment, and `--set field=value`.

`${VAR}` is replaced by the environment variable (`$${VAR}` is an escaped `${VAR}`), except in `headers`, `base_url` and
`mcp`, and in the `options` and `params` of models (`variables.py`). Those may hold secrets: they stay as written until
a request is made or a server is started, so that a secret never reaches spec.yaml or the journal.

`--set` changes one value of a spec that is not validated yet. Its path is `tasks[0].prompt`, `tasks.0.prompt` or, with
the name of an entry, `models.local.params.temperature`.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from holdfast.errors import SpecError
from holdfast.records import is_credential_name, redact_credential_shapes

TEXT_BYTES_MAX = 1 << 20
"""Longest spec. PyYAML needs seconds for a megabyte, and a spec is written by hand: rows belong in data files."""
_NODES_MAX = 100_000
"""Most values of a document, aliases expanded: a few lines of aliases can expand to billions of values."""
_TOO_MANY = f"more than {_NODES_MAX} values, counting an alias as its content"
_SHOWN_CHARACTERS = 200
_DEPTH_MAX = 100
_NUMBER_CHARACTERS_MAX = 400
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
VARIABLE = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
NO_YAML = (UnicodeDecodeError, ValueError, RecursionError, KeyError, AttributeError, IndexError, TypeError)
"""What PyYAML raises besides its own errors, for example for a tag such as `!!int` before text."""
_UNTYPED = re.compile(r"\.params\.")
_LATE = {"headers", "base_url", "mcp"}  # may hold secrets: replaced when a request is made or a server is started


def parse_yaml(text: str, path: str) -> object:
    """Parse YAML. SpecError with the line for invalid YAML, and for YAML that would take unbounded time or memory."""
    if len(text) > TEXT_BYTES_MAX:
        raise SpecError(f"{path}: longer than {TEXT_BYTES_MAX >> 20} MiB; put rows and long texts in data files")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        advice = "check the indentation of this line and the one above" if "block" in str(error.problem) else "fix it"
        lines = text.splitlines()
        line = redact_credential_shapes(lines[mark.line].strip()) if mark is not None and mark.line < len(lines) else ""
        shown = line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…"
        quoted = f": {shown!r}" if line else ""
        raise SpecError(f"{path}{place}: not valid YAML: {error.problem}; {advice}{quoted}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply to be read") from None
    except (yaml.YAMLError, *NO_YAML) as error:
        raise SpecError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


class BoundedLoader(yaml.SafeLoader):
    """Loads untrusted YAML: limits the depth, the number of values with aliases expanded, and the length of numbers."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}
        """How many values each finished node contains, aliases expanded."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call] # the stubs leave it untyped
        mark = event.start_mark
        if self._depth >= _DEPTH_MAX:
            raise yaml.MarkedYAMLError(problem=f"nested more than {_DEPTH_MAX} levels deep", problem_mark=mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and not isinstance(event, yaml.AliasEvent):
            self._sizes[node] = self._size(node, mark)
        # An alias of a node that is not finished yet is inside that node.
        if node is not None and (node not in self._sizes or len(self._sizes) > _NODES_MAX):
            problem = _TOO_MANY if node in self._sizes else "a part that contains itself"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node

    def _size(self, node: yaml.Node, mark: yaml.Mark) -> int:
        if isinstance(node, yaml.ScalarNode):
            if node.tag in _NUMBERS and len(node.value) > _NUMBER_CHARACTERS_MAX:
                raise yaml.MarkedYAMLError(problem=f"a number of {len(node.value)} characters", problem_mark=mark)
            return 1
        parts = node.value if isinstance(node, yaml.SequenceNode) else itertools.chain.from_iterable(node.value)
        size = 1 + sum(self._sizes[part] for part in parts)
        if size > _NODES_MAX:
            raise yaml.MarkedYAMLError(problem=_TOO_MANY, problem_mark=mark)
        return size


class _Loader(BoundedLoader):
    """Refuses repeated keys: otherwise the last one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call] # the stubs leave it untyped
            if isinstance(key, str) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is repeated", problem_mark=key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key_node))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(  # type: ignore[no-untyped-call] # the stubs leave it untyped; YAML 1.1 reads 1e-6 as text, users mean a number
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def substitute(
    value: Any, environ: Mapping[str, str], place: str, where: str, is_late: Callable[[str], bool] = lambda place: False
) -> Any:
    """Return a part of a spec with its variables replaced. Texts for which `is_late` is true keep them, but an unset
    variable is a SpecError there too.
    """
    if isinstance(value, dict):
        lead = f"{place}." if place else ""
        return {
            key: each if key in _LATE else substitute(each, environ, f"{lead}{key}", where, is_late)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [substitute(each, environ, f"{place}[{i}]", where, is_late) for i, each in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    replaced: Any = fill_in(value, environ, f"{where}: {place}")
    if (whole := VARIABLE.fullmatch(value)) and _UNTYPED.search(place):
        replaced = parse_variable(replaced, whole[1], f"{where}: {place}")
    return value if is_late(place) and isinstance(replaced, str | dict | list) else replaced


def parse_variable(text: str, variable: str, place: str) -> Any:
    """Parse the value of a variable where no type is known: a number becomes a number, but a credential stays text."""
    if is_credential_name(variable) or is_credential_name(place.rpartition(".")[2]):
        return text
    return parse_yaml(text, place)


def fill_in(text: str, environ: Mapping[str, str], place: str) -> str:
    """Replace the variables in a text. SpecError if one of them is not set and has no default."""

    def value_of(match: re.Match[str]) -> str:
        replacement = environ.get(match[1], match[2])
        if replacement is None:
            raise SpecError(
                f"{place}: the environment variable {match[1]} is not set; set it, or write ${{{match[1]}:-default}}"
            )
        return replacement

    return VARIABLE.sub(value_of, text).replace("$${", "${")


def expand(text: str, environ: Mapping[str, str], place: str = "headers") -> tuple[str, list[str]]:
    """Replace the variables in a header or URL. Also returns their values, which are secrets and must not be logged."""
    secrets: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        value = environ.get(match[1], match[2])
        if value is None:
            raise SpecError(f"{place}: the environment variable {match[1]} is not set")
        secrets.append(value)
        return value

    return VARIABLE.sub(value_of, text), secrets


_FIELD = re.compile(r"\{\w+\}")
_STEP = re.compile(r"^(\w+)((?:\[\d+\])*)$")


def assign(mapping: dict[str, Any], assignment: str) -> str:
    """Apply one `--set` to a spec's mapping, in place. Missing mappings on the way are created. Returns the place that
    it changed, as errors write it.
    """
    path, value = split_assignment(assignment)
    assignment = f"{path}={redact_credential_shapes(assignment[len(path) + 1 :])}"  # for errors: it may contain a key
    steps = _steps(path, assignment)
    _refuse_entry(mapping, steps, path)
    here: Any = mapping
    place = ""
    while len(steps) > 1:
        steps = _join_name(here, steps)
        if len(steps) == 1:
            break
        step = steps.pop(0)
        if isinstance(here, list):
            index = _index(here, step, assignment)
            here, place = here[index], f"{place}[{index}]"
            continue
        if not isinstance(here, dict):
            raise SpecError(f"--set {assignment}: {step!r} is not inside a mapping")
        if here.get(str(step)) is None:
            here[str(step)] = {}
        here, place = here[str(step)], f"{place}.{step}"
    last = steps[-1]
    if isinstance(here, list):
        index = _index(here, last, assignment)
        here[index] = value
        return f"{place}[{index}]".removeprefix(".")
    if isinstance(here, dict):
        here[str(last)] = value
        return f"{place}.{last}".removeprefix(".")
    raise SpecError(f"--set {assignment}: {path} is not inside a mapping or a list")


def _refuse_entry(mapping: Mapping[str, Any], steps: list[str | int], path: str) -> None:
    """SpecError for a path that begins with the name of a task or a model."""
    for kind in ("tasks", "models") if steps[0] not in mapping else ():
        entries = mapping.get(kind)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("name") and f"{path}.".startswith(f"{entry['name']}."):
                raise SpecError(f"--set {path}: {entry['name']} is one of the {kind}; write --set {kind}.{path}=…")


def split_assignment(assignment: str) -> tuple[str, Any]:
    """Return the path and the parsed value of a `--set`."""
    path, equals, text = assignment.partition("=")
    if not equals:
        shown = redact_credential_shapes(assignment)
        raise SpecError(f"--set {shown}: write field=value, for example --set defaults.repeats=3")
    return path, value_of(text, f"--set {path}")


def value_of(text: str, where: str) -> Any:
    """Parse a value as YAML, or return it as text if it is no YAML or only resembles it by accident.

    `Compute: {q}`, `{q}?` and `{q}` are prompts, not mappings. No value means the empty text; `null` means None.
    """
    if not text or _FIELD.match(text):
        return text
    try:
        value = parse_yaml(text, where)
    except SpecError:
        return text
    return text if isinstance(value, dict | list) and text.strip()[:1] not in ("{", "[") else value


def _steps(path: str, assignment: str) -> list[str | int]:
    steps: list[str | int] = []
    for part in path.split("."):
        match = _STEP.match(part)
        if match is None and not part:
            raise SpecError(f"--set {assignment}: {path!r} is not a field path such as tasks[0].prompt")
        if match is None:
            steps.append(part)
            continue
        steps.append(match[1])
        steps += [int(number) for number in re.findall(r"\d+", match[2])]
    return steps


def _join_name(here: Any, steps: list[str | int]) -> list[str | int]:
    """Join the first steps if together they are the name of an entry: a name may contain dots, as `gpt-4.1` does."""
    names = {each.get("name") for each in here if isinstance(each, dict)} if isinstance(here, list) else set()
    for end in range(len(steps), 1, -1):
        name = ".".join(map(str, steps[:end]))
        if name in names:
            return [name, *steps[end:]]
    return steps


def _index(here: list[Any], step: str | int, assignment: str) -> int:
    names = [each.get("name") if isinstance(each, dict) else None for each in here]
    if isinstance(step, str) and step in names:
        return names.index(step)
    if isinstance(step, str) and step.isdecimal():  # models.0.params, as well as models[0].params
        step = int(step)
    if isinstance(step, int) and step < len(here):
        return step
    known = ", ".join(str(name) for name in names if name) or f"0 to {len(here) - 1}"
    raise SpecError(f"--set {assignment}: there is no entry {step!r}; there are {known}")
