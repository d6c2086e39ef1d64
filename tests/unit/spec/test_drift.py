"""Every field of a spec, found from its types, is refused or accepted as its class says; a new field is covered too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.records.facts import Change
from holdfast.spec import Spec, build_spec
from holdfast.spec.drift import find_differences, refused_changes, with_own_places
from holdfast.spec.types import field_classes
from tests.spec_fields import Leaf, Place, changed, full_spec, local_leaves, value_at, with_value

LEAVES = list(local_leaves())
SECOND = {"name": "second", "dataset": {"path": "second.jsonl"}}


@pytest.fixture
def full(tmp_path: Path) -> dict[str, Any]:
    """Every kind of part occurs in it, and of those that have an order there are two."""
    mapping = full_spec(tmp_path)
    return {**mapping, "tasks": [*mapping["tasks"], SECOND]}


@pytest.fixture
def stored(full: dict[str, Any]) -> Spec:
    return build_spec(full)


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_the_class_of_a_field_decides_what_its_change_means(leaf: Leaf, full: dict[str, Any], stored: Spec) -> None:
    old = value_at(stored, leaf)
    new = changed(leaf, old)
    changes = find_differences(stored, build_spec(with_value(full, leaf.place, new)))
    assert {change.kind for change in changes} == {leaf.declared}
    assert bool(refused_changes(changes)) == (leaf.declared == "result")
    if leaf.name != "name":  # a part with another name is another part
        assert changes == [Change(leaf.field, old, new, leaf.declared)]


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_a_worker_keeps_only_its_own_speed_and_places(leaf: Leaf, full: dict[str, Any], stored: Spec) -> None:
    own = build_spec(with_value(full, leaf.place, changed(leaf, value_at(stored, leaf))))
    kept = leaf.declared in ("place", "throughput")
    assert find_differences(with_own_places(stored, own), own if kept else stored) == []


def test_a_part_that_only_the_run_has_is_kept_and_an_own_mirror_too(full: dict[str, Any], stored: Spec) -> None:
    mirror = full.pop("mirror", None)
    full["tasks"].pop()
    own = build_spec(full)
    assert mirror
    found = with_own_places(stored, own)
    assert (found.mirror, found.tasks) == (None, stored.tasks)


def test_every_field_of_every_part_was_reached() -> None:
    """A field that the walk does not lead to would be tested by nobody."""
    reached = {(leaf.place[0], leaf.name) for leaf in LEAVES}
    for name, declared in field_classes(Spec):
        assert declared == "nested" or (name, name) in reached
    assert {"n", "seed", "path"} <= {leaf.name for leaf in LEAVES if "fewshot" in leaf.place}
    assert {"seconds", "steps", "tokens"} <= {leaf.name for leaf in LEAVES if leaf.place[0] == "limits"}
    assert {"params", "max_connections"} <= {leaf.name for leaf in LEAVES if leaf.place[0] == "roles"}
    assert {"input", "output"} <= {leaf.name for leaf in LEAVES if "price" in leaf.place}
    assert len(LEAVES) > 60


def test_a_spec_does_not_differ_from_itself_however_it_was_stored(stored: Spec) -> None:
    read = msgspec.convert(msgspec.json.decode(msgspec.json.encode(stored)), Spec)
    assert find_differences(read, stored) == []


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (("models",), lambda models: models[:1]),
        (("models",), lambda models: models[::-1]),
        (("tasks",), lambda tasks: tasks[:1]),
        (("tasks",), lambda tasks: tasks[::-1]),
        (("roles",), lambda roles: {}),
        (("tasks", 0, "fewshot"), lambda fewshot: None),
    ],
    ids=["a model less", "models in another order", "a task less", "tasks in another order", "no role", "no shots"],
)
def test_a_part_that_comes_goes_or_moves_is_refused(
    place: Place, other: Callable[[Any], Any], full: dict[str, Any], stored: Spec
) -> None:
    part: Any = full
    for step in place:
        part = part[step]
    given = build_spec(with_value(full, place, other(part)))
    assert refused_changes(find_differences(stored, given))
    assert refused_changes(find_differences(given, stored))


@pytest.mark.parametrize(
    "place", [(*part, name) for part in (("models", 0), ("roles", "judge")) for name in ("price", "batch")], ids=str
)
def test_a_price_or_a_batch_that_comes_or_goes_changes_no_answer(
    place: Place, full: dict[str, Any], stored: Spec
) -> None:
    """A part is as grave as the gravest of its fields."""
    given = build_spec(with_value(full, place, None))
    for one, other in ((stored, given), (given, stored)):
        assert [change.kind for change in find_differences(one, other)] == ["throughput"]


def test_a_difference_names_the_part_by_its_name(full: dict[str, Any], stored: Spec) -> None:
    given = build_spec(full, sets=["models.arith.params.temperature=0.9", "tasks[1].prompt=x"])
    assert find_differences(stored, given) == [
        Change("models.arith.params", {"temperature": 0.0}, {"temperature": 0.9}, "result"),
        Change("tasks.second.prompt", "", "x", "result"),
    ]


@pytest.mark.parametrize(("old", "new"), [(1, True), (0, False), ({"a": [1]}, {"a": [True]})])
def test_values_that_python_calls_equal_and_a_server_does_not_are_a_difference(
    old: Any, new: Any, full: dict[str, Any]
) -> None:
    one, other = (build_spec(with_value(full, ("models", 0, "params"), {"own_switch": value})) for value in (old, new))
    assert refused_changes(find_differences(one, other))


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
    assert find_differences(effective(**one), effective(**other)) == []
    assert effective(**one) == effective(**other)
