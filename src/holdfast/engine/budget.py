"""The budget of a run, over all its resumes: no request is sent that is expected to exceed it.

Before a request is sent, an estimate of what it may use is reserved: the largest use so far of this model, in any
process; before the first answer, what `max_tokens` allows. Without either, one request is sent alone. So a run exceeds
its budget at most by what single answers use more than all answers before them. A request that does not fit waits until
those under way have ended; if it does not fit then, the run stops.

What counts is what is recorded: answers, and failures with their tries. Replayed steps were paid and counted before. A
crash loses no count: the next process reads the totals from the journal.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from holdfast.models import AskFailedError, Held, ModelCall, count_message_tokens
from holdfast.records import Answer, Message, Usage, cell_names
from holdfast.solve import ModelHandle
from holdfast.spec import Price, RunLimits
from holdfast.state import Story

Name = tuple[str, str]
"""(evaluated model, role): one of the two is empty."""
Stop = Callable[[str, float | None], None]
"""Receives the reason and the grace period for requests under way; None is the spec's own."""
_GUESSED_OUTPUT_TOKENS = 1000
"""Output tokens of a request in a batch job without `max_tokens`, before any answer."""
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Amount(msgspec.Struct, frozen=True):
    """Everything that can be limited except time."""

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


class Account(msgspec.Struct):
    """What the answers of one evaluated model cost so far, with their judges and other roles, in all processes."""

    dollars: float | None = None
    """None if no price is known."""
    has_unpriced: bool = False
    """A model without a price was used: the dollars are not all."""


class Budget:
    """The budget of one run. Every request of every model and role passes the functions that `limit` returns."""

    def __init__(self, limits: RunLimits, story: Story, prices: Mapping[Name, Price | None], stop: Stop) -> None:
        """`stop` is called once, when a limit is reached."""
        self._limits = limits
        self._is_limited = _is_limited(limits)
        self._stop = stop
        self._largest: dict[Name, Amount] = {}
        # Plain numbers, not an `Amount`: they grow with every answer.
        self._cost_usd = 0.0
        self._tokens = 0.0
        self._requests = 0.0
        self._accounts: dict[str, Account] = {}
        for cell, roles in story.bills.items():
            model = cell_names(cell)[1]
            for role, bill in roles.items():
                name = ("", role) if role else (model, "")
                price = prices.get(name)
                used = _amount(price, bill.usage, bill.requests)
                self._add(used)
                if bill.usage.requests:
                    account = self.account(model)
                    account.has_unpriced |= price is None
                    if price is not None:
                        account.dollars = (account.dollars or 0.0) + used.cost_usd
                if bill.largest.requests:
                    self._note(name, _amount(price, bill.largest, 1))
        self._worked_seconds = story.worked_seconds
        self._reserved = Amount()
        self._in_flight = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.reached = ""
        """The limit that was reached, as a message; empty before."""

    @property
    def spent(self) -> Amount:
        """What was used so far, by all processes."""
        return Amount(self._cost_usd, self._tokens, self._requests)

    def change(self, limits: RunLimits) -> None:
        """Apply other limits, also to requests that wait."""
        self._limits = limits
        self._is_limited = _is_limited(limits)
        self._wake()

    def look_at_clock(self, seconds: float) -> None:
        """Stop the run if its time is used up. `seconds`: how long this process has worked."""
        limit = self._limits.seconds
        worked = self._worked_seconds + seconds
        if limit is not None and worked >= limit:
            self._end(f"limits.run.seconds is {limit:g}, and the run has worked for {worked:.0f} s", None)

    def account(self, model: str) -> Account:
        """Return what the answers of an evaluated model cost so far."""
        return self._accounts.setdefault(model, Account())

    def limit(self, name: Name, model: ModelHandle, evaluated: str) -> ModelHandle:
        """Return the same model, with requests that are sent only while the budget lasts. `evaluated`: the model whose
        answers they are for.
        """
        account = self.account(evaluated)
        if model.price is not None and account.dollars is None:
            account.dollars = 0.0
        return msgspec.structs.replace(model, send=partial(self._send, name, account, model))

    async def _send(self, name: Name, account: Account, model: ModelHandle, call: ModelCall) -> Answer:
        reserved = _NOTHING
        if self._is_limited or self.reached:  # most runs have no limits
            pending = _PendingRequest(name, model.price, call.messages, call.params, in_job=model.batched)
            reserved = await self._admit(pending)
            self._reserved += reserved
        self._in_flight += 1
        try:
            answer = await model.send(call)
            if isinstance(answer, Answer):  # a user's provider may return anything: the caller refuses it
                self._record(name, account, model.price, answer.usage, call)
        except AskFailedError as error:
            self._requests += error.tries
            raise
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._reserved = _NOTHING
            elif reserved is not _NOTHING:
                self._reserved -= reserved
            if self._waiting:
                self._wake()
        return answer

    async def _admit(self, asked: "_PendingRequest") -> Amount:
        """Wait until a request may be sent; return the amount that the caller must reserve before it awaits again."""
        estimate = self._estimate(asked)
        while not self._fits(estimate):
            with Held():
                await self._wait()
            estimate = self._estimate(asked)  # the answers since then are a better estimate
        return estimate

    def _fits(self, estimate: Amount) -> bool:
        """A request that is alone is sent while anything is left. So the budget is used up, and exceeded by at most one
        answer.
        """
        if self.reached:
            return False
        alone = not self._in_flight
        after = self.spent if alone else self.spent + self._reserved + estimate
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
        """Let waiting requests check again. After the limit is reached they stay: the engine cancels them."""
        if self._waiting and not self.reached:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)

    def _end(self, why: str, grace_seconds: float | None) -> None:
        """Requests under way are paid for: they may end within their own time-outs, unless the limit is one of time."""
        if not self.reached:
            self.reached = why
            self._stop(f"budget: {why}", grace_seconds)

    def _record(self, name: Name, account: Account, price: Price | None, usage: Usage, call: ModelCall) -> None:
        dollars = 0.0
        if price is None:
            account.has_unpriced = True
        else:
            dollars = price.dollars(usage.of_one(bool(call.job)))
            account.dollars = (account.dollars or 0.0) + dollars
        tokens = usage.input_tokens + usage.output_tokens
        self._cost_usd += dollars
        self._tokens += tokens
        self._requests += call.tries
        largest = self._largest.get(name)
        if largest is None or dollars > largest.cost_usd or tokens > largest.tokens:
            self._note(name, Amount(dollars, tokens, call.tries))

    def _add(self, used: Amount) -> None:
        self._cost_usd += used.cost_usd
        self._tokens += used.tokens
        self._requests += used.requests

    def _note(self, name: Name, used: Amount) -> None:
        self._largest[name] = self._largest.get(name, _NOTHING).at_least(used)

    def _estimate(self, asked: "_PendingRequest") -> Amount:
        known = self._largest.get(asked.name)
        if known is not None:
            return msgspec.structs.replace(known, requests=1.0)
        if self._limits.cost_usd is None and self._limits.tokens is None:
            return Amount(requests=1.0)
        return asked.upper_bound()


class _PendingRequest(msgspec.Struct, frozen=True):
    """A request that has not been sent yet."""

    name: Name
    price: Price | None
    messages: list[Message]
    params: dict[str, Any]
    in_job: bool = False

    def upper_bound(self) -> Amount:
        """Return what it may use at most; infinite if unknown: then it is sent alone. In a batch job a guess must do:
        waiting for a job of one request could take a day.
        """
        output = output_limit(self.params) or (_GUESSED_OUTPUT_TOKENS if self.in_job else None)
        if output is None:
            return Amount(math.inf, math.inf, 1.0)
        usage = Usage(sum(map(count_message_tokens, self.messages)), output)
        return _amount(self.price, usage.of_one(self.in_job), 1)


def _is_limited(limits: RunLimits) -> bool:
    return limits.cost_usd is not None or limits.tokens is not None or limits.requests is not None


def output_limit(params: Mapping[str, Any]) -> int | None:
    """Return how many tokens an answer may have; None if the parameters do not say."""
    given = (params.get(name) for name in _OUTPUT_LIMITS)
    return next((each for each in given if isinstance(each, int) and not isinstance(each, bool)), None)


def _amount(price: Price | None, usage: Usage, requests: int) -> Amount:
    return Amount(0.0 if price is None else price.dollars(usage), usage.tokens, requests)
