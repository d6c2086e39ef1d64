"""What is valid and probably not meant is said; what is meant is left in peace."""

from typing import Any

import pytest

from holdfast.spec import build_spec
from holdfast.spec.messages import find_warnings


def doubted(task: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **fields: Any) -> list[str]:
    raw = {
        "tasks": [{"name": "t", "prompt": "{q}", **(task or {})}],
        "models": [{"name": "m", "provider": "mock", **(model or {})}],
        **fields,
    }
    return find_warnings(build_spec(raw), {"SET": "x", "EMPTY": ""})


@pytest.mark.parametrize(
    ("prompt", "half", "whole"),
    [
        ("Compute: {question", "'{question'", "{question}"),
        ("Compute: question}", "'question}'", "{question}"),
        ("{question, then {answer}", "'{question'", "{question}"),
        ('{question Reply as {"x": 1}', "'{question'", "{question}"),
        ("{a}\nand {b\nand {c}", "'{b'", "{b}"),
    ],
)
def test_a_field_with_one_brace_is_doubted(prompt: str, half: str, whole: str) -> None:
    (doubt,) = doubted({"prompt": prompt})
    assert doubt.startswith("tasks[0].prompt: ")
    assert half in doubt
    assert whole in doubt


@pytest.mark.parametrize(
    "prompt",
    [
        "Compute: {question}",
        "{{name}} stands for itself",
        'Reply as {"answer": {question}, "why": "…"}',
        "int main() {return 0;}",
        "{first\n  second\n}",
        r"\text{two words} and \frac{1}{2}",
        "{ and } and {} and {1} and }{",
        ":-} {-:",
        "",
    ],
)
def test_braces_in_pairs_and_braces_without_a_name_are_meant(prompt: str) -> None:
    assert doubted({"prompt": f"{{q}} {prompt}"}) == []


@pytest.mark.parametrize(
    "task",
    [
        {"prompt": "Say {{question}}"},
        {"prompt": "no column"},
        {"prompt": "", "messages": [{"role": "user", "content": "hello"}]},
    ],
)
def test_a_prompt_that_is_the_same_for_all_samples_is_doubted(task: dict[str, Any]) -> None:
    (doubt,) = doubted(task)
    assert "every sample gets the same text; write a column in one pair of braces" in doubt


@pytest.mark.parametrize(
    "task",
    [
        {"prompt": ""},
        {"prompt": "hello", "system": "about {q}"},
        {"prompt": "hello", "solver": "mine:solve"},
        {"prompt": "hello", "dataset": {"path": "x.jsonl", "files": ["image"]}},
    ],
)
def test_a_prompt_that_gets_its_column_elsewhere_is_meant(task: dict[str, Any]) -> None:
    assert doubted(task) == []


def test_examples_from_the_evaluated_rows_are_doubted() -> None:
    (doubt,) = doubted({"dataset": {"path": "x.csv"}, "fewshot": {"path": "x.csv", "n": 1}})
    assert "tasks[0].fewshot.path: " in doubt
    assert "shown to others" in doubt
    assert doubted({"dataset": {"path": "x.csv"}, "fewshot": {"path": "y.csv", "n": 1}}) == []


def test_every_template_of_a_task_is_looked_at() -> None:
    messages = [{"role": "user", "content": "{c"}, {"role": "user", "content": [{"type": "text", "text": "{d"}]}]
    found = doubted({"system": "{a", "prompt": "{b", "messages": messages})
    assert [each.split(":")[0] for each in found] == [
        "tasks[0].system",
        "tasks[0].prompt",
        "tasks[0].messages[0].content",
    ]


def test_jinja_says_itself_what_is_wrong_with_a_template() -> None:
    assert doubted({"prompt": "{b", "template": "jinja"}) == []


@pytest.mark.parametrize(("variable", "expected"), [("SET", 0), ("EMPTY", 1), ("UNSET", 1), ("", 0)])
def test_a_key_variable_that_is_not_set_is_doubted(variable: str, expected: int) -> None:
    found = doubted(model={"api_key_env": variable})
    assert len(found) == expected
    assert all(each.startswith("models[0].api_key_env: ") and variable in each for each in found)


def test_roles_are_looked_at_as_well() -> None:
    found = doubted(roles={"judge": {"provider": "mock", "api_key_env": "UNSET", "params": {"temprature": 1}}})
    assert [each.split(":")[0] for each in found] == ["roles.judge.api_key_env", "roles.judge.params"]


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("temprature", "temperature"),
        ("Temperature", "temperature"),
        ("max_token", "max_tokens"),
        ("maxTokens", "max_tokens"),
        ("top-p", "top_p"),
        ("frequency_penality", "frequency_penalty"),
    ],
)
def test_a_slip_in_a_well_known_parameter_is_doubted(slip: str, meant: str) -> None:
    (doubt,) = doubted(model={"params": {slip: 1}})
    expected = f"models[0].params: {slip!r} is not a known parameter and is sent unchanged; did you mean {meant!r}?"
    assert doubt == expected


@pytest.mark.parametrize("name", ["temperature", "min_tokens", "top_k", "top_p", "min_p", "n", "enable_thinking"])
def test_known_parameters_cause_no_warning(name: str) -> None:
    assert doubted(model={"params": {name: 1}}) == []


@pytest.mark.parametrize("name", ["my_own_switch", "t"])
def test_an_unknown_parameter_is_a_warning_without_a_wrong_guess(name: str) -> None:
    (doubt,) = doubted(model={"params": {name: 1}})
    assert doubt.startswith(f"models[0].params: {name!r} is not a known parameter and is sent unchanged; ")
    assert "did you mean" not in doubt
