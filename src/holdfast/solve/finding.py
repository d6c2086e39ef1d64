"""Functions and tools that a spec names: `module:function`, looked up once."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, cast

from holdfast.errors import SpecError
from holdfast.solve.toolbox import TOOLS
from holdfast.solve.tools import Tool, as_tool


@functools.lru_cache(maxsize=1024)
def find_function(name: str) -> Callable[..., Any]:
    """SpecError, in one sentence, if there is no such function."""
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise SpecError(f"{name!r}: name a function as module:function, or a tool: {', '.join(TOOLS)}")
    try:
        found = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except Exception as error:
        raise SpecError(f"{name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found) and not isinstance(found, Tool):
        raise SpecError(f"{name!r} is not a function")
    return cast(Callable[..., Any], found)


def find_tools(entries: Sequence[str]) -> list[Tool]:
    """Tools by name: those that come with Holdfast, or `module:function`. SpecError for two of one name: a model could
    not tell them apart.
    """
    found = [TOOLS[entry] if entry in TOOLS else as_tool(find_function(entry)) for entry in entries]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"there are two tools called {name!r}; rename one: @tool(name=…)")
    return found
