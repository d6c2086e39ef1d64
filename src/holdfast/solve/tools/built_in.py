"""The built-in tools: a shell, Python, and files, all in the sample's sandbox.

Errors of a command, and that a limit ended it, are returned to the model, which can react. Docstrings, parameter names
and returned texts of these tools are part of recorded requests: changing one makes users pay again.

Finds functions and tools that a spec names: `module:function`, or a tool that an installed package offers.

Nothing is cached: a module that was changed and imported again is found as it is now. Functions are looked up once,
when the spec is read.
"""

import difflib
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from holdfast.errors import HoldfastError, SpecError, describe_error
from holdfast.sandbox.confinement import CommandResult
from holdfast.solve.tools.mcp import ToolSource, read_server
from holdfast.solve.tools.tool import Tool, as_tool, tool
from holdfast.solve.tools.workplace import Workplace

_ARGUMENT_MAX = 100_000
"""Bytes of one argument. The kernel accepts at most 128 KiB."""
_ENDED = {
    "time": "it took longer than {0.seconds:g} s, and was killed with everything that it had started",
    "memory": "it used more than {0.memory_mb} MiB of memory, and was killed with everything that it had started",
    "processes": "it had more than {0.processes} processes, and was killed with everything that it had started",
    "files": "it had more than {0.files_mb} MiB in files, or more than {0.files_max} files, and was killed with "
    "everything that it had started",
    "stopped": "it was stopped",
}


@tool(sandboxed=True)
async def bash(ctx: Workplace, command: str) -> str:
    """Run a command in bash, in a private folder whose files stay until you are done. What it starts ends with it."""
    return await _run(ctx, ["bash", "-c", command])


@tool(sandboxed=True)
async def python(ctx: Workplace, code: str) -> str:
    """Run a Python program, in a private folder whose files stay until you are done. Print what you want to see."""
    own = "python3" if ctx.sandbox.spec.image else sys.executable
    return await _run(ctx, [own, "-c", code])


@tool(sandboxed=True)
async def read_file(ctx: Workplace, path: str) -> str:
    """The content of a text file."""
    ran = await ctx.sandbox.run(["cat", "--", path])
    if ran.code:
        raise OSError(ran.stderr.strip())
    return ran.stdout


@tool(sandboxed=True)
async def write_file(ctx: Workplace, path: str, content: str) -> str:
    """Make a file, or replace it."""
    await ctx.sandbox.write(path, content)
    return f"{path} is written"


TOOLS: dict[str, Tool] = {each.name: each for each in (bash, python, read_file, write_file)}


def find_own(name: str) -> Tool:
    """Return a built-in tool by its name."""
    if name not in TOOLS:
        raise HoldfastError(f"there is no tool {name!r} that comes with Holdfast; there are: {', '.join(TOOLS)}")
    return TOOLS[name]


async def _run(ctx: Workplace, argv: list[str]) -> str:
    size = len(argv[-1].encode("utf-8", "surrogatepass"))
    if size > _ARGUMENT_MAX:
        raise ValueError(f"it has {size} bytes, and may have {_ARGUMENT_MAX}: write it to a file first")
    if "\0" in argv[-1]:
        raise ValueError("it has a character that no command can have (NUL)")
    ran = await ctx.sandbox.run(argv)
    return _format(ran, ctx)


def _format(ran: CommandResult, ctx: Workplace) -> str:
    """Return output, then errors, then how the command ended if it failed."""
    parts = [ran.stdout.rstrip("\n")]
    if ran.err.head:
        parts.append(f"[stderr]\n{ran.stderr.rstrip()}")
    if ran.why:
        parts.append(f"[{_ENDED[ran.why].format(ctx.sandbox.spec)}]")
    elif ran.code:
        parts.append(f"[exit code {ran.code}]")
    return "\n".join(filter(None, parts))


TOOL_ENTRY_POINTS = "holdfast.tools"


def find_function(name: Any, place: str) -> Callable[..., Any]:
    """Import a function by name. SpecError if there is none."""
    module, colon, path = name.partition(":") if isinstance(name, str) else ("", "", "")
    if not colon or not module or not path:
        raise SpecError(f"{place}: {name!r}: name a function as module:function")
    try:
        found = functools.reduce(getattr, path.split("."), importlib.import_module(module))
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
