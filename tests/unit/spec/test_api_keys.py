"""Where a key is missing without which nothing can be asked, and where one may be done without."""

from typing import Any

import pytest

from holdfast.spec import build_spec
from holdfast.spec.messages import find_warnings
from holdfast.spec.providers import missing_keys

OWN = "http://127.0.0.1:8000/v1"


def told(model: Any, **environ: str) -> tuple[list[str], list[str]]:
    """What is missing, and what is only doubted."""
    spec = build_spec({"tasks": [{"name": "t", "prompt": "{q}"}], "models": [model]})
    return missing_keys(spec, environ), find_warnings(spec, environ)


def places(missing: list[str]) -> list[str]:
    return [each.split(":")[0] for each in missing]


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai/gpt-x", "OPENAI_API_KEY"),
        ("anthropic/claude-x", "ANTHROPIC_API_KEY"),
        ("google/gemini-x", "GEMINI_API_KEY"),
        ("groq/x", "GROQ_API_KEY"),
        ({"name": "m", "provider": "openai", "api_key_env": "MINE"}, "MINE"),
    ],
)
def test_a_providers_own_server_needs_its_key(model: Any, variable: str) -> None:
    (missing,), doubted = told(model)
    assert missing.startswith(f"models[0].api_key_env: the environment variable {variable} is not set")
    assert doubted == []
    assert len(told(model, **{variable: " "})[0]) == 1
    assert told(model, **{variable: "k"}) == ([], [])


@pytest.mark.parametrize(
    "model",
    [
        "mock",
        "vllm/qwen",
        "ollama/qwen",
        {"name": "m", "provider": "openai", "base_url": OWN},
        {"name": "m", "provider": "openai", "base_url": [OWN, OWN.replace("8000", "8001")]},
        {"name": "m", "provider": "openai", "headers": {"Authorization": "Bearer ${KEY}"}},
        {"name": "m", "provider": "litellm", "model": "openai/gpt-x"},
        {"name": "m", "provider": "module:function"},
    ],
)
def test_others_may_be_asked_without_one(model: Any) -> None:
    assert told(model) == ([], [])


def test_a_named_variable_of_a_server_of_ones_own_is_only_doubted() -> None:
    missing, (doubt,) = told({"name": "m", "provider": "openai", "base_url": OWN, "api_key_env": "MINE"})
    assert missing == []
    assert "MINE is not set; requests are sent without a key" in doubt


def test_google_reads_two_variables_unless_one_is_named() -> None:
    assert told("google/g", GOOGLE_API_KEY="k") == ([], [])
    named = {"name": "g", "provider": "google", "api_key_env": "GEMINI_API_KEY"}
    assert len(told(named, GOOGLE_API_KEY="k")[0]) == 1


def test_a_judge_needs_its_key_and_a_model_that_is_asked_nothing_needs_none() -> None:
    spec = build_spec({"tasks": [{"name": "t"}], "models": ["openai/x", "mock"], "roles": {"judge": "anthropic/y"}})
    assert places(missing_keys(spec, {})) == ["models[0].api_key_env", "roles.judge.api_key_env"]
    assert places(missing_keys(spec, {}, ["models[0]"])) == ["roles.judge.api_key_env"]
