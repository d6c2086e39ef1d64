"""From what a spec says to a scorer: a built-in name, an entry point, `module:function`, or the thing itself.

Every entry is a name, or `{name: {argument: value}}`. Every scorer also takes `name`, `extract` and `extract_target`;
extractors are entries too, and so are the parts of a scorer that is made of others: arguments whose annotation says
Scorer. Refuses, with the place in the spec and the nearest name that exists: unknown names, modules that fail to
import, arguments that the function does not take or whose type is wrong, and what this machine lacks for it.
"""

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import linecache
import os
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import msgspec

from holdfast.errors import told
from holdfast.score.definition import Extractor, Function, Scorer, arguments_after, arguments_of, scorer
from holdfast.score.errors import ScorerError
from holdfast.score.extractors import EXTRACTORS
from holdfast.score.identity import version_of
from holdfast.score.scorers.registry import BUILT_IN

GROUP = "holdfast.scorers"
"""The entry point group where installed packages offer scorers."""
EXTRACTOR_GROUP = "holdfast.extractors"

_OF_EVERY_SCORER = ("name", "extract", "extract_target")
Entry = str | Mapping[str, Mapping[str, Any] | None] | Scorer | Callable[..., Any]


def resolve(entry: Entry, place: str) -> Scorer:
    """The scorer that an entry means. `place` says where it stands, for errors.

    In `{regex: {pattern: x, name: y}}` the argument `name`, unless the function has its own, names the scorer, so that
    one function can be used twice; `extract` and `extract_target` say what it is to compare.
    """
    named, args = _parted(entry, place)
    found = _find(named, place) if isinstance(named, str) else _as_scorer(named, place)
    known, _ = arguments_of(found.function)
    args = {**found.args, **args}
    own = {arg: args.pop(arg) for arg in _OF_EVERY_SCORER if arg in args and arg not in known}
    extractors = {arg: _extractors(own[arg], f"{place}.{arg}") for arg in own if arg != "name"}
    made = _with_args(found, args, place)
    return msgspec.structs.replace(made, name=str(own.get("name", made.name)), **extractors)


def _extractors(entries: Any, place: str) -> tuple[Extractor, ...]:
    """One, or several that work one after the other."""
    several = entries if isinstance(entries, list | tuple) else [entries]
    return tuple(_extractor(entry, place) for entry in several)


def _extractor(entry: Any, place: str) -> Extractor:
    named, args = _parted(entry, place)
    if isinstance(named, str) and named in EXTRACTORS:
        found = EXTRACTORS[named]
    else:
        function = _imported(_reference(named, place), place) if isinstance(named, str) else named
        if not callable(function) or isinstance(function, Scorer):
            raise ScorerError(place, f"expected an extractor, found a {type(function).__name__}")
        called = named if isinstance(named, str) else str(getattr(function, "__name__", type(function).__name__))
        found = function if isinstance(function, Extractor) else Extractor(called, function)
    known, open_ended = arguments_after(found.function, 1)
    made = msgspec.structs.replace(found, args={**found.args, **args})
    _check_args(made, known, open_ended, place)
    return made


def _reference(name: str, place: str) -> str:
    """Where an extractor of that name is."""
    offered = {point.name: point.value for point in importlib.metadata.entry_points(group=EXTRACTOR_GROUP)}
    if ":" not in name and name not in offered:
        known = sorted({*EXTRACTORS, *offered})
        raise ScorerError(
            place, f"no extractor is called {name!r}; {_nearest(name, known)} (your own: module:function)"
        )
    return offered.get(name, name)


def _parted(entry: Any, place: str) -> tuple[Any, dict[str, Any]]:
    """What an entry names, and the arguments that it gives."""
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


def _find(name: str, place: str) -> Scorer:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name:
        return _as_scorer(_imported(name, place), place)
    offered = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in offered:
        known = sorted({*BUILT_IN, *offered})
        problem = f"no scorer is called {name!r}; {_nearest(name, known)}"
        raise ScorerError(place, f"{problem} (your own: module:function)")
    return msgspec.structs.replace(_as_scorer(_imported(offered[name].value, place), place), name=name)


def _imported(reference: str, place: str) -> Any:
    module_name, _, path = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        problem = f"{module_name!r} cannot be imported ({told(error)})"
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


def _with_args(found: Scorer, args: dict[str, Any], place: str) -> Scorer:
    known, open_ended = arguments_of(found.function)
    made = msgspec.structs.replace(found, args=_with_parts(found, args, place))
    parts = made.parts()
    for part in parts:
        if part.group:
            raise ScorerError(place, f"{part.name} scores groups of repeats, so it cannot be a part of another scorer")
    made = msgspec.structs.replace(made, needs_ctx=found.needs_ctx or any(part.needs_ctx for part in parts))
    missing = [package for package in made.packages if not version_of(package)]
    if missing:
        needed = "the package" if len(missing) == 1 else "the packages"
        install = f"pip install 'holdfast[{made.extra}]'"
        raise ScorerError(place, f"{made.name} needs {needed} {', '.join(missing)}: {install}")
    _check_args(made, known, open_ended, place)
    return made


def _with_parts(found: Scorer, args: dict[str, Any], place: str) -> dict[str, Any]:
    """The arguments with scorers in place of the entries that mean them."""
    made = dict(args)
    for arg, hint in _hints(found.function).items():
        if arg not in args or not _means_scorer(hint) or args[arg] is None:
            continue
        value, at = args[arg], f"{place}.{arg}"
        if _is_of(hint, list):
            entries = value if isinstance(value, list | tuple) else [value]
            made[arg] = [resolve(entry, f"{at}[{index}]") for index, entry in enumerate(entries)]
        elif _is_of(hint, dict):
            if not isinstance(value, Mapping):
                raise ScorerError(at, f"expected {{label: scorer}}, found {value!r}")
            made[arg] = {str(label): resolve(entry, f"{at}.{label}") for label, entry in value.items()}
        else:
            made[arg] = resolve(value, at)
    return made


def _hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _means_scorer(hint: Any) -> bool:
    return hint is Scorer or any(map(_means_scorer, typing.get_args(hint)))


def _is_of(hint: Any, kind: type) -> bool:
    return typing.get_origin(hint) is kind or any(typing.get_origin(each) is kind for each in typing.get_args(hint))


def _check_args(made: Scorer | Extractor, known: Mapping[str, inspect.Parameter], open_ended: bool, place: str) -> None:
    """Names, what is missing, types, and what the thing itself has against them."""
    for arg in made.args:
        if arg not in known and not open_ended:
            takes = {*known, *(_OF_EVERY_SCORER if isinstance(made, Scorer) else ())}
            names = _nearest(arg, sorted(takes)) if takes else "it takes none"
            raise ScorerError(place, f"{made.name} has no argument {arg!r}; {names}")
    for arg, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and arg not in made.args:
            raise ScorerError(place, f"{made.name} needs the argument {arg!r}")
    _check_types(made, place)
    problem = made.check(**made.args) if made.check is not None else ""
    if problem:
        raise ScorerError(place, problem)


def _check_types(made: Scorer | Extractor, place: str) -> None:
    """What the annotations say, where they say it in types that can be checked. `1e-6` in YAML is a text."""
    hints = _hints(made.function)
    for arg, value in made.args.items():
        hint = hints.get(arg, Any)
        if _means_scorer(hint):
            continue
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise ScorerError(place, f"{made.name}: argument {arg!r} is {value!r}: {error}") from error
        except TypeError:
            continue  # an annotation that only its author understands


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(names)) or 'none'}"


def scorers_in(path: str) -> list[Scorer]:
    """What a file decorates with `@scorer`, in its order. ScorerError if it cannot be run, or has none."""
    module = _load(path)
    found = list({each.name: each for each in _own(module)}.values())
    if not found:
        raise ScorerError(path, "there is no scorer in it: write @holdfast.scorer above a function (sample, answer)")
    return found


def _own(module: ModuleType) -> Iterator[Scorer]:
    """Its own, not those that it imports."""
    for each in vars(module).values():
        if isinstance(each, Scorer) and getattr(each.function, "__module__", "") == module.__name__:
            yield each


def _load(path: str) -> ModuleType:
    """Run the file as the module that it would be if it were imported."""
    name = os.path.splitext(os.path.basename(path))[0]
    if not os.path.isfile(path):
        raise ScorerError(path, "no such file")
    linecache.checkcache(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ScorerError(path, "is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # its own classes look for themselves there
    try:
        with open(path, "rb") as file:  # not through the cache of compiled files: it tells versions apart by the second
            exec(compile(file.read(), path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        raise ScorerError(path, f"cannot be run ({_why(error)})") from error
    return module


def _why(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    return told(error)
