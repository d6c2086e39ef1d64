"""Types and arguments in words, for `holdfast info` and the reference pages. Pure: no clock, file or network."""

import inspect
import json
import re
import typing
from collections.abc import Callable, Collection
from typing import Any

import msgspec
from msgspec import inspect as kinds

from holdfast.score import BUILT_IN_SCALES, Scorer, arguments_after, describe_scale
from holdfast.stats import Scale


class ArgumentInfo(msgspec.Struct, frozen=True):
    """One argument of something that a spec or a command line names."""

    name: str
    type: str
    default: str | None = None
    """As JSON; None: it is required."""
    meaning: str = ""


def in_words(kind: kinds.Type) -> str:
    """A type as a user would name it. TypeError for one that has no words yet."""
    while isinstance(kind, kinds.Metadata):
        kind = kind.type
    for known, describe in _WORDS.items():
        if isinstance(kind, known):
            return describe(kind)
    raise TypeError(f"there are no words for {kind!r}: add them to _WORDS in {__name__}")


def _text(kind: kinds.StrType) -> str:
    choice = re.fullmatch(r"\^\(([\w|-]+)\)\$", kind.pattern or "")
    if choice:
        return " or ".join(f"`{each}`" for each in choice[1].split("|"))
    if kind.pattern:
        return f"text that matches `{kind.pattern}`"
    if kind.max_length is not None:
        return f"text of {kind.min_length or 0} to {kind.max_length} characters"
    return "text, not empty" if kind.min_length else "text"


def _number(kind: kinds.IntType | kinds.FloatType) -> str:
    bounds = {"of at least": kind.ge, "above": kind.gt, "of at most": kind.le, "below": kind.lt}
    limits = [f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None]
    return " ".join(["whole number" if isinstance(kind, kinds.IntType) else "number", *limits])


def _list(kind: kinds.ListType) -> str:
    item = in_words(kind.item_type)
    words = f"list of ({item})" if isinstance(kind.item_type, kinds.UnionType) else f"list of {item}"
    return f"{words} (at least {kind.min_length})" if kind.min_length else words


def _mapping(kind: kinds.DictType) -> str:
    if isinstance(kind.value_type, kinds.AnyType):
        return "mapping"
    return f"mapping of names to {in_words(kind.value_type)}"


def _union(kind: kinds.UnionType) -> str:
    return " or ".join(in_words(each) for each in kind.types)


_WORDS: dict[type[kinds.Type], Callable[[Any], str]] = {
    kinds.AnyType: lambda _: "anything",
    kinds.NoneType: lambda _: "null",
    kinds.BoolType: lambda _: "`true` or `false`",
    kinds.IntType: _number,
    kinds.FloatType: _number,
    kinds.StrType: _text,
    kinds.LiteralType: lambda kind: " or ".join(f"`{each}`" for each in kind.values),
    kinds.ListType: _list,
    kinds.TupleType: lambda kind: f"list of {len(kind.item_types)} ({in_words(kind.item_types[0])})",
    kinds.DictType: _mapping,
    kinds.UnionType: _union,
    kinds.StructType: lambda kind: link(kind.cls),
}


def link(part: type[msgspec.Struct]) -> str:
    """A type of the spec as a link on its reference page."""
    return f"[{part.__name__}](#{part.__name__.lower()})"


def field_arguments(part: type[msgspec.Struct], names: Collection[str]) -> list[ArgumentInfo]:
    """Some fields of a part of the spec."""
    info = kinds.type_info(part)
    assert isinstance(info, kinds.StructType)
    found = []
    for field in info.fields:
        if field.name in names:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            found.append(ArgumentInfo(field.name, in_words(field.type), default_words(default), field_meaning(field)))
    return found


def field_meaning(field: kinds.Field) -> str:
    """The sentence in a field's annotation. TypeError if there is none: a reference page would have a gap."""
    text = (field.type.extra_json_schema or {}).get("description") if isinstance(field.type, kinds.Metadata) else None
    if not text:
        raise TypeError(f"the field {field.name!r} has no description: add described(...) to its type")
    return str(text)


def scorer_arguments(function: Callable[..., Any], given: int = 2) -> list[ArgumentInfo]:
    """The arguments of a scorer or an extractor after the `given` first parameters, which Holdfast sets."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = []
    for name, parameter in arguments_after(function, given)[0].items():
        if name != "ctx":
            found.append(ArgumentInfo(name, _scorer_words(hints[name]), default_words(parameter.default)))
    return found


def _scorer_words(hint: Any) -> str:
    if hint is Scorer or hint == Scorer | None:
        return "a scorer"
    if typing.get_origin(hint) is list and Scorer in typing.get_args(hint):
        return "list of scorers"
    return "mapping of labels to scorers" if "Scorer" in str(hint) else in_words(kinds.type_info(hint))


def default_words(value: Any) -> str | None:
    """A default value as JSON; None if there is none. Scorers, roles and tools are written as their names."""
    if value is inspect.Parameter.empty or value is msgspec.NODEFAULT:
        return None
    return json.dumps(value, default=lambda part: getattr(part, "name", str(part)))


def scale_words(scorer: str) -> str:
    """The scale of a built-in scorer, or the rule that gives it."""
    scale = BUILT_IN_SCALES[scorer]
    return describe_scale(scale) if isinstance(scale, Scale) else description(scale)


def description(function: Any) -> str:
    """The docstring, without its indentation."""
    return inspect.cleandoc(function.__doc__ or "")
