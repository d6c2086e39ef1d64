"""Finds the solver that a spec names: built in (the table `BUILT_IN`), an entry point, or the user's `module:function`.

A solver is `async def solve(sample, ctx)` and returns a string or an Answer. Arguments from the spec are passed by name
and checked here, before any request is sent.

Reads the arguments of a built-in solver from a spec, by the types of its parameters, before any request is sent.

Functions, tools, solvers and patterns are written as names or texts in a spec; the table `_READERS` says how each is
resolved. All other arguments are plain values. Each error names its place in the spec.
"""

import contextlib
import difflib
import inspect
import re
import typing
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import entry_points
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import msgspec

from holdfast.errors import SpecError
from holdfast.records import Answer, Sample
from holdfast.solve import agents
from holdfast.solve.agents import Join, Pattern
from holdfast.solve.command import command, fit_command
from holdfast.solve.context import Context
from holdfast.solve.definition import Solve, Solver
from holdfast.solve.resources import Role
from holdfast.solve.tools.lookup import find_function, find_offers, load
from holdfast.solve.tools.mcp import ToolSource
from holdfast.solve.tools.tool import Function
from holdfast.spec import Sandbox, Spec, Task

Read = Callable[[Any, str], Any]
ResolveSolver = Callable[[Any, str], Solver]


def read_arguments(
    function: Callable[..., Any], arguments: dict[str, Any], place: str, resolve: ResolveSolver
) -> dict[str, Any]:
    """Return the arguments as the function takes them; `resolve` resolves solvers. The fields of a parameter that is a
    struct are written as arguments of their own.
    """
    takes = _parameters(function)
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


class _Parameter(msgspec.Struct, frozen=True):
    hint: Any
    required: bool = False
    bundle: str = ""
    """The struct parameter that this is a field of."""


def _parameters(function: Callable[..., Any]) -> dict[str, _Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    found: dict[str, _Parameter] = {}
    for each in list(inspect.signature(function).parameters.values())[2:]:  # the first two are sample and ctx
        hint = hints[each.name]
        if hint not in _READERS and inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
            fields = typing.get_type_hints(hint, include_extras=True)
            found |= {name: _Parameter(fields[name], bundle=each.name) for name in hint.__struct_fields__}
        else:
            found[each.name] = _Parameter(hint, each.default is each.empty)
    return found


def _check_names(takes: dict[str, _Parameter], arguments: dict[str, Any], place: str) -> None:
    for name in arguments:
        if name not in takes:
            known = f"it takes {', '.join(takes)}" if takes else "it takes none"
            raise SpecError(f"{place}: does not take these arguments: there is no {name!r}; {known}")
    for name, parameter in takes.items():
        if parameter.required and name not in arguments:
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


def _optional_function(given: Any, place: str) -> Callable[..., Any] | None:
    return find_function(given, place) if given else None


def _join(given: Any, place: str) -> Any:
    if given in ("best", "majority"):
        return given
    if not isinstance(given, str) or ":" not in given:
        raise SpecError(f"{place}: expected best, majority or module:function; it is {given!r}")
    return find_function(given, place)


def _role(given: Any, place: str) -> Role:
    return Role(_plain(given, str, place))


def _plain(value: Any, hint: Any, place: str) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise SpecError(f"{place}: {str(error).replace('Expected', 'expected')}; it is {value!r}") from error


_READERS: dict[Any, Read] = {
    Function: find_function,
    Function | None: _optional_function,
    Sequence[ToolSource]: find_offers,
    Pattern: _pattern,
    Join: _join,
    Role: _role,
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


BUILT_IN: dict[str, Solve] = {
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
}
_FITTING: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "chain": agents.fit_chain,
    "command": fit_command,
    "conversation": agents.fit_conversation,
}
"""Checks that involve several arguments, and defaults that depend on others."""


def resolve_solver(entry: Any, place: str) -> Solver:
    """Return the solver that a spec or a script names. SpecError with the nearest name if there is none."""
    if callable(entry):
        name = getattr(entry, "__name__", "solver")
        _check(name, entry, {}, place)
        return Solver(name, entry, {}, {})
    name, arguments = _named(entry, place)
    function = _find(name, place)
    if name in BUILT_IN:
        given = read_arguments(function, arguments, f"{place}.{name}", resolve_solver)
        if name in _FITTING:
            given = _FITTING[name](given, f"{place}.{name}")
        return Solver(name, function, arguments, given)
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
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name:
        return cast(Solve, find_function(name, place))
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        return cast(Solve, load(offered[name], place))
    known = sorted({*BUILT_IN, *offered})
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
