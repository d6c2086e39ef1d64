"""A stage for solvers: a clock that jumps, a journal in memory, a model that never says the same thing twice.

`play` runs a solver as one attempt. What it recorded, or any prefix of it, can be given to the next `play`, as after a
kill. Time is virtual: a sleep of an hour costs nothing, and a solver that waits for what can never come fails at once.
"""

import asyncio
import itertools
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.errors import StoppedError
from holdfast.journal import Position
from holdfast.models import ModelCall
from holdfast.models.provider import AskFailedError
from holdfast.records import Draft
from holdfast.records.facts import Failure, Spent, Step
from holdfast.records.samples import Answer, Message, Sample, Usage
from holdfast.solve import AttemptLimits, AttemptResources, Context, ModelHandle, RecordedStep, Scope, Steps

T = TypeVar("T")
KEY = "task/model/1/1"
SAMPLE = Sample("1", "question", None, {})

Solve = Callable[[Context], Awaitable[Any]]
Latency = Callable[[str, int], float]
"""How long the answer to a question takes, asked for the so-manieth time."""


class StuckError(Exception):
    """Nothing is left that could ever happen."""


class _Jumping(selectors.SelectSelector):
    """Waits for nothing: when the loop would sleep, its clock is moved on instead."""

    jump: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError("the event loop waits for what can never come")
        self.jump(timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop without real time and without threads."""

    def __init__(self) -> None:
        selector = _Jumping()
        self._now = 0.0
        super().__init__(selector)
        selector.jump = self._jump

    def time(self) -> float:
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += max(0.0, seconds)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)


def type_of(record: Draft) -> str:
    return str(msgspec.json.decode(b"{%b0}" % record.head)["t"])


class MemoryJournal:
    """Numbers records as they come and acknowledges them in that order, in batches, `seconds` after the first."""

    def __init__(self, first: int = 1, seconds: float = 0.0) -> None:
        self.records: list[tuple[int, Draft]] = []
        self.seconds = seconds
        self.stopped = False
        self._numbers = itertools.count(first)
        self._batch: list[tuple[Position, asyncio.Future[Position]]] = []

    async def append(self, record: Draft) -> Position:
        if self.stopped:
            raise StoppedError("the disk is gone")
        acknowledged: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        if not self._batch:
            asyncio.get_running_loop().call_later(self.seconds, self._acknowledge)
        self._batch.append((self._take(record), acknowledged))
        return await acknowledged

    def append_soon(self, record: Draft) -> None:
        if not self.stopped:
            self._take(record)

    @property
    def last(self) -> int:
        return self.records[-1][0] if self.records else 0

    def of(self, kind: str) -> list[bytes]:
        return [record.d for _, record in self.records if type_of(record) == kind]

    def steps(self) -> list[RecordedStep]:
        steps = [(n, each.d) for n, each in self.records if type_of(each) == "step"]
        return [RecordedStep(n, msgspec.json.decode(data, type=Step)) for n, data in steps]

    def _take(self, record: Draft) -> Position:
        n = next(self._numbers)
        self.records.append((n, record))
        return Position(n, 1, n * 1000)

    def _acknowledge(self) -> None:
        batch, self._batch = self._batch, []
        for position, acknowledged in batch:
            if not acknowledged.done():
                acknowledged.set_result(position)


class World:
    """The model behind all processes of one story. Every answer is numbered, so one that is bought again shows."""

    def __init__(
        self, latency: Latency = lambda question, nth: 1.0, failing: Mapping[str, str] | None = None, words: int = 1
    ) -> None:
        self.asked: list[str] = []
        self.requests: list[list[Message]] = []
        self.failing = dict(failing or {})
        self.in_flight = 0
        self._latency = latency
        self._words = words

    def asking(self) -> ModelHandle:
        return ModelHandle({"model": "numbered"}, {"temperature": 0.0}, self._send)

    async def _send(self, call: ModelCall) -> Answer:
        question = str(call.messages[-1]["content"])
        self.asked.append(question)
        self.requests.append(msgspec.json.decode(msgspec.json.encode(call.messages)))
        number = len(self.asked)
        self.in_flight += 1
        try:
            await asyncio.sleep(self._latency(question, self.asked.count(question)))
        finally:
            self.in_flight -= 1
        if question in self.failing:
            raise AskFailedError(Failure(self.failing[question], f"{question} fails #{number}"), 3)
        text = " ".join([f"{question}#{number}", *["word"] * (self._words - 1)])
        return Answer(text, {"role": "assistant", "content": text}, usage=Usage(2, 1))


class NoDoor(NamedTuple):
    """An address where nobody is: looking at it is how a solver says that others will ask for it."""

    url: str = "http://127.0.0.1:9/v1"
    failed: BaseException | None = None

    def close(self) -> None: ...


class Played(NamedTuple):
    """How one attempt went."""

    result: Any
    asked: list[str]
    """What the model was asked during it."""
    recorded: list[RecordedStep]
    """All that the journal then holds: what was given, and what came to it."""
    new: list[RecordedStep]
    spent: Spent


def play(
    solve: Solve,
    world: World,
    recorded: Sequence[RecordedStep] = (),
    *,
    allowance: AttemptLimits | None = None,
    commit_seconds: float = 0.0,
) -> Played:
    """One attempt with what an earlier one left. An exception of the solver is its result."""
    return run(playing(solve, world, recorded, allowance=allowance, commit_seconds=commit_seconds))


async def playing(
    solve: Solve,
    world: World,
    recorded: Sequence[RecordedStep] = (),
    *,
    allowance: AttemptLimits | None = None,
    commit_seconds: float = 0.0,
) -> Played:
    journal = MemoryJournal(recorded[-1].n + 1 if recorded else 1, commit_seconds)
    steps = Steps(Scope(0, KEY, "solve/1"), journal, recorded)
    messages = [{"role": "user", "content": "question"}]
    means = AttemptResources({"": world.asking()}, allowance or AttemptLimits(), open_endpoint=lambda host: NoDoor())
    ctx = Context(SAMPLE, messages, steps, "0/key/1", means)
    before = len(world.asked)
    result: Any
    try:
        result = await solve(ctx)
    except Exception as error:  # noqa: BLE001 - what a solver raises is what is looked at
        result = error
    spent = steps.spent()
    steps.close()
    return Played(result, world.asked[before:], [*recorded, *journal.steps()], journal.steps(), spent)


def prefixes(recorded: Sequence[RecordedStep]) -> Iterator[list[RecordedStep]]:
    """What a kill can leave: the first so many records, from none to all."""
    for count in range(len(recorded) + 1):
        yield list(recorded[:count])


def answers_in(recorded: Sequence[RecordedStep]) -> set[str]:
    """The answers that were recorded and not taken back by a cancellation."""
    cancelled = {(each.step.q, each.step.c) for each in recorded if each.step.cancelled}
    return {
        each.step.answer.text
        for each in recorded
        if each.step.answer is not None and (each.step.q, each.step.c) not in cancelled
    }


async def say(ctx: Context, question: str) -> str:
    return (await ctx.generate([{"role": "user", "content": question}])).text
