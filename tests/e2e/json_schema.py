"""As much of JSON Schema as the spec's schema uses; a keyword that is not known here is an error, never passed over."""

import re
from collections.abc import Callable, Iterator
from typing import Any

_SILENT = {"$defs", "$schema", "title", "description", "default"}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, limit: not _number(value) or value >= limit,
    "exclusiveMinimum": lambda value, limit: not _number(value) or value > limit,
    "maximum": lambda value, limit: not _number(value) or value <= limit,
    "minLength": lambda value, limit: not isinstance(value, str) or len(value) >= limit,
    "maxLength": lambda value, limit: not isinstance(value, str) or len(value) <= limit,
    "minItems": lambda value, limit: not isinstance(value, list) or len(value) >= limit,
    "pattern": lambda value, limit: not isinstance(value, str) or re.search(limit, value) is not None,
    "enum": lambda value, limit: value in limit,
    "const": lambda value, limit: bool(value == limit),
    "type": lambda value, limit: any(_TYPES[name](value) for name in ([limit] if isinstance(limit, str) else limit)),
}


def problems(schema: dict[str, Any], value: Any) -> list[str]:
    """What a value violates, with its place; none if the schema accepts it."""
    return list(_problems(schema, schema, value, "$"))


def _problems(root: dict[str, Any], schema: dict[str, Any], value: Any, place: str) -> Iterator[str]:
    for keyword, limit in schema.items():
        if keyword in _LIMITS:
            if not _LIMITS[keyword](value, limit):
                yield f"{place}: {value!r} is against {keyword} {limit!r}"
        elif keyword in {"properties", "additionalProperties", "required"}:
            yield from _members(root, schema, keyword, value, place) if isinstance(value, dict) else ()
        elif keyword not in _SILENT:
            yield from _parts(root, keyword, limit, value, place)


def _parts(root: dict[str, Any], keyword: str, limit: Any, value: Any, place: str) -> Iterator[str]:
    if keyword == "$ref":
        yield from _problems(root, _at(root, limit), value, place)
    elif keyword == "anyOf":
        if all(list(_problems(root, each, value, place)) for each in limit):
            yield f"{place}: {value!r} is none of the kinds allowed"
    elif keyword == "items":
        for number, each in enumerate(value if isinstance(value, list) else ()):
            yield from _problems(root, limit, each, f"{place}[{number}]")
    else:
        raise AssertionError(f"the schema uses {keyword}, which this test does not know yet")


def _members(
    root: dict[str, Any], schema: dict[str, Any], keyword: str, value: dict[str, Any], place: str
) -> Iterator[str]:
    known = schema.get("properties", {})
    if keyword == "required":
        yield from (f"{place}: {name} is missing" for name in schema["required"] if name not in value)
    elif keyword == "properties":
        for name in known.keys() & value.keys():
            yield from _problems(root, known[name], value[name], f"{place}.{name}")
    else:
        others = schema["additionalProperties"]
        for name in value.keys() - known.keys():
            if others is False:
                yield f"{place}: {name} is not known"
            elif isinstance(others, dict):
                yield from _problems(root, others, value[name], f"{place}.{name}")


def _at(root: dict[str, Any], reference: str) -> dict[str, Any]:
    found = root
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
