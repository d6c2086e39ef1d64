"""Finds functions and tools that a spec names: `module:function`, or a tool that an installed package offers.

Nothing is cached: a module that was changed and imported again is found as it is now. Functions are looked up once,
when the spec is read.
"""

import difflib
import functools
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from holdfast.errors import SpecError, describe_error
from holdfast.score import import_user_module
from holdfast.solve.tools.built_in import TOOLS
from holdfast.solve.tools.mcp import ToolSource, read_server
from holdfast.solve.tools.tool import Tool, as_tool

TOOL_ENTRY_POINTS = "holdfast.tools"


def find_function(name: Any, place: str) -> Callable[..., Any]:
    """Import a function by name. SpecError if there is none."""
    module, colon, path = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon or not module or not path:
        raise SpecError(f"{place}: {name!r}: name a function as module:function")
    try:
        found = functools.reduce(getattr, path.split("."), import_user_module(module))
    except Exception as error:
        raise SpecError(f"{place}: {name!r} cannot be imported: {describe_error(error)}") from error
    return as_function(found, name, place)


def load(point: EntryPoint, place: str) -> Callable[..., Any]:
    """Import what an installed package offers under a name."""
    return find_function(point.value.replace(" ", ""), place)


def as_function(found: Any, name: str, place: str) -> Callable[..., Any]:
    if not callable(found) and not isinstance(found, Tool):
        raise SpecError(f"{place}: {name!r} is not a function")
    return cast(Callable[..., Any], found)


def find_offers(entries: Any, place: str) -> list[ToolSource]:
    """Return the tools and servers of a list. SpecError for two tools with the same name."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise SpecError(f"{place}: expected a list of tools; it is {entries!r}")
    found = [_find_offer(entry, f"{place}[{index}]") for index, entry in enumerate(entries)]
    names = [each.name for each in found if isinstance(each, Tool)]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{place}: there are two tools called {name!r}; rename one: @tool(name=…)")
    return found


def _find_offer(entry: Any, place: str) -> ToolSource:
    if isinstance(entry, dict) and list(entry) == ["mcp"]:
        return read_server(entry["mcp"], f"{place}.mcp")
    if not isinstance(entry, str):
        raise SpecError(f"{place}: {entry!r}: name a tool as module:function, or a server as {{mcp: {{command: […]}}}}")
    if entry in TOOLS:
        return TOOLS[entry]
    if ":" in entry:
        return _tool(find_function(entry, place), place)
    offered = {point.name: point for point in entry_points(group=TOOL_ENTRY_POINTS)}
    if entry in offered:
        return _tool(load(offered[entry], place), place)
    known = [*TOOLS, *offered]
    close = difflib.get_close_matches(entry, known, n=1, cutoff=0.5)
    hint = (
        f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}, or name your own: module:function"
    )
    raise SpecError(f"{place}: there is no tool {entry!r}; {hint}")


def _tool(found: Any, place: str) -> Tool:
    try:
        return as_tool(found)
    except SpecError as error:
        raise SpecError(f"{place}: {error}") from error
