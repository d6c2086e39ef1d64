"""`when`: which combinations of a sweep are left, against a simple count; and what is refused."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import SpecError
from holdfast.spec import KeptCombinations, Spec, SpecFile, build_spec, resolve_file


def raw(task: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "tasks": [{"name": "sums", **(task or {})}, {"name": "other"}],
        "models": [{"name": "local", "provider": "mock", **(model or {})}, {"name": "second", "provider": "mock"}],
        **fields,
    }


def built(task: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **fields: Any) -> Spec:
    return build_spec(raw(task, model, **fields), "s.yaml")


def cells(spec: Spec) -> set[tuple[str, str]]:
    every = [model.name for model in spec.models]
    return {(task.name, model) for task in spec.tasks for model in task.models or every}


def test_a_model_keeps_the_combinations_of_its_own_parameters() -> None:
    params = {"temperature": [0, 0.7, 1.0], "seed": [1, 2, 3]}
    greedy = [{"temperature": 0, "seed": 1}, {"temperature": [0.7, 1.0]}]
    spec = built(model={"params": params, "when": greedy})
    assert [model.name for model in spec.models] == [
        "local+t0+s1",
        *(f"local+t{t}+s{s}" for t, s in itertools.product((0.7, 1.0), (1, 2, 3))),
        "second",
    ]


def test_a_task_keeps_some_of_its_texts_and_some_models_for_each() -> None:
    prompts = {"short": "{q}", "long": "Think: {q}"}
    when = [{"prompt": "short", "temperature": 0}, {"prompt": "long"}]
    spec = built({"prompt": prompts, "when": when}, {"params": {"temperature": [0, 1]}})
    assert cells(spec) == {
        ("sums+short", "local+t0"),
        ("sums+short", "second"),  # it does not sweep the temperature
        *(("sums+long", model) for model in ("local+t0", "local+t1", "second")),
        *(("other", model) for model in ("local+t0", "local+t1", "second")),
    }


def test_a_condition_may_name_a_model_with_or_without_its_labels() -> None:
    prompts = {"short": "{q}", "long": "Think: {q}"}
    for name, left in (("local", {"local+t0", "local+t1"}), ("local+t1", {"local+t1"}), ("second", {"second"})):
        when = {"prompt": "long", "model": name}
        spec = built({"prompt": prompts, "when": when}, {"params": {"temperature": [0, 1]}})
        assert {model for task, model in cells(spec) if task == "sums+long"} == left
        assert not any(task == "sums+short" for task, _ in cells(spec))


def test_variants_of_models_that_no_task_runs_are_left_out_and_other_models_stay() -> None:
    only = {"temperature": 0, "model": "local"}
    spec = build_spec(
        {
            "tasks": [{"name": "sums", "when": only}],
            "models": [
                {"name": "local", "provider": "mock", "params": {"temperature": [0, 1]}},
                {"name": "second", "provider": "mock"},
            ],
        }
    )
    assert [model.name for model in spec.models] == ["local+t0", "second"]
    assert spec.tasks[0].models == ["local+t0"]


def test_a_task_with_its_own_models_keeps_some_of_these() -> None:
    spec = built(
        {"models": ["local"], "when": {"temperature": 1}},
        {"params": {"temperature": [0, 1, 2]}, "when": {"temperature": [0, 1]}},
    )
    assert spec.tasks[0].models == ["local+t1"]
    assert [model.name for model in spec.models] == ["local+t0", "local+t1", "second"], "other runs them all"


def test_a_value_is_named_by_itself_or_by_its_label() -> None:
    for value in ("cold", 0, 0.0, [0], ["cold"]):
        spec = built(model={"params": {"temperature": {"cold": 0, "hot": 1}}, "when": {"temperature": value}})
        assert [model.name for model in spec.models] == ["local+cold", "second"]
    for value in ("p2", "b"):
        assert built({"prompt": ["a", "b"], "when": {"prompt": value}}).tasks[0].prompt == "b"


def test_the_effective_spec_has_no_condition_and_means_the_same_when_it_is_read_again() -> None:
    from holdfast.spec import spec_mapping

    spec = built({"prompt": ["a", "b"], "when": {"prompt": "p1"}}, {"params": {"seed": [1, 2]}, "when": {"seed": 2}})
    assert "when" not in str(spec_mapping(spec))
    assert build_spec(spec_mapping(spec)) == spec


def test_null_keeps_everything() -> None:
    mapping = raw({"prompt": ["a", "b"], "when": {"prompt": "p1"}})
    assert len(build_spec(mapping, "", ["tasks.sums.when=null"]).tasks) == 3


def test_the_number_of_combinations_is_known() -> None:
    model = {"params": {"temperature": [0, 1], "seed": [1, 2]}, "when": [{"temperature": 0, "seed": 1}, {"seed": 2}]}
    task = {"prompt": ["a", "b"], "when": [{"prompt": "p1", "temperature": 0}, {"model": "second"}]}
    kept = resolve_file(SpecFile("s.yaml", raw(task, model))).kept
    assert list(kept) == [KeptCombinations("models[0].when", 3, 4), KeptCombinations("tasks[0].when", 4, 8)]


values = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=3, unique=True)
alternatives = st.lists(
    st.dictionaries(st.sampled_from(["temperature", "seed"]), values, min_size=1), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(alternatives)
def test_what_is_kept_is_what_a_loop_over_all_combinations_keeps(when: list[dict[str, list[int]]]) -> None:
    spec = built(model={"params": {"temperature": [0, 1, 2], "seed": [0, 1, 2]}, "when": when})
    found = {(model.params["temperature"], model.params["seed"]) for model in spec.models if model.params}
    every = itertools.product((0, 1, 2), repeat=2)
    expected = {
        (t, s)
        for t, s in every
        if any(t in each.get("temperature", [0, 1, 2]) and s in each.get("seed", [0, 1, 2]) for each in when)
    }
    assert found == expected


@pytest.mark.parametrize(
    ("task", "model", "said"),
    [
        ({}, {"when": {"temperature": 0}}, "s.yaml: models[0].when: nothing is swept here"),
        ({}, {"when": "t0"}, "s.yaml: models[0].when: expected a mapping of swept fields to values"),
        ({}, {"when": []}, "s.yaml: models[0].when: an empty list keeps no combination"),
        ({}, {"when": {}}, "s.yaml: models[0].when: an empty condition keeps every combination"),
        ({}, {"when": [{"seed": 1}, "x"]}, "s.yaml: models[0].when[1]: expected a mapping"),
        ({}, {"when": [{"seed": 1}, {}]}, "s.yaml: models[0].when[1]: an empty condition"),
        ({}, {"when": {"sed": 1}}, "s.yaml: models[0].when: 'sed' is not swept here; did you mean 'seed'?"),
        ({}, {"when": {"temperature": 1}}, "'temperature' is not swept here; valid are seed"),
        ({}, {"when": {"seed": 3}}, "s.yaml: models[0].when.seed: no value 3; there are: 1, 2"),
        ({}, {"when": {"seed": True}}, "no value True; there are: 1, 2"),
        ({}, {"when": {"seed": []}}, "s.yaml: models[0].when.seed: an empty list keeps no combination"),
        ({}, {"when": {"seed": None}}, "no value None"),
        ({}, {"when": {"seed": {"1": 2}}}, "no value {'1': 2}"),
        ({"when": {"promt": "p1"}}, {}, "s.yaml: tasks[0].when: 'promt' is not swept here; did you mean 'prompt'?"),
        ({"when": {"prompt": "p3"}}, {}, "s.yaml: tasks[0].when.prompt: no value 'p3'; there are: p1, p2"),
        ({"when": {"model": "locl"}}, {}, "tasks[0].when.model: no value 'locl'; there are: local, local+s1"),
        ({"models": ["second"], "when": {"seed": 1}}, {}, "tasks[0].when: 'seed' is not swept here"),
        ({"models": ["loc"], "when": {"prompt": "p1"}}, {}, "tasks[0].models: there is no model 'loc'"),
        ({"when": {"model": "second", "prompt": "p1"}, "models": ["local"]}, {}, "no value 'second'"),
        (
            {"when": [{"model": "local", "seed": 1}], "models": ["local+s2", "second"]},
            {},
            "tasks[0].when.seed: no value 1; there are: 2",
        ),
    ],
)
def test_a_condition_that_means_nothing_is_refused_with_its_place(
    task: dict[str, Any], model: dict[str, Any], said: str
) -> None:
    swept = {} if "nothing is swept" in said else {"params": {"seed": [1, 2]}}
    with pytest.raises(SpecError) as raised:
        built({"prompt": ["a", "b"], **task}, {**swept, **model})
    assert said in str(raised.value)


def test_conditions_that_leave_nothing_are_refused() -> None:
    models = [
        {"name": "a", "provider": "mock", "params": {"temperature": [0, 1]}},
        {"name": "b", "provider": "mock", "params": {"temperature": [2, 3]}},
    ]
    task = {"name": "t", "when": {"model": "a", "temperature": 2}}
    with pytest.raises(SpecError, match=r"tasks\[0\].when: none of 4 combinations is kept"):
        build_spec({"models": models, "tasks": [task]}, "s.yaml")


def test_a_role_and_the_top_of_a_spec_have_no_condition() -> None:
    with pytest.raises(SpecError, match=r"roles.*: unknown field 'when'; valid are"):
        built(roles={"judge": {"provider": "mock", "when": {"seed": 1}}})
    with pytest.raises(SpecError, match="unknown field 'when'"):
        built(when={"seed": 1})
    with pytest.raises(SpecError, match="defaults: unknown field 'when'"):
        built(defaults={"when": {"seed": 1}})
