"""What a solver is given: its sample, its first messages, and the calls that are durable.

A solver needs no checkpoint code. It must only do through `ctx` what must not be done twice, and take randomness and
time from `ctx` if it wants a replay to come out the same.
"""

import copy
import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import xxhash

from holdfast.errors import BadRecordError, HoldfastError
from holdfast.records.exchange import Answer, Message, Sample
from holdfast.records.facts import Asked, Called, Step
from holdfast.solve.calling import LimitError, recover_call
from holdfast.solve.finding import find_tools
from holdfast.solve.means import AskFailedError, Means, Used
from holdfast.solve.steps import Once, StepFailedError, Steps
from holdfast.solve.tools import Tool, as_tool
from holdfast.solve.workplace import Workplace

PER_KEY = "per_key"
"""As the parameter `seed`: each key sends its own, so that repeats differ and can be had again."""

_NOW = "now"
"""The request of every look at the clock: they are told apart by their count."""
_canonical = msgspec.json.Encoder(order="deterministic").encode
_encode = msgspec.json.Encoder().encode
_messages = msgspec.json.Decoder(list[Message])


class Context:
    """One attempt at one sample."""

    def __init__(self, sample: Sample, messages: list[Message], steps: Steps, seed: str, means: Means) -> None:
        self.sample = sample
        self.messages = messages
        box = None if means.open_box is None else functools.partial(means.open_box, sample, steps.scope)
        self.workplace = Workplace(sample, means.read_file, means.secrets, box)
        steps.note_files = self.workplace.note_files
        self._steps = steps
        self._seed = seed
        self._means = means
        self._random: random.Random | None = None
        self._told_last: list[tuple[int, list[Message]]] = []
        self._known: dict[bytes, tuple[int, int]] = {}  # beginnings of conversations, and the step that holds each

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
        steps = self._steps
        return Used(steps.count, steps.tokens, steps.seconds, steps.dollars)

    async def file(self, reference: str) -> bytes:
        """The content of a file of the sample's row. It is the same whenever it is read, so this is no step."""
        return await self.workplace.file(reference)

    def with_messages(self, messages: list[Message]) -> "Context":
        """The same attempt, with other first messages: for a solver that lets others do parts of its work."""
        assert self.random is not None  # one stream for all of them
        other = copy.copy(self)
        other.messages = messages
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
        asking = self._means.models.get(role)
        if asking is None:
            known = ", ".join(sorted(filter(None, self._means.models))) or "none"
            raise HoldfastError(f"there is no role {role!r} in the spec; there are: {known}")
        self._check_allowance()
        said = _snapshot(_as_messages(self.messages if messages is None else messages))
        merged = {**asking.params, **params} if params else asking.params
        if merged.get("seed") == PER_KEY:
            merged = {**merged, "seed": self.seed}
        request = _canonical([asking.identity, merged, said, tools or []])

        async def ask() -> Step:
            asked = self._asked(said, role, params, tools or [])
            try:
                answer, tries = await asking.ask(said, merged, tools or [])
            except AskFailedError as error:
                return Step(0, "", "", asked=asked, failure=error.failure, tries=error.tries)
            if not isinstance(answer, Answer):
                raise BadRecordError(f"the model's provider returned {type(answer).__name__}, not an answer")
            return Step(0, "", "", asked=asked, answer=answer, tries=tries)

        taken = await self._steps.take(xxhash.xxh3_128_hexdigest(request), ask)
        assert taken.step.answer is not None
        assert taken.told.answer is not None
        self._told_last.append((taken.n, [*said, taken.step.answer.message]))
        self._steps.dollars += asking.dollars(taken.step.answer.usage)
        return taken.told.answer

    async def call(self, tool: "Tool | Callable[..., Any] | str", arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool, any function, sync or async, or a tool that comes with Holdfast, by its name. What it returns is
        durable before it is handed on, and is what JSON makes of it. ToolFailedError, live and at every replay, if it
        raised or took too long.
        """
        wanted = find_tools([tool])[0] if isinstance(tool, str) else as_tool(tool)
        self._check_allowance()
        given = _plain(dict(arguments or {}), f"the arguments of {wanted.name}")
        called = Called(wanted.name, given)
        request = xxhash.xxh3_128_hexdigest(_canonical(["call", wanted.name, given]))
        place = self.workplace.inside() if wanted.sandboxed else self.workplace
        once = None if wanted.repeatable else Once(called, lambda: recover_call(wanted, called, place))
        turn = place.box.turn() if wanted.sandboxed and place.box is not None else None

        async def ask() -> Step:
            made = functools.partial(self._means.call, wanted, called, place)
            return await (made() if turn is None else turn.during(made))

        try:
            taken = await self._steps.take(request, ask, once)
        except StepFailedError as error:
            raise ToolFailedError(error.failure) from error
        finally:
            if turn is not None:
                turn.end()
        return taken.told.value

    async def now(self) -> datetime:
        """The time, which is the same at every replay."""

        async def look() -> Step:
            return Step(0, "", "", kind="now", value=datetime.now(UTC).isoformat())

        taken = await self._steps.take(_NOW, look)
        return datetime.fromisoformat(taken.told.value)

    def _asked(self, said: list[Message], role: str, params: dict[str, Any], tools: list[dict[str, Any]]) -> Asked:
        """The request, without the messages that an earlier step of this sample already holds."""
        for earlier, messages in self._told_last:  # most samples ask once: only a further request pays for this
            for length, prefix in enumerate(_prefixes(messages), 1):
                self._known.setdefault(prefix, (earlier, length))
        self._told_last.clear()
        n = keep = 0
        for prefix in _prefixes(said) if self._known else ():
            if prefix not in self._known:
                break
            n, keep = self._known[prefix]
        return Asked(new=said[keep:], after=n, keep=keep, role=role, params=params, tools=tools)

    def _check_allowance(self) -> None:
        allowed = self._means.allowance
        if allowed.steps is not None and self._steps.count >= allowed.steps:
            raise LimitError(f"the sample has made {self._steps.count} steps; its limit is {allowed.steps}")
        if allowed.tokens is not None and self._steps.tokens >= allowed.tokens:
            raise LimitError(f"the sample has used {self._steps.tokens} tokens; its limit is {allowed.tokens}")
        if allowed.cost_usd is not None and self._steps.dollars >= allowed.cost_usd:
            spent = f"{self._steps.dollars:.4g}"
            raise LimitError(
                f"the sample has cost ${spent}; its limit, limits.sample.cost_usd, is {allowed.cost_usd:g}"
            )


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


def _snapshot(messages: list[Message]) -> list[Message]:
    """As they are now: what is recorded must not change when the solver goes on with its own."""
    try:
        return _messages.decode(_encode(messages))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecordError(f"the messages cannot be written as JSON: {error}") from error


def _prefixes(messages: list[Message]) -> Iterator[bytes]:
    """A digest of the first message, of the first two, and so on."""
    digest = b""
    for message in messages:
        digest = xxhash.xxh3_128_digest(digest + _canonical(message))
        yield digest
