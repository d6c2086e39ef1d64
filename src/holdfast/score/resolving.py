"""From what a spec says to a scorer: a built-in name, an entry point, `module:function`, or the thing itself.

Refuses, with the place in the spec and the nearest name that exists: unknown names, modules that fail to import,
arguments that the function does not take or whose type is wrong.
"""

import difflib
import functools
import importlib
import importlib.metadata
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.errors import told
from holdfast.score.choices import choice
from holdfast.score.definition import Scorer, arguments_of, scorer
from holdfast.score.errors import ScorerError
from holdfast.score.judges import pairwise, rubric
from holdfast.score.quantities import numeric
from holdfast.score.texts import compile_pattern, exact_match, includes, regex

GROUP = "holdfast.scorers"
"""The entry point group where installed packages offer scorers."""

BUILT_IN: dict[str, Scorer] = {
    each.name: each for each in (exact_match, includes, regex, numeric, choice, rubric, pairwise)
}

Entry = str | Mapping[str, Mapping[str, Any] | None] | Scorer | Callable[..., Any]


def resolve(entry: Entry, place: str) -> Scorer:
    """The scorer that an entry means. `place` says where it stands, for errors.

    In `{regex: {pattern: x, name: y}}` the argument `name`, unless the function has its own, names the scorer, so that
    one function can be used twice.
    """
    if isinstance(entry, str):
        return _with_args(_find(entry, place), {}, place)
    if isinstance(entry, Mapping):
        if len(entry) != 1:
            raise ScorerError(place, f"expected one name with its arguments, found {len(entry)}: {', '.join(entry)}")
        ((name, args),) = entry.items()
        if not isinstance(name, str) or not isinstance(args, Mapping | None):
            raise ScorerError(place, f"expected {{name: {{argument: value}}}}, found {dict(entry)!r}")
        return _with_args(_find(name, place), dict(args or {}), place)
    return _with_args(_as_scorer(entry, place), {}, place)


def _find(name: str, place: str) -> Scorer:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name:
        return _imported(name, place)
    offered = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in offered:
        known = sorted({*BUILT_IN, *offered})
        problem = f"no scorer is called {name!r}; {_nearest(name, known)}"
        raise ScorerError(place, f"{problem} (your own: module:function)")
    return msgspec.structs.replace(_imported(offered[name].value, place), name=name)


def _imported(reference: str, place: str) -> Scorer:
    module_name, _, path = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        problem = f"{module_name!r} cannot be imported ({told(error)})"
        raise ScorerError(place, f"{problem}; check its name and that its folder is on PYTHONPATH") from error
    try:
        found = functools.reduce(getattr, path.split("."), module)
    except AttributeError as error:
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ScorerError(place, f"module {module_name!r} has no {path!r}; {_nearest(path, known)}") from error
    return _as_scorer(found, place)


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


def _with_args(found: Scorer, args: dict[str, Any], place: str) -> Scorer:
    known, open_ended = arguments_of(found.function)
    name = found.name
    if "name" in args and "name" not in known:
        name = str(args.pop("name"))
    for arg in args:
        if arg not in known and not open_ended:
            names = f"{_nearest(arg, list(known))}" if known else "it takes none"
            raise ScorerError(place, f"{found.name} has no argument {arg!r}; {names}")
    made = msgspec.structs.replace(found, name=name, args={**found.args, **args})
    for arg, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and arg not in made.args:
            raise ScorerError(place, f"{found.name} needs the argument {arg!r}")
    _check_types(made, place)
    return made


def _check_types(made: Scorer, place: str) -> None:
    """What the annotations say, where they say it in types that can be checked. `1e-6` in YAML is a text."""
    try:
        hints = typing.get_type_hints(made.function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    for arg, value in made.args.items():
        try:
            msgspec.convert(value, hints.get(arg, Any))
        except msgspec.ValidationError as error:
            raise ScorerError(place, f"{made.name}: argument {arg!r} is {value!r}: {error}") from error
        except TypeError:
            continue  # an annotation that only its author understands
    if made.function is regex.function:
        _check_pattern(made.args["pattern"], made.args.get("group"), place)


def _check_pattern(pattern: str, group: int | str | None, place: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except re.error as error:
        raise ScorerError(place, f"the pattern {pattern!r} is not valid: {error}") from error
    known = [None, *range(compiled.groups + 1), *compiled.groupindex]
    if group not in known:
        raise ScorerError(place, f"the pattern {pattern!r} has no group {group!r}; put ( ) around what is compared")


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(names)) or 'none'}"
