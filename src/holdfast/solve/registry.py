"""Finds the solvers, tools and functions that a spec names: built in (the table `SOLVERS`), an installed package's
entry point, or the user's `module:function`.

A solver is `async def solve(sample, ctx)` and returns a string or an Answer. Its arguments are passed by name. They are
read by the types of its parameters and checked here, before any request is sent: functions, tools, solvers and patterns
are written as names or texts in a spec, and the table `_READERS` says how each is resolved. All other arguments are
plain values. Each error names its place in the spec.

Nothing is cached: a module that was changed and imported again is found as it is now. Functions are looked up once,
when the spec is read.
"""

import contextlib
import difflib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import msgspec

from holdfast.errors import SpecError, describe_error
from holdfast.records import Answer, Sample
from holdfast.score import import_user_module
from holdfast.solve import agents
from holdfast.solve.agents import Join, Pattern, command, fit_command
from holdfast.solve.context import Context
from holdfast.solve.definition import Preview, Solve, Solver
from holdfast.solve.likelihood import choice_likelihood, fit_choice_likelihood, scored_continuations
from holdfast.solve.mcp import ToolSource, read_server
from holdfast.solve.resources import Role
from holdfast.solve.tools.built_in import TOOLS
from holdfast.solve.tools.tool import Function, Tool, as_tool
from holdfast.spec import Sandbox, Spec, Task

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


Read = Callable[[Any, str], Any]
ResolveSolver = Callable[[Any, str], Solver]


def read_arguments(
    function: Callable[..., Any], arguments: dict[str, Any], place: str, resolve: ResolveSolver
) -> dict[str, Any]:
    """Return the arguments as the function takes them; `resolve` resolves solvers. The fields of a parameter that is a
    struct are written as arguments of their own.
    """
    takes = parameters_of(function)
    _check_names(takes, arguments, place)
    readers = {Sequence[Solver]: lambda given, where: _solvers(given, where, resolve), **_READERS}
    read: dict[str, Any] = {}
    bundles: dict[str, dict[str, Any]] = {}
    for name, value in arguments.items():
        parameter, where = takes[name], f"{place}.{name}"
        reader = readers.get(parameter.hint)
        found = _plain(value, parameter.hint, where) if reader is None else reader(value, where)
        (bundles.setdefault(parameter.bundle, {}) if parameter.bundle else read)[name] = found
    hints = typing.get_type_hints(function)
    return read | {name: hints[name](**fields) for name, fields in bundles.items()}


class SolverParameter(msgspec.Struct, frozen=True):
    """One argument of a built-in solver."""

    hint: Any
    default: Any
    """`inspect.Parameter.empty` if it is required."""
    bundle: str = ""
    """The struct parameter that this is a field of."""


def parameters_of(function: Callable[..., Any]) -> dict[str, SolverParameter]:
    """Return the arguments that a spec may give to a built-in solver, by name."""
    hints = typing.get_type_hints(function, include_extras=True)
    found: dict[str, SolverParameter] = {}
    for each in list(inspect.signature(function).parameters.values())[2:]:  # the first two are sample and ctx
        hint = hints[each.name]
        if hint not in _READERS and inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
            fields = typing.get_type_hints(hint, include_extras=True)
            defaults = {field.name: field.default for field in msgspec.structs.fields(hint)}
            found |= {name: SolverParameter(fields[name], default, each.name) for name, default in defaults.items()}
        else:
            found[each.name] = SolverParameter(hint, each.default)
    return found


def _check_names(takes: dict[str, SolverParameter], arguments: dict[str, Any], place: str) -> None:
    for name in arguments:
        if name not in takes:
            known = f"it takes {', '.join(takes)}" if takes else "it takes none"
            raise SpecError(f"{place}: does not take these arguments: there is no {name!r}; {known}")
    for name, parameter in takes.items():
        if parameter.default is inspect.Parameter.empty and name not in arguments:
            raise SpecError(f"{place}: the argument {name!r} is missing")


def _solvers(given: Any, place: str, resolve: ResolveSolver) -> list[Solver]:
    if not isinstance(given, list) or not given:
        raise SpecError(f"{place}: expected a list of solvers; it is {given!r}")
    return [resolve(each, f"{place}[{index}]") for index, each in enumerate(given)]


def _pattern(given: Any, place: str) -> "re.Pattern[str] | None":
    if not given:
        return None
    try:
        return re.compile(given)
    except (re.error, TypeError) as error:
        raise SpecError(f"{place}: {given!r} is not a regular expression: {error}") from error


def _join(given: Any, place: str) -> Any:
    if given in ("best", "majority"):
        return given
    if not isinstance(given, str) or ":" not in given:
        raise SpecError(f"{place}: expected best, majority or module:function; it is {given!r}")
    return find_function(given, place)


def _plain(value: Any, hint: Any, place: str) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {str(error).replace('Expected', 'expected')}; it is {value!r}") from error


_READERS: dict[Any, Read] = {
    Function: find_function,
    Function | None: lambda given, place: find_function(given, place) if given else None,
    Sequence[ToolSource]: find_offers,
    Pattern: _pattern,
    Join: _join,
    Role: lambda given, place: Role(_plain(given, str, place)),
}


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", bound=str | Answer)
ENTRY_POINTS = "holdfast.solvers"
_NO_ROLE = Role()


def solver(
    function: Callable[Concatenate[Sample, Context, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Sample, Context, Arguments], Coroutine[Any, Any, Result]]:
    """Mark a function as a solver: `@solver`. Returns it unchanged; SpecError, when the module is imported, if it
    cannot be a solver.
    """
    name = getattr(function, "__name__", "solver")
    _check(name, function, _required(function), "@holdfast.solver")
    return function


async def chat(
    sample: Sample, ctx: Context, tools: list[dict[str, Any]] | None = None, role: Role = _NO_ROLE
) -> Answer:
    """Send one request with the task's prompt. `tools` are passed to the server; the answer holds the model's calls.
    With `role`, the model of that role answers: for parts of other solvers.
    """
    return await ctx.generate(tools=tools, role=role.name)


SOLVERS: dict[str, Solve] = {
    "chat": chat,
    "react": agents.react,
    "conversation": agents.conversation,
    "feedback": agents.feedback,
    "critique": agents.critique,
    "best_of": agents.best_of,
    "majority": agents.majority,
    "chain": agents.chain,
    "fork": agents.fork,
    "command": command,
    "choice_likelihood": choice_likelihood,
}
_FITTING: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "chain": agents.fit_chain,
    "choice_likelihood": fit_choice_likelihood,
    "command": fit_command,
    "conversation": agents.fit_conversation,
}
"""Checks that involve several arguments, and defaults that depend on others."""
_PREVIEWS: dict[str, Preview] = {"choice_likelihood": scored_continuations}


def resolve_solver(entry: Any, place: str) -> Solver:
    """Return the solver that a spec or a script names. SpecError with the nearest name if there is none."""
    if callable(entry):
        name = getattr(entry, "__name__", "solver")
        _check(name, entry, {}, place)
        return Solver(name, entry, {}, {})
    name, arguments = _named(entry, place)
    function = _find(name, place)
    if name in SOLVERS:
        given = read_arguments(function, arguments, f"{place}.{name}", resolve_solver)
        if name in _FITTING:
            given = _FITTING[name](given, f"{place}.{name}")
        return Solver(name, function, arguments, given, _PREVIEWS.get(name))
    _check(name, function, arguments, place)
    return Solver(name, function, arguments, arguments)


def _named(entry: Any, place: str) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        name, arguments = next(iter(entry.items()))
        if isinstance(name, str) and isinstance(arguments, dict | None):
            return name, dict(arguments or {})
    raise SpecError(f"{place}: expected one solver, as in {{name: {{argument: value}}}}; it is {entry!r}")


def sandboxes_of(spec: Spec) -> list[Sandbox]:
    """Return the sandboxes that a spec is known to need. Calls by the user's own code are not known in advance."""
    return [task.sandbox or Sandbox() for task in spec.tasks if task.sandbox is not None or _is_sandboxed(task)]


def _is_sandboxed(task: Task) -> bool:
    with contextlib.suppress(SpecError):  # reported where solvers are resolved
        return resolve_solver(task.solver, "solver").is_sandboxed
    return False


def _find(name: str, place: str) -> Solve:
    if name in SOLVERS:
        return SOLVERS[name]
    if ":" in name:
        return cast(Solve, find_function(name, place))
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        return cast(Solve, load(offered[name], place))
    known = sorted({*SOLVERS, *offered})
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = (
        f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}, or name your own as module:function"
    )
    raise SpecError(f"{place}: there is no solver {name!r}; {hint}")


def _required(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters without a default, after sample and ctx: a spec must give them."""
    parameters = list(inspect.signature(function).parameters.values())[2:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: None for each in parameters if each.default is each.empty and each.kind in kinds}


def _check(name: str, function: Callable[..., Any], arguments: dict[str, Any], place: str) -> None:
    """Check that a user's solver is async and accepts the arguments."""
    if not inspect.iscoroutinefunction(function):
        raise SpecError(f"{place}: the solver {name} must be written as `async def solve(sample, ctx)`")
    try:
        inspect.signature(function).bind(None, None, **arguments)
    except TypeError as error:
        raise SpecError(f"{place}: the solver {name} does not take these arguments: {error}") from error
