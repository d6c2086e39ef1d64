"""`${VAR}` in the `options` and `params` of models: stored as it is written, filled in when a request is made.

Both may hold secrets. Numbers, and parameters that every server knows (`temperature`, `stop`), are no secrets: they are
filled in when the spec is read, so that they are checked, and compared when a run is resumed. Other texts are compared
as they are written: another key in the same variable is no drift. Earlier versions stored what the variables held;
`adopt_stored` recognises that.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.spec.sampling_parameters import RULES
from holdfast.spec.source.yaml import VARIABLE, fill_in, typed
from holdfast.spec.types import Model, Spec

_LATE = re.compile(r"(?:models\[\d+\]|roles\..+?|defaults)\.(options|params)(?:\.(\w+))?.*")


def is_late(place: str) -> bool:
    """Whether a text at this place of a spec keeps its variables."""
    found = _LATE.fullmatch(place)
    return found is not None and not (found[1] == "params" and _is_plain(found[2]))


def _is_plain(parameter: str | None) -> bool:
    """A parameter that every server knows and that is not a mapping, which may hold anything."""
    rule = RULES.get(parameter or "")
    return rule is not None and rule.expected != "a mapping"


def fill_params(params: Mapping[str, Any], environ: Mapping[str, str], place: str) -> dict[str, Any]:
    """What is sent. A value that is all of a variable has the type that it looks like, unless it is a credential."""
    return {name: _filled(value, environ, f"{place}.params.{name}", is_typed=True) for name, value in params.items()}


def fill_options(options: Mapping[str, Any], environ: Mapping[str, str], place: str) -> dict[str, Any]:
    return {name: _filled(value, environ, f"{place}.options.{name}", is_typed=False) for name, value in options.items()}


def _filled(value: Any, environ: Mapping[str, str], place: str, *, is_typed: bool) -> Any:
    if isinstance(value, dict):
        return {name: _filled(each, environ, f"{place}.{name}", is_typed=is_typed) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, environ, f"{place}[{i}]", is_typed=is_typed) for i, each in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    text, whole = fill_in(value, environ, place), VARIABLE.fullmatch(value)
    return text if whole is None or not is_typed else typed(text, whole[1], place)


def variables_in(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Every variable in a part of a spec, each with the name of the field that holds it."""
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in variables_in(each, str(key))]
    if isinstance(value, list):
        return [found for each in value for found in variables_in(each, name)]
    return [(name, match[1]) for match in VARIABLE.finditer(value)] if isinstance(value, str) else []


def adopt_stored(given: Spec, stored: Spec, environ: Mapping[str, str] = os.environ) -> Spec:
    """The given spec, with the stored `options` and `params` where the given ones come to the same."""
    before = {model.name: model for model in stored.models}
    models = [_adopted(model, before.get(model.name), environ) for model in given.models]
    roles = {name: _adopted(role, stored.roles.get(name), environ) for name, role in given.roles.items()}
    if models == given.models and roles == given.roles:
        return given
    return msgspec.structs.replace(given, models=models, roles=roles)


def _adopted(given: Model, stored: Model | None, environ: Mapping[str, str]) -> Model:
    if stored is None or not variables_in([given.options, given.params]):
        return given
    options, params = fill_options(given.options, environ, given.name), fill_params(given.params, environ, given.name)
    if options == stored.options:
        given = msgspec.structs.replace(given, options=stored.options)
    return msgspec.structs.replace(given, params=stored.params) if params == stored.params else given
