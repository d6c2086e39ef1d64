"""Warnings about valid specs that probably contain a mistake. Pure: the environment is a parameter; never raises."""

import re
from collections.abc import Iterator, Mapping

from holdfast.spec.providers import needs_key, placed_models, unset_variable
from holdfast.spec.sampling_parameters import unknown_params
from holdfast.spec.types import Spec

_WHOLE = re.compile(r"\{\{[A-Za-z_]\w*\}\}|\{[A-Za-z_]\w*\}")
_OPENING = re.compile(r"\{([A-Za-z_]\w*)")
_CLOSING = re.compile(r"([A-Za-z_]\w*)\}\Z")


def find_warnings(spec: Spec, environ: Mapping[str, str]) -> list[str]:
    """Return the warnings, each with its place in the spec and a remedy."""
    found: list[str] = []
    for index, task in enumerate(spec.tasks):
        templates: dict[str, object] = {"system": task.system, "prompt": task.prompt}
        templates |= {f"messages[{i}].content": message.get("content") for i, message in enumerate(task.messages)}
        for name, text in templates.items() if task.template == "fields" else ():
            for field, column in _half_fields(text) if isinstance(text, str) else ():
                problem = f"{field!r} has only one brace and is sent unchanged"
                found.append(f"tasks[{index}].{name}: {problem}; if {column!r} is a column, write {{{column}}}")
    for place, model in placed_models(spec).items():
        variable = unset_variable(model, environ)
        if variable and not needs_key(model):  # a model that needs a key is an error, not a warning
            unset = f"the environment variable {variable} is not set; requests are sent without a key"
            found.append(f"{place}.api_key_env: {unset}")
        found += [f"{place}.{warning}" for warning in unknown_params(model.params)]
    return found


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
