"""Short names of models: `openai/gpt-x`, `openrouter/org/model`. Each stands for a mapping that a spec could hold.

The part before the first slash is a provider, or a server that speaks like OpenAI's and whose address and key are
known. All that follows is the model's name as its server has it, with adapters (`qwen3-8b:my-lora`) and revisions
(`org/model@rev`); it is also the name in keys and in usage.
"""

from typing import Any, NamedTuple


class Preset(NamedTuple):
    """A server that `provider: openai` asks: where it is, and the variable that its key is in, if it takes one."""

    base_url: str
    api_key_env: str = ""


PRESETS: dict[str, Preset] = {
    "deepseek": Preset("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": Preset("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "groq": Preset("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "llamacpp": Preset("http://127.0.0.1:8080/v1"),
    "mistral": Preset("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "ollama": Preset("http://127.0.0.1:11434/v1"),
    "openrouter": Preset("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "sglang": Preset("http://127.0.0.1:30000/v1"),
    "together": Preset("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "vllm": Preset("http://127.0.0.1:8000/v1"),
    "xai": Preset("https://api.x.ai/v1", "XAI_API_KEY"),
}
"""`vllm/…` is a server that `vllm serve` has started."""


def model_fields(model: Any) -> Any:
    """What a short name stands for; anything else as it is. A name without a slash is that of a provider: `mock`."""
    if not isinstance(model, str):
        return model
    provider, _, name = model.partition("/")
    fields = {"name": name or provider, "provider": provider, "model": name}
    preset = PRESETS.get(provider)
    if preset is None or not name:
        return fields
    key = {"api_key_env": preset.api_key_env} if preset.api_key_env else {}
    return {**fields, "provider": "openai", "base_url": preset.base_url, **key}


def expand_names(models: list[Any]) -> list[Any]:
    """Short names in a list of models, each expanded; of two with the same model the second keeps its whole name."""
    made: list[Any] = []
    for model in models:
        fields = model_fields(model)
        taken = {each.get("name") for each in made if isinstance(each, dict)}
        if isinstance(model, str) and fields["name"] in taken:
            fields["name"] = model
        made.append(fields)
    return made
