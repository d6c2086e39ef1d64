"""Short names of models, wherever a model can be named."""

from typing import Any

import pytest

from holdfast.errors import SpecError
from holdfast.spec import build_spec
from holdfast.spec.providers import PROVIDERS

TASKS = [{"name": "t", "dataset": {"path": "rows.jsonl"}}]


def built(models: list[Any], **more: Any) -> Any:
    return build_spec({"models": models, "tasks": TASKS, **more}, "spec.yaml")


@pytest.mark.parametrize(
    ("name", "provider", "model", "base_url", "variable"),
    [
        ("openai/gpt-x", "openai", "gpt-x", "", ""),
        ("anthropic/claude-x", "anthropic", "claude-x", "", ""),
        ("google/gemini-x", "google", "gemini-x", "", ""),
        ("litellm/bedrock/x", "litellm", "bedrock/x", "", ""),
        ("openrouter/org/model", "openai", "org/model", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("groq/x", "openai", "x", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
        ("vllm/org/model@rev", "openai", "org/model@rev", "http://127.0.0.1:8000/v1", ""),
        ("ollama/qwen3:8b", "openai", "qwen3:8b", "http://127.0.0.1:11434/v1", ""),
        ("together/qwen3-8b:my-lora", "openai", "qwen3-8b:my-lora", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
        ("mock", "mock", "", "", ""),
        ("my_module:ask/x", "my_module:ask", "x", "", ""),
    ],
)
def test_a_short_name_is_a_provider_and_a_model(
    name: str, provider: str, model: str, base_url: str, variable: str
) -> None:
    (made,) = built([name]).models
    assert (made.provider, made.model, made.base_url, made.api_key_env) == (provider, model, base_url, variable)
    assert made.name == (model or provider)


def test_defaults_hold_for_short_names_too() -> None:
    spec = built(["openai/gpt-x", "mock"], defaults={"params": {"temperature": 0}, "max_connections": 7})
    assert [(model.params, model.max_connections) for model in spec.models] == [({"temperature": 0}, 7)] * 2


def test_the_same_model_of_two_servers_keeps_both() -> None:
    spec = built(["openrouter/qwen3", "together/qwen3"])
    assert [model.name for model in spec.models] == ["qwen3", "together/qwen3"]


def test_the_same_name_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="is already the name of"):
        built(["openai/x", "openai/x", "openai/x"])


def test_a_role_may_be_a_short_name() -> None:
    role = built(["mock"], roles={"judge": "anthropic/claude-x"}).roles["judge"]
    assert (role.name, role.provider, role.model) == ("judge", "anthropic", "claude-x")


def test_a_sweep_of_a_short_names_parameters_makes_variants() -> None:
    spec = built(["openai/x"], defaults={"params": {"temperature": [0, 1]}})
    assert [model.name for model in spec.models] == ["x+t0", "x+t1"]


def test_every_compatible_server_is_an_address_of_the_same_kind() -> None:
    servers = {name: info for name, info in PROVIDERS.items() if info.speaks}
    assert len(servers) >= 11
    for name, info in servers.items():
        assert info.speaks in PROVIDERS
        assert not info.factory, name
        assert info.base_url.startswith(("https://", "http://127.0.0.1:")), name
        assert info.requires_key == info.base_url.startswith("https://"), name
