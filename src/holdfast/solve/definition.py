"""A solver that is ready to run: its function, its arguments in the spec, and what those resolve to.

`Solver.digest` identifies the user's code that a spec names. Built-in code is identified by name and version, so that
moving or rewording it changes no digest.

Reads the arguments of a built-in solver from a spec, by the types of its parameters, before any request is sent.

Functions, tools, solvers and patterns are written as names or texts in a spec; the table `_READERS` says how each is
resolved. All other arguments are plain values. Each error names its place in the spec.
"""

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.errors import SpecError
from holdfast.records import SOLVER_VERSIONS, TOOL_VERSIONS, Answer, Message, Sample
from holdfast.score import solver_digest
from holdfast.solve.agents import Join, Pattern
from holdfast.solve.context import Context
from holdfast.solve.resources import AgentBounds, Role
from holdfast.solve.tools.lookup import find_function, find_offers
from holdfast.solve.tools.mcp import McpServer, ToolSource
from holdfast.solve.tools.tool import Function, Tool

Solve = Callable[..., Awaitable[str | Answer]]


class Solver(msgspec.Struct, frozen=True):
    """A solver with its arguments."""

    name: str
    function: Solve
    arguments: dict[str, Any]
    """As written in the spec."""
    given: dict[str, Any]
    """What the function is called with: names of functions, tools and solvers are resolved."""

    async def solve(self, sample: Sample, ctx: Context) -> Answer:
        result = await self.function(sample, ctx, **self.given)
        if isinstance(result, Answer):
            return result
        if isinstance(result, str):
            return Answer(text=result)
        raise TypeError(
            f"the solver {self.name} returned {type(result).__name__}; it must return a string or an answer"
        )

    async def solve_part(self, sample: Sample, ctx: Context, messages: list[Message]) -> Answer:
        """Run as a part of another solver, with its own first messages."""
        part = ctx.with_messages(messages)
        answer = await self.solve(sample, part)
        part.close_endpoint()
        return answer

    def every(self) -> "Iterator[Solver]":
        """Yield this solver and, recursively, the solvers in its arguments."""
        yield self
        for each in _each_in(list(self.given.values())):
            if isinstance(each, Solver):
                yield from each.every()

    def servers(self) -> Iterator[McpServer]:
        """The MCP servers in its arguments and in those of its parts."""
        return (each for each in self._everything() if isinstance(each, McpServer))

    def roles(self) -> Iterator[str]:
        """The roles in its arguments and in those of its parts."""
        return (each.name for each in self._everything() if isinstance(each, Role) and each.name)

    @property
    def counts_cost(self) -> bool:
        """Whether it needs the prices of the models."""
        return any(isinstance(each, AgentBounds) and each.cost_usd is not None for each in self._everything())

    @property
    def is_sandboxed(self) -> bool:
        """Whether it has tools that work in a sandbox."""
        return any(isinstance(each, Tool) and each.sandboxed for each in self._everything())

    @property
    def is_built_in(self) -> bool:
        """Whether all its code comes with Holdfast, including functions and tools in its arguments."""
        return not any(map(solver_digest, self._functions()))

    def digest(self) -> str:
        """Return the digest of all code that the spec names: its own, and that of solvers, tools and functions in its
        arguments. Empty if all of it is built in and of version 1.
        """
        found = dict.fromkeys(filter(None, [*map(solver_digest, self._functions()), *self._later_versions()]))
        if len(found) < 2:
            return next(iter(found), "")
        return xxhash.xxh3_128_hexdigest("\n".join(found).encode())

    def described(self) -> str:
        """Return its name and the modules of the user's code in its arguments."""
        parts = {each.__module__ for each in self._functions() if each is not self.function and solver_digest(each)}
        return f"{self.name} with {', '.join(sorted(parts))}" if parts else self.name

    def _later_versions(self) -> Iterator[str]:
        """Yield the built-in solvers and tools above version 1. Version 1 has no entry: 0.1.0 recorded no versions."""
        own = [("solver", each.name, each.function, SOLVER_VERSIONS) for each in self.every()]
        own += [
            ("tool", each.name, each.function, TOOL_VERSIONS) for each in self._everything() if isinstance(each, Tool)
        ]
        for kind, name, function, versions in own:
            if versions.get(name, 1) > 1 and not solver_digest(function):
                yield f"{kind} {name} {versions[name]}"

    def _functions(self) -> list[Callable[..., Any]]:
        found: list[Callable[..., Any]] = [each.function for each in self.every()]
        for each in self._everything():
            if isinstance(each, Tool):
                found += filter(None, (each.function, each.recover))
            elif callable(each):
                found.append(each)
        return found

    def _everything(self) -> Iterator[Any]:
        """Yield every resolved argument, also of its parts."""
        return _each_in([list(each.given.values()) for each in self.every()])


def _each_in(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _each_in(each)
    else:
        yield value


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
