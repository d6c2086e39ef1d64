"""The model client: every live request to one model passes here, behind its pace, its circuit breaker and its retries.

Where a retry is decided: `generate_with_retries` in `holdfast.models.pacing.retries` owns the loop and counts the
tries. After each failed try it calls `PacedRequest.failed` below, which decides whether the try counts as a retry, who
waits before the next one, and whether the model or the cell has failed too often to continue. Which kinds of errors
are retryable at all is in the table `POLICIES` in `holdfast.models.provider`.

Invariant: a request ends in an answer, or in a failure that it alone caused; or it never returns, because the model
cannot be used: then its cell is stopped and the engine cancels the sample, which stays unfinished. Nothing here is
stored: after a crash the pace starts from the spec's limits again.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import msgspec

from holdfast.engine.attachments import Attachments
from holdfast.journal import BlobError
from holdfast.models import (
    AskFailedError,
    Guard,
    GuardedProvider,
    Headers,
    HeldByLimiter,
    MaySend,
    ModelCall,
    ModelError,
    Pace,
    PaceLimits,
    Provider,
    Request,
    RequestQueue,
    Retries,
    RetryDecision,
    Slots,
    Streak,
    generate_with_retries,
    identity_of,
    open_provider,
    quotas_in,
    wait_to_send,
)
from holdfast.models.batch.queue import Batches, UnansweredError
from holdfast.records import Answer, Failure
from holdfast.solve import AttemptLimits, ModelHandle, Send
from holdfast.spec import Model, Spec, is_external

_encode = msgspec.json.Encoder().encode


class CellHealth:
    """Refusals in one cell, and how to stop it."""

    def __init__(self, stop: Callable[[str], None], has_answers: bool) -> None:
        """`stop` receives the reason and cancels the cell's running samples."""
        self.stop = stop
        self.streak = Streak(has_answers)


class ModelClient:
    """One model, shared by all tasks: its provider, its pace, and whether it can still be used."""

    def __init__(
        self,
        model: Model,
        place: str,
        everywhere: Slots,
        retried: Callable[[str], None] = lambda why: None,
        tell: Callable[[str, str], None] = lambda event, message: None,
        *,
        has_answers: bool = False,
    ) -> None:
        """`everywhere` limits requests over all models; `retried` receives the reason of each retry; `tell` receives
        a dotted event name and a message. `has_answers`: the model answered in an earlier process of the run.
        """
        guard = Guard(model, place)

        def log_redacted(event: str, message: str) -> None:
            tell(event, f"{model.name}: {guard.text(message)}")

        provider = open_provider(model, place, tell=log_redacted, listen=self._read_rate_limits)
        self.provider: Provider = GuardedProvider(provider, guard) if guard.is_needed else provider
        self.everywhere = everywhere
        self.pace = Pace(_pace_limits(model))
        self.pace.breaker.has_contact = has_answers
        self.streak = Streak()
        self.next_number = itertools.count(1).__next__
        """Numbers requests, so that the breaker can tell them apart."""
        self.clock = time.monotonic
        self.turns = RequestQueue(self.pace, self.clock)
        self.draining = False
        self.sending = 0
        """Requests that are under way."""
        self.closed: ModelError | None = None
        """Why no more requests are sent; None while they are."""
        self._model = model
        self._place = place
        self._tell = tell
        self._retries = Retries(
            count=model.request_retries, on_retry=lambda error: retried(f"{error.kind}: {error.message}")
        )
        self.may_send: MaySend | None = None
        """If it says no, requests wait."""
        self.batches: Batches | None = None
        """The queue of requests that are sent in batch jobs, if the model uses them."""

    @property
    def name(self) -> str:
        return self._model.name

    def drain(self) -> None:
        """Send nothing new; requests that wait for their turn stay waiting until the engine cancels them."""
        self.draining = True
        if self.batches is not None:
            self.batches.drain()

    @property
    def is_busy(self) -> bool:
        """Whether a stopping run should wait for this client. It does not wait for batch jobs: they take up to a day,
        and the next process collects them.
        """
        return self.sending > 0 or (self.batches is not None and self.batches.sending > 0)

    def tune(self, model: Model, workers: int = 1) -> None:
        """Apply new limits to the requests that wait now and to later ones. `workers`: how many processes share the
        rates.
        """
        self.pace.change(_pace_limits(model, workers))
        self.turns.hand_out()

    def handle(self, attachments: Attachments | None = None, cell: CellHealth | None = None) -> ModelHandle:
        """Return the model as solvers and scorers use it. `attachments`: for tasks with files. `cell`: stopped when the
        model refuses too often; without one (a judge) the request fails instead.
        """
        provider = self.provider
        if attachments is not None:
            provider = _ProviderWithFiles(provider, attachments)
        if is_external(self._model.provider):
            provider = _IsolatedProvider(provider)
        send = partial(self._send, provider, cell)
        if self.batches is not None:
            send = partial(self._send_in_batch, send, attachments, cell)
        return ModelHandle(
            identity_of(self._model), self._model.params, send, self._model.price, self.batches is not None
        )

    async def _send_in_batch(
        self, send: Send, attachments: Attachments | None, cell: CellHealth | None, call: ModelCall
    ) -> Answer:
        """Send a request in a batch job, or alone if its job did not answer it."""
        batches = self.batches
        assert batches is not None
        assert call.step is not None

        async def send_alone() -> tuple[Answer, int]:
            answer = await send(call)
            return answer, call.tries

        try:
            # A job of an earlier process is still collected: its answer exists and is paid for.
            if self.closed is not None and not batches.has(call.step):
                raise UnansweredError(self.closed, 0)
            messages = call.messages if attachments is None else await attachments.put_into(call.messages)
            request = Request(messages, call.params, call.tools)
            answer, call.tries, call.job = await batches.ask(call.step, request, send_alone)
        except BlobError as error:
            raise AskFailedError(Failure("file", str(error)), 0) from error
        except UnansweredError as error:
            refused = self.note_refusal(error.error, cell, call.sample) or self.closed is not None
            if refused and cell is not None:
                await self.stop_cell(self.closed or error.error, cell, error.tries)
            raise
        self.note_answer(cell)
        return answer

    async def close(self) -> None:
        self.turns.close()
        if self.batches is not None:
            await self.batches.close()
        await self.provider.close()

    def wait_reason(self) -> str:
        """Return what requests wait for besides answers (a server that is down, a rate limit); empty if nothing."""
        now, breaker = self.clock(), self.pace.breaker
        if self.closed is None and breaker.is_open:
            waited = breaker.open_seconds(now)
            return f"{self.name}: no answer for {waited:.0f} s, waiting for the server ({breaker.why})"
        held, count = self.pace.held_seconds(now), self.turns.waiting
        if self.closed is None and held > 0 and count:
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + held))
            requests = "1 request waits" if count == 1 else f"{count} requests wait"
            return f"{self.name}: {requests} for a rate limit until {until}"
        return ""

    def note_answer(self, cell: CellHealth | None) -> None:
        self.streak.answered()
        if cell is not None:
            cell.streak.answered()

    def note_refusal(self, error: ModelError, cell: CellHealth | None, sample: str) -> bool:
        """Count a refusal of a request for `sample`; return whether its cell must stop. Refusals of the connection
        itself (a wrong key, an unknown model) close the client for all cells.
        """
        policy = error.policy
        if policy.is_of_line:
            if self.streak.refused(policy):
                self.close_to_requests(error)
            return False
        if not error.retryable:
            self.streak.answered()  # the server took the request seriously: key and model name are fine
        return cell is not None and bool(policy.stops_new) and cell.streak.refused(policy, sample)

    async def stop_cell(self, error: ModelError, cell: CellHealth | None, tries: int) -> NoReturn:
        """Stop the cell and wait to be cancelled, so that the sample stays unfinished. Without a cell, raise."""
        if cell is None:
            # A new error: one that many tasks raise would keep the frames of all of them alive.
            failed = ModelError(error.kind, error.message)
            failed.tries = tries
            raise failed
        cell.stop(f"{self._place}: {error.kind}: {error.message}")
        await asyncio.get_running_loop().create_future()  # until the engine cancels the sample
        raise AssertionError("unreachable")

    def close_to_requests(self, error: ModelError, why: str = "") -> None:
        """Send no more requests. Those that wait are released, and find the client closed. `why`: what to log instead
        of the error, if its cause was logged before.
        """
        if self.closed is None:
            self.closed = error
            self._tell("model.stopped", f"no more requests are sent to model {self.name}: {why or error}")
            self.turns.release()

    def report_breaker(self, error: ModelError | None = None) -> None:
        """Log that the circuit breaker has opened or closed."""
        if self.pace.breaker.is_open:
            breaker = self.pace.breaker
            field = "patience_seconds" if breaker.has_contact else "first_contact_seconds"
            patience = f"waiting up to {breaker.seconds_max:g} s for it ({field})"
            self._tell("model.waiting", f"the server of model {self.name} does not respond, {patience}: {error}")
        else:
            self._tell("model.answers", f"the server of model {self.name} answers again")

    def _read_rate_limits(self, status: int, headers: Headers) -> None:
        quotas = quotas_in(headers, time.time())
        if quotas:
            self.pace.update_quotas(self.clock(), quotas)

    async def _send(self, provider: Provider, cell: CellHealth | None, call: ModelCall) -> Answer:
        """Neither the provider's time-out nor the sample's clock runs while a request waits for its turn."""
        # All steps and repeats of a sample go to the same server, if there are several: it has their common prefix in
        # its cache.
        request = Request(call.messages, call.params, call.tools, call.sample)
        try:
            answer, call.tries = await generate_with_retries(
                provider, request, self._retries, PacedRequest(self, cell, request, call)
            )
        except ModelError as error:
            raise AskFailedError(Failure(error.kind, error.message), error.tries) from error
        except BlobError as error:
            raise AskFailedError(Failure("file", str(error)), 0) from error
        return answer


class PacedRequest:
    """One request and all its tries: `enter` waits for permission to send, `failed` decides how to retry.

    Implements `holdfast.models.pacing.retries.Admission`. Every `enter` that returns is followed by exactly one of
    `answered`, `failed` and `dropped`, which give the places back.
    """

    __slots__ = (
        "_call",
        "_cell",
        "_client",
        "_is_probe",
        "_number",
        "_refused_since",
        "_sent_at",
        "_tokens",
        "_tries",
    )

    def __init__(self, client: ModelClient, cell: CellHealth | None, request: Request, call: ModelCall) -> None:
        self._client = client
        self._number = client.next_number()
        self._cell = cell
        self._call = call
        self._tries = 0
        self._sent_at = 0.0
        self._is_probe = False
        self._refused_since = 0.0
        self._tokens = client.pace.guess(len(_encode(request))) if client.pace.counts_tokens else 0.0

    async def enter(self, seconds: float) -> None:
        client = self._client
        self._tries += 1
        was_probe, self._is_probe = self._is_probe, False
        if seconds or not client.turns.take(self._tokens):  # the usual case takes its turn without waiting
            with self._hold_clock():
                if seconds:
                    await asyncio.sleep(seconds)
                # A retry goes to the front: its sample has waited longest. A failed probe of the breaker does not,
                # or one bad request would be every probe.
                self._is_probe = await client.turns.wait(self._tokens, first=self._tries > 1 and not was_probe)
        if not client.everywhere.take():
            await self._wait_everywhere()
        if client.may_send is not None and not client.may_send():
            await self._wait_for_ownership()
        if client.draining or client.closed is not None:
            await self._turn_away()
        client.sending += 1
        self._sent_at = client.clock()

    def answered(self, answer: Answer) -> None:
        client = self._client
        now = client.clock()
        client.note_answer(self._cell)
        if client.pace.answered(now, self._sent_at):
            client.report_breaker()
        if client.pace.counts_tokens and isinstance(answer, Answer):  # a user's provider may return anything
            client.pace.used(answer.usage.input_tokens, answer.usage.output_tokens, self._tokens)
        self._leave()

    async def failed(self, error: ModelError) -> RetryDecision:
        """Decide how a failed try is followed by the next one; does not return if the cell is stopped."""
        client, policy = self._client, error.policy
        now = client.clock()
        self._call.failed(now - self._sent_at)
        if client.pace.failed(now, self._sent_at, error, self._is_probe, self._number):
            client.report_breaker(error)
        self._leave()
        breaker = client.pace.breaker
        if breaker.is_over(now):
            waited = f"no answer for {breaker.open_seconds(now):.0f} s"
            if not breaker.has_contact:
                waited += " and none before in this run (first_contact_seconds)"
            client.close_to_requests(ModelError(error.kind, f"{waited}: {error.message}"), waited)
        if client.note_refusal(error, self._cell, self._call.sample) or client.closed is not None:
            await client.stop_cell(client.closed or error, self._cell, self._tries)
        if breaker.is_open and policy.breaks:
            # The server is down for everyone: only a probe that reached it counts against this request.
            return RetryDecision(counts=self._is_probe and error.kind != "connection", waits=False)
        if not policy.is_free:
            return RetryDecision()
        # Rate limits cost no retry as long as patience_seconds last. An adaptive window slows all requests down, so
        # this one needs no pause of its own.
        self._refused_since = self._refused_since or now
        is_patient = now - self._refused_since < breaker.patience_seconds
        return RetryDecision(counts=not is_patient, waits=not client.pace.window.is_adaptive)

    def dropped(self) -> None:
        self._client.pace.dropped(self._is_probe)
        self._leave()

    def _hold_clock(self) -> HeldByLimiter:
        return HeldByLimiter(self._client.clock, self._client.turns.limited_seconds)

    def _leave(self) -> None:
        client = self._client
        client.sending -= 1
        client.everywhere.give_back()
        client.turns.hand_out()

    async def _wait_everywhere(self) -> None:
        client = self._client
        try:
            with self._hold_clock():
                await client.everywhere.wait()
        except BaseException:
            client.pace.dropped(self._is_probe)  # the model's turn was taken already
            client.turns.hand_out()
            raise

    async def _wait_for_ownership(self) -> None:
        client = self._client
        try:
            with self._hold_clock():
                await wait_to_send(client.may_send)
        except BaseException:
            client.everywhere.give_back()
            client.pace.dropped(self._is_probe)
            client.turns.hand_out()
            raise

    async def _turn_away(self) -> None:
        """Give the turn back: the run is stopping, or the model was closed while this request waited."""
        client = self._client
        client.everywhere.give_back()
        try:
            if client.closed is None:
                await asyncio.get_running_loop().create_future()  # until the engine cancels the sample
            else:
                await client.stop_cell(client.closed, self._cell, self._tries - 1)
        finally:
            client.pace.dropped(self._is_probe)


class _ProviderWithFiles:
    """Replaces references by the content of files just before a request is sent, so that few files are in memory."""

    def __init__(self, provider: Provider, attachments: Attachments) -> None:
        self._provider = provider
        self._attachments = attachments

    async def generate(self, request: Request) -> Answer:
        messages = await self._attachments.put_into(request.messages)
        return await self._provider.generate(msgspec.structs.replace(request, messages=messages))

    async def close(self) -> None:
        await self._provider.close()


class _IsolatedProvider:
    """A user's provider gets a copy: it may change the request, which the record and the next turn hold too."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def generate(self, request: Request) -> Answer:
        return await self._provider.generate(msgspec.json.decode(_encode(request), type=Request))

    async def close(self) -> None:
        await self._provider.close()


_FIRST_CONTACT_SECONDS = 30.0


def _pace_limits(model: Model, workers: int = 1) -> PaceLimits:
    """With `request_retries: 0` there is no patience either: the user wants to see every failure at once."""
    first = model.first_contact_seconds
    requests, tokens = model.requests_per_minute, model.tokens_per_minute
    return PaceLimits(
        model.max_connections,
        model.adaptive,
        None if requests is None else max(requests // workers, 1),
        None if tokens is None else max(tokens // workers, 1),
        model.patience_seconds if model.request_retries else 0.0,
        min(_FIRST_CONTACT_SECONDS, model.patience_seconds) if first is None else first,
    )


def attempt_limits(spec: Spec) -> AttemptLimits:
    limits = spec.limits.sample
    return AttemptLimits(limits.steps, limits.tokens, limits.cost_usd)
