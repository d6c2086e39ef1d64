"""Sweeps: a list of values where one is expected creates one named variant of the task or model per value.

`prompt: {short: …, long: …}` creates `sums+short` and `sums+long`; `temperature: [0, 0.7]` creates `local+t0` and
`local+t0.7`. Variants are ordinary tasks and models, so plan, drift and reports need no notion of a sweep. Only fields
whose value is never a list can be swept: `stop: [a, b]` is one value.

`when` of a model keeps some of its variants. `when` of a task keeps some of its variants and, for each of them, some of
the models: its conditions may also name `model` and what the models sweep. Variants of models that no task runs are
left out.
"""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.spec.messages import kind_of
from holdfast.spec.source.conditions import WHEN, Choice, Conditions, KeptCombinations

_TEXTS = ("system", "prompt")
_PARAMS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "reasoning_effort",
    "verbosity",
)
_FIELDS = {"tasks": _TEXTS, "models": _PARAMS}
_MODEL = "model"
"""What the conditions of a task call the name of a model."""


class _Variant(msgspec.Struct, frozen=True):
    """A task or model with one value for each swept field; `base` is its name without the labels of these values."""

    part: dict[str, Any]
    base: str
    chosen: Mapping[str, Sequence[Choice]] = {}

    @property
    def name(self) -> str:
        return str(self.part["name"])


class Whens(msgspec.Struct, frozen=True):
    """The `when` of each task and model that has one, as written, by number."""

    tasks: Mapping[int, Any]
    models: Mapping[int, Any]


def pop_conditions(mapping: dict[str, Any]) -> Whens:
    """Remove every `when` from a spec that is not validated yet, in place: the effective spec has none."""
    found: dict[str, dict[int, Any]] = {"tasks": {}, "models": {}}
    for kind, whens in found.items():
        parts = mapping.get(kind)
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            when = part.pop(WHEN, None) if isinstance(part, dict) else None
            if when is not None:  # `--set tasks.sums.when=null` keeps everything
                whens[index] = when
    return Whens(**found)


def first_values(mapping: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the first value of each sweep, so that errors name the places that the user wrote."""
    first = copy.deepcopy(mapping)
    for kind, fields in _FIELDS.items():
        for part in _parts(first, kind):
            holder = _holder(part, kind)
            for name in fields:
                if _is_swept(holder, name) and holder[name]:
                    holder[name] = _choices(holder, name)[0].value
    return first


def expand_sweeps(mapping: dict[str, Any], whens: Whens, where: str) -> list[KeptCombinations]:
    """Replace each swept task and model by its variants, in place. Returns how many combinations each `when` keeps.

    `mapping`: a spec whose `first_values` are valid. SpecError for an empty sweep and for a `when` that keeps nothing.
    """
    for name, role in (mapping.get("roles") or {}).items():
        for field in _PARAMS:
            if _is_swept(_holder(role, "models"), field):
                raise SpecError(
                    f"{where}: roles.{name}.params.{field}: a role is a single model; only `models` can be swept"
                )
    kept: list[KeptCombinations] = []
    models: list[_Variant] = []
    for index, model in enumerate(mapping["models"]):
        every = list(_variants(model, "models", f"{where}: models[{index}]"))
        if index in whens.models:
            every = _keep_models(every, Conditions(whens.models[index], where, f"models[{index}].{WHEN}"), kept)
        models += every
    tasks: list[_Variant] = []
    for index, task in enumerate(mapping["tasks"]):
        every = list(_variants(task, "tasks", f"{where}: tasks[{index}]"))
        for variant in every:
            _name_variants(variant.part, models)
        if index in whens.tasks:
            conditions = Conditions(whens.tasks[index], where, f"tasks[{index}].{WHEN}")
            every = _keep_tasks(every, models, conditions, kept)
        tasks += every
    mapping["tasks"] = [task.part for task in tasks]
    mapping["models"] = [each.part for each in models if not whens.tasks or not each.chosen or _is_run(each, tasks)]
    return kept


def base_of(name: str, bases: Mapping[str, object]) -> str:
    """Return the task or model in `bases` that has this name or this variant; empty if there is none."""
    parts = name.split("+")
    candidates = ("+".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((candidate for candidate in candidates if candidate in bases), "")


def _variants(part: dict[str, Any], kind: str, place: str) -> Iterator[_Variant]:
    """Yield the variants of a task or model: only itself if nothing is swept."""
    holder = _holder(part, kind)
    swept = [name for name in _FIELDS[kind] if _is_swept(holder, name)]
    expected = "texts" if kind == "tasks" else "single values"
    for name in swept:
        where = f"{place}.{'params.' if kind == 'models' else ''}{name}"
        if not holder[name]:
            raise SpecError(f"{where}: an empty sweep; give at least one value")
        for choice in _choices(holder, name):
            if isinstance(choice.value, dict | list) or (kind == "tasks" and not isinstance(choice.value, str)):
                got = f"{choice.label} is {kind_of(choice.value)}"
                raise SpecError(f"{where}: a sweep consists of {expected}, but {got}")
    if not swept:
        yield _Variant(part, part["name"])
        return
    for values in itertools.product(*(_choices(holder, name) for name in swept)):
        variant = copy.deepcopy(part)
        chosen = dict(zip(swept, values, strict=True))
        variant["name"] = "+".join([part["name"], *(choice.label for choice in values)])
        _holder(variant, kind).update({name: choice.value for name, choice in chosen.items()})
        yield _Variant(variant, part["name"], {name: [choice] for name, choice in chosen.items()})


def _name_variants(task: dict[str, Any], models: Sequence[_Variant]) -> None:
    """A task that names a swept model runs with all variants of that model."""
    if task.get("models") is not None:
        variants: dict[str, list[str]] = {}
        for model in models:
            variants.setdefault(model.base, []).append(model.name)
        task["models"] = [name for each in task["models"] for name in variants.get(each, [each])]


def _keep_models(models: Sequence[_Variant], conditions: Conditions, kept: list[KeptCombinations]) -> list[_Variant]:
    """Return the variants of one model that its `when` keeps, and add their number to `kept`."""
    conditions.check(_choices_in(models))
    left = [model for model in models if conditions.keeps(model.chosen)]
    kept.append(conditions.count(len(left), len(models)))
    return left


def _keep_tasks(
    tasks: Sequence[_Variant], models: Sequence[_Variant], conditions: Conditions, kept: list[KeptCombinations]
) -> list[_Variant]:
    """Return the variants of one task that its `when` keeps, each with the models that it keeps; add their number."""
    named = tasks[0].part.get("models")
    if not {*(named or ())} <= {model.name for model in models}:
        return list(tasks)  # the loader reports models that do not exist
    mine = [_with_name(model) for model in models if named is None or model.name in named]
    conditions.check(_choices_in([*tasks, *mine]))
    found = []
    count = 0
    for task in tasks:
        left = [model.name for model in mine if conditions.keeps({**task.chosen, **model.chosen})]
        count += len(left)
        if left and len(left) < len(mine):
            task.part["models"] = left
        found += [task] if left else []
    kept.append(conditions.count(count, len(tasks) * len(mine)))
    return found


def _with_name(model: _Variant) -> _Variant:
    """A model whose name can be a condition, with or without the labels of its variant."""
    names = [Choice(name, name) for name in dict.fromkeys((model.base, model.name))]
    return msgspec.structs.replace(model, chosen={**model.chosen, _MODEL: names})


def _choices_in(variants: Sequence[_Variant]) -> dict[str, list[Choice]]:
    """Every value of every swept field."""
    found: dict[str, list[Choice]] = {}
    for variant in variants:
        for name, choices in variant.chosen.items():
            found.setdefault(name, []).extend(choices)
    return found


def _is_run(model: _Variant, tasks: Sequence[_Variant]) -> bool:
    return any(task.part.get("models") is None or model.name in task.part["models"] for task in tasks)


def _choices(holder: dict[str, Any], name: str) -> list[Choice]:
    """Return each value with the label that it adds to the name."""
    given = holder[name]
    if isinstance(given, dict):
        return [Choice(str(label), value) for label, value in given.items()]
    initials = "".join(word[0] for word in name.split("_"))
    if name in _TEXTS:
        return [Choice(f"{initials}{number}", value) for number, value in enumerate(given, 1)]
    return [Choice(value if isinstance(value, str) else f"{initials}{value}", value) for value in given]


def _is_swept(holder: dict[str, Any], name: str) -> bool:
    return isinstance(holder.get(name), list | dict)


def _holder(part: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the mapping that holds the fields that can be swept."""
    if kind == "tasks":
        return part
    params = part.get("params")
    return params if isinstance(params, dict) else {}


def _parts(mapping: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    parts = mapping.get(kind)
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
