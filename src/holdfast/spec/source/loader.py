"""Builds the effective spec from a YAML file (or a mapping), `--set` values and the environment; selects parts of it.

SpecError for everything that is not understood, with the file, the place (`tasks[0].scorers[1]`), the problem and the
nearest valid name, and, if the value is not from the file itself, where it comes from. Creates nothing on disk.

A part of a spec (fewer samples, tasks or models) is an ordinary spec. `holdfast extend` turns a run of a part into a
run of the whole.
"""

import contextlib
import copy
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import FormatError, Problems, SpecError
from holdfast.spec.messages import explain_all, kind_of, nearest
from holdfast.spec.providers import expand_names, model_fields
from holdfast.spec.reductions import check_reductions
from holdfast.spec.sampling_parameters import has_infinite_number, wrong_params
from holdfast.spec.source.conditions import KeptCombinations
from holdfast.spec.source.data import anchor_dataset, anchor_paths, check_dataset, check_fewshot, expand_dataset
from holdfast.spec.source.includes import INCLUDE, SpecFile, read_spec
from holdfast.spec.source.literal_secrets import refuse_literals, refuse_literals_in_sets
from holdfast.spec.source.origins import Origins
from holdfast.spec.source.sweeps import base_of, expand_sweeps, first_values, pop_conditions
from holdfast.spec.source.text import assign, split_assignment, substitute
from holdfast.spec.source.variables import is_late
from holdfast.spec.types import Model, Spec, Task

_MODEL_FIELDS = {each.name for each in msgspec.structs.fields(Model)} - {"name"}
_TASK_FIELDS = {each.name for each in msgspec.structs.fields(Task)} - {"name"}
_STORED_LEVELS_MAX = 100

Complete = Callable[[dict[str, Any], str], None]
"""Completes a task that is not validated yet, in place, once `--set` values and defaults are applied. Its second
argument is the place of the task, for errors.
"""


class ResolvedSpec(msgspec.Struct, frozen=True):
    """An effective spec, and how many combinations each `when` kept."""

    spec: Spec
    kept: Sequence[KeptCombinations] = ()


def load_spec(path: str, sets: Sequence[str] = (), environ: Mapping[str, str] = os.environ) -> Spec:
    """Return the effective spec of a file. Relative paths are relative to the file that they are written in."""
    return resolve_file(read_spec(path), sets, environ).spec


def resolve_file(
    file: SpecFile,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = os.environ,
    problems: Problems | None = None,
    complete: Complete | None = None,
) -> ResolvedSpec:
    """Return the effective spec of a file that was read. With `environ=None`, `${NAME}` is not replaced. `problems`:
    receives errors that leave a spec to check further; by default they are raised, all at once.
    """
    return _build(file, _Changes(sets, complete), environ, {}, problems, stored=False)


def build_spec(
    raw: object, where: str = "", sets: Sequence[str] = (), environ: Mapping[str, str] | None = os.environ
) -> Spec:
    """Return the effective spec of a mapping. `where` is its file, for errors and relative paths.

    With `environ=None`, `${NAME}` is not replaced.
    """
    return resolve_file(SpecFile(where, raw), sets, environ).spec


def fill_roles(roles: Mapping[str, Any], where: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the roles in a file that is not a spec, with variables replaced as in one."""
    filled = substitute({"roles": copy.deepcopy(dict(roles))}, environ, "", where, is_late)
    return dict(filled["roles"])


def change_spec(stored: Mapping[str, Any], sets: Sequence[str], complete: Complete | None = None) -> Spec:
    """Apply `--set` values to the stored spec of a run. Unchanged parameters are not validated: older versions accepted
    values that are invalid today, and their runs must stay resumable.
    """
    unchanged = {model["name"]: model.get("params") or {} for model in stored.get("models") or ()}
    unchanged |= {f"roles.{name}": role.get("params") or {} for name, role in (stored.get("roles") or {}).items()}
    return _build(SpecFile("", {**stored}), _Changes(sets, complete), None, unchanged, stored=True).spec


class _Changes(msgspec.Struct, frozen=True):
    """What is applied to a spec after it was read."""

    sets: Sequence[str] = ()
    complete: Complete | None = None


def _build(
    file: SpecFile,
    changes: _Changes,
    environ: Mapping[str, str] | None,
    unchanged: Mapping[str, Mapping[str, Any]],
    problems: Problems | None = None,
    *,
    stored: bool,
) -> ResolvedSpec:
    """`unchanged`: parameters that are not validated, by model name or `roles.NAME`. `stored`: the spec comes from a
    run, so it is too late to refuse literal secrets.
    """
    where, origins = file.path, file.origins.copy()
    if not isinstance(file.raw, dict):
        raise SpecError(
            f"{where}: a spec is a mapping of fields, not {kind_of(file.raw)}; begin with `tasks:` and `models:`"
        )
    with _explain_origins(origins, where):
        try:
            mapping = _merge_values(file, changes, environ, origins, stored=stored)
            models = [str(part.get("name")) for _, part in _raw_parts(mapping, "models")]
            tasks = [str(part.get("name")) for _, part in _raw_parts(mapping, "tasks")]
            refused: dict[str, None] = {}
            spec, kept = _convert(mapping, where, None if problems is None else refused)
        except RecursionError:
            raise SpecError(f"{where}: nested too deeply, or a part contains itself") from None
        except (TypeError, ValueError) as error:
            raise SpecError(f"{where}: a value cannot be stored as JSON: {error}") from None
    found = Problems()
    found.found |= {origins.explain(problem, where): None for problem in refused}
    with found.collecting(), _explain_origins(origins, where):
        _check_params(spec, models, unchanged, where)
    if models != [model.name for model in spec.models] or tasks != [task.name for task in spec.tasks]:
        origins.forget_entries()  # sweeps have changed their numbers
    with found.collecting(), _explain_origins(origins, where):
        _check(spec, where)
    if problems is None:
        found.refuse()
    else:
        problems.found |= found.found
    return ResolvedSpec(_anchor(spec, os.path.dirname(os.path.abspath(where)) if where else ""), kept)


@contextlib.contextmanager
def _explain_origins(origins: Origins, where: str) -> Iterator[None]:
    """Add to errors where the refused value comes from."""
    try:
        yield
    except SpecError as error:
        raise SpecError(origins.explain(str(error), where)) from error


def _merge_values(
    file: SpecFile, changes: _Changes, environ: Mapping[str, str] | None, origins: Origins, *, stored: bool
) -> dict[str, Any]:
    """Return the spec with variables replaced, `--set` values and defaults applied, as it would be stored."""
    where, environment = file.path, os.environ if environ is None else environ
    mapping = copy.deepcopy(file.raw)
    assert isinstance(mapping, dict)
    if environ is not None:
        mapping = substitute(mapping, environ, "", where, is_late)
    _anchor_included(mapping, origins)
    refuse_literals_in_sets([split_assignment(each) for each in changes.sets], environment)
    for assignment in changes.sets:
        origins.note_assignment(assign(mapping, assignment))
    if INCLUDE in mapping:
        raise SpecError(f"{where}: {INCLUDE}: only a spec file can include others; write it there")
    _merge_defaults(mapping, where, origins)
    if not stored:
        refuse_literals(mapping, where, environment)
    _refuse_infinite_params(mapping, where)
    mapping = msgspec.json.decode(msgspec.json.encode(mapping))  # as it will be stored: dates and keys become text
    assert isinstance(mapping, dict)
    for place, task in _raw_parts(mapping, "tasks"):
        if changes.complete is not None:
            changes.complete(task, ": ".join(filter(None, (where, place))))
        expand_dataset(task)
    for _, model in _raw_models(mapping):  # `batch: true` is a batch with all defaults
        if isinstance(model.get("batch"), bool):
            model["batch"] = {} if model["batch"] else None
    return mapping


def _convert(
    mapping: dict[str, Any], where: str, refused: dict[str, None] | None
) -> tuple[Spec, list[KeptCombinations]]:
    """Validate a spec and expand its sweeps. `refused`: receives errors of unknown fields, which are then left out."""
    whens = pop_conditions(mapping)
    first = first_values(mapping)
    try:
        # Validate before sweeps are expanded, so that errors name the places that the user wrote.
        spec = msgspec.convert(first, Spec, strict=False)
        kept = expand_sweeps(mapping, whens, where)
        if mapping != first:
            spec = msgspec.convert(mapping, Spec, strict=False)
    except msgspec.ValidationError as error:
        problem, corrected = explain_all(error, first, where)
        if refused is None or corrected is None:
            raise problem from None
        refused |= dict.fromkeys(str(problem).split("\n"))
        return corrected, []
    return spec, kept


def read_stored_spec(stored: Mapping[str, Any]) -> Spec:
    """Parse the spec in a run's journal. FormatError if this version does not understand it."""
    level: list[Any] = [stored]
    for _ in range(_STORED_LEVELS_MAX):
        inner = [each.values() if isinstance(each, Mapping) else each for each in level]
        level = [value for values in inner for value in values if isinstance(value, Mapping | list)]
    if level:
        deep = f"nested more than {_STORED_LEVELS_MAX} levels deep, deeper than any valid spec"
        raise FormatError(f"the spec in the journal is {deep}")
    try:
        return msgspec.convert(stored, Spec)
    except msgspec.ValidationError as error:
        raise FormatError(
            f"the spec in the journal cannot be read ({error}): a newer Holdfast may have written it; upgrade"
        ) from error


def check_stored_spec(stored: Mapping[str, Any]) -> None:
    """FormatError if a value of a stored spec has a type that no version has written. Unknown fields are accepted,
    because commands that only read a run do not need them.
    """
    try:
        read_stored_spec(stored)
    except FormatError as error:
        if isinstance(error.__cause__, msgspec.ValidationError) and not str(error.__cause__).startswith("Expected"):
            return
        raise


def spec_mapping(spec: Spec) -> dict[str, Any]:
    """Return the effective spec as plain data, every value spelled out."""
    mapping = msgspec.to_builtins(spec)
    assert isinstance(mapping, dict)
    return mapping


def _merge_defaults(mapping: dict[str, Any], where: str, origins: Origins) -> None:
    """Copy each default into the tasks and models that do not set the field, and remove `defaults`."""
    defaults = mapping.pop("defaults", None) or {}
    if not isinstance(defaults, dict):
        raise SpecError(f"{where}: defaults: expected a mapping, got {kind_of(defaults)}")
    for name in defaults:
        if name not in _TASK_FIELDS | _MODEL_FIELDS:
            raise SpecError(f"{where}: defaults: unknown field {name!r}{nearest(name, _TASK_FIELDS | _MODEL_FIELDS)}")
    _expand_short_names(mapping)
    for_tasks = {name: value for name, value in defaults.items() if name in _TASK_FIELDS}
    for_models = {name: value for name, value in defaults.items() if name in _MODEL_FIELDS}
    for place, part in _raw_parts(mapping, "tasks"):
        _fill(part, for_tasks, place, origins)
    for place, part in _raw_models(mapping):
        is_role = place.startswith("roles.")
        _fill(part, for_models, place, origins, {"params"} if is_role else set())
        if not is_role and "name" not in part and isinstance(part.get("model"), str):
            part["name"] = part["model"]


def _expand_short_names(mapping: dict[str, Any]) -> None:
    """Replace `openai/gpt-x` in models and roles by its fields. A role has the name of its key."""
    if isinstance(mapping.get("models"), list):
        mapping["models"] = expand_names(mapping["models"])
    roles = mapping.get("roles")
    if not isinstance(roles, dict):
        return
    for name, role in roles.items():
        if isinstance(role, str):
            roles[name] = {**model_fields(role), "name": name}
        elif isinstance(role, dict):
            roles[name] = {"name": name, **role}


def _fill(
    part: dict[str, Any], defaults: Mapping[str, Any], place: str, origins: Origins, without: Collection[str] = ()
) -> None:
    """Copy the defaults that a task or model does not set. `place`: where it is in the spec."""
    for name, value in defaults.items():
        if name in without:
            continue
        if isinstance(value, dict) and isinstance(part.get(name), dict) and name in {"params", "options", "headers"}:
            copied = [f".{each}" for each in value if each not in part[name]]
            part[name] = {**value, **part[name]}
        else:
            copied = [""] if name not in part else []
            part.setdefault(name, copy.deepcopy(value))
        for below in copied:
            origins.note_default(f"defaults.{name}{below}", f"{place}.{name}{below}")


def _check(spec: Spec, where: str) -> None:
    """Check what the types cannot express: unique names, and references between parts."""
    problems = Problems()
    for kind, parts in (("models", spec.models), ("tasks", spec.tasks)):
        with problems.collecting():
            _check_names(kind, [part.name for part in parts], where)
    names = {model.name for model in spec.models}
    for index, task in enumerate(spec.tasks):
        for each in task.models or ():
            if each not in names:
                problem = f"{where}: tasks[{index}].models: there is no model {each!r}{nearest(each, names)}"
                problems.found[problem] = None
        with problems.collecting():
            check_reductions(task, f"{where}: tasks[{index}].reduce")
        with problems.collecting():
            check_dataset(task.dataset, f"{where}: tasks[{index}].dataset")
        with problems.collecting():
            check_fewshot(task, f"{where}: tasks[{index}].fewshot")
    if spec.limits.sample.cost_usd is not None:
        with problems.collecting():
            check_prices((*spec.models, *spec.roles.values()), f"{where}: limits.sample.cost_usd")
    problems.refuse()


def _check_params(spec: Spec, given: Sequence[str], unchanged: Mapping[str, Mapping[str, Any]], where: str) -> None:
    """Report all impossible values of known parameters in one error. `given`: names of the models before sweeps."""
    indexes = {name: index for index, name in enumerate(given)}
    found: dict[str, None] = {}  # a dict, because sweep variants repeat the same mistake
    for model in spec.models:
        place = f"models[{indexes.get(base_of(model.name, indexes), 0)}]"
        found |= dict.fromkeys(f"{place}.{each}" for each in wrong_params(model.params, unchanged.get(model.name, {})))
    for name, role in spec.roles.items():
        place = f"roles.{name}"
        found |= dict.fromkeys(f"{place}.{each}" for each in wrong_params(role.params, unchanged.get(place, {})))
    if found:
        raise SpecError("\n".join(": ".join(filter(None, (where, each))) for each in found))


def _refuse_infinite_params(mapping: Mapping[str, Any], where: str) -> None:
    for place, model in _raw_models(mapping):
        for name, value in model["params"].items() if isinstance(model.get("params"), dict) else ():
            if has_infinite_number(value):
                place = ": ".join(filter(None, (where, f"{place}.params.{name}")))
                raise SpecError(f"{place}: infinite numbers and NaN cannot be sent as JSON")


def _raw_parts(mapping: Mapping[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tasks or models of a spec that is not validated yet, each with its place."""
    parts = mapping.get(kind)
    placed = ((f"{kind}[{index}]", part) for index, part in enumerate(parts if isinstance(parts, list) else ()))
    yield from ((place, part) for place, part in placed if isinstance(part, dict))


def _raw_models(mapping: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the models and roles of a spec that is not validated yet, each with its place."""
    yield from _raw_parts(mapping, "models")
    roles = mapping.get("roles")
    placed = ((f"roles.{name}", role) for name, role in (roles.items() if isinstance(roles, dict) else ()))
    yield from ((place, role) for place, role in placed if isinstance(role, dict))


def check_prices(models: Iterable[Model], place: str) -> None:
    """SpecError if a model has no price: a limit in dollars needs all of them."""
    for model in models:
        if model.price is None:
            raise SpecError(
                f"{place} needs the price of {model.name!r}; add "
                "price: {input: …, output: …} to it, in dollars per million tokens"
            )


def _check_names(kind: str, names: Sequence[str], where: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            first = names.index(name)
            raise SpecError(
                f"{where}: {kind}[{index}].name: {name!r} is already the name of {kind}[{first}]; rename one"
            )


_PATHS = (("dataset", "path"), ("dataset", "files_root"), ("fewshot", "path"))


def _anchor_included(mapping: Mapping[str, Any], origins: Origins) -> None:
    """Make relative data paths in included files absolute, in place: they are relative to the file they are in."""
    for place, part in [*_raw_parts(mapping, "tasks"), ("defaults", mapping.get("defaults"))]:
        for above, name in _PATHS:
            holder = part.get(above) if isinstance(part, dict) else None
            path = holder.get(name) if isinstance(holder, dict) else None
            file = origins.file_of(f"{place}.{above}.{name}")
            if isinstance(holder, dict) and file and path:
                holder[name] = anchor_paths(path, os.path.dirname(os.path.abspath(file)))


def _anchor(spec: Spec, folder: str) -> Spec:
    """Make relative data paths absolute: a resume may start in another folder."""
    if not folder:
        return spec
    tasks = []
    for task in spec.tasks:
        dataset, fewshot = anchor_dataset(task.dataset, folder), task.fewshot
        if fewshot is not None:
            fewshot = msgspec.structs.replace(fewshot, path=anchor_paths(fewshot.path, folder))
        tasks.append(msgspec.structs.replace(task, dataset=dataset, fewshot=fewshot))
    return msgspec.structs.replace(spec, tasks=tasks)


T = TypeVar("T", Task, Model)


class Selection(msgspec.Struct, frozen=True):
    """What to select. A field that is not set selects everything."""

    limit: int | None = None
    samples: Sequence[str] = ()
    tasks: Sequence[str] = ()
    models: Sequence[str] = ()

    def __bool__(self) -> bool:
        return self != Selection()


def select(spec: Spec, selection: Selection) -> Spec:
    """Return the selected part of a spec. A task that none of the selected models runs is dropped."""
    if not selection:
        return spec
    if selection.limit is not None and selection.limit < 1:
        raise SpecError(f"--limit {selection.limit}: at least 1")
    models = _select_named("model", selection.models, spec.models)
    left = {model.name for model in models}
    tasks = []
    for task in _select_named("task", selection.tasks, spec.tasks):
        # Remove the other models from the tasks: the spec of a run may only name models that it has.
        mine = None if task.models is None else [name for name in task.models if name in left]
        if mine is None or mine:
            tasks.append(task if mine == task.models else msgspec.structs.replace(task, models=mine))
    if not tasks:
        named = ", ".join(sorted(left))
        raise SpecError(f"--model {named}: no task runs with it; see `models` of the tasks in the spec")
    return msgspec.structs.replace(
        spec,
        tasks=tasks,
        models=models,
        limit=selection.limit or spec.limit,
        samples=list(dict.fromkeys(selection.samples)) or spec.samples,
    )


def _select_named(kind: str, names: Sequence[str], parts: Sequence[T]) -> list[T]:
    known = {part.name for part in parts}
    for name in names:
        if not any(_matches(name, each, known) for each in known):
            raise SpecError(f"--{kind} {name}: the spec has no {kind} of that name{nearest(name, known)}")
    return [part for part in parts if not names or any(_matches(name, part.name, known) for name in names)]


def _matches(pattern: str, name: str, known: set[str]) -> bool:
    """A name matches the part with that name; if there is none, all sweep variants of it."""
    return name == pattern or (pattern not in known and base_of(name, {pattern: None}) == pattern)
