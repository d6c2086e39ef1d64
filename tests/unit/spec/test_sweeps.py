"""Several values where one is expected make named variants; nothing else does."""

from typing import Any

import pytest

from holdfast.errors import SpecError
from holdfast.spec import Spec, build_spec


def built(task: dict[str, Any] | None = None, params: dict[str, Any] | None = None, **fields: Any) -> Spec:
    raw = {
        "tasks": [{"name": "sums", "dataset": {"path": "d.jsonl"}, **(task or {})}, {"name": "other"}],
        "models": [
            {"name": "local", "provider": "mock", "params": params or {}},
            {"name": "second", "provider": "mock"},
        ],
        **fields,
    }
    return build_spec(raw, "s.yaml")


def test_named_prompts_make_tasks_of_these_names_with_everything_else_equal() -> None:
    spec = built({"prompt": {"short": "{q}", "long": "Think: {q}"}, "repeats": 2})
    assert [(task.name, task.prompt, task.repeats) for task in spec.tasks] == [
        ("sums+short", "{q}", 2),
        ("sums+long", "Think: {q}", 2),
        ("other", "", 1),
    ]
    assert spec.tasks[0].dataset == spec.tasks[1].dataset


def test_listed_prompts_are_numbered_and_every_pair_is_a_variant() -> None:
    spec = built({"prompt": ["a", "b"], "system": ["x", "y"]})
    found = {task.name: (task.system, task.prompt) for task in spec.tasks[:-1]}
    assert found == {
        "sums+s1+p1": ("x", "a"),
        "sums+s1+p2": ("x", "b"),
        "sums+s2+p1": ("y", "a"),
        "sums+s2+p2": ("y", "b"),
    }


def test_parameters_make_models_of_their_values() -> None:
    spec = built(
        params={"temperature": [0, 0.7], "top_p": [0.9, 1], "reasoning_effort": ["low", "high"], "stop": ["a"]}
    )
    assert [model.name for model in spec.models][:3] == [
        "local+t0+tp0.9+low",
        "local+t0+tp0.9+high",
        "local+t0+tp1+low",
    ]
    assert len(spec.models) == 9
    assert spec.models[7].params == {"temperature": 0.7, "top_p": 1, "reasoning_effort": "high", "stop": ["a"]}


def test_named_values_name_the_models() -> None:
    assert [model.name for model in built(params={"temperature": {"cold": 0, "hot": 1.5}}).models] == [
        "local+cold",
        "local+hot",
        "second",
    ]


def test_a_list_that_is_one_value_is_no_sweep() -> None:
    spec = built(params={"stop": ["a", "b"], "logit_bias": {"1": 2}, "modalities": ["text"]})
    assert [model.name for model in spec.models] == ["local", "second"]
    assert spec.models[0].params["stop"] == ["a", "b"]


def test_a_task_that_names_a_swept_model_means_all_its_variants() -> None:
    spec = built({"models": ["local"]}, params={"temperature": [0, 1]})
    assert spec.tasks[0].models == ["local+t0", "local+t1"]


def test_defaults_are_swept_too() -> None:
    spec = built(defaults={"prompt": ["a", "b"]})
    assert [task.name for task in spec.tasks] == ["sums+p1", "sums+p2", "other+p1", "other+p2"]


def test_a_value_set_on_the_command_line_ends_the_sweep() -> None:
    raw = {
        "tasks": [{"name": "sums", "prompt": ["a", "b"]}],
        "models": [{"name": "m", "provider": "mock"}],
    }
    spec = build_spec(raw, "s.yaml", ["tasks.sums.prompt=c"])
    assert [(task.name, task.prompt) for task in spec.tasks] == [("sums", "c")]


@pytest.mark.parametrize(
    ("task", "params", "fields", "said"),
    [
        ({"prompt": []}, {}, {}, "s.yaml: tasks[0].prompt"),
        ({"prompt": {}}, {}, {}, "s.yaml: tasks[0].prompt"),
        ({"prompt": ["a", 3]}, {}, {}, "s.yaml: tasks[0].prompt: a sweep consists of texts, but p2 is"),
        ({"system": ["a", None]}, {}, {}, "s.yaml: tasks[0].system"),
        ({}, {"temperature": []}, {}, "s.yaml: models[0].params.temperature: an empty sweep"),
        ({}, {"temperature": [[0], [1]]}, {}, "s.yaml: models[0].params.temperature"),
        ({}, {"temperature": [0, 0]}, {}, "'local+t0' is already the name"),
        ({"prompt": ["a", "b"], "scorer": []}, {}, {}, "tasks[0]: unknown field 'scorer'"),
        (
            {},
            {},
            {"roles": {"judge": {"provider": "mock", "params": {"temperature": [0, 1]}}}},
            "roles.judge.params.temp",
        ),
    ],
)
def test_a_sweep_that_cannot_be_made_is_refused_with_its_place(
    task: dict[str, Any], params: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError) as raised:
        built(task, params, **fields)
    assert said in str(raised.value)
