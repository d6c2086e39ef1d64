"""What models cost: prices that are found once and put into the run's spec.

A price that the spec does not give is looked up when a run begins, and is part of its spec from then on (class
throughput, with its source): so a report of an old run does not change with the list that a price came from. A resume
keeps what the run has, unless it brings a price of its own.
"""

import os
from collections.abc import Mapping

import msgspec

from holdfast.errors import SpecError
from holdfast.models.prices import PACKAGE, find_rates, is_installed
from holdfast.spec import Model, Price, Spec
from holdfast.spec.reading import expand


def with_prices(spec: Spec, stored: Spec | None = None, environ: Mapping[str, str] = os.environ) -> Spec:
    """The spec with a price for every model that has one: its own, that of the run so far, or a listed one."""
    known = {} if stored is None else {_identity(model): model.price for model in _models(stored)}

    def priced(model: Model) -> Model:
        price = model.price or known.get(_identity(model)) or _listed(model, environ)
        return model if price is model.price else msgspec.structs.replace(model, price=price)

    roles = {name: priced(model) for name, model in spec.roles.items()}
    return msgspec.structs.replace(spec, models=[priced(model) for model in spec.models], roles=roles)


def check_budget(spec: Spec) -> None:
    """SpecError if money is limited and nobody knows what a model costs: such a limit would never be reached."""
    if spec.limits.run.cost_usd is None:
        return
    for model in _models(spec):
        if model.price is None:
            listed = "" if is_installed() else f", or install holdfast[prices] for the list of {PACKAGE}"
            raise SpecError(
                f"limits.run.cost_usd: no price known for {model.name!r}: give it price: {{input: …, output: …}}, in "
                f"dollars for a million tokens{listed}"
            )


def _models(spec: Spec) -> list[Model]:
    return [*spec.models, *spec.roles.values()]


def _identity(model: Model) -> tuple[str, str, str]:
    return model.name, model.provider, model.model


def _listed(model: Model, environ: Mapping[str, str]) -> Price | None:
    try:
        urls = [model.base_url] if isinstance(model.base_url, str) else model.base_url
        base_url, _ = expand(urls[0] if urls else "", environ, "base_url")  # several are one model, at one price
    except SpecError:
        return None  # a variable is missing: whoever opens the connection says so
    found = find_rates(model.provider, model.model, base_url)
    return None if found is None else msgspec.convert(msgspec.to_builtins(found), Price)
