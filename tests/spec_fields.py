"""Every leaf field of a spec, found by walking its types, and another valid value for each.

A field that is added to a spec type is found by itself. If its type has no rule below, or the full spec does not lead
to it, `changed` and `value_at` fail with what is to be added here.
"""

import copy
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.spec import Dataset, Fewshot, Mirror, Model, Sandbox, Spec, Task
from holdfast.spec.types import Shuffle, Stratified, field_classes, nested_type
from tests.e2e.commands import sums, write_rows

Mapping = dict[str, Any]
Place = tuple[str | int, ...]
ROLE = "judge"
REMOTE = ("sha256", "hub", "config", "split", "revision", "convert")
_WORDS = re.compile(r"\^\(([\w|-]+)\)\$")
_NAMED = {"models": "arith", "tasks": "sums"}
"""What the first entries of the full spec are called: a difference names them so."""


class Leaf(NamedTuple):
    """A field that has no fields of its own."""

    place: Place
    owner: type[msgspec.Struct]
    declared: str
    hint: Any

    @property
    def name(self) -> str:
        return str(self.place[-1])

    @property
    def field(self) -> str:
        """As a difference names it: `models.arith.params`."""
        steps = [_NAMED[str(above)] if step == 0 else str(step) for above, step in zip(("", *self.place), self.place)]  # noqa: B905 - the last has nothing below it
        return ".".join(steps)

    @property
    def setting(self) -> str:
        """As `--set` names it: `models[0].params`."""
        return ".".join(map(str, self.place)).replace(".0", "[0]")

    def __str__(self) -> str:
        return self.field


def leaves(kind: type[msgspec.Struct] = Spec, place: Place = ()) -> Iterator[Leaf]:
    """Depth first, in the order of declaration."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, declared in field_classes(kind):
        here = (*place, name)
        if declared != "nested":
            yield Leaf(here, kind, str(declared), hints[name])
            continue
        inner = nested_type(kind, name)
        assert inner is not None
        yield from leaves(inner, (*here, *_first_entry(hints[name])))


def local_leaves() -> list[Leaf]:
    """Without the fields that only data from the network and of benchmarks have: the full spec has files."""
    return [leaf for leaf in leaves() if leaf.owner not in (Dataset, Fewshot) or leaf.name not in REMOTE]


def full_spec(folder: Path) -> Mapping:
    """Every kind of part occurs in it, so that every leaf can be reached; its data lie in the folder."""
    for name, count in (("sums", 3), ("shots", 4)):
        for copied in (name, f"{name}-copy"):
            write_rows(folder / f"{copied}.jsonl", [{**row, "kind": "sum"} for row in sums(count)])
    model = {
        "provider": "mock",
        "options": {"reply": "8"},
        "params": {"temperature": 0.0},
        "headers": {"X-Kind": "test"},
        "price": {"input": 2.0, "output": 8.0},
        "batch": {"quiet_seconds": 0.05, "poll_seconds": 0.05, "settle_seconds": 0.1},
    }
    return {
        "experiment": "drift",
        "tags": ["nightly"],
        "mirror": {"url": f"file://{folder}/mirror", "seconds": 0.2},
        "models": [{"name": name, **copy.deepcopy(model)} for name in ("arith", "spare")],  # no part is shared
        "roles": {ROLE: {"name": ROLE, **copy.deepcopy(model)}},
        "tasks": [
            {
                "name": "sums",
                "dataset": {
                    "path": f"{folder}/sums.jsonl",
                    "id": "id",
                    "input": "question",
                    "target": "answer",
                    "shuffle": {"seed": 1},
                    "sample": {"n": 3, "by": "answer"},
                },
                "prompt": "Compute: {question}",
                "fewshot": {"path": f"{folder}/shots.jsonl", "n": 2},
                "solver": {"chat": {"role": ROLE}},  # a role that no solver uses belongs to scores alone
                "scorers": ["numeric"],
                "sandbox": {"seconds": 30.0},
                "benchmark": {"name": "of-another-package"},
            }
        ],
    }


def value_at(spec: Spec, leaf: Leaf) -> Any:
    """The effective value."""
    part: Any = spec
    for step in leaf.place:
        part = getattr(part, str(step)) if isinstance(part, msgspec.Struct) else part[step]
        if part is None and step != leaf.place[-1]:
            raise AssertionError(f"{leaf}: the full spec has no {step!r}; put one into full_spec() of {__name__}")
    return msgspec.to_builtins(part)


def changed(leaf: Leaf, value: Any) -> Any:
    """Another value that the field may have."""
    rule = _OTHER.get((leaf.owner, leaf.name)) or _one_of(leaf.hint)
    rule = rule or next((_BY_TYPE[kind] for kind in _kinds(leaf.hint) if kind in _BY_TYPE), None)
    if rule is None:
        raise AssertionError(f"{leaf}: no rule makes another value for its type {leaf.hint}; add one to {__name__}")
    other = rule(copy.deepcopy(value))
    assert other != value, f"{leaf}: the rule for it in {__name__} gives the value that it had, {value!r}"
    try:
        msgspec.convert(other, leaf.hint)
    except msgspec.ValidationError as error:
        raise AssertionError(f"{leaf}: {other!r} is not valid ({error}); add a rule for it to {__name__}") from error
    return other


def with_value(mapping: Mapping, place: Place, value: Any) -> Mapping:
    """A copy of a spec in which one value is another."""
    made = copy.deepcopy(mapping)
    part: Any = made
    for step in place[:-1]:
        part = part[step] if isinstance(step, int) else part.setdefault(step, {})
    part[place[-1]] = value
    return made


def in_defaults(effective: Mapping, place: Place, value: Any) -> Mapping:
    """The same change written in `defaults`; every other part says itself what it wants."""
    made = with_value(effective, place, value)
    part: Any = made
    for step in place[:2]:
        part = part[step]
    field = str(place[2])
    return {**made, "defaults": {field: part.pop(field)}}


def has_default(leaf: Leaf) -> bool:
    """Whether `defaults` may say it: fields of models, roles (but for params) and tasks, not their names."""
    if leaf.place[0] not in {"models", "roles", "tasks"} or leaf.place[2] == "name":
        return False
    return leaf.place[0] != "roles" or leaf.name != "params"


def _first_entry(hint: Any) -> Place:
    origins = {typing.get_origin(kind) for kind in _kinds(hint)}
    return (0,) if list in origins else (ROLE,) if dict in origins else ()


def _kinds(hint: Any) -> Iterator[Any]:
    """The types that a value may have, without what limits it."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        yield from _kinds(typing.get_args(hint)[0])
    elif origin in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _kinds(each)
    else:
        yield hint


def _one_of(hint: Any) -> Callable[[Any], Any] | None:
    """Another word, for a text that is one of a few: its pattern is `^(one|other)$`."""
    for meta in getattr(hint, "__metadata__", ()):
        words = _WORDS.fullmatch(meta.pattern or "") if isinstance(meta, msgspec.Meta) else None
        if words is not None:
            return lambda value: next(word for word in words[1].split("|") if word != value)
    return None


def _entry_changed(value: Mapping) -> Mapping:
    """One entry that is there says something else; in an empty mapping there is one more."""
    name, old = next(iter(value.items()), ("other", "x"))
    return {**value, name: f"{old}-other" if isinstance(old, str) else old + 1}


def _copied(path: str) -> str:
    """Another place with the same content."""
    return path.replace(".jsonl", "-copy.jsonl")


_BY_TYPE: dict[Any, Callable[[Any], Any]] = {
    bool: lambda value: not value,
    int: lambda value: (value or 0) + 1,
    float: lambda value: (value or 0.0) + 1.0,
    str: lambda value: f"{value}-other" if value else "other",
    list[str]: lambda value: [*(value or []), "other"],
    dict[str, str]: _entry_changed,
    dict[str, Any]: _entry_changed,
}

_OTHER: dict[tuple[type[msgspec.Struct], str], Callable[[Any], Any]] = {
    (Model, "provider"): lambda _: "holdfast.models.providers.mock:make_mock",
    (Dataset, "path"): _copied,
    (Dataset, "files_root"): lambda _: "/srv/files",
    (Dataset, "format"): lambda _: "jsonl",
    (Dataset, "id"): lambda _: "question",
    (Dataset, "input"): lambda _: "answer",
    (Dataset, "target"): lambda _: "question",
    (Dataset, "group"): lambda _: "answer",
    (Dataset, "columns"): lambda _: ["id", "question", "answer", "kind"],
    (Dataset, "where"): lambda _: "answer != '0'",
    (Shuffle, "by"): lambda _: "answer",
    (Stratified, "n"): lambda _: 2,
    (Stratified, "by"): lambda _: "question",
    (Fewshot, "path"): _copied,
    (Fewshot, "by"): lambda _: "kind",
    (Fewshot, "answer"): lambda _: "It is {answer}",
    (Sandbox, "files"): lambda _: {"question.txt": "question"},
    (Task, "messages"): lambda _: [{"role": "user", "content": "Are you ready?"}],
    (Task, "solver"): lambda _: "holdfast.solve.registry:chat",
    (Task, "scorers"): lambda _: [{"numeric": {"name": "close", "tolerance": 50.0}}, "exact_match"],
    (Task, "reduce"): lambda _: ["median", {"at_least": {"k": 1, "threshold": 0.5}}],
    (Task, "models"): lambda _: ["arith"],
    (Mirror, "url"): lambda value: f"{value}-copy",
    (Spec, "anomalies_except"): lambda _: ["slow"],
    (Spec, "samples"): lambda _: ["s0001", "s0002"],
    (Spec, "shard"): lambda _: "1/2",
}
"""Values that the rule for their type would not get right, or that mean more than a text."""
