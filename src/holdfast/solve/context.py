"""What a solver is given: its sample, its first messages, and the calls that are durable.

A solver needs no checkpoint code. It must only do through `ctx` what must not be done twice, and take randomness and
time from `ctx` if it wants a replay to come out the same.
"""

import asyncio
import copy
import functools
import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import msgspec
import xxhash

from holdfast.errors import BadRecordError, HoldfastError
from holdfast.models.failures import AskFailedError
from holdfast.models.timing import begin_timing
from holdfast.records.facts import Called, Files, Step
from holdfast.records.samples import Answer, Message, Sample
from holdfast.solve.conversations import Conversations
from holdfast.solve.resources import Asking, Door, Host, Means, Told, Used, Wish
from holdfast.solve.steps import Once, StepFailedError, Steps, Taken
from holdfast.solve.tools.built_in import find_own
from holdfast.solve.tools.tool import LimitError, Tool, as_tool, recover_call
from holdfast.solve.tools.workplace import Workplace
from holdfast.spec.sampling_parameters import PER_KEY

_NOW = "now"
"""The request of every look at the clock: they are told apart by their count."""
_canonical = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.json.Encoder().encode


class Context:
    """One attempt at one sample."""

    def __init__(self, sample: Sample, messages: list[Message], steps: Steps, seed: str, means: Means) -> None:
        self.sample = sample
        self.messages = messages
        self._workplace: Workplace | None = None
        self._steps = steps
        steps.note_files = self._note_files
        self._meters: tuple[_Meter, ...] = (_Meter(),)
        self._seed = seed
        self._means = means
        self._random: random.Random | None = None
        self._door: Door | None = None
        self._doors: list[Door] = []  # all that are open, of those who do parts of the work too
        self._conversations = Conversations()

    @property
    def workplace(self) -> Workplace:
        """What the attempt's tools share; made when it is first needed, because most samples call none."""
        if self._workplace is None:
            means, scope = self._means, self._steps.scope
            box = None if means.open_box is None else functools.partial(means.open_box, self.sample, scope)
            self._workplace = Workplace(self.sample, means.read_file, means.secrets, box)
        return self._workplace

    def _note_files(self, files: Files) -> None:
        self.workplace.note_files(files)

    @property
    def steps(self) -> Steps:
        """What is durable of this attempt."""
        return self._steps

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
        """By the solver that has this: of one that does a part of another's work, only by that part."""
        return self._meters[-1].used

    @property
    def openai_base_url(self) -> str:
        """An OpenAI-compatible address for this attempt alone: an agent that was written without Holdfast asks there,
        and each of its requests is a durable step. It can be asked from a thread and from another process.
        """
        if self._door is None:
            if self._means.open_door is None:
                raise HoldfastError("ctx.openai_base_url: there is no address for the models here")
            self._steps.be_patient()
            model = self._means.models[""].identity.get("model")
            roles = tuple(filter(None, self._means.models))
            self._door = self._means.open_door(Host(str(model or "model"), roles, self._answer))
            self._doors.append(self._door)
        return self._door.url

    @property
    def failed_outside(self) -> BaseException | None:
        """Why the last request through `openai_base_url` had no answer. None if it had one, or there was none."""
        return self._doors[-1].failed if self._doors else None

    def close_door(self) -> None:
        """Nobody asks under this address any more; what went wrong there was met."""
        if self._door is not None:
            self._door.close()
            self._doors.remove(self._door)
            self._door = None

    async def close(self) -> None:
        """The attempt is over: what its tools opened is closed, its address is nobody's. Raises if its sandbox was
        lost: an attempt without it is none, whatever its solver made of that.
        """
        try:
            if self._workplace is not None:
                await self._workplace.close()
        finally:
            for door in self._doors:
                door.close()
        if self._workplace is not None:
            self._workplace.raise_loss()

    def outside(self) -> AbstractContextManager[None]:
        """While a program of its own works for the sample: it may take its time without asking for anything."""
        return self._steps.outside()

    async def file(self, reference: str) -> bytes:
        """The content of a file of the sample's row. It is the same whenever it is read, so this is no step."""
        return await self.workplace.file(reference)

    def with_messages(self, messages: list[Message]) -> "Context":
        """The same attempt, with other first messages and `used` counted from here: for a solver that lets others do
        parts of its work.
        """
        _ = self.random, self.workplace  # made before the copy: one for all of them
        other = copy.copy(self)
        other.messages = messages
        other._door = None  # noqa: SLF001 - a copy of ourselves: what comes through its own counts as its own
        other._meters = (*self._meters, _Meter())  # noqa: SLF001 - a copy of ourselves
        return other

    async def generate(
        self,
        messages: str | list[Message] | None = None,
        *,
        role: str = "",
        tools: list[dict[str, Any]] | None = None,
        **params: Any,
    ) -> Answer:
        """Ask the evaluated model, or the model of a role. The answer is durable before it is returned."""
        taken = await self._generate(self.messages if messages is None else _as_messages(messages), role, tools, params)
        assert taken.told.answer is not None
        return taken.told.answer

    async def _answer(self, wish: Wish) -> Told:
        """For code that is not the solver's own."""
        taken = await self._generate(wish.messages, wish.role, wish.tools, wish.params)
        assert taken.told.answer is not None
        name = f"{self._steps.key} {taken.step.q} {taken.step.c}"
        return Told(xxhash.xxh3_128_hexdigest(name.encode()), taken.told.answer)

    async def _generate(
        self, messages: list[Message], role: str, tools: list[dict[str, Any]] | None, params: dict[str, Any]
    ) -> Taken:
        asking = self._means.models.get(role)
        if asking is None:
            known = ", ".join(sorted(filter(None, self._means.models))) or "none"
            if not role:
                raise HoldfastError(
                    f"a scorer asks the model of a role: ctx.generate(…, role=NAME); there are: {known}"
                )
            raise HoldfastError(f"there is no role {role!r} in the spec; there are: {known}")
        self._check_allowance()
        merged = {**asking.params, **params} if params else asking.params
        if merged.get("seed") == PER_KEY:
            merged = {**merged, "seed": self.seed}
        said = self._conversations.take(messages, asking.identity, merged)
        request = said.digest(_canonical(tools or []))

        step_id = self._steps.next_id(request) if asking.batched is not None else None

        async def ask() -> Step:
            asked = self._conversations.asked(said, role, params, tools or [])
            job, clock = "", asyncio.get_running_loop().time
            timer = begin_timing(clock())
            try:
                if asking.batched is not None and step_id is not None:
                    answer, tries, job = await asking.batched(step_id, said.messages, merged, tools or [])
                else:
                    answer, tries = await asking.ask(said.messages, merged, tools or [])
            except AskFailedError as error:
                took, timing = timer.seconds(clock()), timer.timing()
                return Step(
                    0, "", "", asked=asked, failure=error.failure, seconds=took, timing=timing, tries=error.tries
                )
            if not isinstance(answer, Answer):
                raise BadRecordError(f"the model's provider returned {type(answer).__name__}, not an answer")
            took, timing = timer.seconds(clock()), timer.timing()
            return Step(0, "", "", asked=asked, answer=answer, seconds=took, timing=timing, tries=tries, batch=job)

        taken = await self._take(request, ask, asking=asking)
        assert taken.step.answer is not None
        self._conversations.answered(taken.n, taken.step, said)
        return taken

    async def call(self, tool: "Tool | Callable[..., Any] | str", arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool, any function, sync or async, or a tool that comes with Holdfast, by its name. What it returns is
        durable before it is handed on, and is what JSON makes of it. ToolFailedError, live and at every replay, if it
        raised or took too long.
        """
        wanted = find_own(tool) if isinstance(tool, str) else as_tool(tool)
        self._check_allowance()
        given = _plain(dict(arguments or {}), f"the arguments of {wanted.name}")
        called = Called(wanted.name, given)
        request = xxhash.xxh3_128_hexdigest(_canonical(["call", wanted.name, given]))
        place = self.workplace.inside() if wanted.sandboxed else self.workplace
        once = None if wanted.repeatable else Once(called, lambda: recover_call(wanted, called, place))
        turn = place.box.turn() if wanted.sandboxed and place.box is not None else None

        async def ask() -> Step:
            made = functools.partial(self._means.call, wanted, called, place)
            with self._steps.working():
                return await (made() if turn is None else turn.during(made))

        try:
            taken = await self._take(request, ask, once)
        except StepFailedError as error:
            raise ToolFailedError(error.failure, error.seconds) from error
        finally:
            if turn is not None:
                turn.end()
        return taken.told.value

    async def now(self) -> datetime:
        """The time, which is the same at every replay."""

        async def look() -> Step:
            return Step(0, "", "", kind="now", value=datetime.now(UTC).isoformat())

        taken = await self._take(_NOW, look)
        return datetime.fromisoformat(taken.told.value)

    async def _take(
        self,
        request: str,
        ask: Callable[[], Awaitable[Step]],
        once: Once | None = None,
        asking: Asking | None = None,
    ) -> Taken:
        """Take a step, and count what it used, live or replayed: limits count both."""
        for meter in self._meters:
            meter.steps += 1
        try:
            taken = await self._steps.take(request, ask, once)
        except StepFailedError as error:
            for meter in self._meters:
                meter.seconds += error.seconds
            raise
        usage = taken.step.usage if asking is not None else None
        for meter in self._meters:
            meter.seconds += taken.step.seconds
            if usage is not None and asking is not None:
                meter.tokens += usage.tokens
                meter.dollars += asking.dollars(usage)
        return taken

    def _check_allowance(self) -> None:
        allowed, used = self._means.allowance, self._meters[0]
        if allowed.steps is not None and used.steps >= allowed.steps:
            raise LimitError(f"the sample has made {used.steps} steps; its limit is {allowed.steps}")
        if allowed.tokens is not None and used.tokens >= allowed.tokens:
            raise LimitError(f"the sample has used {used.tokens} tokens; its limit is {allowed.tokens}")
        if allowed.cost_usd is not None and used.dollars >= allowed.cost_usd:
            raise LimitError(
                f"the sample has cost ${used.dollars:.4g}; its limit, limits.sample.cost_usd, is {allowed.cost_usd:g}"
            )


class _Meter:
    """What was used since it was begun."""

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0
        self.seconds = 0.0
        self.dollars = 0.0

    @property
    def used(self) -> Used:
        return Used(self.steps, self.tokens, self.seconds, self.dollars)


class ToolFailedError(StepFailedError):
    """A tool raised, or took longer than it may."""


def _plain(value: Any, what: str) -> Any:
    """As JSON has it: what is recorded must not change when the solver goes on with its own."""
    try:
        return msgspec.json.decode(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecordError(f"{what} cannot be written as JSON: {error}") from error


def _as_messages(messages: str | list[Message]) -> list[Message]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return messages
