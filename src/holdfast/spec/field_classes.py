"""What changing a field means, declared in its type.

Every field of every spec type carries one class: `result` (changes an answer), `evaluation` (changes only scores),
`throughput` (changes only how fast, how far or how it is shown), `place` (where things are), or `nested` (its own
fields carry theirs). A type with an unclassified field cannot be imported.
"""

import typing
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

CLASSES = frozenset({"result", "evaluation", "throughput", "place"})

RESULT = msgspec.Meta(extra={"class": "result"})
EVALUATION = msgspec.Meta(extra={"class": "evaluation"})
THROUGHPUT = msgspec.Meta(extra={"class": "throughput"})
PLACE = msgspec.Meta(extra={"class": "place"})
NESTED = msgspec.Meta(extra={"class": "nested"})

_classified: set[type[msgspec.Struct]] = set()

T = TypeVar("T", bound=msgspec.Struct)


def classified(kind: type[T]) -> type[T]:
    """Refuse a type, when it is made, if one of its fields does not say what changing it means."""
    for name, found in field_classes(kind):
        if found is None:
            raise TypeError(f"{kind.__name__}.{name} declares no class: say whether changing it changes results")
        inner = nested_type(kind, name) if found == "nested" else None
        if inner is not None and inner not in _classified:
            classified(inner)
        if found == "nested" and inner is None:
            raise TypeError(f"{kind.__name__}.{name} is declared nested and holds no classified type")
    _classified.add(kind)
    return kind


def field_classes(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str | None]]:
    """Each field with its class, or None where it has none."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        yield field.name, _declared(hints[field.name])


def nested_type(kind: type[msgspec.Struct], name: str) -> type[msgspec.Struct] | None:
    """The classified type inside a field: itself, or the element of a list, dict or optional."""
    return _struct_in(typing.get_type_hints(kind)[name])


def _declared(hint: Any) -> str | None:
    for meta in getattr(hint, "__metadata__", ()):
        extra = meta.extra if isinstance(meta, msgspec.Meta) else None
        if extra and (extra["class"] in CLASSES or extra["class"] == "nested"):
            return str(extra["class"])
    return None


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    found = (_struct_in(argument) for argument in typing.get_args(hint))
    return next((each for each in found if each is not None), None)
