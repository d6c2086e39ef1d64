"""Solvers: what turns a sample into an answer. Built in, an entry point, or the user's own `module:function`.

A solver is `async def solve(sample, ctx)` and returns a string or an answer. Arguments from the spec are passed by
name.
"""

import contextlib
import difflib
import inspect
from collections.abc import Callable, Coroutine
from importlib.metadata import entry_points
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from holdfast.errors import SpecError
from holdfast.records.samples import Answer, Sample
from holdfast.solve import agents, composed
from holdfast.solve.arguments import read_arguments
from holdfast.solve.command import command, fit_command
from holdfast.solve.context import Context
from holdfast.solve.definition import Solve, Solver
from holdfast.solve.resources import Role
from holdfast.solve.tools.lookup import find_function, load
from holdfast.spec import Sandbox, Spec, Task

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", bound=str | Answer)
ENTRY_POINTS = "holdfast.solvers"
_NO_ROLE = Role()


def solver(
    function: Callable[Concatenate[Sample, Context, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Sample, Context, Arguments], Coroutine[Any, Any, Result]]:
    """Say that a function is a solver: `@solver`. It stays the function that it is; one that cannot be a solver is
    refused where it is written, rather than when a run begins.
    """
    name = getattr(function, "__name__", "solver")
    _check(name, function, _required(function), "@holdfast.solver")
    return function


async def chat(
    sample: Sample, ctx: Context, tools: list[dict[str, Any]] | None = None, role: Role = _NO_ROLE
) -> Answer:
    """Ask once, with the task's prompt, and with tools as the server takes them; their calls are in the answer. With
    `role`, the model of that role is asked: as a part of other solvers.
    """
    return await ctx.generate(tools=tools, role=role.name)


BUILT_IN: dict[str, Solve] = {
    "chat": chat,
    "react": agents.react,
    "conversation": agents.conversation,
    "feedback": agents.feedback,
    "critique": agents.critique,
    "best_of": composed.best_of,
    "majority": composed.majority,
    "chain": composed.chain,
    "fork": composed.fork,
    "command": command,
}
_FITTING: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "chain": composed.fit_chain,
    "command": fit_command,
    "conversation": agents.fit_conversation,
}
"""Arguments that are each right by themselves, made to fit each other."""


def resolve_solver(entry: Any, place: str) -> Solver:
    """The solver that a spec or a script names. SpecError with the place and the nearest name if there is none."""
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
    """The sandboxes that a spec is known to need. What a function of the user's calls is not known before it does."""
    return [task.sandbox or Sandbox() for task in spec.tasks if task.sandbox is not None or _is_sandboxed(task)]


def _is_sandboxed(task: Task) -> bool:
    with contextlib.suppress(SpecError):  # told of where solvers are resolved
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
    """Arguments without a default, which a spec will give: only the first two are ours."""
    parameters = list(inspect.signature(function).parameters.values())[2:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: None for each in parameters if each.default is each.empty and each.kind in kinds}


def _check(name: str, function: Callable[..., Any], arguments: dict[str, Any], place: str) -> None:
    """A solver that is not ours: whether it can be called so."""
    if not inspect.iscoroutinefunction(function):
        raise SpecError(f"{place}: the solver {name} must be written as `async def solve(sample, ctx)`")
    try:
        inspect.signature(function).bind(None, None, **arguments)
    except TypeError as error:
        raise SpecError(f"{place}: the solver {name} does not take these arguments: {error}") from error
