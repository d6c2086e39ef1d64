"""Files that a spec includes: what is merged, what wins, what is refused, and where a refused value comes from."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import SpecError
from holdfast.spec import Spec, build_spec, load_spec, read_spec

MODELS = [{"name": "m", "provider": "mock"}]
TASKS = [{"name": "t", "dataset": {"path": "t.jsonl"}, "prompt": "{q}"}]


def write(path: Path, **content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def refused(path: Path, *sets: str) -> str:
    with pytest.raises(SpecError) as raised:
        load_spec(str(path), sets)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def main(tmp_path: Path) -> Path:
    return write(tmp_path / "eval.yaml", include="base.yaml", tasks=TASKS)


def test_mappings_are_merged_and_the_including_file_wins(tmp_path: Path) -> None:
    limits = {"run": {"tokens": 5, "requests": 6}, "sample": {"steps": 7}}
    write(tmp_path / "base.yaml", models=MODELS, tags=["a", "b"], seed=1, limits=limits, experiment="base")
    path = write(tmp_path / "eval.yaml", include="base.yaml", tasks=TASKS, tags=["c"], limits={"run": {"tokens": 9}})
    spec = load_spec(str(path))
    assert (spec.experiment, spec.seed, spec.tags) == ("base", 1, ["c"]), "lists are replaced"
    assert (spec.limits.run.tokens, spec.limits.run.requests, spec.limits.sample.steps) == (9, 6, 7)


def test_the_order_of_the_files_decides_and_the_order_of_the_keys_does_not(tmp_path: Path) -> None:
    write(tmp_path / "one.yaml", models=MODELS, seed=1, description="one", stall_seconds=1)
    write(tmp_path / "two.yaml", seed=2, description="two")
    path = write(tmp_path / "eval.yaml", seed=3, tasks=TASKS, include=["one.yaml", "two.yaml"])
    spec = load_spec(str(path))
    assert (spec.seed, spec.description, spec.stall_seconds) == (3, "two", 1)


def test_null_in_the_including_file_removes_a_mapping(tmp_path: Path, main: Path) -> None:
    write(tmp_path / "base.yaml", models=MODELS, mirror={"url": "s3://bucket/x"})
    assert load_spec(str(main)).mirror is not None
    write(main, include="base.yaml", tasks=TASKS, mirror=None)
    assert load_spec(str(main)).mirror is None


def test_included_files_include_others_beside_themselves(tmp_path: Path, main: Path) -> None:
    write(tmp_path / "base.yaml", include="parts/models.yaml")
    write(tmp_path / "parts" / "models.yaml", include=["prices/usd.yaml", "../shared.yaml"], models=MODELS)
    write(tmp_path / "parts" / "prices" / "usd.yaml", defaults={"price": {"input": 1, "output": 2}})
    write(tmp_path / "shared.yaml", seed=7)
    spec = load_spec(str(main))
    assert (spec.seed, spec.models[0].price is not None) == (7, True)
    names = [os.path.relpath(each, tmp_path) for each in read_spec(str(main)).included]
    assert sorted(names) == ["base.yaml", "parts/models.yaml", "parts/prices/usd.yaml", "shared.yaml"]


def test_the_effective_spec_is_that_of_one_file_with_the_same_values(tmp_path: Path, main: Path) -> None:
    write(tmp_path / "base.yaml", models=MODELS, defaults={"repeats": 2})
    whole = write(tmp_path / "whole.yaml", models=MODELS, defaults={"repeats": 2}, tasks=TASKS)
    assert load_spec(str(main)) == load_spec(str(whole))


def test_a_path_is_relative_to_the_file_that_it_is_written_in(tmp_path: Path) -> None:
    shots = {"path": "shots.jsonl", "n": 1}
    task = {"name": "t", "dataset": {"path": "rows.jsonl", "files_root": "pictures"}, "fewshot": shots, "prompt": "x"}
    write(tmp_path / "shared" / "tasks.yaml", tasks=[task, {"name": "u", "dataset": {"path": "/abs/rows.jsonl"}}])
    path = write(tmp_path / "eval.yaml", include="shared/tasks.yaml", models=MODELS)
    one, two = load_spec(str(path)).tasks
    assert one.fewshot is not None
    found = [one.dataset.path, one.dataset.files_root, one.fewshot.path]
    assert found == [str(tmp_path / "shared" / name) for name in ("rows.jsonl", "pictures", "shots.jsonl")]
    assert two.dataset.path == "/abs/rows.jsonl"
    changed = load_spec(str(path), ["tasks.t.dataset.path=mine.jsonl"]).tasks[0]
    assert changed.dataset.path == str(tmp_path / "mine.jsonl"), "--set is relative to the spec"


def test_a_default_path_is_relative_to_its_file_unless_the_spec_replaces_it(tmp_path: Path) -> None:
    write(tmp_path / "shared" / "base.yaml", defaults={"dataset": {"path": "rows.jsonl", "id": "key"}}, models=MODELS)
    path = write(tmp_path / "eval.yaml", include="shared/base.yaml", tasks=[{"name": "t"}])
    assert load_spec(str(path)).tasks[0].dataset.path == str(tmp_path / "shared" / "rows.jsonl")
    own = {"dataset": {"path": "own.jsonl"}}
    write(path, include="shared/base.yaml", tasks=[{"name": "t"}], defaults=own)
    dataset = load_spec(str(path)).tasks[0].dataset
    assert (dataset.path, dataset.id) == (str(tmp_path / "own.jsonl"), "key")


def test_a_variable_in_a_path_of_an_included_file_may_hold_an_absolute_path(tmp_path: Path) -> None:
    task = {"name": "t", "dataset": {"path": "${DATA}/rows.jsonl"}}
    write(tmp_path / "shared" / "base.yaml", tasks=[task], models=MODELS)
    path = write(tmp_path / "eval.yaml", include="shared/base.yaml")
    assert load_spec(str(path), (), {"DATA": "/data"}).tasks[0].dataset.path == "/data/rows.jsonl"
    found = load_spec(str(path), (), {"DATA": "more"}).tasks[0].dataset.path
    assert found == str(tmp_path / "shared" / "more" / "rows.jsonl")


def test_an_alias_in_an_included_file_is_merged_where_it_is_and_nowhere_else(tmp_path: Path, main: Path) -> None:
    text = "models: [{name: m, provider: mock}]\nroles:\n  one: &r {provider: mock, max_connections: 1}\n  two: *r\n"
    (tmp_path / "base.yaml").write_text(text)
    write(main, include="base.yaml", tasks=TASKS, roles={"one": {"max_connections": 9}})
    roles = load_spec(str(main)).roles
    assert (roles["one"].max_connections, roles["two"].max_connections) == (9, 1)


def test_set_comes_last(tmp_path: Path, main: Path) -> None:
    write(tmp_path / "base.yaml", models=MODELS, seed=1)
    assert load_spec(str(main), ["seed=5", "models.m.max_connections=3"]).seed == 5


# refusals


@pytest.mark.parametrize(
    ("include", "said"),
    [
        (None, "eval.yaml: include: expected a file name or a list of file names, got empty"),
        (7, "eval.yaml: include: expected a file name or a list of file names, got a number"),
        ({"path": "base.yaml"}, "eval.yaml: include: expected a file name or a list of file names, got dict"),
        ("", "eval.yaml: include: expected a file name or a list of file names, got ''"),
        (["base.yaml", 7], "eval.yaml: include[1]: expected a file name or a list of file names, got a number"),
        ("bse.yaml", "bse.yaml: no such file; did you mean"),
        ("folder", "folder is a folder; name the spec's file"),
        ("https://example.org/base.yaml", "only files can be included; download it first"),
        ("list.yaml", "list.yaml (included by"),
        ("empty.yaml", "expected a mapping of fields, as in a spec, got empty"),
        ("torn.yaml", "torn.yaml, line 2, column 1: not valid YAML"),
        ("eval.yaml", "a file cannot include itself"),
        ("a\0b", r"eval.yaml: include: expected a file name or a list of file names, got 'a\x00b'"),
    ],
)
def test_what_cannot_be_included_is_refused_in_one_sentence(tmp_path: Path, include: Any, said: str) -> None:
    write(tmp_path / "base.yaml", models=MODELS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "list.yaml").write_text("- a\n")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    (tmp_path / "torn.yaml").write_text("seed: [1,\n")
    path = write(tmp_path / "eval.yaml", include=include, tasks=TASKS)
    assert said in refused(path)


def test_a_cycle_is_refused_with_its_files(tmp_path: Path, main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "base.yaml", include="sub/more.yaml")
    write(tmp_path / "sub" / "more.yaml", include="../eval.yaml")
    assert refused(Path("eval.yaml")) == (
        "sub/more.yaml: include: ../eval.yaml: a file cannot include itself: "
        "eval.yaml -> base.yaml -> sub/more.yaml -> eval.yaml"
    )


def test_a_cycle_through_a_link_is_refused_too(tmp_path: Path, main: Path) -> None:
    os.symlink("eval.yaml", tmp_path / "base.yaml")
    assert "a file cannot include itself" in refused(main)


def test_levels_and_files_are_bounded(tmp_path: Path) -> None:
    def chain(length: int) -> Path:
        for number in range(length):
            write(tmp_path / f"f{number}.yaml", include=f"f{number + 1}.yaml")
        write(tmp_path / f"f{length}.yaml", models=MODELS, tasks=TASKS)
        return tmp_path / "f0.yaml"

    assert load_spec(str(chain(10))).models[0].name == "m"
    assert "more than 10 levels of included files" in refused(chain(11))
    chain(9)
    for number in range(9):  # each file twice at each level: 2 to the power of 9
        write(tmp_path / f"f{number}.yaml", include=[f"f{number + 1}.yaml"] * 2)
    assert "more than 100 included files" in refused(tmp_path / "f0.yaml")


def test_the_same_file_may_be_included_in_two_ways(tmp_path: Path) -> None:
    write(tmp_path / "shared.yaml", models=MODELS)
    write(tmp_path / "a.yaml", include="shared.yaml", seed=1)
    write(tmp_path / "b.yaml", include="shared.yaml", description="b")
    path = write(tmp_path / "eval.yaml", include=["a.yaml", "b.yaml"], tasks=TASKS)
    spec = load_spec(str(path))
    assert (spec.seed, spec.description) == (1, "b")


def test_all_files_together_are_as_long_as_one_spec_may_be(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"seed: 1 #{'x' * 600_000}\n")
    path = write(tmp_path / "eval.yaml", include=["a.yaml", "b.yaml"], tasks=TASKS, models=MODELS)
    assert "with it, the spec is longer than 1 MiB" in refused(path)


def test_include_is_for_files_only(tmp_path: Path, main: Path) -> None:
    write(tmp_path / "base.yaml", models=MODELS)
    assert "include: only a spec file can include others" in refused(main, "include=other.yaml")
    with pytest.raises(SpecError, match="only a spec file can include others"):
        build_spec({"include": "base.yaml", "models": MODELS, "tasks": TASKS}, "run()")


# where a refused value comes from


def explained(tmp_path: Path, main: dict[str, Any], base: dict[str, Any], *sets: str) -> str:
    write(tmp_path / "shared" / "base.yaml", **base)
    path = write(tmp_path / "eval.yaml", include="shared/base.yaml", **main)
    return refused(path, *sets).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("main", "base", "sets", "said"),
    [
        ({}, {"sed": 1}, [], "eval.yaml: unknown field 'sed'; did you mean 'seed'? (from shared/base.yaml)"),
        ({"sed": 1}, {}, [], "eval.yaml: unknown field 'sed'; did you mean 'seed'?"),
        ({}, {"seed": "x"}, [], "eval.yaml: seed: expected `int`, got `str` (from shared/base.yaml)"),
        ({"seed": "x"}, {"seed": 1}, [], "eval.yaml: seed: expected `int`, got `str`"),
        (
            {"limits": {"run": {"tokens": 5}}},
            {"limits": {"run": {"requests": "x"}}},
            [],
            "limits.run.requests: expected `int | null`, got `str` (from shared/base.yaml)",
        ),
        (
            {"limits": {"run": {"tokens": "x"}}},
            {"limits": {"run": {"requests": 5}}},
            [],
            "limits.run.tokens: expected `int | null`, got `str`",
        ),
        ({}, {"seed": 1}, ["seed=x"], "eval.yaml: seed: expected `int`, got `str` (from --set)"),
        ({}, {}, ["models.m.stream=5"], "models[0].stream: expected `bool`, got `int` (from --set)"),
        (
            {},
            {"defaults": {"stream": 5}},
            [],
            "models[0].stream: expected `bool`, got `int` (from defaults in shared/base.yaml)",
        ),
        ({"defaults": {"stream": 5}}, {}, [], "models[0].stream: expected `bool`, got `int` (from defaults)"),
        (
            {},
            {"defaults": {"params": {"temperature": "warm"}}},
            [],
            'temperature: expected a number of at least 0, got "warm" (from defaults in shared/base.yaml)',
        ),
        ({}, {"defaults": {"stream": True}}, ["defaults.stream=5"], "got `int` (from --set)"),
        (
            {},
            {"models": [{"name": "m", "provider": "mock"}, {"name": "m", "provider": "mock"}]},
            [],
            "'m' is already the name of models[0]; rename one (from shared/base.yaml)",
        ),
    ],
)
def test_a_refused_value_is_shown_with_where_it_comes_from(
    tmp_path: Path, main: dict[str, Any], base: dict[str, Any], sets: list[str], said: str
) -> None:
    both = {"tasks": TASKS, **main}
    found = explained(tmp_path, both, {"models": MODELS, **base}, *sets)
    assert found.endswith(said), found


def test_a_spec_without_includes_has_errors_without_origins(tmp_path: Path) -> None:
    path = write(tmp_path / "eval.yaml", models=MODELS, tasks=TASKS, seed="x")
    assert refused(path) == f"{path}: seed: expected `int`, got `str`"
    assert read_spec(str(path)).included == ()
    assert isinstance(load_spec(str(path), ["seed=1"]), Spec)
