"""Finds the solver that a spec names: built in (the table `BUILT_IN`), an entry point, or the user's `module:function`.

A solver is `async def solve(sample, ctx)` and returns a string or an Answer. Arguments from the spec are passed by name
and checked here, before any request is sent.
"""

import contextlib
import difflib
import inspect
from collections.abc import Callable, Coroutine
from importlib.metadata import entry_points
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from holdfast.errors import SpecError
from holdfast.records import Answer, Sample
from holdfast.solve import agents
from holdfast.solve.command import command, fit_command
from holdfast.solve.context import Context
from holdfast.solve.definition import Solve, Solver, read_arguments
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
