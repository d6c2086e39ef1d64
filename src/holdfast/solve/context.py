"""The context of a solver (`ctx`): its sample, its first messages, and durable calls.

A solver needs no checkpoint code. Calls through `ctx` are recorded before they return; after a crash the solver runs
again and receives the recorded results. It must take randomness and time from `ctx` for a replay to come out the same.

`together` runs several coroutines at once without losing a response that is paid for.
"""

import asyncio
import copy
import functools
import hashlib
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import xxhash

from holdfast.errors import BadRecordError, HoldfastError
from holdfast.models import Likelihood, likelihood_messages, likelihood_of, wait_to_send
from holdfast.records import Answer, FileChanges, Message, Sample, Step, ToolCall
from holdfast.solve.conversations import Conversations, request_head
from holdfast.solve.resources import (
    AttemptResources,
    AttemptUsage,
    BridgeBackend,
    BridgeEndpoint,
    BridgeRequest,
    BridgeResponse,
    ModelHandle,
)
from holdfast.solve.steps import GenerateCall, StepFailedError, StepMeter, Steps, TakenStep, UnrepeatableCall
from holdfast.solve.tools.built_in import find_own
from holdfast.solve.tools.tool import LimitError, Tool, as_tool, recover_call
from holdfast.solve.tools.workplace import Workplace
from holdfast.spec import PER_KEY

_NOW = "now"
"""The request digest of every `ctx.now()`; their count tells them apart."""
_canonical = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.json.Encoder().encode


class Context:
    """One attempt at one sample."""

    def __init__(
        self, sample: Sample, messages: list[Message], steps: Steps, seed: str, resources: AttemptResources
    ) -> None:
        self.sample = sample
        self.messages = messages
        self._workplace: Workplace | None = None
        self._steps = steps
        steps.note_files = self._note_files
        self._meters: tuple[StepMeter, ...] = (StepMeter(),)
        self._seed = seed
        self._resources = resources
        self._random: random.Random | None = None
        self._endpoint: BridgeEndpoint | None = None
        self._endpoints: list[BridgeEndpoint] = []  # all that are open, also those of copies (`with_messages`)
        self._conversations = Conversations()

    @property
    def workplace(self) -> Workplace:
        """What the attempt's tools share. Created on first use, because most samples call no tool."""
        if self._workplace is None:
            resources, scope = self._resources, self._steps.scope
            box = None if resources.open_box is None else functools.partial(resources.open_box, self.sample, scope)
            self._workplace = Workplace(self.sample, resources.read_file, resources.secrets, box)
        return self._workplace

    def _note_files(self, files: FileChanges) -> None:
        self.workplace.note_files(files)

    @property
    def steps(self) -> Steps:
        """The durable steps of this attempt."""
        return self._steps

    @property
    def seed(self) -> int:
        """The seed of this key: depends only on the spec's seed and the key, not on order, concurrency or run id."""
        key = self._seed.rpartition("/")[0]  # without the attempt: its number is part of `_seed`
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) >> 1

    @property
    def random(self) -> random.Random:
        """A random generator seeded by key and attempt, so that a replay draws the same numbers."""
        if self._random is None:
            self._random = random.Random(int.from_bytes(hashlib.sha256(self._seed.encode()).digest()[:8]))
        return self._random

    @property
    def used(self) -> AttemptUsage:
        """What this solver has used; for a part of another solver, only by that part."""
        meter = self._meters[-1]
        return AttemptUsage(meter.steps, meter.tokens, meter.seconds, meter.dollars)

    @property
    def openai_base_url(self) -> str:
        """An OpenAI-compatible address for this attempt alone, for agents that were written without Holdfast. Each
        request to it is a durable step. It can be used from threads and from other processes.
        """
        if self._endpoint is None:
            if self._resources.open_endpoint is None:
                raise HoldfastError("ctx.openai_base_url: there is no address for the models here")
            self._steps.be_patient()
            model = self._resources.models[""].identity.get("model")
            roles = tuple(filter(None, self._resources.models))
            self._endpoint = self._resources.open_endpoint(BridgeBackend(str(model or "model"), roles, self._answer))
            self._endpoints.append(self._endpoint)
        return self._endpoint.url

    @property
    def failed_outside(self) -> BaseException | None:
        """Why the last request to `openai_base_url` failed; None if it was answered, or there was none."""
        return self._endpoints[-1].failed if self._endpoints else None

    def close_endpoint(self) -> None:
        """Close the address of a part. Failures of its requests were handled there, and do not fail the attempt."""
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoints.remove(self._endpoint)
            self._endpoint = None

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close: a tool was called, or an address was opened."""
        return self._workplace is not None or bool(self._endpoints)

    async def close(self) -> None:
        """End the attempt: close what its tools opened, and its addresses. Raises if its sandbox was lost, even if the
        solver caught that error: the attempt does not count then.
        """
        try:
            if self._workplace is not None:
                await self._workplace.close()
        finally:
            for endpoint in self._endpoints:
                endpoint.close()
        if self._workplace is not None:
            self._workplace.raise_loss()

    def outside(self) -> AbstractContextManager[None]:
        """While an external program works for the sample: it is no stall if nothing is requested for long."""
        return self._steps.outside()

    async def file(self, reference: str) -> bytes:
        """Return the content of a file of the sample's row. No step: the content is the same at every replay."""
        return await self.workplace.file(reference)

    def with_messages(self, messages: list[Message]) -> "Context":
        """Return a copy with other first messages, and `used` counted from here: for solvers made of solvers."""
        _ = self.random, self.workplace  # created before the copy, so that all share them
        other = copy.copy(self)
        other.messages = messages
        other._endpoint = None  # noqa: SLF001 - a copy of ourselves; its own address, so that its use is counted separately
        other._meters = (*self._meters, StepMeter())  # noqa: SLF001 - a copy of ourselves
        return other

    async def generate(
        self,
        messages: str | list[Message] | None = None,
        *,
        role: str = "",
        tools: list[dict[str, Any]] | None = None,
        **params: Any,
    ) -> Answer:
        """Send a request to the evaluated model, or to the model of a role. The answer is durable before it returns."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        asked = self.messages if messages is None else messages
        model, call, request = self._prepare(asked, role, tools or [], params)
        taken = await self._steps.take(request, functools.partial(model.send, call), call, None, self._meters)
        self._note_answer(taken, call, model)
        assert taken.copy.answer is not None
        return taken.copy.answer

    async def likelihood(self, context: str, continuation: str, *, role: str = "") -> Likelihood:
        """Return the log-probability of a continuation after a context, without a chat template. A durable step. The
        server must be a completion server.
        """
        answer = await self.generate(likelihood_messages(context, continuation), role=role)
        found = likelihood_of(answer)
        if found is None:
            raise HoldfastError(
                "the provider returned no log-probabilities: it must answer a message with the role `continuation` "
                "with an Answer whose `logprobs` have a `logprob` for each of its tokens"
            )
        return found

    async def _answer(self, asked: BridgeRequest) -> BridgeResponse:
        """Send a request of an external agent."""
        model, call, request = self._prepare(asked.messages, asked.role, asked.tools, asked.params)
        taken = await self._steps.take(request, functools.partial(model.send, call), call, None, self._meters)
        self._note_answer(taken, call, model)
        assert taken.copy.answer is not None
        name = f"{self._steps.key} {taken.step.q} {taken.step.c}"
        return BridgeResponse(xxhash.xxh3_128_hexdigest(name.encode()), taken.copy.answer)

    def _prepare(
        self, messages: list[Message], role: str, tools: list[dict[str, Any]], params: dict[str, Any]
    ) -> tuple[ModelHandle, GenerateCall, str]:
        """Return the model, the call, and the digest of its request. Counts the step."""
        model = self._resources.models.get(role)
        if model is None:
            known = ", ".join(sorted(filter(None, self._resources.models))) or "none"
            if not role:
                raise HoldfastError(
                    f"a scorer must name the role of a model: ctx.generate(…, role=NAME); there are: {known}"
                )
            raise HoldfastError(f"there is no role {role!r} in the spec; there are: {known}")
        self._check_allowance()
        merged, head = model.params, model.head
        if params or merged.get("seed") == PER_KEY:
            merged = {**merged, **params}
            if merged.get("seed") == PER_KEY:
                merged["seed"] = self.seed
            head = request_head(model.identity, merged)
        messages_now = self._conversations.take(messages, head)
        self._count_step()
        request = messages_now.digest(tools)
        stored = functools.partial(self._conversations.asked, role=role, params=params, tools=tools)
        call = GenerateCall(messages_now, merged, tools, self._steps.key, stored)
        if model.batched:
            call.step = self._steps.next_id(request)
        return model, call, request

    def _note_answer(self, taken: TakenStep, call: GenerateCall, model: ModelHandle) -> None:
        step = taken.step
        assert step.answer is not None
        self._conversations.answered(taken.n, step, call.request)
        tokens = step.answer.usage.tokens
        dollars = 0.0 if model.price is None else model.price.dollars(step.usage)
        for meter in self._meters:
            meter.tokens += tokens
            meter.dollars += dollars

    async def call(self, tool: "Tool | Callable[..., Any] | str", arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool, any sync or async function, or a built-in tool by its name. The result is durable before it
        returns, and is what JSON makes of it. ToolFailedError, live and at every replay, if it raised or took too long.
        """
        # Everything that the digest depends on is computed before the first await, so that calls that start
        # together are numbered in the order in which the solver made them.
        found = find_own(tool) if isinstance(tool, str) else as_tool(tool)
        self._check_allowance()
        given = _plain(dict(arguments or {}), f"the arguments of {found.name}")
        called = ToolCall(found.name, given)
        request = xxhash.xxh3_128_hexdigest(_canonical(["call", found.name, given]))
        place = self.workplace.inside() if found.sandboxed else self.workplace
        once = (
            None
            if found.repeatable
            else UnrepeatableCall(called, lambda: recover_call(found, called, place), self._wait_to_call)
        )
        turn = place.box.turn() if found.sandboxed and place.box is not None else None

        async def ask() -> Step:
            await self._wait_to_call()
            made = functools.partial(self._resources.call, found, called, place)
            with self._steps.working():
                return await (made() if turn is None else turn.during(made))

        try:
            self._count_step()
            taken = await self._steps.take(request, ask, None, once, self._meters)
        except StepFailedError as error:
            raise ToolFailedError(error.failure, error.seconds) from error
        finally:
            if turn is not None:
                turn.end()
        return taken.copy.value

    async def _wait_to_call(self) -> None:
        """The clock of the sample stops if it waits."""
        may_send = self._resources.may_send
        if may_send is not None and not may_send():
            self._steps.watch.hold()
            try:
                await wait_to_send(may_send)
            finally:
                self._steps.watch.let_go()

    async def now(self) -> datetime:
        """Return the time; a replay returns the same."""

        async def look() -> Step:
            return Step(0, "", "", kind="now", value=datetime.now(UTC).isoformat())

        self._count_step()
        taken = await self._steps.take(_NOW, look, meters=self._meters)
        return datetime.fromisoformat(taken.copy.value)

    def _count_step(self) -> None:
        """Limits count live and replayed steps alike."""
        for meter in self._meters:
            meter.steps += 1

    def _check_allowance(self) -> None:
        allowed, used = self._resources.allowance, self._meters[0]
        if allowed.steps is not None and used.steps >= allowed.steps:
            raise LimitError(f"the sample has made {used.steps} steps; its limit is {allowed.steps}")
        if allowed.tokens is not None and used.tokens >= allowed.tokens:
            raise LimitError(f"the sample has used {used.tokens} tokens; its limit is {allowed.tokens}")
        if allowed.cost_usd is not None and used.dollars >= allowed.cost_usd:
            raise LimitError(
                f"the sample has cost ${used.dollars:.4g}; its limit, limits.sample.cost_usd, is {allowed.cost_usd:g}"
            )


class ToolFailedError(StepFailedError):
    """A tool raised an error or exceeded its time limit."""


def _plain(value: Any, what: str) -> Any:
    """Return a copy by way of JSON: the record must not change when the solver changes its own objects."""
    try:
        return msgspec.json.decode(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecordError(f"{what} cannot be written as JSON: {error}") from error


T = TypeVar("T")


async def together(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return their results in order. If one fails, wait for the others first: their requests are paid for, and the next
    attempt replays them.
    """
    found = await asyncio.gather(*parts, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]
