"""What an attempt at a sample is given to work with: models, limits, and what its run lends it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Protocol

import msgspec

from holdfast.records.facts import Called, Step, StepId
from holdfast.records.samples import Answer, Message, Sample, Usage
from holdfast.sandbox.box import Box, ReadFile
from holdfast.solve.steps import Scope
from holdfast.solve.tools.tool import Tool, call_tool
from holdfast.solve.tools.workplace import Workplace
from holdfast.spec import Price

Ask = Callable[[list[Message], dict[str, Any], list[dict[str, Any]]], Awaitable[tuple[Answer, int]]]
AskInBatch = Callable[[StepId, list[Message], dict[str, Any], list[dict[str, Any]]], Awaitable[tuple[Answer, int, str]]]
"""Also says in which job it was answered; empty if in none."""
Call = Callable[[Tool, Called, Workplace], Awaitable[Step]]


class Asking(msgspec.Struct, frozen=True):
    """A model as a sample may ask it: what identifies it, its parameters, how a request is made, what it costs."""

    identity: dict[str, Any]
    params: dict[str, Any]
    ask: Ask
    price: Price | None = None
    batched: AskInBatch | None = None
    """Asks in a job with others, where there is such a thing: it may take a day."""

    def dollars(self, usage: Usage) -> float:
        return 0.0 if self.price is None else self.price.dollars(usage)


class Allowance(msgspec.Struct, frozen=True):
    """What one attempt may use; None is no limit."""

    steps: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


Positive = Annotated[int, msgspec.Meta(ge=1)]
"""How often, or how many: none at all would be no solver."""
_Amount = Annotated[float, msgspec.Meta(gt=0)]


class Used(msgspec.Struct, frozen=True):
    """What an attempt has used so far, replayed steps included: limits survive a resume."""

    steps: int
    tokens: int
    seconds: float
    """Of work: the recorded durations of its steps."""
    cost_usd: float = 0.0
    """Of the models whose price the spec says."""


class Told(msgspec.Struct, frozen=True):
    """An answer, and a name for it that is the same at every replay."""

    id: str
    answer: Answer


class Wish(msgspec.Struct, frozen=True):
    """A request that came from outside of the solver's own code."""

    messages: list[Message]
    role: str
    tools: list[dict[str, Any]]
    params: dict[str, Any]


class Host(msgspec.Struct, frozen=True):
    """What an attempt offers to code that is not its own: models by name, and how they are asked."""

    model: str
    roles: tuple[str, ...]
    ask: Callable[[Wish], Awaitable[Told]]


class Door(Protocol):
    """The address of one attempt. It is nobody's once the attempt has ended."""

    @property
    def url(self) -> str: ...

    @property
    def failed(self) -> BaseException | None:
        """Why the last request that came through it had no answer; None if it had one."""
        ...

    def close(self) -> None: ...


class Role(msgspec.Struct, frozen=True):
    """A model that is asked and not evaluated, in an argument of a solver. No name: the evaluated one."""

    name: str = ""


class Bounds(msgspec.Struct, frozen=True):
    """What an agent may use before it has to answer; None is no bound. What earlier processes used counts."""

    turns: Positive = 20
    tokens: Positive | None = None
    cost_usd: _Amount | None = None
    seconds: _Amount | None = None

    def are_reached(self, used: Used) -> bool:
        """Whether any of them is used up, but for the turns."""
        pairs = ((self.tokens, used.tokens), (self.cost_usd, used.cost_usd), (self.seconds, used.seconds))
        return any(bound is not None and amount >= bound for bound, amount in pairs)


class Means(msgspec.Struct, frozen=True):
    """What every attempt at the samples of one cell is given."""

    models: Mapping[str, Asking]
    """By role; the evaluated model under the empty one."""
    allowance: Allowance = Allowance()
    read_file: ReadFile | None = None
    """From a reference to its content, checked; for tasks whose rows name files."""
    secrets: tuple[str, ...] = ()
    """What must not be in a record of what went wrong."""
    open_box: Callable[[Sample, Scope], Box] | None = None
    """An attempt's sandbox, which is made when it is first used."""
    call: Call = call_tool
    """What happens where a tool is to be called and no step says what came of it."""
    open_door: Callable[[Host], Door] | None = None
    """Makes the address under which other programs ask this attempt's models."""
