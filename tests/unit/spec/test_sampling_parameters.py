"""Known sampling parameters have a type and a range. Unknown ones pass."""

from typing import Any

import pytest

from holdfast.errors import SpecError
from holdfast.spec import Spec, build_spec, change_spec, spec_mapping
from holdfast.spec.types import Model


def build(params: dict[str, Any], sets: tuple[str, ...] = (), **fields: Any) -> Spec:
    models = [{"name": "m", "provider": "mock", "params": params}]
    return build_spec({"tasks": [{"name": "t", "prompt": "{q}"}], "models": models, **fields}, "eval.yaml", sets)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temperature", "warm", 'expected a number of at least 0, got "warm"'),
        ("temperature", -0.1, "expected a number of at least 0, got -0.1"),
        ("temperature", True, "expected a number of at least 0, got true"),
        ("temperature", "0.5", 'got "0.5"; write 0.5'),
        ("top_p", 1.1, "expected a number from 0 to 1, got 1.1"),
        ("top_k", -2, "expected a whole number of at least -1, got -2"),
        ("min_p", 2, "expected a number from 0 to 1, got 2"),
        ("max_tokens", -5, "expected a whole number of at least 1, got -5"),
        ("max_tokens", 0, "got 0"),
        ("max_tokens", 1000.0, "got 1000.0; write 1000"),
        ("max_tokens", "many", 'got "many"'),
        ("max_completion_tokens", -1, "got -1"),
        ("max_output_tokens", 2.5, "got 2.5"),
        ("stop", 3, "expected a text or a list of texts, got 3"),
        ("stop", ["a", 3], 'got ["a",3]'),
        ("seed", "random", 'expected a whole number or per_key, got "random"'),
        ("seed", 1.5, "got 1.5"),
        ("presence_penalty", 3, "expected a number from -2 to 2, got 3"),
        ("frequency_penalty", "no", 'got "no"'),
        ("n", 0, "expected a whole number of at least 1, got 0"),
        ("logprobs", "yes", "expected true or false or a whole number"),
        ("top_logprobs", True, "got true"),
        ("logit_bias", [1], "expected a mapping, got [1]"),
    ],
)
def test_an_impossible_value_of_a_known_parameter_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        build({name: value})
    assert str(caught.value).startswith(f"eval.yaml: models[0].params.{name}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0, "top_p": 1, "max_tokens": 1, "seed": -3, "n": 2},
        {"temperature": 2.5, "top_p": 0.0, "top_k": -1, "logprobs": True, "top_logprobs": 20},
        {"stop": "x", "seed": "per_key", "logprobs": 5, "logit_bias": {"1": -100}},
        {"stop": [], "temperature": None, "max_tokens": None, "stream_options": None},
        {"my_own_switch": -5, "Temperature": "warm"},
    ],
)
def test_valid_and_unknown_parameters_pass_unchanged(params: dict[str, Any]) -> None:
    assert build(params).models[0].params == params


def test_every_mistake_is_named_once_with_the_place_in_the_file() -> None:
    other = {"name": "other", "provider": "mock", "params": {"top_p": 7}}
    judge = {"provider": "mock", "params": {"max_tokens": -5}}
    models = [{"name": "m", "provider": "mock", "params": {"temperature": [0, "warm"], "n": -1}}, other]
    with pytest.raises(SpecError) as caught:
        build({}, models=models, roles={"judge": judge})
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "models[0].params.n",
        "models[0].params.temperature",
        "models[1].params.top_p",
        "roles.judge.params.max_tokens",
    ]


def test_values_of_set_and_of_defaults_are_checked() -> None:
    with pytest.raises(SpecError, match=r"models\[0\].params.temperature: expected a number"):
        build({"temperature": 0}, ("models.0.params.temperature=warm",))
    with pytest.raises(SpecError, match=r"models\[0\].params.max_tokens: expected a whole number"):
        build({}, defaults={"params": {"max_tokens": -5}})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [0, float("-inf")], {"hot": float("inf")}])
def test_numbers_that_json_does_not_have_are_refused(value: Any) -> None:
    with pytest.raises(SpecError, match=r"models\[0\].params.temperature: infinite numbers and NaN"):
        build({"temperature": value})


def test_a_stored_spec_keeps_what_older_versions_accepted() -> None:
    stored = spec_mapping(build({"top_p": 1}, roles={"judge": {"provider": "mock"}}))
    stored["models"][0]["params"] = {"temperature": "warm"}
    stored["roles"]["judge"]["params"] = {"max_tokens": -5}
    changed = change_spec(stored, ["models.0.max_connections=3"])
    expected = Model(name="m", provider="mock", params={"temperature": "warm"}, max_connections=3)
    assert changed.models == [expected]
    with pytest.raises(SpecError, match=r"models\[0\].params.temperature: .* got \"hot\""):
        change_spec(stored, ["models.0.params.temperature=hot"])
    with pytest.raises(SpecError, match=r"roles.judge.params.max_tokens: .* got -6"):
        change_spec(stored, ["roles.judge.params.max_tokens=-6"])
