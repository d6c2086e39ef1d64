"""Resolves the entries of a spec to scorers: a built-in name, an entry point, `module:function`, or an object.

An entry is a name, or `{name: {argument: value}}`. Every scorer also takes `name`, `extract` and `extract_target`, and
a user's scorer `scale`.
Extractors are entries too, and so are the parts of a composed scorer: arguments whose annotation is Scorer.
ScorerError, with the place in the spec and the nearest valid name, for unknown names, modules that fail to import,
unknown arguments, arguments of a wrong type, and missing packages.
"""

import difflib
import functools
import importlib.metadata
import importlib.util
import inspect
import linecache
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import msgspec

from holdfast.errors import ScorerError, describe_error
from holdfast.records import NAMES_IN_0_1_0
from holdfast.score.definition import Extractor, Function, Scorer, arguments_after, arguments_of, read_scale, scorer
from holdfast.score.extractors import EXTRACTORS
from holdfast.score.fingerprints import built_in_name, import_user_module, version_of
from holdfast.score.scorers.registry import SCORERS

GROUP = "holdfast.scorers"
"""Entry point group in which installed packages offer scorers."""
EXTRACTOR_GROUP = "holdfast.extractors"

_COMMON_ARGUMENTS = ("name", "extract", "extract_target", "scale")
Entry = str | Mapping[str, Mapping[str, Any] | None] | Scorer | Callable[..., Any]


def resolve(entry: Entry, place: str) -> Scorer:
    """Return the scorer of an entry. `place` is its path in the spec, for errors.

    In `{regex: {pattern: x, name: y}}` the argument `name` names the scorer, so that one function can be used twice.
    An argument of the function with the same name as a common argument takes precedence.
    """
    named, args = _split_entry(entry, place)
    found = _find_scorer(named, place) if isinstance(named, str) else _as_scorer(named, place)
    known, open_ended = arguments_of(found.function)
    args = {**found.args, **args}
    if open_ended:  # a function with `**args` received `scale` before it was a common argument
        known = {**known, "scale": inspect.Parameter("scale", inspect.Parameter.KEYWORD_ONLY, default=None)}
    own = {arg: args.pop(arg) for arg in _COMMON_ARGUMENTS if arg in args and arg not in known}
    replaced: dict[str, Any] = {"name": str(own.pop("name", found.name))}
    if "scale" in own:
        replaced["scale"] = _declared_scale(found, own.pop("scale"), place)
    for arg, value in own.items():  # one entry, or a list that is applied in order
        entries = value if isinstance(value, list | tuple) else [value]
        replaced[arg] = tuple(_extractor(each, f"{place}.{arg}") for each in entries)
    made = msgspec.structs.replace(found, args=_resolve_parts(found, args, place))
    parts = made.parts()
    for part in parts:
        if part.group:
            raise ScorerError(place, f"{part.name} scores groups of repeats and cannot be a part of another scorer")
    made = msgspec.structs.replace(made, needs_ctx=found.needs_ctx or any(part.needs_ctx for part in parts))
    missing = [package for package in made.packages if not version_of(package)]
    if missing:
        needed = "the package" if len(missing) == 1 else "the packages"
        install = f"pip install 'holdfast[{made.extra}]'"
        raise ScorerError(place, f"{made.name} needs {needed} {', '.join(missing)}: {install}")
    _check_args(made, known, open_ended, place)
    return msgspec.structs.replace(made, **replaced)


def _declared_scale(found: Scorer, declared: Any, place: str) -> Any:
    if built_in_name(found):
        raise ScorerError(place, f"{found.name} has a scale of its own; `scale` is for scorers that you write")
    return None if declared is None else read_scale(declared, f"{place}.scale")


def _extractor(entry: Any, place: str) -> Extractor:
    named, args = _split_entry(entry, place)
    if isinstance(named, str):
        named = NAMES_IN_0_1_0.get(named, named)
    if isinstance(named, str) and named in EXTRACTORS:
        found = EXTRACTORS[named]
    else:
        function = named
        if isinstance(named, str):
            offered = {point.name: point.value for point in importlib.metadata.entry_points(group=EXTRACTOR_GROUP)}
            if ":" not in named and named not in offered:
                nearest = _nearest(named, sorted({*EXTRACTORS, *offered}))
                raise ScorerError(place, f"unknown extractor {named!r}; {nearest} (your own: module:function)")
            function = _import_object(offered.get(named, named), place)
        if not callable(function) or isinstance(function, Scorer):
            raise ScorerError(place, f"expected an extractor, found a {type(function).__name__}")
        full_name = named if isinstance(named, str) else str(getattr(function, "__name__", type(function).__name__))
        found = function if isinstance(function, Extractor) else Extractor(full_name, function)
    known, open_ended = arguments_after(found.function, 1)
    made = msgspec.structs.replace(found, args={**found.args, **args})
    _check_args(made, known, open_ended, place)
    return made


def _split_entry(entry: Any, place: str) -> tuple[Any, dict[str, Any]]:
    """Return the name or object of an entry, and its arguments."""
    if not isinstance(entry, Mapping):
        return entry, {}
    if len(entry) != 1:
        raise ScorerError(
            place, f"expected one name with its arguments, found {len(entry)}: {', '.join(map(str, entry))}"
        )
    ((name, args),) = entry.items()
    if not isinstance(name, str) or not isinstance(args, Mapping | None):
        raise ScorerError(place, f"expected {{name: {{argument: value}}}}, found {dict(entry)!r}")
    return name, dict(args or {})


def _find_scorer(name: str, place: str) -> Scorer:
    name = NAMES_IN_0_1_0.get(name, name)  # specs of old runs may name the module that a built-in was in
    if name in SCORERS:
        return SCORERS[name]
    if ":" in name:
        return _as_scorer(_import_object(name, place), place)
    offered = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in offered:
        known = sorted({*SCORERS, *offered})
        problem = f"unknown scorer {name!r}; {_nearest(name, known)}"
        raise ScorerError(place, f"{problem} (your own: module:function)")
    return msgspec.structs.replace(_as_scorer(_import_object(offered[name].value, place), place), name=name)


def _import_object(reference: str, place: str) -> Any:
    module_name, _, path = reference.partition(":")
    try:
        module = import_user_module(module_name)
    except Exception as error:
        problem = f"{module_name!r} cannot be imported ({describe_error(error)})"
        raise ScorerError(place, f"{problem}; check its name and that its folder is on PYTHONPATH") from error
    try:
        return functools.reduce(getattr, path.split("."), module)
    except AttributeError as error:
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ScorerError(place, f"module {module_name!r} has no {path!r}; {_nearest(path, known)}") from error


def _as_scorer(found: Any, place: str) -> Scorer:
    if isinstance(found, Scorer):
        return found
    if not callable(found):
        raise ScorerError(place, f"expected a scorer or a function, found a {type(found).__name__}")
    try:
        made: Scorer = scorer(found)
    except ScorerError as error:
        raise ScorerError(place, f"{error.place} {error.problem}") from error
    return made


def _resolve_parts(found: Scorer, args: dict[str, Any], place: str) -> dict[str, Any]:
    """Return the arguments with nested entries resolved to scorers."""
    made = dict(args)
    for arg, hint in _type_hints(found.function).items():
        if arg not in args or not _names_scorer(hint) or args[arg] is None:
            continue
        value, at = args[arg], f"{place}.{arg}"
        if _is_container(hint, list):
            entries = value if isinstance(value, list | tuple) else [value]
            made[arg] = [resolve(entry, f"{at}[{index}]") for index, entry in enumerate(entries)]
        elif _is_container(hint, dict):
            if not isinstance(value, Mapping):
                raise ScorerError(at, f"expected {{label: scorer}}, found {value!r}")
            made[arg] = {str(label): resolve(entry, f"{at}.{label}") for label, entry in value.items()}
        else:
            made[arg] = resolve(value, at)
    return made


def _type_hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _names_scorer(hint: Any) -> bool:
    return hint is Scorer or any(map(_names_scorer, typing.get_args(hint)))


def _is_container(hint: Any, kind: type) -> bool:
    return typing.get_origin(hint) is kind or any(typing.get_origin(each) is kind for each in typing.get_args(hint))


def _check_args(made: Scorer | Extractor, known: Mapping[str, inspect.Parameter], open_ended: bool, place: str) -> None:
    """ScorerError for unknown, missing or wrongly typed arguments, and for those that `check` refuses."""
    for arg in made.args:
        if arg not in known and not open_ended:
            takes = {*known, *(_COMMON_ARGUMENTS if isinstance(made, Scorer) else ())}
            takes -= {"scale"} - known.keys() if built_in_name(made) else set()
            names = _nearest(arg, sorted(takes)) if takes else "it takes none"
            raise ScorerError(place, f"{made.name} has no argument {arg!r}; {names}")
    for arg, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and arg not in made.args:
            raise ScorerError(place, f"{made.name} needs the argument {arg!r}: write {{{made.name}: {{{arg}: …}}}}")
    _check_types(made, place)
    problem = made.check(**made.args) if made.check is not None else ""
    if problem:
        raise ScorerError(place, problem)


def _check_types(made: Scorer | Extractor, place: str) -> None:
    """Check arguments against the annotations that msgspec understands. `1e-6` in plain YAML is text, not a number."""
    hints = _type_hints(made.function)
    for arg, value in made.args.items():
        hint = hints.get(arg, Any)
        if _names_scorer(hint):
            continue
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise ScorerError(place, f"{made.name}: argument {arg!r} is {value!r}: {error}") from error
        except TypeError:
            continue  # an annotation that msgspec does not support


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(names)) or 'none'}"


def scorers_in(path: str) -> list[Scorer]:
    """Return the scorers that a file defines with `@scorer`, in order. ScorerError if it fails to run or has none."""
    module = _run_file(path)
    found: dict[str, Scorer] = {}
    for each in vars(module).values():  # without those that it imports
        if isinstance(each, Scorer) and getattr(each.function, "__module__", "") == module.__name__:
            found[each.name] = each
    if not found:
        raise ScorerError(path, "defines no scorer; write @holdfast.scorer above a function (sample, answer)")
    return list(found.values())


def _run_file(path: str) -> ModuleType:
    """Execute the file as if it were imported as a module."""
    name = os.path.splitext(os.path.basename(path))[0]
    if not os.path.isfile(path):
        raise ScorerError(path, "no such file")
    linecache.checkcache(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ScorerError(path, "is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # pickle and dataclasses look their module up there
    try:
        # Not through the bytecode cache, which misses an edit within the same second and of the same size.
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        why = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else describe_error(error)
        raise ScorerError(path, f"cannot be run ({why})") from error
    return module
