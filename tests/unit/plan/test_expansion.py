"""Benchmarks in a spec: whole tasks with the changes of the user, and resumes after a new version."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.errors import SpecError
from holdfast.plan.benchmarks import (
    Benchmark,
    adopt_benchmarks,
    changed_fields,
    expand_benchmarks,
    mark_changes,
    science,
)
from holdfast.plan.benchmarks.registry import all_benchmarks, find_conversion, is_benchmark_name
from holdfast.spec import Spec, build_spec

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


@pytest.fixture(autouse=True)
def _offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    offer(monkeypatch, MINE, BY_CONFIG, WHOLE)
    yield
    all_benchmarks.cache_clear()


def offer(monkeypatch: pytest.MonkeyPatch, *benchmarks: Benchmark) -> None:
    monkeypatch.setattr(science, "BENCHMARKS", list(benchmarks))
    all_benchmarks.cache_clear()


def spec_of(*tasks: Any, **fields: Any) -> Spec:
    raw = {"models": [{"name": "m", "provider": "mock"}], "tasks": list(tasks), **fields}
    return mark_changes(build_spec(expand_benchmarks(raw)))


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
