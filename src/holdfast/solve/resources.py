"""What an attempt at a sample works with: models, limits, files, a sandbox, and an address for external agents.

Plain structs, so that `solve` needs nothing of the engine: the engine fills them in for a run, `engine.replay` for code
that runs on recorded steps, and tests with fakes. Nothing here is stored.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Protocol

import msgspec

from holdfast.models import MaySend, ModelCall
from holdfast.records import Answer, Message, Sample, Step, ToolCall, Usage
from holdfast.sandbox.box import Box, ReadFile
from holdfast.solve.conversations import request_head
from holdfast.solve.steps import Scope
from holdfast.solve.tools.tool import Tool, call_tool
from holdfast.solve.tools.workplace import Workplace
from holdfast.spec import Price

Send = Callable[[ModelCall], Awaitable[Answer]]
"""Sends a request and notes in it how many tries it took, and the batch job that answered it."""
Call = Callable[[Tool, ToolCall, Workplace], Awaitable[Step]]


class ModelHandle(msgspec.Struct, frozen=True):
    """A model as solvers and scorers use it: its identity, its parameters, how to send a request, its price."""

    identity: dict[str, Any]
    params: dict[str, Any]
    send: Send
    price: Price | None = None
    batched: bool = False
    """Requests are sent in batch jobs, which may take a day."""
    head: bytes = b""
    """The start of the canonical JSON of a request with exactly these parameters: the same for most requests."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "head", request_head(self.identity, self.params))

    def dollars(self, usage: Usage) -> float:
        return 0.0 if self.price is None else self.price.dollars(usage)


class AttemptLimits(msgspec.Struct, frozen=True):
    """What one attempt may use (`limits.sample`); None is no limit."""

    steps: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


Positive = Annotated[int, msgspec.Meta(ge=1)]
"""A count of at least one."""
_Amount = Annotated[float, msgspec.Meta(gt=0)]


class AttemptUsage(msgspec.Struct, frozen=True):
    """What an attempt has used so far. Replayed steps count, so that limits survive a resume."""

    steps: int
    tokens: int
    seconds: float
    """The sum of the recorded durations of its steps."""
    cost_usd: float = 0.0
    """Only of models with a price in the spec."""


class BridgeResponse(msgspec.Struct, frozen=True):
    """The answer to an external agent, with an id that is the same at every replay."""

    id: str
    answer: Answer


class BridgeRequest(msgspec.Struct, frozen=True):
    """A request of an external agent."""

    messages: list[Message]
    role: str
    tools: list[dict[str, Any]]
    params: dict[str, Any]


class BridgeBackend(msgspec.Struct, frozen=True):
    """What an attempt offers to external agents: its models by name, and a function that sends a request."""

    model: str
    roles: tuple[str, ...]
    ask: Callable[[BridgeRequest], Awaitable[BridgeResponse]]


class BridgeEndpoint(Protocol):
    """The HTTP address of one attempt; refuses requests once the attempt has ended."""

    @property
    def url(self) -> str: ...

    @property
    def failed(self) -> BaseException | None:
        """Why the last request to it failed; None if it was answered."""
        ...

    def close(self) -> None: ...


class Role(msgspec.Struct, frozen=True):
    """An argument of a solver that names a role; without a name, the evaluated model."""

    name: str = ""


class AgentBounds(msgspec.Struct, frozen=True):
    """What an agent may use before it must answer; None is no bound. Use by earlier processes counts."""

    turns: Positive = 20
    tokens: Positive | None = None
    cost_usd: _Amount | None = None
    seconds: _Amount | None = None

    def are_reached(self, used: AttemptUsage) -> bool:
        """Whether a bound other than `turns` is used up."""
        pairs = ((self.tokens, used.tokens), (self.cost_usd, used.cost_usd), (self.seconds, used.seconds))
        return any(bound is not None and amount >= bound for bound, amount in pairs)


class AttemptResources(msgspec.Struct, frozen=True):
    """What every attempt at the samples of one cell works with."""

    models: Mapping[str, ModelHandle]
    """By role; the evaluated model has the empty name."""
    allowance: AttemptLimits = AttemptLimits()
    read_file: ReadFile | None = None
    """Returns the checked content of a reference; for tasks whose rows name files."""
    secrets: tuple[str, ...] = ()
    """Removed from recorded failures."""
    open_box: Callable[[Sample, Scope], Box] | None = None
    """Returns the attempt's sandbox; its folder is created on first use."""
    call: Call = call_tool
    """Makes a tool call that is not recorded. A replay puts something else here."""
    may_send: MaySend | None = None
    """If it says no, calls of tools wait: they may reach servers, and another process may make them too."""
    open_endpoint: Callable[[BridgeBackend], BridgeEndpoint] | None = None
    """Opens the HTTP address under which external agents use this attempt's models."""
