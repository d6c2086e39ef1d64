"""Corrections of models that have given no answer yet: a wrong model name, provider or parameter.

Drift protects what was recorded. A cell without any recorded answer has nothing to protect, so its model may change.
Keys contain the model's `name`, so that one must stay the same.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.records.facts import Cell, Change
from holdfast.spec import Model, Spec
from holdfast.state import Fold

_FIELDS = tuple(field.name for field in msgspec.structs.fields(Model) if field.name != "name")


def corrected_models(changes: Iterable[Change], fold: Fold) -> dict[str, str]:
    """The models of which a result field changes, by name, and why each may not change; empty if it may."""
    planned = {cell.model for cell in fold.story.cells}
    names = dict.fromkeys(model_in(each.field, planned) for each in changes if each.kind == "result")
    return {name: _obstacle(name, fold) for name in names if name}


def model_in(field: str, names: Iterable[str]) -> str:
    """The model that a spec field belongs to; empty if it is no field of a model. Names may contain dots."""
    return next((name for name in names if field in {f"models.{name}.{each}" for each in _FIELDS}), "")


def with_stored_models(spec: Spec, stored: Spec, names: Iterable[str]) -> Spec:
    """The spec with the uncorrected models: what the stored plan was made of."""
    before = {model.name: model for model in stored.models if model.name in set(names)}
    return msgspec.structs.replace(spec, models=[before.get(model.name, model) for model in spec.models])


def cells_of(fold: Fold, models: Mapping[str, str]) -> list[Cell]:
    return [cell for cell in fold.story.cells if cell.model in models]


def _obstacle(name: str, fold: Fold) -> str:
    """Why a model may not change. Lost records may have been answers; torn and void bytes hold none that count."""
    answered = _answered([cell for cell in fold.story.cells if cell.model == name], fold)
    if answered:
        shown = dict.fromkeys(f"{cell.task} with {cell.model}" for cell in answered)  # one cell in each block
        return f"{', '.join(shown)} {'has' if len(shown) == 1 else 'have'} recorded answers or calls"
    if any(job.line == f"models.{name}" for job in fold.story.jobs.values()):
        return f"{name} has an open batch job"
    if ({each.kind for each in fold.damage} | {each.kind for each in fold.story.anomalies}) - {"torn", "void"}:
        return "the journal has losses, which may have been answers"
    return ""


def _answered(cells: Sequence[Cell], fold: Fold) -> list[Cell]:
    """The cells with an answer, an answered step or an announced call."""
    asked = [ordinal for ordinal, trail in fold.trails.items() if trail.answered]
    return [
        cell
        for cell in cells
        if fold.finished.has_any(cell.first, cell.count)
        or any(cell.first <= ordinal < cell.first + cell.count for ordinal in asked)
    ]
