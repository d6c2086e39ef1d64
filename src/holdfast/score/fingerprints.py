"""Identities of scorers and code fingerprints of scorers and solvers: they detect that code has changed.

This is the only module that digests code. Invariant: the same code has the same digest in every process and on every
machine, so nothing here may depend on addresses, hash order or absolute paths.

- Built-in code is identified by name and version (`holdfast.records.built_in`), so that it can be moved and reworded.
- User code in a module is identified by a digest of the module's file, because a function depends on more than its own
  lines. Scorers in the file that the function does not use are left out: they have digests of their own. For a scorer
  the digest also covers the files of imported modules, unless they are installed packages.
- User code in a notebook, a shell or a script (`__main__`) is identified by the function's own source and that of the
  functions, classes and, for a scorer, constants that it uses: other notebook cells change all the time.
"""

import ast
import contextlib
import dis
import functools
import importlib
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
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

import msgspec
import xxhash

from holdfast.records import EXTRACTOR_VERSIONS, SCORER_VERSIONS
from holdfast.score.definition import Extractor, Scorer

_DEEPEST = 20
_PARSED_MAX = 128
"""Size of the caches of parsed files. A run computes the digests of its scorers several times."""
_PARSING = threading.Lock()
_MTIME_STEP = 2.0
"""Coarsest step of a file's time, in seconds: two edits within it may look like one."""
_CONSTANTS = (str, bytes, int, float, complex, tuple, list, dict, set, frozenset, re.Pattern)
_first_seen: "weakref.WeakKeyDictionary[Any, list[Any]]" = weakref.WeakKeyDictionary()


def import_user_module(name: str) -> ModuleType:
    """Import a module that a spec names, so that its digest is that of the code that runs.

    Python takes cached bytecode for a source file of the same size and the same second, so an edit right after the
    import would run the old code under the new digest. Bytecode written that soon after its source is removed.
    """
    loaded = set(sys.modules)
    try:
        return importlib.import_module(name)
    finally:
        for each in sys.modules.keys() - loaded:
            path, bytecode = (getattr(sys.modules[each], field, None) for field in ("__file__", "__cached__"))
            if path and bytecode and not os.path.realpath(path).startswith(_installed_folders()):
                with contextlib.suppress(OSError):
                    if os.stat(bytecode).st_mtime - os.stat(path).st_mtime < _MTIME_STEP:
                        os.unlink(bytecode)


def identity(scorer: Scorer | Extractor) -> dict[str, Any]:
    """Return the identity that an evaluation records: `name`, `function`, `args`, and `version` for a built-in or
    `source` (a digest) for user code; if present, also extractors, the versions of packages that it computes with, and
    the scale that a user declared. The scale does not change scores, so comparisons ignore it (`records.normalized`).
    `function` is the name of a built-in, or `module:function`.
    """
    args = {name: _plain(value) for name, value in scorer.args.items()}
    versions = EXTRACTOR_VERSIONS if isinstance(scorer, Extractor) else SCORER_VERSIONS
    name = built_in_name(scorer)
    found: dict[str, Any] = {"name": scorer.name}
    if name:
        found |= {"function": name, "version": versions[name]}
    else:
        found |= {"function": _qualified_name(scorer), "source": source_digest(scorer)}
    found["args"] = args
    if isinstance(scorer, Scorer):
        parts = {"extract": scorer.extract, "extract_target": scorer.extract_target}
        found |= {name: _plain(extractors) for name, extractors in parts.items() if extractors}
        found |= {"packages": {name: version_of(name) for name in scorer.packages}} if scorer.packages else {}
        if isinstance(scorer.scale, dict):
            found["scale"] = {part: each.declared() for part, each in scorer.scale.items()}
        elif scorer.scale is not None:
            found["scale"] = scorer.scale.declared()
    return found


def built_in_name(scorer: Scorer | Extractor) -> str:
    """Return the name by which a built-in scorer or extractor is recorded; empty for user code."""
    versions = EXTRACTOR_VERSIONS if isinstance(scorer, Extractor) else SCORER_VERSIONS
    name = _built_in_name(scorer.function)
    is_plain = inspect.isfunction(scorer.function) and not hasattr(scorer.function, "__wrapped__")
    return name if name in versions and is_plain else ""


def version_of(package: str) -> str:
    """Return the installed version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _plain(value: Any) -> Any:
    """Return an argument as plain data: scorers, extractors and functions in it become their identities."""
    if isinstance(value, Scorer | Extractor):
        return identity(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=repr)
    if callable(value):
        return {"function": _qualified_name(value), "source": source_digest(value)}
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return repr(_stable(value))
    return value


def _qualified_name(function: Any) -> str:
    innermost = _innermost(function)
    if _is_built_in(innermost):
        return f"holdfast:{_built_in_name(innermost)}"
    return f"{getattr(innermost, '__module__', '')}:{getattr(innermost, '__qualname__', '')}"


def _is_built_in(function: Any) -> bool:
    """Whether a function comes with Holdfast."""
    module = getattr(function, "__module__", None) or ""
    return bool(module.partition(".")[0] == __name__.partition(".")[0])


def _built_in_name(function: Any) -> str:
    """Return the name that a spec uses for a built-in function; empty for user code."""
    return str(getattr(function, "__name__", "")).removesuffix("_") if _is_built_in(function) else ""


def _built_in_version(function: Any) -> str:
    """Return a text that identifies a built-in function and its version."""
    name = _built_in_name(function)
    return f"holdfast:{name} {SCORER_VERSIONS.get(name, EXTRACTOR_VERSIONS.get(name, 1))}"


def source_digest(function: Callable[..., Any]) -> str:
    """Digest the code of a scorer: its module's file without other scorers; its own source if it belongs to no module
    file; its bytecode if it has no source. For a built-in function with bound arguments: its version and the arguments.
    """
    innermost = _innermost(function)
    if _is_built_in(innermost):
        return xxhash.xxh3_128_hexdigest(_built_in_version(innermost).encode() + _bound_to(function))
    module = getattr(innermost, "__module__", "__main__")
    if module != "__main__":
        content = _module_file(innermost)
        if content is not None:
            own, lines = sys.modules.get(module), content.splitlines()
            kept = lines if own is None else _without_scorers(lines, own, innermost)
            # The file as it is, if nothing was left out: joining would drop the newline at its end.
            code = content if kept == lines else b"\n".join(kept)
            code += b"".join(_imported_files(content, module, {module}))
            return xxhash.xxh3_128_hexdigest(code + _bound_to(function))
    return _digest_alone(function, constants=True)


def _digest_alone(function: Callable[..., Any], *, constants: bool) -> str:
    code = "".join(_used_sources(_innermost(function), constants)).encode("utf-8", "surrogatepass")
    return xxhash.xxh3_128_hexdigest(code + _bound_to(function))


def solver_digest(function: Callable[..., Any]) -> str:
    """Digest the code of a solver: its module's file without the scorers in it, which may change without changing
    answers. Empty for built-in solvers, which have a version instead.
    """
    innermost = _innermost(function)
    module = sys.modules.get(getattr(innermost, "__module__", ""))
    if module is None or module.__name__ == "__main__":
        return _digest_alone(function, constants=False)  # a global list of results would change with every sample
    if _is_built_in(innermost):
        return ""
    content = _module_file(innermost)
    if content is None:
        return source_digest(function)
    lines = _without_scorers(content.splitlines(), module)
    code = b"\n".join(line for line in lines if line.strip())
    return xxhash.xxh3_128_hexdigest(code + _bound_to(function))


def _used_sources(function: Any, constants: bool) -> Iterator[str]:
    """Yield the source of a function in `__main__`, and of the functions and classes there that it uses, directly or
    indirectly.
    """
    seen, waiting = {id(function)}, [function]
    while waiting:
        one = waiting.pop(0)
        yield _source_of(one)
        # A class has no `__globals__`; any of its methods has the same ones.
        routine = next(filter(inspect.isfunction, vars(one).values()), None) if inspect.isclass(one) else one
        beside = getattr(routine, "__globals__", {})
        for name in sorted(_names_in(one) & beside.keys()):
            used = _innermost(beside[name]) if callable(beside[name]) else None
            if used is None and constants and isinstance(beside[name], _CONSTANTS):
                yield f"{name} = {_stable(beside[name])}"
            elif getattr(used, "__module__", "") == "__main__" and id(used) not in seen:
                seen.add(id(used))
                waiting.append(used)


def _source_of(function: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return repr(_compiled(function))


def _names_in(function: Any) -> set[str]:
    """Return the global names that a function or class uses."""
    parts = [function, *(vars(function).values() if inspect.isclass(function) else ())]
    codes = [code for each in parts if isinstance(code := getattr(each, "__code__", None), CodeType)]
    found: set[str] = set()
    while codes:
        code = codes.pop()
        found |= {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return found


def _imported_files(content: bytes, module: str, seen: set[str]) -> Iterator[bytes]:
    """Yield the content of user modules that a file imports at module level, directly or indirectly."""
    for name in _imports(content, module):
        found = sys.modules.get(name)
        path = getattr(found, "__file__", None) if name not in seen else None
        seen.add(name)
        # Installed packages, Python and Holdfast are identified by their versions.
        if path is None or not path.endswith(".py") or name.partition(".")[0] == __name__.partition(".")[0]:
            continue
        if os.path.realpath(path).startswith(_installed_folders()):
            continue
        with contextlib.suppress(OSError), open(path, "rb") as file:
            own = file.read()
            yield own
            yield from _imported_files(own, name, seen)


def _imports(content: bytes, module: str) -> list[str]:
    """Return the names of the modules that a file imports."""
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
    """Return each import as (source with leading dots, names). Imports inside functions are left out, because those
    modules may or may not be loaded yet, and the digest must not depend on that.
    """
    try:
        tree = parse_source(content)
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


def parse_source(source: str | bytes) -> ast.Module:
    """Parse source under a lock: in Python 3.11, `ast.parse` in two threads at once can fail."""
    with _PARSING:
        return ast.parse(source)


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    """Return the folders of installed code, each with a trailing separator. Cached: sysconfig is slow."""
    paths = sysconfig.get_paths()
    return tuple(os.path.realpath(paths[kind]) + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


def _without_scorers(lines: list[bytes], module: ModuleType, kept: Any = None) -> list[bytes]:
    """Blank out the scorers in a module's lines, except `kept` and those that the remaining code uses."""
    found = dict(_scorers_in(module))
    others = {name for name in found if kept is None or _innermost(getattr(module, name)) is not kept}
    while True:  # a scorer that the rest uses is kept, and may itself use others
        rest = list(lines)
        for name in others:
            first, count = found[name]
            rest[first : first + count] = [b""] * count
        used = others & _names_in_code(b"\n".join(rest)) if others else set()
        if not used:
            return rest
        others -= used


@functools.lru_cache(_PARSED_MAX)
def _names_in_code(code: bytes) -> frozenset[str]:
    """Return all names and texts in the code; a text may be a name for getattr. Unparsable code: every word."""
    try:
        tree = parse_source(code)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset(re.findall(r"\w+", code.decode("utf-8", "replace")))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return frozenset(found)


def _scorers_in(module: ModuleType) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the scorers that a module defines: name, and first line (from 0) with number of lines."""
    for name, each in vars(module).items():
        function = _innermost(each) if isinstance(each, Scorer) else None
        if getattr(function, "__module__", None) == module.__name__:
            with contextlib.suppress(OSError, TypeError):  # generated code has no source lines
                lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type] # any object may have source lines
                yield name, (max(first - 1, 0), len(lines))


def _bound_to(function: Any) -> bytes:
    """Return what a function is bound to: arguments of partials, closure values, attributes of its object."""
    bound: list[Any] = []
    while True:
        if inspect.ismethod(function):
            bound += _as_first_seen(function.__self__)
            function = function.__func__
        elif isinstance(function, functools.partial):
            bound += _as_first_seen(function)
            function = function.func
        elif isinstance(function, Scorer | Extractor):
            function = function.function
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    bound += _as_first_seen(function)
    return repr(bound).encode("utf-8", "surrogatepass") if bound else b""


def _as_first_seen(thing: Any) -> list[Any]:
    """Return what a partial, a function or an object held when it was first digested. Counters and caches that it
    changes while it works must not change the digest.
    """
    try:
        if thing not in _first_seen:
            _first_seen[thing] = _held_by(thing)
        return _first_seen[thing]
    except TypeError:  # not hashable, or without weak references
        return _held_by(thing)


def _held_by(thing: Any) -> list[Any]:
    if isinstance(thing, functools.partial):
        return [(_stable(thing.args), _stable(thing.keywords))] if thing.args or thing.keywords else []
    if inspect.isclass(thing) or not inspect.isroutine(thing):
        attributes = {} if inspect.isclass(thing) else getattr(thing, "__dict__", {})
        return [_stable(attributes)] if attributes else []
    held = []
    for cell in getattr(thing, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            held.append(_stable(cell.cell_contents))
    return held


def _innermost(function: Any) -> Any:
    """Return the user's function below decorators and partials; for a callable object, its class."""
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
    """Return a value whose repr is the same in every process: without addresses and without hash order."""
    stable = functools.partial(_stable, depth=depth + 1)
    if depth > _DEEPEST:  # it may contain itself
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
        return _built_in_version(constant) if _is_built_in(constant) else _source_of(constant)
    fields = getattr(constant, "__struct_fields__", None) or getattr(constant, "__dataclass_fields__", ())
    if fields and not inspect.isclass(constant):
        if isinstance(constant, Scorer):  # the field is newer than recorded digests, and changes no score
            fields = tuple(name for name in fields if name != "scale")
        return type(constant).__qualname__, [stable(getattr(constant, name, None)) for name in fields]
    plain = constant is None or constant is ... or isinstance(constant, str | bytes | int | float | complex)
    return repr(constant) if plain else type(constant).__qualname__
