"""Benchmarks in a spec: whole tasks with the changes of the user, and resumes after a new version."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from holdfast.errors import SpecError
from holdfast.plan.benchmarks import (
    Benchmark,
    adopt_benchmarks,
    change_benchmarks,
    changed_fields,
    find_benchmark_doubts,
    resolve_benchmarks,
    science,
)
from holdfast.plan.benchmarks.registry import all_benchmarks, find_conversion, is_benchmark_name
from holdfast.spec import Spec, SpecFile, spec_mapping

MINE = Benchmark(
    name="mine",
    title="Mine",
    source="us",
    licence="MIT",
    metric="exact_match",
    subset="topic",
    convert=lambda row: row,
    task={
        "dataset": {"hub": "o/mine", "split": "test", "target": "answer", "shuffle": {"seed": 1}},
        "prompt": "{question}",
        "scorers": ["exact_match"],
        "fewshot": {"split": "train", "n": 2},
        "counts": {"empty": "wrong", "truncated": "wrong"},
    },
)
BY_CONFIG = msgspec.structs.replace(
    MINE,
    name="mine:configs",
    subset="config",
    share="no-text",
    convert=None,
    task={**MINE.task, "dataset": {"hub": "o/mine", "config": ["de", "en"], "where": "level > 1"}},
)
WHOLE = msgspec.structs.replace(MINE, name="mine:whole", subset="")
BARE = msgspec.structs.replace(MINE, name="bare", task={**MINE.task, "fewshot": None}, share="no-text")
SHOTS = msgspec.structs.replace(MINE, name="bare:2shot", share="no-text")


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    offer(monkeypatch, MINE, BY_CONFIG, WHOLE, BARE, SHOTS)
    yield
    all_benchmarks.cache_clear()


def offer(monkeypatch: pytest.MonkeyPatch, *benchmarks: Benchmark) -> None:
    monkeypatch.setattr(science, "BENCHMARKS", list(benchmarks))
    all_benchmarks.cache_clear()


def spec_of(*tasks: Any, sets: Sequence[str] = (), **fields: Any) -> Spec:
    raw = {"models": [{"name": "m", "provider": "mock"}], "tasks": list(tasks), **fields}
    return resolve_benchmarks(SpecFile("", raw), sets).spec


def test_a_name_alone_is_the_whole_task_with_its_version() -> None:
    (task,) = spec_of("mine").tasks
    assert (task.name, task.prompt, task.dataset.convert, task.share) == ("mine", "{question}", "mine", "ok")
    assert task.benchmark is not None
    assert (task.benchmark.name, task.benchmark.version, task.benchmark.changed) == ("mine", 1, [])


def test_changes_of_mappings_keep_the_other_fields() -> None:
    change = {"benchmark": "mine", "fewshot": {"n": 5}, "dataset": {"limit": 3}, "counts": {"empty": "as_is"}}
    (task,) = spec_of(change).tasks
    assert task.fewshot is not None
    assert (task.fewshot.n, task.fewshot.split) == (5, "train")
    assert (task.dataset.limit, task.dataset.hub, task.counts.truncated) == (3, "o/mine", "wrong")
    assert task.benchmark is not None
    assert sorted(task.benchmark.changed) == ["counts.empty", "dataset.limit", "fewshot.n"]


def test_no_examples_are_zero_examples() -> None:
    assert spec_of({"benchmark": "mine", "fewshot": {"n": 0}}).tasks[0].fewshot is None


def test_one_benchmark_may_be_used_twice_under_other_names() -> None:
    first, second = spec_of("mine", {"benchmark": "mine", "name": "again", "prompt": "Q: {question}"}).tasks
    assert [first.name, second.name] == ["mine", "again"]
    assert second.dataset.convert == "mine"
    assert second.benchmark is not None
    assert second.benchmark.changed == ["prompt"]


def test_subsets_select_by_a_column_or_by_config() -> None:
    assert spec_of({"benchmark": "mine", "subset": "art"}).tasks[0].dataset.where == "topic in ['art']"
    (task,) = spec_of({"benchmark": "mine:configs", "subset": ["en"]}).tasks
    assert (task.dataset.config, task.dataset.where, task.share) == (["en"], "level > 1", "no-text")
    both = {"benchmark": "mine", "subset": ["a", "b"], "dataset": {"where": "level > 1"}}
    assert spec_of(both).tasks[0].dataset.where == "(level > 1) and topic in ['a', 'b']"


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        ("mien", r"tasks\[1\]: there is no benchmark 'mien'; did you mean 'mine'\?"),
        ({"benchmark": "mien"}, r"tasks\[1\]: there is no benchmark 'mien'"),
        ({"benchmark": "mine:configs", "subset": "fr"}, r"tasks\[1\].subset: there is no 'fr'; there are: de, en"),
        ({"benchmark": "mine:whole", "subset": "a"}, r"the benchmark 'mine:whole' has no subsets; use dataset.where"),
        ({"benchmark": "mine", "subset": []}, r"tasks\[1\].subset: expected a name or a list of names"),
        ({"benchmark": "mine", "subset": 3}, r"tasks\[1\].subset: expected a name or a list of names"),
        ({"benchmark": "mine", "promt": "x"}, r"promt"),
    ],
)
def test_unknown_names_and_subsets_are_refused_with_their_place(task: Any, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        spec_of("mine", task)


def test_a_conversion_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpecError, match=r"dataset.convert: the benchmark 'mine:configs' converts no rows"):
        find_conversion("mine:configs")
    with pytest.raises(SpecError, match=r"dataset.convert: there is no benchmark 'nothing'"):
        find_conversion("nothing")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gsm8k", True), ("arc:x", True), ("a/b", False), ("eval.yaml", False), ("e.YML", False), ("e.json", False)],
)
def test_a_name_with_a_slash_or_the_suffix_of_a_spec_is_a_file(name: str, expected: bool) -> None:
    assert is_benchmark_name(name) is expected


def newer(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    offer(monkeypatch, msgspec.structs.replace(MINE, version=2, task={**MINE.task, **fields}))


def test_a_resume_after_a_new_version_uses_the_stored_task(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = spec_of("mine")
    newer(monkeypatch, prompt="Another: {question}", scorers=["includes"], fewshot={"split": "train", "n": 7})
    given = spec_of("mine")
    assert given.tasks[0].prompt == "Another: {question}"
    assert adopt_benchmarks(given, stored).tasks == stored.tasks


def test_changes_of_the_user_stay_so_that_they_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = spec_of("mine")
    newer(monkeypatch, prompt="Another: {question}")
    changed = {"benchmark": "mine", "system": "Be brief.", "fewshot": {"n": 3}, "max_samples": 4}
    (task,) = adopt_benchmarks(spec_of(changed), stored).tasks
    assert (task.prompt, task.system, task.max_samples) == ("{question}", "Be brief.", 4)
    assert task.fewshot is not None
    assert (task.fewshot.n, task.fewshot.split) == (3, "train")
    assert adopt_benchmarks(spec_of(changed), spec_of(changed)).tasks == spec_of(changed).tasks


def test_a_change_that_the_user_no_longer_makes_is_a_difference_too(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"benchmark": "mine", "system": "Be brief.", "fewshot": {"n": 0}}
    stored = spec_of(changed)
    newer(monkeypatch, prompt="Another: {question}")
    (task,) = adopt_benchmarks(spec_of("mine"), stored).tasks
    assert (task.prompt, task.system, task.fewshot) == ("{question}", "", spec_of("mine").tasks[0].fewshot)
    assert adopt_benchmarks(spec_of(changed), stored).tasks == stored.tasks


def test_tasks_of_the_same_version_and_other_benchmarks_are_left_alone() -> None:
    stored = spec_of("mine", {"benchmark": "mine", "name": "b", "prompt": "old"})
    given = spec_of("mine", {"benchmark": "mine:whole", "name": "b", "prompt": "new"})
    assert adopt_benchmarks(given, stored) is given


def test_the_commit_of_a_branch_is_no_change() -> None:
    """A run stores `main@COMMIT` for a benchmark without a fixed revision."""
    (task,) = spec_of("mine").tasks
    commit = "0" * 40
    for revision, changed in ((f"main@{commit}", []), (f"v2@{commit}", ["dataset.revision"])):
        dataset = msgspec.structs.replace(task.dataset, revision=revision)
        assert changed_fields(msgspec.structs.replace(task, dataset=dataset), MINE) == changed


def test_a_subset_is_stored_so_that_planning_can_check_it() -> None:
    (task,) = spec_of({"benchmark": "mine", "subset": ["a", "b"]}).tasks
    assert task.benchmark is not None
    assert (task.benchmark.subset, task.benchmark.by) == (["a", "b"], "topic")


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("tasks.mine.subset=art", "dataset.where", "topic in ['art']"),
        ("tasks.mine.subset=[art, law]", "dataset.where", "topic in ['art', 'law']"),
        ("tasks[0].fewshot.n=5", "fewshot.n", 5),
        ("tasks.mine.fewshot.n=0", "fewshot", None),
        ("tasks.mine.counts.empty=as_is", "counts.empty", "as_is"),
        ("tasks.mine.scorers=[includes]", "scorers", ["includes"]),
        ("tasks.mine.dataset.shuffle=7", "dataset.shuffle.seed", 7),
    ],
)
def test_every_field_of_a_benchmark_can_be_set(setting: str, field: str, value: Any) -> None:
    (task,) = spec_of("mine", sets=[setting]).tasks
    found: Any = task
    for name in field.split("."):
        found = getattr(found, name)
    assert found == value
    assert task.benchmark is not None
    assert any(name.startswith(field) for name in task.benchmark.changed)


def test_a_subset_replaces_that_of_a_stored_spec() -> None:
    both = {"benchmark": "mine", "subset": "art", "dataset": {"where": "level > 1"}}
    for given, where in (({"benchmark": "mine", "subset": "art"}, ""), (both, "(level > 1) and ")):
        stored = spec_mapping(spec_of(given))
        (task,) = change_benchmarks(stored, ["tasks.mine.subset=law"]).tasks
        assert task.dataset.where == f"{where}topic in ['law']"
        assert task.benchmark is not None
        assert task.benchmark.subset == ["law"]
        assert change_benchmarks(stored, ["tasks.mine.repeats=2"]).tasks[0].dataset == spec_of(given).tasks[0].dataset


def test_a_task_that_is_no_benchmark_has_no_subset() -> None:
    with pytest.raises(SpecError, match=r"tasks\[0\].subset: only a benchmark has subsets; use dataset.where"):
        spec_of({"name": "own", "dataset": {"path": "x.jsonl"}, "prompt": "{q}", "subset": "art"})


def test_a_number_of_examples_takes_them_as_the_variant_does_and_points_to_it() -> None:
    spec = spec_of({"benchmark": "bare", "fewshot": {"n": 3}})
    assert spec.tasks[0].fewshot is not None
    assert (spec.tasks[0].fewshot.n, spec.tasks[0].fewshot.split) == (3, "train")
    (doubt,) = find_benchmark_doubts(spec)
    assert doubt.startswith("tasks[0].fewshot: bare has no examples of its own; bare:2shot has")
    own = spec_of({"benchmark": "bare", "fewshot": {"n": 3, "path": "x.jsonl"}}).tasks[0].fewshot
    assert own is not None
    assert (own.path, own.split) == ("x.jsonl", "")
    assert list(find_benchmark_doubts(spec_of("bare", "bare:2shot", "mine"))) == []


def copied(**changes: Any) -> dict[str, Any]:
    origin = {"name": "bare", "version": 1, "copy": True}
    return {"name": "own", "benchmark": origin, "dataset": {"hub": "o/mine", "convert": "bare"}, **changes}


def test_a_copy_names_what_was_changed() -> None:
    (task,) = spec_of(copied(prompt="{question}", scorers=["includes"])).tasks
    assert task.benchmark is not None
    assert task.benchmark.copy
    assert "scorers" in task.benchmark.changed
    assert "prompt" not in task.benchmark.changed


def test_a_copy_is_used_as_it_is_whatever_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = spec_of(copied(prompt="old"))
    newer = copied(prompt="new", benchmark={"name": "bare", "version": 2, "copy": True})
    assert adopt_benchmarks(spec_of(newer), stored).tasks[0].prompt == "new"


def test_restricted_data_stays_restricted_in_copies() -> None:
    assert spec_of(copied()).tasks[0].share == "no-text"
    converted = {"name": "own", "dataset": {"hub": "o/mine", "convert": "bare"}}  # the origin was removed
    assert spec_of(converted).tasks[0].share == "no-text"
    for task in (copied(share="ok"), {"benchmark": "bare", "share": "ok"}, {**converted, "share": "ok"}):
        with pytest.raises(
            SpecError, match=r"tasks\[0\].share: the terms of the data of bare forbid publishing its text"
        ):
            spec_of(task)
    own = {"name": "own", "dataset": {"path": "x.jsonl"}, "share": "ok"}
    assert spec_of(own).tasks[0].share == "ok"
