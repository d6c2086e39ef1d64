"""What a scorer or a solver is made of, to tell whether it is still the same: name, arguments, a digest of its code.

The digest covers the whole module file, because a function is more than its own lines. Code without a file (a notebook,
a shell, `__main__`) is digested alone: other cells change all the time.
"""

import contextlib
import functools
import importlib.metadata
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, ModuleType
from typing import Any

import xxhash

from holdfast.score.definition import Extractor, Scorer


def identity(scorer: Scorer | Extractor) -> dict[str, Any]:
    """`name`, `function` (where it is defined), `args`, `source` (digest), as an evaluation records them; and, of those
    that have them, its extractors and the versions of the packages that it computes with.
    """
    function = _innermost(scorer)
    where = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    args = {name: _plain(value) for name, value in scorer.args.items()}
    told = {"name": scorer.name, "function": where, "args": args, "source": source_digest(scorer)}
    if isinstance(scorer, Scorer):
        parts = {"extract": scorer.extract, "extract_target": scorer.extract_target}
        told |= {name: _plain(extractors) for name, extractors in parts.items() if extractors}
        told |= {"packages": {name: version_of(name) for name in scorer.packages}} if scorer.packages else {}
    return told


def version_of(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _plain(value: Any) -> Any:
    """An argument as it is recorded: scorers and extractors in it by what they are."""
    if isinstance(value, Scorer | Extractor):
        return identity(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


def source_digest(function: Callable[..., Any]) -> str:
    """Of the module's file; of the function's own source if it belongs to no module file; else of its bytecode."""
    innermost = _innermost(function)
    if getattr(innermost, "__module__", "__main__") != "__main__":
        content = _module_file(innermost)
        if content is not None:
            return xxhash.xxh3_128_hexdigest(content + _bound_to(function))
    try:
        own = textwrap.dedent(inspect.getsource(innermost))
    except (OSError, TypeError):
        own = repr(_compiled(innermost))
    return xxhash.xxh3_128_hexdigest(own.encode("utf-8", "surrogatepass") + _bound_to(function))


def solver_digest(function: Callable[..., Any]) -> str:
    """Of a solver's code: its module's file without the scorers in it, which may change while answers stay.

    Solvers that come with Holdfast have a name and no digest: an upgrade is recorded, and what it asks differently
    shows as a different request.
    """
    innermost = _innermost(function)
    module = sys.modules.get(getattr(innermost, "__module__", ""))
    if module is None or module.__name__ == "__main__":
        return source_digest(function)
    if module.__name__.partition(".")[0] == __name__.partition(".")[0]:
        return ""
    content = _module_file(innermost)
    if content is None:
        return source_digest(function)
    lines = _without_scorers(content.splitlines(), module)
    told = b"\n".join(line for line in lines if line.strip())
    return xxhash.xxh3_128_hexdigest(told + _bound_to(function))


def _without_scorers(lines: list[bytes], module: ModuleType) -> list[bytes]:
    """A module's lines without its own scorers, except those that the rest of it uses."""
    found = dict(_scorers_in(module))
    rest = _cut(lines, found.values())
    words = set(re.findall(rb"\w+", b"\n".join(rest)))
    return _cut(lines, [place for name, place in found.items() if name.encode() not in words])


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
    """What a function was given beforehand: the arguments of partials, the values that it closes over."""
    told: list[Any] = []
    while True:
        if isinstance(function, functools.partial):
            told += [(_stable(function.args), _stable(function.keywords))] if function.args or function.keywords else []
            function = function.func
        elif isinstance(function, Scorer | Extractor):
            function = function.function
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # not filled yet
            told.append(_stable(cell.cell_contents))
    return repr(told).encode("utf-8", "surrogatepass") if told else b""


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


def _stable(constant: Any) -> Any:
    """A constant whose text is the same in every process: no addresses, no order of hashing."""
    if isinstance(constant, CodeType):
        return constant.co_code, _stable(constant.co_consts), constant.co_names
    if isinstance(constant, tuple):
        return tuple(map(_stable, constant))
    if isinstance(constant, frozenset):
        return sorted(repr(_stable(each)) for each in constant)
    if isinstance(constant, dict):
        return sorted((repr(name), repr(_stable(value))) for name, value in constant.items())
    plain = constant is None or constant is ... or isinstance(constant, str | bytes | int | float | complex)
    return repr(constant) if plain else type(constant).__qualname__
