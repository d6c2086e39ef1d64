"""Short names of models: `openai/gpt-x`, `openrouter/org/model`. Each is short for a mapping that a spec could hold.

The part before the first slash is a provider, or a server of the table `PROVIDERS` that speaks another provider's
protocol. The rest is the model's name on its server, with adapters (`qwen3-8b:my-lora`) and revisions
(`org/model@rev`); it is also the name in keys and in usage.
"""

from typing import Any

from holdfast.spec.providers import PROVIDERS


def model_fields(model: Any) -> Any:
    """The fields that a short name is short for; anything but a text is returned unchanged. A name without a slash
    names a provider: `mock`.
    """
    if not isinstance(model, str):
        return model
    provider, _, name = model.partition("/")
    fields = {"name": name or provider, "provider": provider, "model": name}
    info = PROVIDERS.get(provider)
    if info is None or not info.speaks or not name:
        return fields
    key = {"api_key_env": info.key_variables[0]} if info.key_variables else {}
    return {**fields, "provider": info.speaks, "base_url": info.base_url, **key}


def expand_names(models: list[Any]) -> list[Any]:
    """The models with short names expanded. If two have the same name, the second keeps its whole short name."""
    expanded: list[Any] = []
    for model in models:
        fields = model_fields(model)
        taken = {each.get("name") for each in expanded if isinstance(each, dict)}
        if isinstance(model, str) and fields["name"] in taken:
            fields["name"] = model
        expanded.append(fields)
    return expanded
