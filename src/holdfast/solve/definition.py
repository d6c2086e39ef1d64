"""A solver that is ready to run: its function, its arguments in the spec, and what those resolve to.

`Solver.digest` identifies the user's code that a spec names. Built-in code is identified by name and version, so that
moving or rewording it changes no digest.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import xxhash

from holdfast.records import SOLVER_VERSIONS, TOOL_VERSIONS, Answer, Message, Sample
from holdfast.score import solver_digest
from holdfast.solve.context import Context
from holdfast.solve.mcp import McpServer
from holdfast.solve.resources import AgentBounds, Role
from holdfast.solve.tools.tool import Tool

Solve = Callable[..., Awaitable[str | Answer]]


class ScoredContinuation(msgspec.Struct, frozen=True):
    """A choice that is scored by its likelihood: its text, the name that a target may use, and the request."""

    text: str
    label: str
    context: str
    continuation: str


Preview = Callable[..., list[ScoredContinuation]]
"""The continuations that a solver scores, from a sample, its first messages and the arguments of the solver."""


class Solver(msgspec.Struct, frozen=True):
    """A solver with its arguments."""

    name: str
    function: Solve
    arguments: dict[str, Any]
    """As written in the spec."""
    given: dict[str, Any]
    """What the function is called with: names of functions, tools and solvers are resolved."""
    preview: Preview | None = None
    """For a solver that scores continuations and generates nothing; None for all others."""

    def continuations(self, sample: Sample, messages: list[Message]) -> list[ScoredContinuation]:
        """The continuations that it would score, without sending anything; none if it generates text."""
        return [] if self.preview is None else self.preview(sample, messages, **self.given)

    async def solve(self, sample: Sample, ctx: Context) -> Answer:
        return self.as_answer(await self.function(sample, ctx, **self.given))

    def as_answer(self, result: Any) -> Answer:
        """Return what the function returned as an answer. TypeError if it is neither an answer nor a text."""
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
    def needs_likelihoods(self) -> bool:
        """Whether it, or a part of it, is the built-in solver that needs log-probabilities of the prompt."""
        return any(each.name == "choice_likelihood" and not solver_digest(each.function) for each in self.every())

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
