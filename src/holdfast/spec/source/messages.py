"""Saying what is wrong with a spec: where, in the user's words, and the nearest valid name."""

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.spec.field_classes import nested_type
from holdfast.spec.types import Model, Spec, Task

_AT = re.compile(r" - at `\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_NULL = "Expected `object`, got `null`"
_OFF = "{} means that nothing is limited; null switches single limits off"
_DEFAULTS = "leave it out, or write {}, for its defaults"
_SLIP = 0.8
"""So alike are a field and a slip of it; `api_key` is not, to `api_key_env`."""
_SECRET_WORDS = ("api_key", "apikey", "token", "secret", "password")


def explain(error: msgspec.ValidationError, where: str) -> SpecError:
    """Our words for what msgspec found: the place as the user writes it, and the nearest valid name."""
    message = str(error)
    at = _AT.search(message)
    place = at[1] if at else ""
    message = _AT.sub("", message)
    unknown = _UNKNOWN.search(message)
    if unknown:
        names = _fields_at(place)
        message = f"unknown field {unknown[1]!r}{_secret(unknown[1], names) or nearest(unknown[1], names)}"
    elif message == _NULL:
        message = f"expected a mapping, got null; {_OFF if place.startswith('limits') else _DEFAULTS}"
    told = f"{message[:1].lower()}{message[1:]}"
    return SpecError(": ".join(filter(None, (where, place, told))))


def explain_all(error: msgspec.ValidationError, mapping: Mapping[str, Any], where: str) -> SpecError:
    """Every task and model looked at by itself: msgspec stops at the first mistake, and a user wants them all."""
    found = {str(explain(error, where)): None}
    for place, kind, part in _parts(mapping):
        try:
            msgspec.convert(part, kind, strict=False)
        except msgspec.ValidationError as other:
            found[str(explain(_moved(other, place), where))] = None
    return SpecError("\n".join(found))


def _parts(mapping: Mapping[str, Any]) -> Iterator[tuple[str, type[msgspec.Struct], Any]]:
    for name, kind in (("models", Model), ("tasks", Task)):
        parts = mapping.get(name)
        yield from ((f"{name}[{i}]", kind, part) for i, part in enumerate(parts if isinstance(parts, list) else ()))


def _moved(error: msgspec.ValidationError, place: str) -> msgspec.ValidationError:
    """The same mistake, with its place in the whole spec."""
    message, _, at = str(error).partition(" - at `$")
    return msgspec.ValidationError(f"{message} - at `$.{place}{at.removesuffix('`')}`")


def _secret(name: str, valid: set[str]) -> str:
    """What to do with a secret; empty for a name that is none, or a slip of a field that there is (`token`)."""
    if not any(word in name.lower() for word in _SECRET_WORDS) or difflib.get_close_matches(
        name, valid, n=1, cutoff=_SLIP
    ):
        return ""
    return "; a secret belongs in the environment: name its variable with api_key_env"


def _fields_at(place: str) -> set[str]:
    kind: type[msgspec.Struct] = Spec
    for part in filter(None, place.split(".")):
        name = part.split("[")[0]
        if name in {each.name for each in msgspec.structs.fields(kind)}:
            kind = nested_type(kind, name) or kind
    extra = {"defaults"} if kind is Spec else set()
    return {each.name for each in msgspec.structs.fields(kind)} | extra


def nearest(name: str, valid: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; valid are {', '.join(sorted(valid))}"


def nearest_file(path: str) -> str:
    folder = os.path.dirname(path) or "."
    names = os.listdir(folder) if os.path.isdir(folder) else []
    close = difflib.get_close_matches(os.path.basename(path), names, n=1)
    return f"; did you mean {os.path.join(os.path.dirname(path), close[0])}?" if close else ""


def kind_of(value: object) -> str:
    return {"NoneType": "empty", "list": "a list", "str": "text", "int": "a number", "float": "a number"}.get(
        type(value).__name__, type(value).__name__
    )
