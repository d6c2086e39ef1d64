"""Sweeps: a list of values where one is expected creates one named variant of the task or model per value.

`prompt: {short: …, long: …}` creates `sums+short` and `sums+long`; `temperature: [0, 0.7]` creates `local+t0` and
`local+t0.7`. Variants are ordinary tasks and models, so plan, drift and reports need no notion of a sweep. Only fields
whose value is never a list can be swept: `stop: [a, b]` is one value.
"""

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import SpecError
from holdfast.spec.source.messages import kind_of

_TEXTS = ("system", "prompt")
_PARAMS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "reasoning_effort",
    "verbosity",
)
_FIELDS = {"tasks": _TEXTS, "models": _PARAMS}


def first_values(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the first value of each sweep, so that errors name the places that the user wrote."""
    first = copy.deepcopy(mapping)
    for kind, fields in _FIELDS.items():
        for part in _parts(first, kind):
            holder = _holder(part, kind)
            for name in fields:
                if _is_swept(holder, name) and holder[name]:
                    holder[name] = _choices(holder, name)[0][1]
    return first


def expand_sweeps(mapping: dict[str, Any], where: str) -> None:
    """Replace each swept task and model by its variants, in place. SpecError for an empty sweep."""
    for name, role in (mapping.get("roles") or {}).items() if isinstance(mapping.get("roles"), dict) else ():
        for field in _PARAMS:
            if isinstance(role, dict) and _is_swept(_holder(role, "models"), field):
                raise SpecError(
                    f"{where}: roles.{name}.params.{field}: a role is a single model; only `models` can be swept"
                )
    _expand(mapping, "tasks", where)
    variants = _expand(mapping, "models", where)
    for task in _parts(mapping, "tasks"):
        if isinstance(task.get("models"), list):
            task["models"] = [name for each in task["models"] for name in variants.get(str(each), [each])]


def base_of(name: str, bases: Mapping[str, object]) -> str:
    """Return the task or model in `bases` that has this name or this variant; empty if there is none."""
    parts = name.split("+")
    candidates = ("+".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in bases), "")


def _expand(mapping: dict[str, Any], kind: str, where: str) -> dict[str, list[str]]:
    """Expand all tasks or all models. Returns the names of the variants by base name."""
    parts = mapping.get(kind)
    if not isinstance(parts, list):
        return {}
    made: list[Any] = []
    names: dict[str, list[str]] = {}
    for index, part in enumerate(parts):
        variants = list(_variants(part, kind, f"{where}: {kind}[{index}]")) if isinstance(part, dict) else [part]
        if len(variants) > 1 and isinstance(part.get("name"), str):
            names[part["name"]] = [variant["name"] for variant in variants]
        made += variants
    mapping[kind] = made
    return names


def _variants(part: dict[str, Any], kind: str, place: str) -> Iterator[dict[str, Any]]:
    holder = _holder(part, kind)
    swept = [name for name in _FIELDS[kind] if _is_swept(holder, name)]
    expected = "texts" if kind == "tasks" else "single values"
    for name in swept:
        where = f"{place}.{'params.' if kind == 'models' else ''}{name}"
        if not holder[name]:
            raise SpecError(f"{where}: an empty sweep; give at least one value")
        for label, value in _choices(holder, name):
            if isinstance(value, dict | list) or (kind == "tasks" and not isinstance(value, str)):
                raise SpecError(f"{where}: a sweep consists of {expected}, but {label} is {kind_of(value)}")
    if not swept or not isinstance(part.get("name"), str):
        yield part
        return
    for chosen in itertools.product(*(_choices(holder, name) for name in swept)):
        variant = copy.deepcopy(part)
        variant["name"] = "+".join([part["name"], *(label for label, _ in chosen)])
        _holder(variant, kind).update({name: value for name, (_, value) in zip(swept, chosen, strict=True)})
        yield variant


def _choices(holder: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    """Return each value with the label that it adds to the name."""
    given = holder[name]
    if isinstance(given, dict):
        return [(str(label), value) for label, value in given.items()]
    initials = "".join(word[0] for word in name.split("_"))
    if name in _TEXTS:
        return [(f"{initials}{number}", value) for number, value in enumerate(given, 1)]
    return [(value if isinstance(value, str) else f"{initials}{value}", value) for value in given]


def _is_swept(holder: dict[str, Any], name: str) -> bool:
    return isinstance(holder.get(name), list | dict)


def _holder(part: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the mapping that holds the fields that can be swept."""
    if kind == "tasks":
        return part
    params = part.get("params")
    return params if isinstance(params, dict) else {}


def _parts(mapping: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    parts = mapping.get(kind)
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
