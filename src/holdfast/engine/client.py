"""Models as samples ask them: a provider behind its pace, its breaker and the one retry layer.

Invariant: a request ends in an answer, in a failure that only it is to blame for, or not at all: where the model cannot
be asked any more its cell is stopped, and the samples of it stay unfinished.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NoReturn, TypeVar

import msgspec

from holdfast.engine.attachments import Attachments
from holdfast.errors import SpecError
from holdfast.journal.blobs import BlobError
from holdfast.models import (
    BadConnectionError,
    BatchApi,
    Connection,
    ModelError,
    Provider,
    Request,
    Retries,
    UnknownProviderError,
    ask,
    make_provider,
    open_batches,
)
from holdfast.models.batch.queue import Batches, Single, UnansweredError
from holdfast.models.credentials import Guard, GuardedBatches, GuardedProvider
from holdfast.models.failures import AskFailedError
from holdfast.models.pacing.breaker import Streak
from holdfast.models.pacing.pace import Limits, Pace
from holdfast.models.pacing.queue import Places, Turns
from holdfast.models.pacing.rate_limits import quotas_in
from holdfast.models.pacing.retries import Again
from holdfast.models.pacing.stopwatch import HeldByLine
from holdfast.models.provider import Headers
from holdfast.models.timing import under_way
from holdfast.records.facts import Failure, StepId
from holdfast.records.samples import Answer, Message
from holdfast.solve import Allowance, Asking
from holdfast.spec import Model, Spec
from holdfast.spec.providers import is_external
from holdfast.spec.source.variables import fill_options, variables_in
from holdfast.spec.source.yaml import expand

T = TypeVar("T")
group: ContextVar[str] = ContextVar("group", default="")
"""The sample that is being answered: all of its repeats and steps had better go to the same server, if there are
several.
"""
_encode = msgspec.json.Encoder().encode


class Post:
    """A cell as a line sees it: whether it has had answers, and how it is stopped."""

    def __init__(self, stop: Callable[[str], None], has_answers: bool) -> None:
        """`stop` is told why; it ends whatever of the cell is under way."""
        self.stop = stop
        self.streak = Streak(has_answers)


class Line:
    """One model's line, over all tasks that share it: how fast it is asked, and whether it can be asked at all."""

    def __init__(
        self,
        model: Model,
        place: str,
        everywhere: Places,
        retried: Callable[[str], None] = lambda why: None,
        tell: Callable[[str, str], None] = lambda event, message: None,
    ) -> None:
        """`retried` is told why, whenever a request is made again; `tell` gets a dotted event name and a sentence."""
        guard = Guard(model, place)

        def tell_cleaned(event: str, what: str) -> None:
            tell(event, f"{model.name}: {guard.text(what)}")

        provider = open_provider(model, place, tell=tell_cleaned, listen=self._listen)
        self.provider: Provider = GuardedProvider(provider, guard) if guard.is_needed else provider
        self.everywhere = everywhere
        self.pace = Pace(_limits(model))
        self.streak = Streak()
        self.number = itertools.count(1).__next__
        """Tells requests apart."""
        self.clock = time.monotonic
        self.turns = Turns(self.pace, self.clock)
        self.draining = False
        self.sending = 0
        """Requests that are under way."""
        self.closed: ModelError | None = None
        """Why it is asked no more."""
        self._model = model
        self._tell = tell
        self._retries = Retries(
            count=model.request_retries, told=lambda error: retried(f"{error.kind}: {error.message}")
        )
        self.batches: Batches | None = None
        """Where requests wait for others, if they are sent in jobs."""

    @property
    def name(self) -> str:
        return self._model.name

    def drain(self) -> None:
        """Requests that still wait for their turn are not sent any more."""
        self.draining = True
        if self.batches is not None:
            self.batches.drain()

    @property
    def is_busy(self) -> bool:
        """Whether something is under way that had better end before the run does. A job that is waited for is not."""
        return self.sending > 0 or (self.batches is not None and self.batches.sending > 0)

    def tune(self, model: Model) -> None:
        """Another pace, from now on."""
        self.pace.change(_limits(model))
        self.turns.hand_out()

    def asking(self, attachments: Attachments | None = None, post: Post | None = None) -> Asking:
        """`attachments`: for tasks with files; requests of other tasks are sent as they are. `post`: the cell that
        asks; without one a request that meets a closed line fails.
        """
        provider = self.provider
        if attachments is not None:
            provider = _Filled(provider, attachments)
        if is_external(self._model.provider):
            provider = _Copied(provider)
        ask = partial(self._ask, provider, post)

        async def ask_in_batch(
            step: StepId, messages: list[Message], params: dict[str, Any], tools: list[dict[str, Any]]
        ) -> tuple[Answer, int, str]:
            try:
                filled = messages if attachments is None else await attachments.put_into(messages)
            except BlobError as error:
                raise AskFailedError(Failure("file", str(error)), 0) from error
            alone = partial(ask, messages, params, tools)
            return await self._ask_in_batch(step, Request(filled, params, tools), alone, post)

        batched = None if self.batches is None else ask_in_batch
        return Asking(identity_of(self._model), self._model.params, ask, self._model.price, batched)

    async def _ask_in_batch(
        self, step: StepId, request: Request, alone: Single, post: Post | None
    ) -> tuple[Answer, int, str]:
        assert self.batches is not None
        try:
            if self.closed is not None and not self.batches.has(step):
                raise UnansweredError(self.closed, 0)
            found = await self.batches.ask(step, request, alone)
        except UnansweredError as error:
            refused = self.is_refused(error.error, post) or self.closed is not None
            if refused and post is not None:
                await self.halt(self.closed or error.error, post, error.tries)
            raise
        self.has_answered(post)
        return found

    async def close(self) -> None:
        self.turns.close()
        if self.batches is not None:
            await self.batches.close()
        await self.provider.close()

    def is_held(self) -> str:
        """What its requests wait for, if not only for answers; empty if for nothing."""
        now, breaker = self.clock(), self.pace.breaker
        if self.closed is None and breaker.is_open:
            waited = breaker.open_seconds(now)
            return f"{self.name}: no answer for {waited:.0f} s, waiting for the server ({breaker.why})"
        held = self.pace.held_seconds(now)
        if self.closed is None and held > 0 and self.turns.waiting:
            return f"{self.name}: waiting for a rate limit: {held:.1f} s"
        return ""

    def has_answered(self, post: Post | None) -> None:
        self.streak.answered()
        if post is not None:
            post.streak.answered()

    def is_refused(self, error: ModelError, post: Post | None) -> bool:
        """Whether that was one refusal too many for a cell. One of the connection closes the line for all cells."""
        policy = error.policy
        if policy.is_of_line:
            if self.streak.refused(policy):
                self.refuse(error)
            return False
        if not error.retryable:
            self.streak.answered()
        return post is not None and bool(policy.stops_new) and post.streak.refused(policy, group.get())

    async def halt(self, error: ModelError, post: Post | None, tries: int) -> NoReturn:
        """The sample stays as it is, and its cell ends. Where nobody can be stopped, the request fails: it was sent so
        often.
        """
        if post is None:
            failed = ModelError(error.kind, error.message)  # its own: what many raise holds on to all of their frames
            failed.tries = tries
            raise failed
        post.stop(f"{error.kind}: {error.message}")
        await asyncio.get_running_loop().create_future()  # until the engine ends the sample
        raise AssertionError("unreachable")

    def refuse(self, error: ModelError) -> None:
        """Nothing is asked from now on: whoever waits is let through, to meet that."""
        if self.closed is None:
            self.closed = error
            self._tell("model.stopped", f"model {self.name} is asked no more: {error}")
            self.turns.release()

    def turned(self, error: ModelError | None = None) -> None:
        """The breaker has opened, or closed."""
        if self.pace.breaker.is_open:
            patience = f"it is waited for, up to {self.pace.breaker.patience_seconds:g} s (patience_seconds)"
            self._tell("model.waiting", f"the server of model {self.name} does not work, {patience}: {error}")
        else:
            self._tell("model.answers", f"the server of model {self.name} answers again")

    def _listen(self, status: int, headers: Headers) -> None:
        quotas = quotas_in(headers, time.time())
        if quotas:
            self.pace.heard(self.clock(), quotas)

    async def _ask(
        self,
        provider: Provider,
        post: Post | None,
        messages: list[Message],
        params: dict[str, Any],
        tools: list[dict[str, Any]],
    ) -> tuple[Answer, int]:
        """The provider's time-out does not run, and the sample's clock stands still, while a request waits here."""
        request = Request(messages, params, tools, group.get())
        try:
            return await ask(provider, request, self._retries, Way(self, post, request))
        except ModelError as error:
            raise AskFailedError(Failure(error.kind, error.message), error.tries) from error
        except BlobError as error:
            raise AskFailedError(Failure("file", str(error)), 0) from error


class Way:
    """One request's way through a line."""

    __slots__ = ("_is_probe", "_line", "_number", "_post", "_refused_since", "_sent_at", "_timer", "_tokens", "_tries")

    def __init__(self, line: Line, post: Post | None, request: Request) -> None:
        self._line = line
        self._number = line.number()
        self._post = post
        self._timer = under_way.get()
        self._tries = 0
        self._sent_at = 0.0
        self._is_probe = False
        self._refused_since = 0.0
        self._tokens = line.pace.guess(len(_encode(request))) if line.pace.counts_tokens else 0.0

    async def enter(self, seconds: float) -> None:
        line = self._line
        self._tries += 1
        was_probe, self._is_probe = self._is_probe, False
        if seconds or not line.turns.take(self._tokens):
            with self._held():
                if seconds:
                    await asyncio.sleep(seconds)
                self._is_probe = await line.turns.wait(self._tokens, first=self._tries > 1 and not was_probe)
        if not line.everywhere.take():
            await self._wait_everywhere()
        if line.draining or line.closed is not None:
            await self._turn_away()
        line.sending += 1
        self._sent_at = line.clock()

    def answered(self, answer: Answer) -> None:
        line = self._line
        now = line.clock()
        line.has_answered(self._post)
        if line.pace.answered(now, self._sent_at):
            line.turned()
        if line.pace.counts_tokens and isinstance(answer, Answer):
            line.pace.used(answer.usage.input_tokens, answer.usage.output_tokens, self._tokens)
        self._leave()

    async def failed(self, error: ModelError) -> Again:
        line, policy = self._line, error.policy
        now = line.clock()
        if self._timer is not None:
            self._timer.failed(now - self._sent_at)
        if line.pace.failed(now, self._sent_at, error, self._is_probe, self._number):
            line.turned(error)
        self._leave()
        breaker = line.pace.breaker
        if breaker.is_over(now):
            line.refuse(ModelError(error.kind, f"no answer for {breaker.open_seconds(now):.0f} s: {error.message}"))
        if line.is_refused(error, self._post) or line.closed is not None:
            await line.halt(line.closed or error, self._post, self._tries)
        if breaker.is_open and policy.breaks:
            return Again(counts=self._is_probe and error.kind != "connection", waits=False)
        if not policy.is_free:
            return Again()
        self._refused_since = self._refused_since or now
        is_patient = now - self._refused_since < breaker.patience_seconds
        return Again(counts=not is_patient, waits=not line.pace.window.is_adaptive)

    def dropped(self) -> None:
        self._line.pace.dropped(self._is_probe)
        self._leave()

    def _held(self) -> HeldByLine:
        return HeldByLine(self._line.clock, self._line.turns.limited_seconds)

    def _leave(self) -> None:
        line = self._line
        line.sending -= 1
        line.everywhere.give_back()
        line.turns.hand_out()

    async def _wait_everywhere(self) -> None:
        line = self._line
        try:
            with self._held():
                await line.everywhere.wait()
        except BaseException:
            line.pace.dropped(self._is_probe)
            line.turns.hand_out()
            raise

    async def _turn_away(self) -> None:
        """It has a turn, and is not sent."""
        line = self._line
        line.everywhere.give_back()
        try:
            if line.closed is None:
                await asyncio.get_running_loop().create_future()  # until the engine ends
            else:
                await line.halt(line.closed, self._post, self._tries - 1)
        finally:
            line.pace.dropped(self._is_probe)


class _Filled:
    """A provider that is sent the content of files in the place of references, read when it is their turn."""

    def __init__(self, provider: Provider, attachments: Attachments) -> None:
        self._provider = provider
        self._attachments = attachments

    async def generate(self, request: Request) -> Answer:
        messages = await self._attachments.put_into(request.messages)
        return await self._provider.generate(msgspec.structs.replace(request, messages=messages))

    async def close(self) -> None:
        await self._provider.close()


class _Copied:
    """Anybody's provider: it may change what it is given, which the next turn and the record hold too."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def generate(self, request: Request) -> Answer:
        return await self._provider.generate(msgspec.json.decode(_encode(request), type=Request))

    async def close(self) -> None:
        await self._provider.close()


def _limits(model: Model) -> Limits:
    """Who wants nothing asked again wants to hear of every failure: there is nothing to be patient about."""
    return Limits(
        model.max_connections,
        model.adaptive,
        model.requests_per_minute,
        model.tokens_per_minute,
        model.patience_seconds if model.request_retries else 0.0,
    )


def allowance_of(spec: Spec) -> Allowance:
    limits = spec.limits.sample
    return Allowance(limits.steps, limits.tokens, limits.cost_usd)


def _deaf(status: int, headers: Headers) -> None:
    """Where nobody listens."""


def identity_of(model: Model) -> dict[str, Any]:
    """What makes a request to one model another than to a second: not where it is."""
    return {"provider": model.provider, "model": model.model, "options": model.options}


def open_provider(
    model: Model,
    place: str,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[str, str], None] = lambda event, message: None,
    listen: Callable[[int, Headers], None] = _deaf,
) -> Provider:
    """The provider of a model. SpecError with the place if it cannot be used; nothing is sent. `listen` hears the
    headers of every response.
    """

    def make(connection: Connection) -> Provider:
        return make_provider(msgspec.structs.replace(connection, listen=listen))

    return _open(make, model, place, environ, tell)


def open_batch_api(
    model: Model,
    place: str,
    environ: Mapping[str, str] = os.environ,
    tell: Callable[[str, str], None] = lambda event, message: None,
) -> BatchApi:
    """Likewise, the batch API of its server."""
    return GuardedBatches(_open(open_batches, model, place, environ, tell), Guard(model, place, environ))


def _open(
    make: Callable[[Connection], T],
    model: Model,
    place: str,
    environ: Mapping[str, str],
    tell: Callable[[str, str], None],
) -> T:
    secrets: list[str] = []

    def filled(text: str, where: str) -> str:
        value, found = expand(text, environ, f"{place}.{where}")
        if where != "base_url" or found != [
            value
        ]:  # a whole URL is needed to understand an error; its parts may be secret
            secrets.extend(found)
        return value

    headers = {name: filled(value, f"headers.{name}") for name, value in model.headers.items()}
    base_url: str | list[str] = (
        filled(model.base_url, "base_url")
        if isinstance(model.base_url, str)
        else [filled(url, "base_url") for url in model.base_url]
    )
    late = variables_in([model.options, model.params])
    secrets += [environ[name] for _, name in late if name in environ]
    try:
        return make(
            Connection(
                provider=model.provider,
                model=model.model,
                base_url=base_url,
                api_key_env=model.api_key_env,
                headers=headers,
                timeout_seconds=model.timeout_seconds,
                stream=model.stream,
                record_raw=model.record_raw,
                tell=tell,
                max_connections=model.max_connections,
                options=fill_options(model.options, environ, place),
                secrets=tuple(secrets),
            )
        )
    except UnknownProviderError as error:
        raise SpecError(f"{place}.provider: {error}") from error
    except BadConnectionError as error:
        field = next((each for each in ("base_url", "options", "batch") if each in str(error)), "provider")
        raise SpecError(f"{place}.{field}: {error}") from error
