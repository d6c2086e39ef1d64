"""The table of providers: what the spec, the command line and `holdfast.models` know about each of them.

Plain data: it imports no provider. Factories are "module:function" strings that `holdfast.models` imports when a
provider is opened, so that reading a spec loads no HTTP client. To add a provider, write its module in
`models/providers/` and add one line here. Invariant: no other module holds a list of providers.

Providers that installed packages offer (entry point group `holdfast.providers`) are not in this table:
`models/providers/registry.py` finds them.

Short names of models: `openai/gpt-x`, `openrouter/org/model`. Each is short for a mapping that a spec could hold.

The part before the first slash is a provider, or a server of the table `PROVIDERS` that speaks another provider's
protocol. The rest is the model's name on its server, with adapters (`qwen3-8b:my-lora`) and revisions
(`org/model@rev`); it is also the name in keys and in usage.

API keys: which environment variable should hold a model's key, and which models cannot be used without one.

Pure: the environment is a parameter. A user's own server may need no key; a provider's own server always does.
"""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from holdfast.spec.types import Model, Spec


class ProviderInfo(msgspec.Struct, frozen=True):
    """One provider, or one server that is reached with another provider's protocol (`speaks`)."""

    factory: str = ""
    """"module:function" that takes a `Connection` and returns a `Provider`; empty: it cannot be used as `provider:`."""
    speaks: str = ""
    """The provider whose protocol this server speaks: NAME/MODEL is then short for that provider with `base_url`."""
    base_url: str = ""
    """The default server; empty if there is none."""
    key_variables: tuple[str, ...] = ()
    """The environment variables that may hold the API key of the default server: the first that is set is used."""
    batch_factory: str = ""
    """"module:function" that takes a `Connection` and returns a `BatchApi`; empty: no batch API."""
    has_likelihoods: bool = False
    """Whether it can return the log-probabilities of a prompt, if its server does."""
    price_list: str = ""
    """The name of the default server in the price list of the package genai-prices; empty if it is not listed."""
    options: str = ""
    """The struct of its `options`, in the module of the factory; empty if it has none."""
    free_options: str = ""
    """What `options` may hold if that is not a struct: one sentence."""
    removed: str = ""
    """For a provider that older versions had: what to use now."""

    @property
    def requires_key(self) -> bool:
        """Whether the default server is known to reject every request without an API key."""
        return bool(self.key_variables)


LOCAL_BATCHES = "holdfast.models.batch.api:LocalBatches"
"""Batches for providers that run in this process: to try out what a batch does, and for the user's own providers."""
_OPENAI_BATCHES = "holdfast.models.batch.openai:OpenAIBatches"
_ANTHROPIC_BATCHES = "holdfast.models.batch.anthropic:AnthropicBatches"
_VLLM = (
    "serve the model with `vllm serve MODEL`, then use provider: openai with its base_url, or the short name "
    "vllm/MODEL for http://127.0.0.1:8000/v1"
)


def _built_in(module: str, *key_variables: str, **fields: Any) -> ProviderInfo:
    """A provider of `models/providers`, whose factory is called `make_MODULE`."""
    factory = f"holdfast.models.providers.{module}:make_{module}"
    return ProviderInfo(factory=factory, key_variables=key_variables, **fields)


def _compatible(base_url: str, *key_variables: str, removed: str = "") -> ProviderInfo:
    """An OpenAI-compatible server."""
    return ProviderInfo(speaks="openai", base_url=base_url, key_variables=key_variables, removed=removed)


PROVIDERS: dict[str, ProviderInfo] = {
    "anthropic": _built_in(
        "anthropic",
        "ANTHROPIC_API_KEY",
        base_url="https://api.anthropic.com/v1",
        batch_factory=_ANTHROPIC_BATCHES,
        price_list="anthropic",
    ),
    "deepseek": _compatible("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": _compatible("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "google": _built_in(
        "google",
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        price_list="google",
    ),
    "groq": _compatible("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "litellm": _built_in("litellm", free_options="Any argument of `litellm.acompletion`, such as `aws_region_name`."),
    "llamacpp": _compatible("http://127.0.0.1:8080/v1"),
    "mistral": _compatible("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "mock": _built_in("mock", batch_factory=LOCAL_BATCHES, options="MockOptions", has_likelihoods=True),
    "ollama": _compatible("http://127.0.0.1:11434/v1"),
    "openai": _built_in(
        "openai",
        "OPENAI_API_KEY",
        base_url="https://api.openai.com/v1",
        batch_factory=_OPENAI_BATCHES,
        price_list="openai",
        options="OpenAIOptions",
        has_likelihoods=True,
    ),
    "openrouter": _compatible("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "sglang": _compatible("http://127.0.0.1:30000/v1"),
    "together": _compatible("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "vllm": _compatible("http://127.0.0.1:8000/v1", removed=_VLLM),
    "xai": _compatible("https://api.x.ai/v1", "XAI_API_KEY"),
}


def default_key_variables(provider: str) -> tuple[str, ...]:
    """The variables that a provider reads for its own server; none for an unknown provider."""
    info = PROVIDERS.get(provider)
    return () if info is None or info.speaks else info.key_variables


def why_no_likelihoods(model: Model) -> str:
    """Why a model certainly cannot answer likelihood requests, and what to do; empty if it may."""
    info = PROVIDERS.get(model.provider)
    if info is not None and info.factory and not info.has_likelihoods:
        return f"the provider {model.provider} has no log-probabilities of a prompt; use a completion server (openai)"
    if model.batch is not None and info is not None and info.batch_factory != LOCAL_BATCHES:
        return "a batch job cannot hold likelihood requests; remove `batch`"
    return ""


def is_external(provider: str) -> bool:
    """Whether the provider is code from outside Holdfast: `module:function`, or an installed package's entry point."""
    return provider not in PROVIDERS


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


_HOSTED = {info.base_url for info in PROVIDERS.values() if info.speaks and info.requires_key}
_CREDENTIALS = {"authorization", "x-api-key", "x-goog-api-key"}


def placed_models(spec: Spec) -> dict[str, Model]:
    """All models that a run may use, by their place in the spec."""
    models = {f"models[{index}]": model for index, model in enumerate(spec.models)}
    return models | {f"roles.{name}": model for name, model in spec.roles.items()}


def missing_keys(spec: Spec, environ: Mapping[str, str], without: Collection[str] = ()) -> list[str]:
    """One sentence for each model whose server is certain to reject requests. `without`: places of models that
    receive no request.
    """
    found = []
    for place, model in placed_models(spec).items():
        variable = unset_variable(model, environ)
        if variable and needs_key(model) and place not in without:
            unset = f"the environment variable {variable} is not set"
            found.append(f"{place}.api_key_env: {unset}, and the server of {model.name} needs a key; set it first")
    return found


def unset_variable(model: Model, environ: Mapping[str, str]) -> str:
    """The variable that should hold the model's key and is empty; "" if a key is set or none is used."""
    variables = key_variables(model)
    return "" if any(environ.get(each, "").strip() for each in variables) else next(iter(variables), "")


def key_variables(model: Model) -> tuple[str, ...]:
    """The variables whose value is sent as the model's key: the first that is set. A provider's default variables
    count only for its own server, and not if a header carries the credentials: no other server gets the key.
    """
    if model.api_key_env:
        return (model.api_key_env,)
    return () if model.base_url or _has_header(model) else default_key_variables(model.provider)


def needs_key(model: Model) -> bool:
    """Whether its server is known to reject every request without a key."""
    hosted = not model.base_url or (isinstance(model.base_url, str) and model.base_url in _HOSTED)
    return hosted and bool(default_key_variables(model.provider)) and not _has_header(model)


def _has_header(model: Model) -> bool:
    return any(name.lower() in _CREDENTIALS for name in model.headers)
