"""Resume rules in the types: every field of a spec declares what changing it means.

Each field of each spec type carries one class: `result` (changes an answer), `evaluation` (changes only scores),
`throughput` (changes only speed, extent or display), `place` (where things are), or `nested` (the fields inside carry
their own classes). Invariant: a type with an unclassified field fails when its module is imported.
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


def described(sentence: str) -> msgspec.Meta:
    """The description of a field, for docs/fields.md and the JSON Schema."""
    return msgspec.Meta(description=sentence)


_classified: set[type[msgspec.Struct]] = set()

T = TypeVar("T", bound=msgspec.Struct)


def classified(kind: type[T]) -> type[T]:
    """Class decorator: raise TypeError if a field, also of a nested type, declares no class."""
    for name, declared in field_classes(kind):
        if declared is None:
            raise TypeError(f"{kind.__name__}.{name} declares no class; annotate it, for example with RESULT")
        inner = nested_type(kind, name) if declared == "nested" else None
        if inner is not None and inner not in _classified:
            classified(inner)
        if declared == "nested" and inner is None:
            raise TypeError(f"{kind.__name__}.{name} is declared NESTED, but its type is not a classified struct")
    _classified.add(kind)
    return kind


def field_classes(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str | None]]:
    """Yield each field's name and class; the class is None if the field declares none."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        yield field.name, _declared_class(hints[field.name])


def nested_type(kind: type[msgspec.Struct], name: str) -> type[msgspec.Struct] | None:
    """Return the struct type of a field, also inside a list, dict or optional; None if there is none."""
    return _struct_in(typing.get_type_hints(kind)[name])


def _declared_class(hint: Any) -> str | None:
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
