"""Scorers of a file that is being written: read afresh whenever it is asked for, whatever was imported before."""

import importlib.util
import linecache
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from holdfast.errors import told
from holdfast.score.definition import Scorer
from holdfast.score.errors import ScorerError


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
