"""The built-in tools: a shell, Python, and files, all in the sample's sandbox.

Errors of a command, and that a limit ended it, are returned to the model, which can react. Docstrings, parameter names
and returned texts of these tools are part of recorded requests: changing one makes users pay again.
"""

import sys

from holdfast.errors import HoldfastError
from holdfast.sandbox.confinement import CommandResult
from holdfast.solve.tools.tool import Tool, tool
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
