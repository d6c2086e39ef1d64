"""Decides which models of a run may be corrected on resume: a wrong name, provider or parameter. Pure functions.

Drift protects recorded answers. A cell without any recorded answer has nothing to protect, so its model may change. A
model counts as renamed if the same position in the list of models has another name, and neither spec has both names.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from holdfast.records import Cell, Change
from holdfast.spec import Model, Spec
from holdfast.state import Fold

_FIELDS = tuple(field.name for field in msgspec.structs.fields(Model))


def find_renames(stored: Spec, given: Spec) -> dict[str, str]:
    """Map the stored names of renamed models to their new names."""
    if len(stored.models) != len(given.models):
        return {}
    old, new = ([model.name for model in spec.models] for spec in (stored, given))
    renamed = {was: now for was, now in zip(old, new, strict=True) if was != now}
    return {} if renamed.keys() & set(new) or set(renamed.values()) & set(old) else renamed


def with_names(spec: Spec, renamed: Mapping[str, str]) -> Spec:
    """Rename models everywhere in a spec."""
    if not renamed:
        return spec
    models = [msgspec.structs.replace(model, name=renamed.get(model.name, model.name)) for model in spec.models]
    tasks = [
        msgspec.structs.replace(task, models=task.models and [renamed.get(name, name) for name in task.models])
        for task in spec.tasks
    ]
    return msgspec.structs.replace(spec, models=models, tasks=tasks)


def corrected_models(changes: Iterable[Change], fold: Fold, renamed: Mapping[str, str]) -> dict[str, str]:
    """Map each model with a changed result field (by its new name) to the reason why it may not change; empty if it
    may.
    """
    stored = {renamed.get(cell.model, cell.model): cell.model for cell in fold.story.cells}
    names = dict.fromkeys(model_in(each.field, stored) for each in changes if each.kind == "result")
    return {name: find_obstacle(stored[name], fold) for name in names if name}


def model_in(field: str, names: Iterable[str]) -> str:
    """The model that a spec field belongs to; empty if it is not a field of a model. Names may contain dots."""
    return next((name for name in names if field in {f"models.{name}.{each}" for each in _FIELDS}), "")


def with_stored_models(spec: Spec, stored: Spec, names: Collection[str], renamed: Mapping[str, str]) -> Spec:
    """Undo the corrections: the models from which the stored plan was made, under their stored names."""
    before = {renamed.get(model.name, model.name): model for model in stored.models}
    models = [before[model.name] if model.name in names else model for model in spec.models]
    return msgspec.structs.replace(spec, models=models)


def cells_of(fold: Fold, models: Collection[str], renamed: Mapping[str, str]) -> list[Cell]:
    return [cell for cell in fold.story.cells if renamed.get(cell.model, cell.model) in models]


def find_obstacle(name: str, fold: Fold) -> str:
    """Why a model may not change; empty if it may. Lost records may have been answers. Torn and void bytes hold no
    answers that count.
    """
    # The cells with an answer, an answered step or an announced call.
    cells = [cell for cell in fold.story.cells if cell.model == name]
    ordinals = [ordinal for ordinal, trail in fold.trails.items() if trail.answered]
    answered = [
        cell
        for cell in cells
        if fold.finished.has_any(cell.first, cell.count)
        or any(cell.first <= ordinal < cell.first + cell.count for ordinal in ordinals)
    ]
    if answered:
        shown = dict.fromkeys(f"{cell.task} with {cell.model}" for cell in answered)  # one cell in each block
        return f"{', '.join(shown)} {'has' if len(shown) == 1 else 'have'} recorded answers or calls"
    if any(job.line == f"models.{name}" for job in fold.story.jobs.values()):
        return f"{name} has an open batch job"
    if ({each.kind for each in fold.damage} | {each.kind for each in fold.story.anomalies}) - {"torn", "void"}:
        return "the journal has losses, which may have been answers"
    return ""
