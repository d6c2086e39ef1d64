"""The table of providers: what the spec, the command line and `holdfast.models` know about each of them.

Plain data: it imports no provider. Factories are "module:function" strings that `holdfast.models` imports when a
provider is opened, so that reading a spec loads no HTTP client. To add a provider, write its module in
`models/providers/` and add one line here. Invariant: no other module holds a list of providers.

Providers that installed packages offer (entry point group `holdfast.providers`) are not in this table:
`models/providers/registry.py` finds them.
"""

import msgspec


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
    price_list: str = ""
    """The name of the default server in the price list of the package genai-prices; empty if it is not listed."""
    removed: str = ""
    """For a provider that older versions had: what to use now."""

    @property
    def requires_key(self) -> bool:
        """Whether the default server is known to reject every request without an API key."""
        return bool(self.key_variables)


LOCAL_BATCHES = "holdfast.models.batch.local:LocalBatches"
"""Batches for providers that run in this process: to try out what a batch does, and for the user's own providers."""
_OPENAI_BATCHES = "holdfast.models.batch.openai:OpenAIBatches"
_ANTHROPIC_BATCHES = "holdfast.models.batch.anthropic:AnthropicBatches"
_VLLM = (
    "serve the model with `vllm serve MODEL`, then use provider: openai with its base_url, or the short name "
    "vllm/MODEL for http://127.0.0.1:8000/v1"
)


def _built_in(
    module: str, *key_variables: str, base_url: str = "", batches: str = "", prices: str = ""
) -> ProviderInfo:
    """A provider of `models/providers`, whose factory is called `make_MODULE`."""
    factory = f"holdfast.models.providers.{module}:make_{module}"
    return ProviderInfo(
        factory=factory, base_url=base_url, key_variables=key_variables, batch_factory=batches, price_list=prices
    )


def _compatible(base_url: str, *key_variables: str, removed: str = "") -> ProviderInfo:
    """An OpenAI-compatible server."""
    return ProviderInfo(speaks="openai", base_url=base_url, key_variables=key_variables, removed=removed)


PROVIDERS: dict[str, ProviderInfo] = {
    "anthropic": _built_in(
        "anthropic",
        "ANTHROPIC_API_KEY",
        base_url="https://api.anthropic.com/v1",
        batches=_ANTHROPIC_BATCHES,
        prices="anthropic",
    ),
    "deepseek": _compatible("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": _compatible("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "google": _built_in(
        "google",
        "GEMINI_API_KEY",
        "GOOGLE_API_KEY",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        prices="google",
    ),
    "groq": _compatible("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "litellm": _built_in("litellm"),
    "llamacpp": _compatible("http://127.0.0.1:8080/v1"),
    "mistral": _compatible("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "mock": _built_in("mock", batches=LOCAL_BATCHES),
    "ollama": _compatible("http://127.0.0.1:11434/v1"),
    "openai": _built_in(
        "openai", "OPENAI_API_KEY", base_url="https://api.openai.com/v1", batches=_OPENAI_BATCHES, prices="openai"
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


def is_external(provider: str) -> bool:
    """Whether the provider is code from outside Holdfast: `module:function`, or an installed package's entry point."""
    return provider not in PROVIDERS
