"""`${VAR}` in the `options` and `params` of models: stored as written, replaced when a request is made.

Both may hold secrets. Numbers, and parameters that every server knows (`temperature`, `stop`), are no secrets: they are
replaced when the spec is read, so that they are validated, and compared when a run is resumed. Other texts are compared
as written, so another key in the same variable is no drift. Earlier versions stored the values of the variables;
`adopt_stored` recognises such runs.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.spec.sampling_parameters import RULES
from holdfast.spec.source.yaml import VARIABLE, fill_in, parse_variable
from holdfast.spec.types import Model, Spec

_LATE = re.compile(r"(?:models\[\d+\]|roles\..+?|defaults)\.(options|params)(?:\.(\w+))?.*")


def is_late(place: str) -> bool:
    """Whether a text at this place of a spec keeps its variables until a request is made."""
    found = _LATE.fullmatch(place)
    return found is not None and not (found[1] == "params" and _is_plain(found[2]))


def _is_plain(parameter: str | None) -> bool:
    """Whether every server knows the parameter and it is no mapping, which could hold a secret."""
    rule = RULES.get(parameter or "")
    return rule is not None and rule.expected != "a mapping"


def fill_params(params: Mapping[str, Any], environ: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return the parameters to send. A value that is exactly one variable becomes a number if it looks like one,
    unless it is a credential.
    """
    return {name: _fill(value, environ, f"{place}.params.{name}", is_typed=True) for name, value in params.items()}


def fill_options(options: Mapping[str, Any], environ: Mapping[str, str], place: str) -> dict[str, Any]:
    """Return the options with their variables replaced. All values stay text."""
    return {name: _fill(value, environ, f"{place}.options.{name}", is_typed=False) for name, value in options.items()}


def _fill(value: Any, environ: Mapping[str, str], place: str, *, is_typed: bool) -> Any:
    if isinstance(value, dict):
        return {name: _fill(each, environ, f"{place}.{name}", is_typed=is_typed) for name, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, environ, f"{place}[{i}]", is_typed=is_typed) for i, each in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    text, whole = fill_in(value, environ, place), VARIABLE.fullmatch(value)
    return text if whole is None or not is_typed else parse_variable(text, whole[1], place)


def variables_in(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Return every variable in a part of a spec, as (field that holds it, variable)."""
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in variables_in(each, str(key))]
    if isinstance(value, list):
        return [found for each in value for found in variables_in(each, name)]
    return [(name, match[1]) for match in VARIABLE.finditer(value)] if isinstance(value, str) else []


def adopt_stored(given: Spec, stored: Spec, environ: Mapping[str, str] = os.environ) -> Spec:
    """Return the given spec with the stored `options` and `params` wherever the given ones have the same values."""
    before = {model.name: model for model in stored.models}
    models = [_adopt(model, before.get(model.name), environ) for model in given.models]
    roles = {name: _adopt(role, stored.roles.get(name), environ) for name, role in given.roles.items()}
    if models == given.models and roles == given.roles:
        return given
    return msgspec.structs.replace(given, models=models, roles=roles)


def _adopt(given: Model, stored: Model | None, environ: Mapping[str, str]) -> Model:
    if stored is None or not variables_in([given.options, given.params]):
        return given
    options, params = fill_options(given.options, environ, given.name), fill_params(given.params, environ, given.name)
    if options == stored.options:
        given = msgspec.structs.replace(given, options=stored.options)
    return msgspec.structs.replace(given, params=stored.params) if params == stored.params else given
