"""What a scorer is made of, to tell whether it is still the same: name, arguments, and a digest of its code.

The digest covers the whole module file, because a function is more than its own lines. Code without a file (a notebook,
a shell, `__main__`) is digested alone: other cells change all the time.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType
from typing import Any

import xxhash

from holdfast.score.definition import Scorer


def identity(scorer: Scorer) -> dict[str, Any]:
    """`name`, `function` (where it is defined), `args`, `source` (digest), as an evaluation records them."""
    function = _innermost(scorer)
    where = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    return {"name": scorer.name, "function": where, "args": dict(scorer.args), "source": source_digest(scorer)}


def source_digest(function: Callable[..., Any]) -> str:
    """Of the module's file; of the function's own source if it belongs to no module file; else of its bytecode."""
    innermost = _innermost(function)
    if getattr(innermost, "__module__", "__main__") != "__main__":
        content = _module_file(innermost)
        if content is not None:
            return xxhash.xxh3_128_hexdigest(content)
    try:
        own = textwrap.dedent(inspect.getsource(innermost))
    except (OSError, TypeError):
        return xxhash.xxh3_128_hexdigest(repr(_compiled(innermost)).encode("utf-8", "surrogatepass"))
    return xxhash.xxh3_128_hexdigest(own.encode("utf-8", "surrogatepass"))


def _innermost(function: Any) -> Any:
    """The function that was written, below decorators and partials; of an object that can be called, its class."""
    while True:
        if isinstance(function, Scorer):
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
