"""Keys of models' servers: which variable should hold one and does not, and where nothing can be asked without.

Pure: the environment is handed in. A server of one's own may need no key; a provider's own server always does.
"""

from collections.abc import Collection, Mapping

from holdfast.spec.presets import PRESETS
from holdfast.spec.types import Model, Spec

USUAL = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
}
"""The variables that providers read for their own servers."""
_HOSTED = {each.base_url for each in PRESETS.values() if each.api_key_env}
_CREDENTIALS = {"authorization", "x-api-key", "x-goog-api-key"}


def placed_models(spec: Spec) -> dict[str, Model]:
    """All that may be asked, each by its place in the spec."""
    models = {f"models[{index}]": model for index, model in enumerate(spec.models)}
    return models | {f"roles.{name}": model for name, model in spec.roles.items()}


def missing_keys(spec: Spec, environ: Mapping[str, str], without: Collection[str] = ()) -> list[str]:
    """The models that are certain to be refused, each in a sentence; `without` those of which nothing is asked."""
    found = []
    for place, model in placed_models(spec).items():
        variable = unset_variable(model, environ)
        if variable and needs_key(model) and place not in without:
            unset = f"the environment variable {variable} is not set"
            found.append(f"{place}.api_key_env: {unset}, and the server of {model.name} needs a key; set it first")
    return found


def unset_variable(model: Model, environ: Mapping[str, str]) -> str:
    """The variable that a model's key should be in and is not. A provider's own server gets the key of its own
    variable, unless a header says otherwise; others get none.
    """
    variables = key_variables(model)
    return "" if any(environ.get(each, "").strip() for each in variables) else next(iter(variables), "")


def key_variables(model: Model) -> tuple[str, ...]:
    """The variables whose value is sent as the model's key: the first that is set."""
    if model.api_key_env:
        return (model.api_key_env,)
    return () if model.base_url or _has_header(model) else USUAL.get(model.provider, ())


def needs_key(model: Model) -> bool:
    """Whether its server is known to answer nobody without one."""
    hosted = not model.base_url or (isinstance(model.base_url, str) and model.base_url in _HOSTED)
    return hosted and model.provider in USUAL and not _has_header(model)


def _has_header(model: Model) -> bool:
    return any(name.lower() in _CREDENTIALS for name in model.headers)
