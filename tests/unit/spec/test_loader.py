"""From text, `--set` values and the environment to one effective spec."""

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SpecError
from holdfast.spec import Batch, RunLimits, Spec, build_spec, load_spec, spec_mapping
from holdfast.spec.source.text import expand, parse_yaml
from holdfast.spec.source.variables import read_env_file

MODELS = [{"name": "a", "provider": "mock"}, {"name": "gpt-4.1", "provider": "mock"}]
TASKS = [{"name": "t", "dataset": {"path": "t.jsonl"}, "prompt": "{q}"}, {"name": "u", "dataset": {"path": "u.jsonl"}}]


def built(*sets: str, environ: dict[str, str] | None = None, **changes: Any) -> Spec:
    return build_spec({"models": MODELS, "tasks": TASKS, **changes}, "", sets, environ or {})


def test_defaults_fill_in_what_a_task_or_model_does_not_say() -> None:
    spec = built(
        defaults={"repeats": 3, "max_connections": 2, "sample_retries": 0},
        tasks=[TASKS[0], {**TASKS[1], "repeats": 5}],
    )
    assert [(task.repeats, task.sample_retries) for task in spec.tasks] == [(3, 0), (5, 0)]
    assert [model.max_connections for model in spec.models] == [2, 2]


def test_default_params_are_merged_key_by_key() -> None:
    models = [{**MODELS[0], "params": {"temperature": 1.0}}, MODELS[1]]
    spec = built(defaults={"params": {"temperature": 0.0, "seed": 7}}, models=models)
    assert [model.params for model in spec.models] == [{"temperature": 1.0, "seed": 7}, {"temperature": 0.0, "seed": 7}]


def test_default_params_of_the_evaluated_models_are_not_those_of_a_judge() -> None:
    spec = built(defaults={"params": {"temperature": 1.0}, "max_connections": 2}, roles={"judge": {"provider": "mock"}})
    assert (spec.roles["judge"].params, spec.roles["judge"].max_connections) == ({}, 2)
    assert spec.roles["judge"].name == "judge"


def test_one_default_is_not_shared_between_the_parts_that_get_it() -> None:
    spec = built(defaults={"params": {"stop": ["x"]}})
    assert spec.models[0].params == spec.models[1].params
    assert spec.models[0].params["stop"] is not spec.models[1].params["stop"]


def test_a_model_without_a_name_is_called_after_its_model() -> None:
    spec = built(models=[{"provider": "openai", "model": "Qwen/Qwen3-8B"}])
    assert spec.models[0].name == "Qwen/Qwen3-8B"


def test_the_mapping_that_was_given_is_not_changed() -> None:
    raw = {"models": [dict(MODELS[0])], "tasks": [dict(TASKS[0])], "defaults": {"repeats": 2}}
    build_spec(raw, "", ["tasks[0].prompt=x", "seed=1"])
    assert raw == {"models": [MODELS[0]], "tasks": [TASKS[0]], "defaults": {"repeats": 2}}


def test_the_effective_spec_spells_everything_out_and_means_the_same() -> None:
    spec = built(defaults={"repeats": 3}, roles={"judge": {"provider": "mock"}})
    written = spec_mapping(spec)
    assert "defaults" not in written
    assert written["tasks"][0]["repeats"] == 3
    assert build_spec(written) == spec


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("seed=7", ("seed",), 7),
        ("tasks[0].prompt=Say {q}", ("tasks", 0, "prompt"), "Say {q}"),
        ("tasks.u.repeats=4", ("tasks", 1, "repeats"), 4),
        ("models.a.params.temperature=0.5", ("models", 0, "params"), {"temperature": 0.5}),
        ("models[1].params.stop=[a, b]", ("models", 1, "params"), {"stop": ["a", "b"]}),
        ("models.gpt-4.1.params.temperature=0.5", ("models", 1, "params"), {"temperature": 0.5}),
        ("models.gpt-4.1.max_connections=3", ("models", 1, "max_connections"), 3),
        ("limits.sample.seconds=2.5", ("limits", "sample", "seconds"), 2.5),
        ("tags=[x, y]", ("tags",), ["x", "y"]),
        ("limit=null", ("limit",), None),
        ("tasks[1].scorers=[{numeric: {tolerance: 1}}]", ("tasks", 1, "scorers"), [{"numeric": {"tolerance": 1}}]),
        ("tasks[0].prompt=a=b", ("tasks", 0, "prompt"), "a=b"),
        ("tasks[0].prompt=Compute: {q}", ("tasks", 0, "prompt"), "Compute: {q}"),
        ("record_data=false", ("record_data",), False),
    ],
)
def test_set_changes_one_value_by_its_path(assignment: str, path: tuple[Any, ...], value: Any) -> None:
    found: Any = built(assignment)
    for step in path:
        found = found[step] if isinstance(found, list) else getattr(found, step)
    assert found == value


def test_set_reaches_defaults_and_later_ones_win() -> None:
    spec = built("defaults.repeats=2", "defaults.repeats=3", "tasks[1].repeats=9")
    assert [task.repeats for task in spec.tasks] == [3, 9]


@pytest.mark.parametrize(
    ("assignment", "named"),
    [
        ("seed", "field=value"),
        ("=7", "field"),
        ("a..b=1", "a..b"),
        ("tasks[9].prompt=x", r"tasks\[9\]"),
        ("tasks.nobody.prompt=x", "nobody"),
        ("tasks[-1].prompt=x", "-1"),
        ("models.b.params=1", "a, gpt-4.1"),
        ("seed.x=1", "seed"),
        ("seed=[", "seed"),
        ("tasks[0].promt=x", "'prompt'"),
        ("sed=1", "'seed'"),
    ],
)
def test_set_refuses_what_it_cannot_place(assignment: str, named: str) -> None:
    with pytest.raises(SpecError, match=named):
        built(assignment, seed=1)


def test_variables_are_put_in_where_they_stand() -> None:
    environ = {"WHO": "Ada", "EMPTY": ""}
    tasks = [{**TASKS[0], "system": "You are ${WHO}, ${MOOD:-calm}${EMPTY}.", "prompt": "$5 {q} ${MOOD:-}"}]
    spec = built(tasks=tasks, environ=environ)
    assert (spec.tasks[0].system, spec.tasks[0].prompt) == ("You are Ada, calm.", "$5 {q} ")


def test_a_variable_may_hold_a_number() -> None:
    """`max_connections: ${CONNECTIONS:-64}` is what people write."""
    models = [{**MODELS[0], "max_connections": "${CONNECTIONS:-64}", "timeout_seconds": "${SECONDS}"}]
    spec = built(models=models, environ={"SECONDS": "2.5"})
    assert (spec.models[0].max_connections, spec.models[0].timeout_seconds) == (64, 2.5)


def test_a_variable_that_is_not_set_is_refused_with_its_place() -> None:
    with pytest.raises(SpecError, match=r"tasks\[0\]\.system.*NOBODY"):
        built(tasks=[{**TASKS[0], "system": "${NOBODY}"}])


def test_variables_in_headers_wait_for_the_request() -> None:
    headers = {"Authorization": "Bearer ${TOKEN}", "X-Other": "${OTHER:-none}"}
    spec = built(models=[{**MODELS[0], "headers": headers}], environ={"TOKEN": "secret"})
    assert spec.models[0].headers == headers
    assert "secret" not in str(spec_mapping(spec))
    assert expand(headers["Authorization"], {"TOKEN": "secret"}) == ("Bearer secret", ["secret"])
    assert expand(headers["X-Other"], {}) == ("none", ["none"])


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("limits.run.token=5", "limits.run: unknown field 'token'; did you mean 'tokens'?"),
        ("models.a.api_key=x", "unknown field 'api_key'; a secret belongs in the environment"),
        ("models.a.token=x", "unknown field 'token'; a secret belongs in the environment"),
        ("models.a.api_key_evn=x", "did you mean 'api_key_env'?"),
        ("limits.run=null", "limits.run: expected a mapping, got null; {} removes all limits"),
        ("concurrency=null", "concurrency: expected a mapping, got null; leave it out or write {} to use the defaults"),
    ],
)
def test_a_typo_is_distinguished_from_a_secret_and_null_from_nothing(assignment: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        built(assignment)
    assert said in str(caught.value)


def test_an_empty_mapping_switches_budgets_off_and_null_a_single_one() -> None:
    limits = {"run": {"tokens": 5, "requests": 7}}
    assert built("limits.run={}", limits=limits).limits.run == RunLimits()
    assert built("limits.run.tokens=null", limits=limits).limits.run == RunLimits(requests=7)


def test_a_value_of_the_environment_is_not_looked_into_again() -> None:
    spec = built(description="${A}", environ={"A": "${B}", "B": "no"})
    assert spec.description == "${B}"


@pytest.mark.parametrize(
    "text",
    ["a: 1\na: 2\n", "a:\n  b: 1\n  c: 2\n  b: 3\n", "- {a: 1, a: 2}\n", "a: {b: {c: 1, c: 1}}\n"],
    ids=["top", "nested", "in a list", "the same value"],
)
def test_a_repeated_key_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(SpecError, match=r"eval\.yaml, line \d+, column \d+: .* is repeated"):
        parse_yaml(text, "eval.yaml")


def test_anchors_and_merges_still_work() -> None:
    text = "base: &base {a: 1, b: 2}\nmore: {<<: *base, b: 3}\n"
    assert parse_yaml(text, "eval.yaml") == {"base": {"a": 1, "b": 2}, "more": {"a": 1, "b": 3}}


def test_numbers_with_an_exponent_are_numbers() -> None:
    """YAML 1.1 takes 1e-6 for a text; nobody else does."""
    assert parse_yaml("{a: 1e-6, b: 1.0e-6, c: 2E3}", "eval.yaml") == {"a": 1e-6, "b": 1e-6, "c": 2000.0}
    assert parse_yaml("revision: 01e74176c63542e6", "eval.yaml") == {"revision": "01e74176c63542e6"}


def test_relative_paths_are_those_of_the_spec_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "eval.yaml"
    path.parent.mkdir()
    path.write_text(
        "models: [{name: a, provider: mock}]\n"
        "tasks:\n"
        "  - {name: t, dataset: {path: ../t.jsonl}, fewshot: {path: shots.jsonl}}\n"
        "  - {name: u, dataset: {path: /abs/u.jsonl}}\n"
    )
    tasks = load_spec(str(path)).tasks
    assert Path(str(tasks[0].dataset.path)).resolve() == tmp_path / "t.jsonl"
    assert tasks[0].fewshot is not None
    assert tasks[0].fewshot.path == str(tmp_path / "deep" / "shots.jsonl")
    assert tasks[1].dataset.path == "/abs/u.jsonl"


def test_a_spec_that_starts_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "eval.yaml"
    path.write_text("\ufeffmodels: [{name: a, provider: mock}]\ntasks: [{name: t}]\n", encoding="utf-8")
    assert load_spec(str(path)).models[0].name == "a"


def test_an_env_file_is_read_as_people_write_it(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(
        "# comment\n\nPLAIN=1\nexport EXPORTED=two\nQUOTED=\"with # and = inside\"\nSINGLE='it is'\n"
        "SPACED = 3 \nNOTED=4 # a note\nEMPTY=\nnot an assignment\n1BAD=x\n"
    )
    assert read_env_file(str(path)) == {
        "PLAIN": "1",
        "EXPORTED": "two",
        "QUOTED": "with # and = inside",
        "SINGLE": "it is",
        "SPACED": "3",
        "NOTED": "4",
        "EMPTY": "",
    }


def test_an_env_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert read_env_file(str(tmp_path / ".env")) == {}


@pytest.mark.parametrize(
    ("written", "requests"), [(True, 10_000), ({}, 10_000), ({"requests": 5}, 5), (False, None), (None, None)]
)
def test_a_batch_may_be_written_as_yes_or_no(written: Any, requests: int | None) -> None:
    spec = built(models=[{**MODELS[0], "batch": written}], roles={"judge": {"provider": "mock", "batch": written}})
    assert [each.batch and each.batch.requests for each in (spec.models[0], spec.roles["judge"])] == [requests] * 2


def test_a_batch_for_all_models_is_a_default_that_one_may_do_without() -> None:
    spec = built(defaults={"batch": True}, models=[MODELS[0], {**MODELS[1], "batch": False}])
    assert [model.batch is not None for model in spec.models] == [True, False]


def test_a_batch_is_set_on_the_command_line_like_any_other_field() -> None:
    assert built("models[0].batch=true").models[0].batch is not None
    assert built("models[0].batch.requests=7").models[0].batch == Batch(requests=7)


def test_all_unknown_fields_and_contradictions_are_reported_at_once() -> None:
    model = {"name": "m", "provider": "mock", "prams": {}, "opts": {}}
    task = {"name": "t", "dataset": {"path": "x", "targt": "a"}, "promt": "x", "repeats": "many"}
    with pytest.raises(SpecError) as found:
        build_spec({"experimnt": "e", "models": [model], "tasks": [task]}, "eval.yaml")
    assert str(found.value).splitlines() == [
        "eval.yaml: unknown field 'experimnt'; did you mean 'experiment'?",
        "eval.yaml: models[0]: unknown field 'prams'; did you mean 'params'?",
        "eval.yaml: models[0]: unknown field 'opts'; did you mean 'options'?",
        "eval.yaml: tasks[0].dataset: unknown field 'targt'; did you mean 'target'?",
        "eval.yaml: tasks[0]: unknown field 'promt'; did you mean 'prompt'?",
        "eval.yaml: tasks[0].repeats: expected `int`, got `str`",
    ]
    models = [{"name": "m", "provider": "mock"}] * 2
    tasks = [{"name": "t", "dataset": {"path": "x"}, "models": ["n"]}, {"name": "u", "reduce": "pass@3"}]
    with pytest.raises(SpecError) as found:
        build_spec({"models": models, "tasks": tasks}, "eval.yaml")
    assert str(found.value).splitlines() == [
        "eval.yaml: models[1].name: 'm' is already the name of models[0]; rename one",
        "eval.yaml: tasks[0].models: there is no model 'n'; valid are m",
        "eval.yaml: tasks[1].reduce: pass@3 needs 3 repeats, and the task has 1; set repeats: 3",
    ]


@pytest.mark.parametrize(
    ("model", "task", "advice"),
    [
        ({"temperature": 0}, {}, "it is a sampling parameter: write params: {temperature: …}"),
        ({}, {"dataset": {"path": "x", "fewshot": {}}}, "it is a field of a task"),
        ({}, {"request_retries": 1}, "it is a field of a model"),
        ({}, {"dataset": "caps.csv"}, "expected a mapping, got text; write one, such as dataset: {path: data.jsonl}"),
        ({}, {"scorers": "includes"}, "expected a list, got text; write one, such as scorers: [exact_match]"),
    ],
)
def test_a_value_in_the_wrong_place_or_form_is_shown_the_right_one(
    model: dict[str, Any], task: dict[str, Any], advice: str
) -> None:
    raw = {"models": [{"name": "m", "provider": "mock", **model}], "tasks": [{"name": "t", **task}]}
    with pytest.raises(SpecError, match=re.escape(advice)):
        build_spec(raw, "eval.yaml")


@pytest.mark.parametrize(
    ("raw", "advice"),
    [
        ({"prompts": ["{q}"]}, "unknown field 'prompts'; write tasks: [{prompt: …}]"),
        ({"providers": ["openai:gpt-x"]}, "unknown field 'providers'; write models: [{name: …, provider: …}]"),
        ({"models": []}, "models: the list is empty; give at least one, such as models: [openai/gpt-x]"),
        ({"tasks": []}, "tasks: the list is empty; give at least one, such as tasks: [gsm8k]"),
    ],
    ids=str,
)
def test_fields_of_other_tools_and_empty_lists_are_shown_what_belongs_there(raw: dict[str, Any], advice: str) -> None:
    whole = {"models": [{"name": "m", "provider": "mock"}], "tasks": [{"name": "t"}], **raw}
    with pytest.raises(SpecError, match=re.escape(advice)):
        build_spec(whole, "eval.yaml")
