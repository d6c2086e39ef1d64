"""Makes the user's own modules importable: those that a spec refers to as `module:function`.

They are searched in the spec's folder and in the current folder. Both come last on `sys.path`, so that a file in a
downloaded folder (`scipy.py`) never shadows the standard library or an installed package. A user module with the name
of an installed one would therefore not be found: that is an error that shows both paths.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import SpecError
from holdfast.spec import Spec
from holdfast.spec.api_keys import placed_models

_REFERENCE = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")


def find_modules_beside(path: str, spec: Spec) -> None:
    """Add the search folders to `sys.path`. `path`: the file of the spec; empty if there is none. SpecError if an
    installed module shadows one that the spec refers to.
    """
    folders = [*([os.path.dirname(os.path.abspath(path))] if path else []), os.getcwd()]
    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
    for reference in references_of(spec):
        name = reference.partition(":")[0].partition(".")[0]
        for own in filter(None, (_module_in(folder, name) for folder in folders)):
            _refuse_shadowed(reference, name, own)
            break


def references_of(spec: Spec) -> list[str]:
    """Every `module:function` in a spec: solvers, tools, scorers, extractors, providers."""
    parts = [[task.solver, task.scorers] for task in spec.tasks]
    models = [[model.provider, model.options] for model in placed_models(spec).values()]
    return list(dict.fromkeys(_references([*parts, *models])))


def _references(value: Any) -> Iterator[str]:
    """References at any depth of nested arguments."""
    if isinstance(value, str):
        if _REFERENCE.fullmatch(value):
            yield value
    elif isinstance(value, Mapping):
        yield from _references([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)


def _module_in(folder: str, name: str) -> str:
    """The file of a top-level module in a folder; empty if there is none."""
    candidates = (os.path.join(folder, f"{name}.py"), os.path.join(folder, name, "__init__.py"))
    return next(filter(os.path.isfile, candidates), "")


def _refuse_shadowed(reference: str, name: str, own: str) -> None:
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # `__main__` and the like have no spec
        return
    origin = found.origin if found is not None else None
    if origin is not None and os.path.realpath(origin) != os.path.realpath(own):
        raise SpecError(
            f"{reference}: Python finds {origin} before {own}, which has the same name; rename yours, for example to "
            f"my_{name}.py, and name it so in the spec"
        )
