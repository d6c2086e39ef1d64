"""The budget of a run, over all its resumes: no request is sent that is expected to exceed it.

Before a request is sent, an estimate of what it may use is reserved: the largest use so far of this model, in any
process; before the first answer, what `max_tokens` allows. Without either, one request is sent alone. So a run exceeds
its budget at most by what single answers use more than all answers before them. A request that does not fit waits until
those under way have ended; if it does not fit then, the run stops.

What counts is what is recorded: answers, and failures with their tries. Replayed steps were paid and counted before. A
crash loses no count: the next process reads the totals from the journal.

The workers of a sharded run share one budget. Each spends only what it was granted (`Grants`), and requests a larger
grant when something does not fit. So each exceeds its grants by at most one answer, and all together exceed the budget
by one per worker.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.errors import HoldfastError, StoreError
from holdfast.models import AskFailedError, Held, ModelCall, count_message_tokens
from holdfast.records import Answer, Message, Usage, cell_names
from holdfast.solve import ModelHandle
from holdfast.spec import Price, RunLimits, Spec
from holdfast.state import Story, role_prices

Name = tuple[str, str]
"""(evaluated model, role): one of the two is empty."""
Stop = Callable[[str, float | None], None]
"""Receives the reason and the grace period for requests under way; None is the spec's own."""
_GUESSED_OUTPUT_TOKENS = 1000
"""Output tokens of a request in a batch job without `max_tokens`, before any answer."""
_RETRY_SECONDS = 5.0
"""How long to wait before a ledger that cannot be reached is asked again."""
_TRIES = 3
"""At the beginning and at the end of the work."""
T = TypeVar("T")
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
_NAMES = ("cost_usd", "tokens", "requests")


class Grant(msgspec.Struct, frozen=True):
    """What a worker of a sharded run may have spent in total, infinite where nothing is limited; and the same of all
    workers together.
    """

    allowed: Amount
    total: Amount


class Grants(Protocol):
    """Where the workers of a sharded run get what they may spend. All calls block, and may raise HoldfastError or
    OSError if the place cannot be reached.
    """

    def open(self, limits: RunLimits, spent: Amount) -> float:
        """Begin to work on a shard: what an earlier worker was granted and did not spend is returned. Returns for how
        many seconds the whole run has worked so far.
        """

    def ask(self, limits: RunLimits, spent: Amount, wanted: Amount) -> Grant:
        """Raise what this worker may have spent to `wanted`, or to what is left of the limits."""

    def close(self, spent: Amount) -> None:
        """End the work on a shard: what is left of its grant is returned."""

    def count_workers(self) -> int:
        """How many workers are live, with this one."""


class Account(msgspec.Struct):
    """What the answers of one evaluated model cost so far, with their judges and other roles, in all processes."""

    dollars: float | None = None
    """None if no price is known."""
    has_unpriced: bool = False
    """A model without a price was used: the dollars are not all."""


class Budget:
    """The budget of one run. Every request of every model and role passes the functions that `limit` returns."""

    def __init__(
        self,
        limits: RunLimits,
        story: Story,
        prices: Mapping[Name, Price | None],
        stop: Stop,
        grants: Grants | None = None,
    ) -> None:
        """`stop` is called once, when a limit is reached. `grants`: of a run whose budget several workers share."""
        self._limits = limits
        self._is_limited = _is_limited(limits)
        self._stop = stop
        self._grants = grants
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
                self._cost_usd += used.cost_usd
                self._tokens += used.tokens
                self._requests += used.requests
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
        self._asking: asyncio.Task[None] | None = None
        self._ended = 0
        """How many requests have ended."""
        self._refused = -1
        """How many had ended when less was granted than asked for: nothing more is asked for until another ends."""
        self._total = _NOTHING
        """What all workers were granted, when it was last asked for."""
        self._allowed = _NOTHING
        self._limit_allowance()
        self.reached = ""
        """The limit that was reached, as a message; empty before."""
        self.waits_for = ""
        """Why no grant can be had at the moment, as a message; empty if it can."""

    @property
    def spent(self) -> Amount:
        """What was used so far, by all processes."""
        return Amount(self._cost_usd, self._tokens, self._requests)

    async def open(self, *, shares_rates: bool = False) -> None:
        """Begin to use grants, before the first request. Stops the run if its time is used up already. Without limits
        nothing is asked for, unless other workers must know of this one because they share its rates.
        """
        is_needed = self._is_limited or self._limits.seconds is not None or shares_rates
        grants = self._grants
        if grants is not None and is_needed:
            self._worked_seconds = await _retry(lambda: grants.open(self._limits, self.spent))
        self.look_at_clock(0.0)

    async def close(self) -> None:
        """Return what is left of the grants, after the last request. A ledger that cannot be written keeps them until
        another worker continues the shard or, if it is complete, needs them.
        """
        if self._asking is not None:
            self._asking.cancel()
        grants = self._grants
        if grants is not None:
            with contextlib.suppress(HoldfastError, OSError):
                await _retry(lambda: grants.close(self.spent))

    def change(self, limits: RunLimits) -> None:
        """Apply other limits, also to requests that wait."""
        self._limits = limits
        self._is_limited = _is_limited(limits)
        self._limit_allowance()
        self._wake()

    def _limit_allowance(self) -> None:
        """With grants: nothing more, until they were asked for under these limits."""
        allowed = []
        for name in _NAMES:
            limit = getattr(self._limits, name)
            allowed.append(math.inf if limit is None else limit if self._grants is None else getattr(self.spent, name))
        self._allowed = Amount(*allowed)
        self._refused = -1

    def look_at_clock(self, seconds: float) -> None:
        """Stop the run if its time is used up. `seconds`: how long this process has worked."""
        limit = self._limits.seconds
        worked = self._worked_seconds + seconds
        if limit is not None and worked >= limit:
            self._end(f"limits.run.seconds is {limit:g}, and the run has worked for {worked:.0f} s", None)

    def account(self, model: str) -> Account:
        """Return what the answers of an evaluated model cost so far."""
        return self._accounts.setdefault(model, Account())

    def clear_accounts(self) -> None:
        """Let `account` count only what is spent from now on, as by the judges of one evaluation."""
        self._accounts.clear()

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
            self._ended += 1
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
                if self._may_ask(estimate):
                    await self._ask(estimate)
                else:
                    await self._wait()
            estimate = self._estimate(asked)  # the answers since then are a better estimate
        return estimate

    def _fits(self, estimate: Amount) -> bool:
        """A request that is alone is sent while anything is left. So the budget is used up, and exceeded by at most one
        answer.
        """
        if self.reached:
            return False
        lacking = self._lacking(estimate)
        if not lacking:
            return True
        if self._in_flight or self._may_ask(estimate):
            return False
        for name in lacking:
            if getattr(self.spent, name) >= getattr(self._allowed, name):
                self._end(self._describe(name), math.inf)
                return False
        return True

    def _lacking(self, estimate: Amount) -> list[str]:
        """The limits that a request would exceed. One of unknown size is sent alone, while anything is left."""
        found, alone = [], not self._in_flight
        for name, allowed, used, reserved, needed in zip(
            _NAMES, *map(msgspec.structs.astuple, (self._allowed, self.spent, self._reserved, estimate)), strict=True
        ):
            is_used_up = alone and used >= allowed
            if is_used_up or (used + reserved + needed > allowed and not (alone and needed == math.inf)):
                found.append(name)
        return found

    def _describe(self, name: str) -> str:
        limit, used = getattr(self._limits, name), getattr(self.spent, name)
        who = "is used"
        if self._grants is not None:
            used, who = max(getattr(self._total, name), used), "is used by all workers, or granted to them"
        return f"limits.run.{name} is {limit:g}, and {f'${used:.4f}' if name == 'cost_usd' else f'{used:.0f}'} {who}"

    def _may_ask(self, estimate: Amount) -> bool:
        """Whether another worker may have returned something since the last refusal, and it would be of use."""
        is_unknown = math.inf in (estimate.cost_usd, estimate.tokens)
        return self._grants is not None and self._refused != self._ended and not (self._in_flight and is_unknown)

    async def _ask(self, estimate: Amount) -> None:
        """Ask for a larger grant, for all requests that wait: one question at a time."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._raise_allowance(estimate))
        await asyncio.wait([self._asking])  # a request that is cancelled does not cancel it

    async def _raise_allowance(self, estimate: Amount) -> None:
        assert self._grants is not None
        limits, ended = self._limits, self._ended
        finite = Amount(*(each if each < math.inf else 0.0 for each in msgspec.structs.astuple(estimate)))
        try:
            grant = await asyncio.to_thread(self._grants.ask, limits, self.spent, self.spent + self._reserved + finite)
        except (HoldfastError, OSError) as error:
            self.waits_for = f"what it may spend is not known ({error})"
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            self.waits_for = ""
            if limits is self._limits:  # not changed in the meantime
                self._allowed, self._total = grant.allowed, grant.total
                if self._lacking(finite):
                    self._refused = ended
        finally:
            self._asking = None

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

    def _note(self, name: Name, used: Amount) -> None:
        self._largest[name] = self._largest.get(name, _NOTHING).at_least(used)

    def _estimate(self, asked: "_PendingRequest") -> Amount:
        known = self._largest.get(asked.name)
        if known is not None:
            return msgspec.structs.replace(known, requests=1.0)
        if self._limits.cost_usd is None and self._limits.tokens is None:
            return Amount(requests=1.0)
        return asked.upper_bound()


async def _retry(call: Callable[[], T]) -> T:
    """Make a call in a thread, several times if the ledger cannot be reached."""
    for _ in range(_TRIES - 1):
        try:
            return await asyncio.to_thread(call)
        except (StoreError, OSError):
            await asyncio.sleep(_RETRY_SECONDS)
    return await asyncio.to_thread(call)


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


def prices_of(spec: Spec, story: Story, given: Mapping[str, str]) -> dict[Name, Price | None]:
    """Return prices by (evaluated model, role), one of which is empty. Models that were given for earlier evaluations
    keep the prices that are recorded with these.
    """
    prices = {("", role): price for role, price in role_prices(story).items()}
    prices |= {(model.name, ""): model.price for model in spec.models}
    return prices | {("", given.get(role, role)): model.price for role, model in spec.roles.items()}


def spent_in(story: Story, spec: Spec) -> Amount:
    """Return what was spent according to a journal."""
    return Budget(spec.limits.run, story, prices_of(spec, story, {}), lambda *_: None).spent


def output_limit(params: Mapping[str, Any]) -> int | None:
    """Return how many tokens an answer may have; None if the parameters do not say."""
    given = (params.get(name) for name in _OUTPUT_LIMITS)
    return next((each for each in given if isinstance(each, int) and not isinstance(each, bool)), None)


def _amount(price: Price | None, usage: Usage, requests: int) -> Amount:
    return Amount(0.0 if price is None else price.dollars(usage), usage.tokens, requests)
