"""Solvers: what turns a sample into an answer. Built in, an entry point, or the user's own `module:function`.

A solver is `async def solve(sample, ctx)` and returns a string or an answer. Arguments from the spec are passed by
name.
"""

import contextlib
import difflib
import importlib
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import entry_points
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from holdfast.errors import SpecError
from holdfast.records.exchange import Answer, Sample
from holdfast.solve import agents
from holdfast.solve.context import Context
from holdfast.solve.finding import find_function, find_tools
from holdfast.spec import Sandbox, Spec, Task

Solve = Callable[..., Awaitable[str | Answer]]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", bound=str | Answer)
ENTRY_POINTS = "holdfast.solvers"


class Solver(msgspec.Struct, frozen=True):
    """A solver with its arguments."""

    name: str
    function: Solve
    arguments: dict[str, Any]

    async def solve(self, sample: Sample, ctx: Context) -> Answer:
        result = await self.function(sample, ctx, **self.arguments)
        if isinstance(result, Answer):
            return result
        if isinstance(result, str):
            return Answer(text=result)
        raise TypeError(
            f"the solver {self.name} returned {type(result).__name__}; it must return a string or an answer"
        )


def solver(
    function: Callable[Concatenate[Sample, Context, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Sample, Context, Arguments], Coroutine[Any, Any, Result]]:
    """Say that a function is a solver: `@solver`. It stays the function that it is; one that cannot be a solver is
    refused where it is written, rather than when a run begins.
    """
    name = getattr(function, "__name__", "solver")
    _checked(Solver(name, function, _required(function)), "@holdfast.solver")
    return function


async def chat(sample: Sample, ctx: Context, tools: list[dict[str, Any]] | None = None) -> Answer:
    """Ask once, with the task's prompt, and with tools as the server takes them; their calls are in the answer."""
    return await ctx.generate(tools=tools)


BUILT_IN: dict[str, Solve] = {
    "chat": chat,
    "react": agents.react,
    "conversation": agents.conversation,
    "feedback": agents.feedback,
    "critique": agents.critique,
    "best_of": agents.best_of,
    "majority": agents.majority,
}
_FUNCTIONS = ("check", "choose")
"""Arguments of these that name a function."""


def resolve_solver(entry: str | dict[str, dict[str, Any]] | Solve, place: str) -> Solver:
    """The solver that a spec or a script names. SpecError with the place and the nearest name if there is none."""
    if callable(entry):
        return _checked(Solver(getattr(entry, "__name__", "solver"), entry, {}), place)
    name, arguments = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
    return _checked(Solver(name, _find(name, place), dict(arguments or {})), place)


def sandboxes_of(spec: Spec) -> list[Sandbox]:
    """The sandboxes that a spec is known to need. What a function of the user's calls is not known before it does."""
    return [task.sandbox or Sandbox() for task in spec.tasks if task.sandbox is not None or _offers_sandboxed(task)]


def _offers_sandboxed(task: Task) -> bool:
    arguments = task.solver.get("react") if isinstance(task.solver, dict) else None
    with contextlib.suppress(SpecError):  # told of where solvers are resolved
        return any(each.sandboxed for each in find_tools((arguments or {}).get("tools", ())))
    return False


def _find(name: str, place: str) -> Solve:
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name:
        return _import(name, place)
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        return _as_solve(offered[name].load(), name, place)
    known = sorted({*BUILT_IN, *offered})
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = (
        f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}, or name your own as module:function"
    )
    raise SpecError(f"{place}: there is no solver {name!r}; {hint}")


def _import(name: str, place: str) -> Solve:
    module, _, attribute = name.partition(":")
    try:
        return _as_solve(getattr(importlib.import_module(module), attribute), name, place)
    except Exception as error:
        raise SpecError(f"{place}: {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def _as_solve(found: Any, name: str, place: str) -> Solve:
    if not callable(found):
        raise SpecError(f"{place}: {name!r} is not a function")
    solve: Solve = found
    return solve


def _required(function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments without a default, which a spec will give: only the first two are ours."""
    parameters = list(inspect.signature(function).parameters.values())[2:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {each.name: None for each in parameters if each.default is each.empty and each.kind in kinds}


def _checked(solver: Solver, place: str) -> Solver:
    if not inspect.iscoroutinefunction(solver.function):
        raise SpecError(f"{place}: the solver {solver.name} must be written as `async def solve(sample, ctx)`")
    try:
        inspect.signature(solver.function).bind(None, None, **solver.arguments)
    except TypeError as error:
        raise SpecError(f"{place}: the solver {solver.name} does not take these arguments: {error}") from error
    if solver.function in BUILT_IN.values():
        _check_functions(solver, place)
    return solver


def _check_functions(solver: Solver, place: str) -> None:
    """What a built-in solver's arguments name must be there before anything is asked."""
    try:
        if solver.name == "react":
            find_tools(solver.arguments.get("tools", ()))
        for name in _FUNCTIONS:
            if solver.arguments.get(name):
                find_function(solver.arguments[name])
    except SpecError as error:
        raise SpecError(f"{place}.{solver.name}: {error}") from error
