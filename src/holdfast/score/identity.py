"""What a scorer or a solver is made of, to tell whether it is still the same: name, arguments, and its code.

Code that comes with Holdfast is known by name and version (`holdfast.records.built_in`), so that it can be moved and
reworded. Code of the user is known by a digest. The digest covers the module's file, because a function is more than
its own lines, without the scorers in it that it does not use: they are what they are by themselves; and, of a scorer,
the files of the modules that it imports, as far as they are the user's own and not installed. Of code in a notebook, a
shell or a script (`__main__`) the function's own lines count, and the functions, the classes and, for a scorer, the
constants there that it uses: other cells change all the time.
"""

import ast
import contextlib
import dis
import functools
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

import msgspec
import xxhash

from holdfast.records.built_in import EXTRACTORS, SCORERS
from holdfast.score.definition import Extractor, Scorer

_DEEPEST = 20
_PARSED_MAX = 128
"""How many files are not parsed again. A run asks for the digests of its scorers several times."""
_PARSING = threading.Lock()
_CONSTANTS = (str, bytes, int, float, complex, tuple, list, dict, set, frozenset, re.Pattern)
_first_seen: "weakref.WeakKeyDictionary[Any, list[Any]]" = weakref.WeakKeyDictionary()


def identity(scorer: Scorer | Extractor) -> dict[str, Any]:
    """As an evaluation records it: `name`, `function`, `args`; of a built-in its `version`, of the user's own code
    `source` (a digest); and, of those that have them, its extractors and the versions of the packages that it computes
    with. `function` is the name of a built-in, or `module:function`.
    """
    args = {name: _plain(value) for name, value in scorer.args.items()}
    told = {"name": scorer.name, **_code(scorer), "args": args}
    if isinstance(scorer, Scorer):
        parts = {"extract": scorer.extract, "extract_target": scorer.extract_target}
        told |= {name: _plain(extractors) for name, extractors in parts.items() if extractors}
        told |= {"packages": {name: version_of(name) for name in scorer.packages}} if scorer.packages else {}
    return told


def _code(scorer: Scorer | Extractor) -> dict[str, Any]:
    function, versions = scorer.function, EXTRACTORS if isinstance(scorer, Extractor) else SCORERS
    name = _own_name(function)
    if name in versions and inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
        return {"function": name, "version": versions[name]}
    return {"function": _where(scorer), "source": source_digest(scorer)}


def version_of(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _plain(value: Any) -> Any:
    """An argument as it is recorded: scorers, extractors and functions in it by what they are."""
    if isinstance(value, Scorer | Extractor):
        return identity(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=repr)
    if callable(value):
        return {"function": _where(value), "source": source_digest(value)}
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return repr(_stable(value))
    return value


def _where(function: Any) -> str:
    innermost = _innermost(function)
    if _is_ours(innermost):
        return f"holdfast:{_own_name(innermost)}"
    return f"{getattr(innermost, '__module__', '')}:{getattr(innermost, '__qualname__', '')}"


def _is_ours(function: Any) -> bool:
    """Whether it comes with Holdfast."""
    module = getattr(function, "__module__", None) or ""
    return bool(module.partition(".")[0] == __name__.partition(".")[0])


def _own_name(function: Any) -> str:
    """Of what comes with Holdfast: what a spec calls it. Empty for anything else."""
    return str(getattr(function, "__name__", "")).removesuffix("_") if _is_ours(function) else ""


def _own_version(function: Any) -> str:
    """Of what comes with Holdfast: a text that is another one when it works differently."""
    name = _own_name(function)
    return f"holdfast:{name} {SCORERS.get(name, EXTRACTORS.get(name, 1))}"


def source_digest(function: Callable[..., Any]) -> str:
    """Of the module's file without other scorers; of the function's own source if it belongs to no module file; else of
    its bytecode. Of what comes with Holdfast, and was given arguments by the user: of its version.
    """
    innermost = _innermost(function)
    if _is_ours(innermost):
        return xxhash.xxh3_128_hexdigest(_own_version(innermost).encode() + _bound_to(function))
    module = getattr(innermost, "__module__", "__main__")
    if module != "__main__":
        content = _module_file(innermost)
        if content is not None:
            told = _without_others(content, innermost) + b"".join(_imported(content, module, {module}))
            return xxhash.xxh3_128_hexdigest(told + _bound_to(function))
    return _digest_alone(function, constants=True)


def _digest_alone(function: Callable[..., Any], *, constants: bool) -> str:
    told = "".join(_used_sources(_innermost(function), constants)).encode("utf-8", "surrogatepass")
    return xxhash.xxh3_128_hexdigest(told + _bound_to(function))


def solver_digest(function: Callable[..., Any]) -> str:
    """Of a solver's code: its module's file without the scorers in it, which may change while answers stay.

    Solvers that come with Holdfast have a version and no digest.
    """
    innermost = _innermost(function)
    module = sys.modules.get(getattr(innermost, "__module__", ""))
    if module is None or module.__name__ == "__main__":
        return _digest_alone(function, constants=False)  # a list of results would be another one after every sample
    if _is_ours(innermost):
        return ""
    content = _module_file(innermost)
    if content is None:
        return source_digest(function)
    lines = _without_scorers(content.splitlines(), module)
    told = b"\n".join(line for line in lines if line.strip())
    return xxhash.xxh3_128_hexdigest(told + _bound_to(function))


def _used_sources(function: Any, constants: bool) -> Iterator[str]:
    """Of a function that belongs to no file: its own, then those of the functions and classes beside it that it uses,
    and of what those use.
    """
    seen, waiting = {id(function)}, [function]
    while waiting:
        one = waiting.pop(0)
        yield _own_source(one)
        beside = getattr(_routine_of(one), "__globals__", {})
        for name in sorted(_names_in(one) & beside.keys()):
            used = _innermost(beside[name]) if callable(beside[name]) else None
            if used is None and constants and isinstance(beside[name], _CONSTANTS):
                yield f"{name} = {_stable(beside[name])}"
            elif getattr(used, "__module__", "") == "__main__" and id(used) not in seen:
                seen.add(id(used))
                waiting.append(used)


def _own_source(function: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return repr(_compiled(function))


def _routine_of(function: Any) -> Any:
    """A function as it is; of a class one of its own, which knows what is beside it."""
    if not inspect.isclass(function):
        return function
    return next(filter(inspect.isfunction, vars(function).values()), None)


def _names_in(function: Any) -> set[str]:
    """That code looks up beside itself."""
    parts = [function, *(vars(function).values() if inspect.isclass(function) else ())]
    codes = [code for each in parts if isinstance(code := getattr(each, "__code__", None), CodeType)]
    found: set[str] = set()
    while codes:
        code = codes.pop()
        found |= {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def _imported(content: bytes, module: str, seen: set[str]) -> Iterator[bytes]:
    """The files of the modules that a module's file imports when it is loaded, and of those that they import."""
    for name in _imports(content, module):
        found = sys.modules.get(name)
        path = getattr(found, "__file__", None) if name not in seen else None
        seen.add(name)
        if path is None or not path.endswith(".py") or _is_installed(name, path):
            continue
        with contextlib.suppress(OSError), open(path, "rb") as file:
            own = file.read()
            yield own
            yield from _imported(own, name, seen)


def _imports(content: bytes, module: str) -> list[str]:
    """The names of the modules that a module's file imports."""
    package = getattr(sys.modules.get(module), "__package__", None) or ""
    found: list[str] = []
    for source, names in _import_statements(content):
        if not source:
            found += names
        elif package or not source.startswith("."):
            source = importlib.util.resolve_name(source, package)
            found += [source, *(f"{source}.{each}" for each in names)]
    return found


@functools.lru_cache(_PARSED_MAX)
def _import_statements(content: bytes) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Source, with its leading dots, and names of each. Not those inside functions: whether these are loaded changes
    while a process runs.
    """
    try:
        tree = _parsed(content)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            found.append(("", tuple(each.name for each in node.names)))
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            found.append((source, tuple(each.name for each in node.names)))
    return tuple(found)


def _parsed(source: str | bytes) -> ast.Module:
    """One at a time: two threads that do this at once break each other in Python 3.11."""
    with _PARSING:
        return ast.parse(source)


def _is_installed(name: str, path: str) -> bool:
    """By a package manager, or with Python: its version tells what it is. So does ours."""
    is_ours = name.partition(".")[0] == __name__.partition(".")[0]
    return is_ours or os.path.realpath(path).startswith(_installed_folders())


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    """With their separator. Cached: sysconfig expands all of its variables at each call."""
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[kind]) + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


def _without_others(content: bytes, wanted: Any) -> bytes:
    """A module's file without the scorers in it that the wanted function does not use."""
    module, lines = sys.modules.get(wanted.__module__), content.splitlines()
    kept = lines if module is None else _without_scorers(lines, module, wanted)
    return content if kept == lines else b"\n".join(kept)


def _without_scorers(lines: list[bytes], module: ModuleType, wanted: Any = None) -> list[bytes]:
    """A module's lines without its own scorers, except the one that is wanted and those that the rest uses."""
    found = dict(_scorers_in(module))
    others = {name for name in found if wanted is None or _innermost(getattr(module, name)) is not wanted}
    while True:
        rest = _cut(lines, [found[name] for name in others])
        used = others & _words(b"\n".join(rest)) if others else set()
        if not used:
            return rest
        others -= used


@functools.lru_cache(_PARSED_MAX)
def _words(code: bytes) -> frozenset[str]:
    """The names in it, and texts that may be one; all of its words if it cannot be understood."""
    try:
        tree = _parsed(code)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset(re.findall(r"\w+", code.decode("utf-8", "replace")))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return frozenset(found)


def _cut(lines: list[bytes], places: Iterable[tuple[int, int]]) -> list[bytes]:
    kept = list(lines)
    for first, count in places:
        kept[first : first + count] = [b""] * count
    return kept


def _scorers_in(module: ModuleType) -> Iterator[tuple[str, tuple[int, int]]]:
    """The name of each of a module's own scorers, and where it is: the first line, counted from 0, and how many."""
    for name, each in vars(module).items():
        function = _innermost(each) if isinstance(each, Scorer) else None
        if getattr(function, "__module__", None) == module.__name__:
            with contextlib.suppress(OSError, TypeError):  # code that was made, not written, is in no line
                lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type] # an object whose source we ask for
                yield name, (max(first - 1, 0), len(lines))


def _bound_to(function: Any) -> bytes:
    """What a function was given beforehand: the arguments of partials, the values that it closes over, those that its
    object holds.
    """
    told: list[Any] = []
    while True:
        if inspect.ismethod(function):
            told += _as_first_seen(function.__self__)
            function = function.__func__
        elif isinstance(function, functools.partial):
            told += _as_first_seen(function)
            function = function.func
        elif isinstance(function, Scorer | Extractor):
            function = function.function
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    told += _as_first_seen(function)
    return repr(told).encode("utf-8", "surrogatepass") if told else b""


def _as_first_seen(thing: Any) -> list[Any]:
    """What a partial, a function or an object held then: what it counts and collects while it works is not what it
    is.
    """
    try:
        if thing not in _first_seen:
            _first_seen[thing] = _held_by(thing)
        return _first_seen[thing]
    except TypeError:  # neither hashed nor referred to weakly
        return _held_by(thing)


def _held_by(thing: Any) -> list[Any]:
    if isinstance(thing, functools.partial):
        return [(_stable(thing.args), _stable(thing.keywords))] if thing.args or thing.keywords else []
    if inspect.isclass(thing) or not inspect.isroutine(thing):
        held = {} if inspect.isclass(thing) else getattr(thing, "__dict__", {})
        return [_stable(held)] if held else []
    told = []
    for cell in getattr(thing, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not filled yet
            told.append(_stable(cell.cell_contents))
    return told


def _innermost(function: Any) -> Any:
    """The function that was written, below decorators and partials; of an object that can be called, its class."""
    while True:
        if isinstance(function, Scorer | Extractor):
            function = function.function
        elif isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isroutine(function) or inspect.isclass(function):
            return function
        else:
            return type(function)


def _module_file(function: Any) -> bytes | None:
    try:
        path = inspect.getsourcefile(function)
        if path is None:
            return None
        with open(path, "rb") as file:
            return file.read()
    except (OSError, TypeError):
        return None


def _compiled(function: Any) -> Any:
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        return _stable(code), _stable(function.__defaults__), _stable(function.__kwdefaults__)
    if inspect.isclass(function):
        return [(name, _compiled(part)) for name, part in sorted(vars(function).items()) if inspect.isfunction(part)]
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def _stable(constant: Any, depth: int = 0) -> Any:
    """A constant whose text is the same in every process: no addresses, no order of hashing."""
    stable = functools.partial(_stable, depth=depth + 1)
    if depth > _DEEPEST:  # it may hold itself
        return type(constant).__qualname__
    if isinstance(constant, CodeType):
        return constant.co_code, stable(constant.co_consts), constant.co_names
    if isinstance(constant, tuple | list):
        return tuple(map(stable, constant))
    if isinstance(constant, set | frozenset):
        return sorted(repr(stable(each)) for each in constant)
    if isinstance(constant, dict):
        return sorted((repr(stable(name)), repr(stable(value))) for name, value in constant.items())
    if isinstance(constant, re.Pattern):
        return constant.pattern, constant.flags
    if inspect.isfunction(constant):
        return _own_version(constant) if _is_ours(constant) else _own_source(constant)
    fields = getattr(constant, "__struct_fields__", None) or getattr(constant, "__dataclass_fields__", ())
    if fields and not inspect.isclass(constant):
        return type(constant).__qualname__, [stable(getattr(constant, name, None)) for name in fields]
    plain = constant is None or constant is ... or isinstance(constant, str | bytes | int | float | complex)
    return repr(constant) if plain else type(constant).__qualname__
