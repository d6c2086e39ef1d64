"""API keys: which environment variable should hold a model's key, and which models cannot be used without one.

Pure: the environment is a parameter. A user's own server may need no key; a provider's own server always does.
"""

from collections.abc import Collection, Mapping

from holdfast.spec.providers import PROVIDERS, default_key_variables
from holdfast.spec.types import Model, Spec

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
