"""`--set field=value`: changes one value of a spec that is not validated yet.

A path is `tasks[0].prompt`, `tasks.0.prompt` or, with the name of an entry, `models.local.params.temperature`.
"""

import re
from typing import Any

from holdfast.errors import SpecError
from holdfast.records.redaction import without_shapes
from holdfast.spec.source.yaml import parse_yaml

_FIELD = re.compile(r"\{\w+\}")
_STEP = re.compile(r"^(\w+)((?:\[\d+\])*)$")


def assign(mapping: dict[str, Any], assignment: str) -> None:
    """Apply one `--set` to a spec's mapping, in place. Missing mappings on the way are created."""
    path, value = split_assignment(assignment)
    assignment = f"{path}={without_shapes(assignment[len(path) + 1 :])}"  # for errors: it may contain a key
    steps = _steps(path, assignment)
    here: Any = mapping
    while len(steps) > 1:
        steps = _join_name(here, steps)
        if len(steps) == 1:
            break
        step = steps.pop(0)
        if isinstance(here, list):
            here = here[_index(here, step, assignment)]
            continue
        if not isinstance(here, dict):
            raise SpecError(f"--set {assignment}: {step!r} is not inside a mapping")
        if here.get(str(step)) is None:
            here[str(step)] = {}
        here = here[str(step)]
    last = steps[-1]
    if isinstance(here, list):
        here[_index(here, last, assignment)] = value
    elif isinstance(here, dict):
        here[str(last)] = value
    else:
        raise SpecError(f"--set {assignment}: {path} is not inside a mapping or a list")


def split_assignment(assignment: str) -> tuple[str, Any]:
    """Return the path and the parsed value of a `--set`."""
    path, equals, text = assignment.partition("=")
    if not equals:
        shown = without_shapes(assignment)
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
