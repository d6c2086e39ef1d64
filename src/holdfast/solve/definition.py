"""A solver that is ready to be used: a function, the arguments that a spec gave it, and what those stand for."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import xxhash

from holdfast.records.built_in import SOLVERS, TOOLS
from holdfast.records.samples import Answer, Message, Sample
from holdfast.score import solver_digest
from holdfast.solve.context import Context
from holdfast.solve.resources import Bounds, Role
from holdfast.solve.tools.mcp import Server
from holdfast.solve.tools.tool import Tool

Solve = Callable[..., Awaitable[str | Answer]]


class Solver(msgspec.Struct, frozen=True):
    """A solver with its arguments."""

    name: str
    function: Solve
    arguments: dict[str, Any]
    """As they were written."""
    given: dict[str, Any]
    """What the function is called with: functions, tools and solvers where the arguments name them."""

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
        """Do a part of another solver's work, with first messages of its own."""
        part = ctx.with_messages(messages)
        answer = await self.solve(sample, part)
        part.close_door()
        return answer

    def every(self) -> "Iterator[Solver]":
        """This one, and those that it lets do parts of its work."""
        yield self
        for each in _each_in(list(self.given.values())):
            if isinstance(each, Solver):
                yield from each.every()

    def servers(self) -> Iterator[Server]:
        """The servers that it, or a part of it, takes tools from."""
        return (each for each in self._everything() if isinstance(each, Server))

    def roles(self) -> Iterator[str]:
        """The roles that it, or a part of it, asks."""
        return (each.name for each in self._everything() if isinstance(each, Role) and each.name)

    @property
    def counts_cost(self) -> bool:
        """Whether it needs to know what the models cost."""
        return any(isinstance(each, Bounds) and each.cost_usd is not None for each in self._everything())

    @property
    def is_sandboxed(self) -> bool:
        """Whether it offers a model tools that work in a sandbox."""
        return any(isinstance(each, Tool) and each.sandboxed for each in self._everything())

    @property
    def is_built_in(self) -> bool:
        """Whether all code that a spec names with it comes with Holdfast."""
        return not any(map(solver_digest, self._functions()))

    def digest(self) -> str:
        """Of all code that a spec names with it: its own, that of the solvers and tools in its arguments, and of the
        functions there. Empty if all of it comes with Holdfast and is of version 1.
        """
        found = dict.fromkeys(filter(None, [*map(solver_digest, self._functions()), *self._later_versions()]))
        if len(found) < 2:
            return next(iter(found), "")
        return xxhash.xxh3_128_hexdigest("\n".join(found).encode())

    def described(self) -> str:
        """Its name, and the modules of the parts that a spec names with it."""
        parts = {each.__module__ for each in self._functions() if each is not self.function and solver_digest(each)}
        return f"{self.name} with {', '.join(sorted(parts))}" if parts else self.name

    def _later_versions(self) -> Iterator[str]:
        """Of built-in solvers and tools that are no longer of version 1. What 0.1.0 recorded names no version."""
        own = [("solver", each.name, each.function, SOLVERS) for each in self.every()]
        own += [("tool", each.name, each.function, TOOLS) for each in self._everything() if isinstance(each, Tool)]
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
        """All that its arguments, and those of its parts, stand for."""
        return _each_in([list(each.given.values()) for each in self.every()])


def _each_in(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _each_in(each)
    else:
        yield value
