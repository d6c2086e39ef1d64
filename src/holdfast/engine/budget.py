"""What a run may use, over all its resumes: no request is sent that would go beyond it, as far as can be foreseen.

Before a request is sent, what it may take is set aside: as much as the dearest that this model has answered, in any
process, before that as much as `max_tokens` allows. Where nothing tells, one request is sent alone. So what a run uses
beyond its budget is what single answers take more than all before them. A request that does not fit waits until those
under way have ended; if it does not fit then, the run stops.

Counted is what is recorded: answers, and failures with their tries. What is replayed was paid before, and counted then.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.models import count_message_tokens
from holdfast.models.failures import AskFailedError
from holdfast.models.pacing.stopwatch import Held
from holdfast.records.facts import StepId
from holdfast.records.keys import cell_names
from holdfast.records.samples import Answer, Message, Usage
from holdfast.solve import Asking
from holdfast.spec import Price, RunLimits
from holdfast.state import Story

Name = tuple[str, str]
"""Of an evaluated model, or of a role: the other of the two is empty."""
Stop = Callable[[str, float | None], None]
"""Gets the reason, and how many seconds what is under way may still take; None is as long as ever."""
_GUESSED_OUTPUT = 1000
"""Tokens that an answer in a job may have, where nothing tells."""
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Amount(msgspec.Struct, frozen=True):
    """Of all that can be limited, but for time."""

    cost_usd: float = 0.0
    tokens: float = 0.0
    requests: float = 0.0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cost_usd + other.cost_usd, self.tokens + other.tokens, self.requests + other.requests)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.cost_usd - other.cost_usd, self.tokens - other.tokens, self.requests - other.requests)

    def at_least(self, other: "Amount") -> "Amount":
        return Amount(
            max(self.cost_usd, other.cost_usd), max(self.tokens, other.tokens), max(self.requests, other.requests)
        )


_NOTHING = Amount()


class Budget:
    """One run's. Every request of every model and role goes through `watched`."""

    def __init__(self, limits: RunLimits, story: Story, prices: Mapping[Name, Price | None], stop: Stop) -> None:
        """`stop` is called once."""
        self._limits = limits
        self._is_limited = _is_limited(limits)
        self._stop = stop
        self._dearest: dict[Name, Amount] = {}
        self.spent = Amount()
        for cell, roles in story.bills.items():
            for role, bill in roles.items():
                name = ("", role) if role else (cell_names(cell)[1], "")
                price = prices.get(name)
                self.spent += _amount(price, bill.usage, bill.requests)
                if bill.largest.requests:
                    self._note(name, _amount(price, bill.largest, 1))
        self._worked_seconds = story.worked_seconds
        self._set_aside = Amount()
        self._under_way = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.reached = ""
        """Which limit, in a sentence; empty as long as there is none."""

    def change(self, limits: RunLimits) -> None:
        """Others, from now on."""
        self._limits = limits
        self._is_limited = _is_limited(limits)
        self._wake()

    def look_at_clock(self, seconds: float) -> None:
        """`seconds`: how long this process has worked."""
        limit = self._limits.seconds
        worked = self._worked_seconds + seconds
        if limit is not None and worked >= limit:
            self._end(f"limits.run.seconds is {limit:g}, and the run has worked for {worked:.0f} s", None)

    def watched(self, name: Name, asking: Asking) -> Asking:
        """The same model, asked only while there is something left."""

        async def ask(
            messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]]
        ) -> tuple[Answer, int]:
            aside = _NOTHING
            if self._is_choosy:
                aside = await self._admitted(_Asked(name, asking.price, messages, params))
            self._begin(aside)
            try:
                answer, tries = await asking.ask(messages, params, tools)
                self._count(name, _amount(asking.price, answer.usage.of_one(), tries))
            except AskFailedError as error:
                self.spent += Amount(requests=error.tries)
                raise
            finally:
                self._leave(aside)
            return answer, tries

        batched = asking.batched

        async def ask_in_batch(
            step: StepId, messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]]
        ) -> tuple[Answer, int, str]:
            assert batched is not None
            aside = _NOTHING
            if self._is_choosy:
                aside = await self._admitted(_Asked(name, asking.price, messages, params, in_job=True))
            self._begin(aside)
            try:
                answer, tries, job = await batched(step, messages, params, tools)
                self._count(name, _amount(asking.price, answer.usage.of_one(bool(job)), tries))
            except AskFailedError as error:
                self.spent += Amount(requests=error.tries)
                raise
            finally:
                self._leave(aside)
            return answer, tries, job

        return msgspec.structs.replace(asking, ask=ask, batched=ask_in_batch if batched is not None else None)

    @property
    def _is_choosy(self) -> bool:
        """Whether a request may have to wait: most runs have no limits, and every request passes here."""
        return self._is_limited or bool(self.reached)

    async def _admitted(self, asked: "_Asked") -> Amount:
        """Wait until a request may be sent. What it may take is to be set aside at once, until `_leave`."""
        foreseen = self._foreseen(asked)
        while not self._fits(foreseen):
            with Held():
                await self._wait()
            foreseen = self._foreseen(asked)  # those before it tell more now
        return foreseen

    def _begin(self, aside: Amount) -> None:
        self._under_way += 1
        if aside is not _NOTHING:
            self._set_aside += aside

    def _leave(self, aside: Amount) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._set_aside = _NOTHING
        elif aside is not _NOTHING:
            self._set_aside -= aside
        self._wake()

    def _fits(self, foreseen: Amount) -> bool:
        """Alone, whatever fits a little: so the budget is used up, and no more than one answer beyond it."""
        if self.reached:
            return False
        alone = not self._under_way
        after = self.spent if alone else self.spent + self._set_aside + foreseen
        for name in ("cost_usd", "tokens", "requests"):
            limit, amount = getattr(self._limits, name), getattr(after, name)
            if limit is not None and (amount >= limit if alone else amount > limit):
                if alone:
                    used = f"${amount:.4f}" if name == "cost_usd" else f"{amount:.0f}"
                    self._end(f"limits.run.{name} is {limit:g}, and {used} is used", math.inf)
                return False
        return True

    async def _wait(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        await waiting

    def _wake(self) -> None:
        """Whoever waits looks again. After the end nobody does: the engine ends them."""
        if self._waiting and not self.reached:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)

    def _end(self, why: str, grace_seconds: float | None) -> None:
        """What is under way is paid for: it may end, each within its own time-out, unless time is what is used up."""
        if not self.reached:
            self.reached = why
            self._stop(f"budget: {why}", grace_seconds)

    def _count(self, name: Name, used: Amount) -> None:
        self.spent += used
        self._note(name, used)

    def _note(self, name: Name, used: Amount) -> None:
        dearest = self._dearest.get(name, _NOTHING)
        if used.cost_usd > dearest.cost_usd or used.tokens > dearest.tokens or name not in self._dearest:
            self._dearest[name] = dearest.at_least(used)

    def _foreseen(self, asked: "_Asked") -> Amount:
        known = self._dearest.get(asked.name)
        if known is not None:
            return msgspec.structs.replace(known, requests=1.0)
        if self._limits.cost_usd is None and self._limits.tokens is None:
            return Amount(requests=1.0)
        return asked.most()


class _Asked(msgspec.Struct, frozen=True):
    """A request that wants to be sent."""

    name: Name
    price: Price | None
    messages: list[Message]
    params: dict[str, Any]
    in_job: bool = False

    def most(self) -> Amount:
        """What it may take, as far as it tells itself. A job of one, to learn more, would take a day."""
        output = output_limit(self.params) or (_GUESSED_OUTPUT if self.in_job else None)
        if output is None:
            return Amount(math.inf, math.inf, 1.0)
        usage = Usage(sum(map(count_message_tokens, self.messages)), output)
        return _amount(self.price, usage.of_one(self.in_job), 1)


def _is_limited(limits: RunLimits) -> bool:
    return limits.cost_usd is not None or limits.tokens is not None or limits.requests is not None


def output_limit(params: Mapping[str, Any]) -> int | None:
    """How many tokens an answer may have, if the parameters say."""
    given = (params.get(name) for name in _OUTPUT_LIMITS)
    return next((each for each in given if isinstance(each, int) and not isinstance(each, bool)), None)


def _amount(price: Price | None, usage: Usage, requests: int) -> Amount:
    return Amount(0.0 if price is None else price.dollars(usage), usage.tokens, requests)
