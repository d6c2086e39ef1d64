"""Every field of a spec, found from its types, is refused or accepted as its class says; a new field is covered too."""

import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from holdfast.records.facts import Change
from holdfast.spec import Spec, build_spec
from holdfast.spec.classes import field_classes
from holdfast.spec.drift import differences, refused

Step = str | int
S = TypeVar("S", bound=msgspec.Struct)

FULL = {
    "tags": ["nightly"],
    "models": [
        {"name": "local", "provider": "mock", "params": {"temperature": 0.0}},
        {"name": "b", "provider": "mock"},
    ],
    "roles": {"judge": {"provider": "mock"}},
    "tasks": [
        {
            "name": "sums",
            "dataset": {"path": "sums.jsonl"},
            "fewshot": {"path": "shots.jsonl"},
            "scorers": ["numeric"],
            "models": ["local"],
        },
        {"name": "second", "dataset": {"path": "second.jsonl"}},
    ],
}
"""Every kind of part occurs in it, so that every field can be reached."""


class Leaf(NamedTuple):
    """A field that can be changed: how to get there, and what its type declares."""

    path: tuple[Step, ...]
    declared: str
    hint: Any

    def __str__(self) -> str:
        return ".".join(map(str, self.path))


def leaves(part: msgspec.Struct, path: tuple[Step, ...] = ()) -> Iterator[Leaf]:
    hints = typing.get_type_hints(type(part), include_extras=True)
    for name, declared in field_classes(type(part)):
        value = getattr(part, name)
        if declared != "nested":
            yield Leaf((*path, name), str(declared), hints[name])
        elif isinstance(value, msgspec.Struct):
            yield from leaves(value, (*path, name))
        elif isinstance(value, list | dict):
            for key, each in enumerate(value) if isinstance(value, list) else value.items():
                yield from leaves(each, (*path, name, key))


def other_value(value: Any, hint: Any) -> Any:
    """Another value of the same type that the type's limits allow."""
    bare = [each for each in _kinds(hint) if each is not type(None)]
    candidates: list[Any] = [*_changed(value)]
    plain: dict[Any, list[Any]] = {int: [11], float: [2.5], str: ["jinja", "cancel-sample", "other"], bool: [True]}
    for kind in bare:
        candidates += plain.get(kind, [])
        candidates += [["other"], [{"role": "user"}]] if typing.get_origin(kind) is list else []
        candidates += [{"other": "x"}, {"other": {}}] if typing.get_origin(kind) is dict else []
    for candidate in candidates:
        if candidate != value and _fits(candidate, hint):
            return candidate
    raise AssertionError(f"no other value than {value!r} is known for {hint}: teach this test one")


def _changed(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
    elif isinstance(value, str):
        yield f"{value}x"
    elif isinstance(value, list):
        yield [*value, "other"]


def _kinds(hint: Any) -> Iterator[Any]:
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        yield from _kinds(typing.get_args(hint)[0])
    elif origin in (typing.Union, types.UnionType):
        for each in typing.get_args(hint):
            yield from _kinds(each)
    else:
        yield hint


def _fits(value: Any, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def with_value(part: S, path: tuple[Step, ...], value: Any) -> S:
    head, *rest = path
    assert isinstance(head, str)
    if not rest:
        return msgspec.structs.replace(part, **{head: value})
    inner = getattr(part, head)
    if isinstance(inner, msgspec.Struct):
        return msgspec.structs.replace(part, **{head: with_value(inner, tuple(rest), value)})
    copied = inner.copy()
    copied[rest[0]] = with_value(inner[rest[0]], tuple(rest[1:]), value)
    return msgspec.structs.replace(part, **{head: copied})


def value_at(part: Any, path: tuple[Step, ...]) -> Any:
    for step in path:
        part = getattr(part, str(step)) if isinstance(part, msgspec.Struct) else part[step]
    return part


STORED = build_spec(FULL)
LEAVES = list(leaves(STORED))


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_the_class_of_a_field_decides_what_its_change_means(leaf: Leaf) -> None:
    value = other_value(value_at(STORED, leaf.path), leaf.hint)
    given = with_value(STORED, leaf.path, value)
    changes = differences(STORED, given)
    assert {change.kind for change in changes} == {leaf.declared}
    assert bool(refused(changes)) == (leaf.declared == "result")
    if leaf.path[-1] != "name":  # a part with another name is another part
        (change,) = changes
        assert change.field.split(".")[-1] == leaf.path[-1]
        assert (change.old, change.new) == (value_at(STORED, leaf.path), value)


def test_every_field_of_every_part_was_reached() -> None:
    """A field that the full spec above does not lead to would be tested by nobody."""
    reached = {(leaf.path[0], leaf.path[-1]) for leaf in LEAVES}
    for name, declared in field_classes(Spec):
        assert declared == "nested" or (name, name) in reached
    assert {"n", "seed", "path"} <= {leaf.path[-1] for leaf in LEAVES if "fewshot" in leaf.path}
    assert {"seconds", "steps", "tokens"} <= {leaf.path[-1] for leaf in LEAVES if leaf.path[0] == "limits"}
    assert {"params", "max_connections"} <= {leaf.path[-1] for leaf in LEAVES if leaf.path[0] == "roles"}
    assert len(LEAVES) > 60


def test_a_spec_does_not_differ_from_itself_however_it_was_stored() -> None:
    stored = msgspec.convert(msgspec.json.decode(msgspec.json.encode(STORED)), Spec)
    assert differences(stored, STORED) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("models",), STORED.models[:1]),
        (("models",), list(reversed(STORED.models))),
        (("tasks",), STORED.tasks[:1]),
        (("tasks",), list(reversed(STORED.tasks))),
        (("roles",), {}),
        (("tasks", 0, "fewshot"), None),
    ],
    ids=["a model less", "models in another order", "a task less", "tasks in another order", "no role", "no shots"],
)
def test_a_part_that_comes_goes_or_moves_is_refused(path: tuple[Step, ...], value: Any) -> None:
    given = with_value(STORED, path, value)
    assert refused(differences(STORED, given))
    assert refused(differences(given, STORED))


def test_a_difference_names_the_part_by_its_name() -> None:
    given = build_spec(FULL, sets=["models.local.params.temperature=0.9", "tasks[1].prompt=x"])
    assert differences(STORED, given) == [
        Change("models.local.params", {"temperature": 0.0}, {"temperature": 0.9}, "result"),
        Change("tasks.second.prompt", "", "x", "result"),
    ]


@pytest.mark.parametrize(("old", "new"), [(1, True), (0, False), ({"a": [1]}, {"a": [True]})])
def test_values_that_python_calls_equal_and_a_server_does_not_are_a_difference(old: Any, new: Any) -> None:
    stored = with_value(STORED, ("models", 0, "params"), {"logprobs": old})
    given = with_value(STORED, ("models", 0, "params"), {"logprobs": new})
    assert refused(differences(stored, given))


def effective(**changes: Any) -> Spec:
    plain = {
        "models": [{"name": "a", "provider": "mock"}],
        "tasks": [{"name": "t", "dataset": {"path": "t.jsonl"}}, {"name": "u", "dataset": {"path": "u.jsonl"}}],
    }
    return build_spec({**plain, **changes})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"defaults": {"repeats": 3}},
            {
                "tasks": [
                    {"name": "t", "dataset": {"path": "t.jsonl"}, "repeats": 3},
                    {"name": "u", "dataset": {"path": "u.jsonl"}, "repeats": 3},
                ]
            },
        ),
        (
            {"defaults": {"params": {"temperature": 0.5}}},
            {"models": [{"name": "a", "provider": "mock", "params": {"temperature": 0.5}}]},
        ),
        (
            {"defaults": {"provider": "mock"}, "models": [{"name": "a"}]},
            {"models": [{"name": "a", "provider": "mock"}]},
        ),
        ({"models": [{"provider": "mock", "name": "a"}]}, {"models": [{"name": "a", "provider": "mock"}]}),
        ({"defaults": {}}, {}),
        ({"seed": 0, "limits": {}, "tags": []}, {}),
    ],
    ids=["task field", "model field", "required field", "order of keys", "empty defaults", "defaults spelled out"],
)
def test_where_a_value_is_written_is_no_drift(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert differences(effective(**one), effective(**other)) == []
    assert effective(**one) == effective(**other)
