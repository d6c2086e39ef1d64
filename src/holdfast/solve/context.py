"""What a solver is given: its sample, its first messages, and the calls that are durable.

A solver needs no checkpoint code. It must only do through `ctx` what must not be done twice, and take randomness and
time from `ctx` if it wants a replay to come out the same.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import xxhash

from holdfast.errors import BadRecordError, HoldfastError
from holdfast.records.exchange import Answer, Message, Sample
from holdfast.records.facts import Called, Failure, Step
from holdfast.records.references import parse_reference
from holdfast.solve.conversations import Conversations
from holdfast.solve.steps import Once, StepFailedError, Steps
from holdfast.solve.tools import Tool, ToolArgumentsError, as_tool, invoke

PER_KEY = "per_key"
"""As the parameter `seed`: each key sends its own, so that repeats differ and can be had again."""

_NOW = "now"
"""The request of every look at the clock: they are told apart by their count."""
_TOLD_MAX = 8000
_SHOWN = 100
_canonical = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.json.Encoder().encode


class LimitError(HoldfastError):
    """A sample has used up what it may use. The attempt ends; what it recorded stays."""

    def __init__(self, message: str, kind: str = "limit") -> None:
        super().__init__(message)
        self.kind = kind


class Asking(msgspec.Struct, frozen=True):
    """A model as a sample may ask it: what identifies it, its parameters, and how a request is made."""

    identity: dict[str, Any]
    params: dict[str, Any]
    ask: Callable[[list[Message], dict[str, Any], list[dict[str, Any]]], Awaitable[tuple[Answer, int]]]


class Allowance(msgspec.Struct, frozen=True):
    """What one attempt may use; None is no limit."""

    steps: int | None = None
    tokens: int | None = None


ReadFile = Callable[[str], Awaitable[bytes]]
"""From a reference to its content, checked."""


class Used(msgspec.Struct, frozen=True):
    """What an attempt has used so far, replayed steps included: limits survive a resume."""

    steps: int
    tokens: int
    seconds: float
    """Of work: the recorded durations of its steps."""


class Context:
    """One attempt at one sample."""

    _read_file: ReadFile | None = None

    def __init__(
        self,
        sample: Sample,
        messages: list[Message],
        steps: Steps,
        models: Mapping[str, Asking],
        seed: str,
        allowance: Allowance,
    ) -> None:
        self.sample = sample
        self.messages = messages
        self._steps = steps
        self._models = models
        self._seed = seed
        self._allowance = allowance
        self._random: random.Random | None = None
        self._conversations = Conversations()

    @property
    def seed(self) -> int:
        """This key's own seed, of the spec's seed and the key alone: no order, concurrency or run id changes it."""
        key = self._seed.rpartition("/")[0]  # each attempt has other randomness; the key is one
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) >> 1

    @property
    def random(self) -> random.Random:
        """Randomness that is the same for this key and attempt, whatever else runs."""
        if self._random is None:
            self._random = random.Random(int.from_bytes(hashlib.sha256(self._seed.encode()).digest()[:8]))
        return self._random

    @property
    def used(self) -> Used:
        return Used(self._steps.count, self._steps.tokens, self._steps.seconds)

    def read_files_with(self, read: ReadFile | None) -> None:
        """How `file` finds content; only the run that holds it knows."""
        self._read_file = read

    async def file(self, reference: str) -> bytes:
        """The content of a file of the sample's row. It is the same whenever it is read, so this is no step."""
        if parse_reference(reference) is None or self._read_file is None:
            raise HoldfastError(
                f"ctx.file({_shown(reference)}): not a file of this run; give it a value of a column that "
                "dataset.files names (a URL stays as it is, and is not fetched)"
            )
        return await self._read_file(reference)

    async def generate(
        self,
        messages: str | list[Message] | None = None,
        *,
        role: str = "",
        tools: list[dict[str, Any]] | None = None,
        **params: Any,
    ) -> Answer:
        """Ask the evaluated model, or the model of a role. The answer is durable before it is returned."""
        asking = self._models.get(role)
        if asking is None:
            known = ", ".join(sorted(filter(None, self._models))) or "none"
            raise HoldfastError(f"there is no role {role!r} in the spec; there are: {known}")
        self._check_allowance()
        merged = {**asking.params, **params} if params else asking.params
        if merged.get("seed") == PER_KEY:
            merged = {**merged, "seed": self.seed}
        given = _as_messages(self.messages if messages is None else messages)
        said = self._conversations.take(given, asking.identity, merged)
        request = said.digest(_canonical(tools or []))

        async def ask() -> Step:
            asked = self._conversations.asked(said, role, params, tools or [])
            try:
                answer, tries = await asking.ask(said.messages, merged, tools or [])
            except AskFailedError as error:
                return Step(0, "", "", asked=asked, failure=error.failure, tries=error.tries)
            if not isinstance(answer, Answer):
                raise BadRecordError(f"the model's provider returned {type(answer).__name__}, not an answer")
            return Step(0, "", "", asked=asked, answer=answer, tries=tries)

        taken = await self._steps.take(request, ask)
        assert taken.told.answer is not None
        self._conversations.answered(taken.n, taken.step, said)
        return taken.told.answer

    async def call(self, tool: "Tool | Callable[..., Any]", arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool, or any function, sync or async. What it returns is durable before it is handed on, and is what
        JSON makes of it. ToolFailedError, live and at every replay, if it raised or took too long.
        """
        wanted = as_tool(tool)
        self._check_allowance()
        given = _plain(dict(arguments or {}), f"the arguments of {wanted.name}")
        called = Called(wanted.name, given)
        request = xxhash.xxh3_128_hexdigest(_canonical(["call", wanted.name, given]))
        once = None if wanted.repeatable else Once(called, lambda: _recovered(wanted, called))
        try:
            taken = await self._steps.take(request, lambda: _called(wanted, called), once)
        except StepFailedError as error:
            raise ToolFailedError(error.failure) from error
        return taken.told.value

    async def now(self) -> datetime:
        """The time, which is the same at every replay."""

        async def look() -> Step:
            return Step(0, "", "", kind="now", value=datetime.now(UTC).isoformat())

        taken = await self._steps.take(_NOW, look)
        return datetime.fromisoformat(taken.told.value)

    def _check_allowance(self) -> None:
        allowed = self._allowance
        if allowed.steps is not None and self._steps.count >= allowed.steps:
            raise LimitError(f"the sample has made {self._steps.count} steps; its limit is {allowed.steps}")
        if allowed.tokens is not None and self._steps.tokens >= allowed.tokens:
            raise LimitError(f"the sample has used {self._steps.tokens} tokens; its limit is {allowed.tokens}")


class ToolFailedError(StepFailedError):
    """A tool raised, or took longer than it may."""


class AskFailedError(HoldfastError):
    """A request failed for good: after its retries, or because retrying cannot help."""

    def __init__(self, failure: Failure, tries: int) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.tries = tries


async def _called(tool: Tool, called: Called) -> Step:
    """What a tool raises is the step's failure: the solver sees it, and decides."""
    try:
        async with asyncio.timeout(tool.seconds):
            value = await invoke(tool, tool.arguments(called.arguments))
    except TimeoutError as error:
        late = f"{tool.name} took longer than {tool.seconds:g} s" if tool.seconds else f"{tool.name}: {error!r}"
        return _tool_failure(tool, called, late)
    except ToolArgumentsError as error:
        return _tool_failure(tool, called, str(error))
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return _tool_failure(tool, called, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return Step(0, "", "", kind="call", called=called, once=not tool.repeatable, value=value)


async def _recovered(tool: Tool, called: Called) -> Step:
    """What a call came to that was begun by a process that died."""
    if tool.recover is None:
        raise LimitError(
            f"{tool.name} must not be repeated, and the process ended while it was being called: it may have been "
            "done. Find out, or give the tool a `recover`",
            "unrepeatable",
        )
    found = msgspec.structs.replace(tool, function=tool.recover, repeatable=True)
    return msgspec.structs.replace(await _called(found, called), once=True)


def _tool_failure(tool: Tool, called: Called, message: str) -> Step:
    failure = Failure("tool", _writable(message)[:_TOLD_MAX])
    return Step(0, "", "", kind="call", called=called, once=not tool.repeatable, failure=failure)


def _writable(text: str) -> str:
    """Half a character cannot be written as JSON."""
    return text.encode("utf-8", "replace").decode()


def _plain(value: Any, what: str) -> Any:
    """As JSON has it: what is recorded must not change when the solver goes on with its own."""
    try:
        return msgspec.json.decode(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecordError(f"{what} cannot be written as JSON: {error}") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _as_messages(messages: str | list[Message]) -> list[Message]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return messages
