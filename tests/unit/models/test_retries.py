"""The one retry layer: how often, how long, and what it never does."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.models import Kind, ModelError, Request, Retries, ask
from holdfast.records.samples import Answer

REQUEST = Request([{"role": "user", "content": "hello"}])


class Scripted:
    """Fails with the given errors, one a try, then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self.calls = 0
        self._errors: Iterator[BaseException] = iter(errors)

    async def generate(self, request: Request) -> Answer:
        self.calls += 1
        for error in self._errors:
            raise error
        return Answer("done")

    async def close(self) -> None: ...


class Sleeps:
    """Records the waits instead of waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def failures(kind: Kind, count: int, retry_after: float | None = None) -> list[ModelError]:
    return [ModelError(kind, f"failure {number}", retry_after) for number in range(1, count + 1)]


def test_an_answer_at_once_takes_one_try_and_no_wait() -> None:
    sleeps = Sleeps()
    answer, tries = asyncio.run(ask(Scripted(), REQUEST, Retries(5, sleeps)))
    assert (answer.text, tries, sleeps.seconds) == ("done", 1, [])


def test_the_tries_are_counted() -> None:
    provider, sleeps = Scripted(*failures("server", 2)), Sleeps()
    answer, tries = asyncio.run(ask(provider, REQUEST, Retries(2, sleeps)))
    assert (answer.text, tries, provider.calls, len(sleeps.seconds)) == ("done", 3, 3, 2)


def test_the_last_error_is_raised_with_its_tries_and_without_a_wait_after_it() -> None:
    provider, sleeps = Scripted(*failures("overload", 9)), Sleeps()
    with pytest.raises(ModelError, match="failure 3") as raised:
        asyncio.run(ask(provider, REQUEST, Retries(2, sleeps)))
    assert (raised.value.tries, provider.calls, len(sleeps.seconds)) == (3, 3, 2)


@pytest.mark.parametrize("kind", ["bad_request", "auth", "unknown_model", "content_filter", "context_too_long"])
def test_what_will_not_pass_is_not_tried_again(kind: Kind) -> None:
    provider = Scripted(*failures(kind, 1))
    with pytest.raises(ModelError):
        asyncio.run(ask(provider, REQUEST, Retries(5, Sleeps())))
    assert provider.calls == 1


def test_waits_double_up_to_the_maximum() -> None:
    sleeps = Sleeps()
    asyncio.run(ask(Scripted(*failures("server", 8)), REQUEST, Retries(8, sleeps, lambda: 1.0)))
    assert sleeps.seconds == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_the_jitter_is_full() -> None:
    sleeps, drawn = Sleeps(), iter([0.0, 0.5, 0.25])
    asyncio.run(ask(Scripted(*failures("server", 3)), REQUEST, Retries(3, sleeps, lambda: next(drawn))))
    assert sleeps.seconds == [0.0, 0.5, 0.5]


def test_a_longer_retry_after_is_honoured_even_beyond_the_maximum() -> None:
    sleeps = Sleeps()
    asyncio.run(ask(Scripted(*failures("rate_limit", 1, retry_after=120.0)), REQUEST, Retries(1, sleeps)))
    assert sleeps.seconds == [120.0]


def test_a_shorter_retry_after_does_not_shorten_the_wait() -> None:
    sleeps = Sleeps()
    asyncio.run(ask(Scripted(*failures("rate_limit", 1, retry_after=0.1)), REQUEST, Retries(1, sleeps, lambda: 1.0)))
    assert sleeps.seconds == [0.5]


def test_thousands_of_retries_do_not_overflow() -> None:
    sleeps = Sleeps()
    asyncio.run(ask(Scripted(*failures("server", 3000)), REQUEST, Retries(3000, sleeps, lambda: 1.0)))
    assert sleeps.seconds[-1] == 30


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RuntimeError("a bug")])
def test_a_cancellation_or_a_bug_passes_straight_through(error: BaseException) -> None:
    provider = Scripted(error)
    with pytest.raises(type(error)):
        asyncio.run(ask(provider, REQUEST, Retries(5, Sleeps())))
    assert provider.calls == 1


def test_a_cancellation_ends_the_wait() -> None:
    async def cancelled_while_waiting() -> int:
        provider, waiting = Scripted(*failures("server", 9)), asyncio.Event()

        async def wait_for_ever(seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        task = asyncio.create_task(ask(provider, REQUEST, Retries(5, wait_for_ever)))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return provider.calls

    assert asyncio.run(cancelled_while_waiting()) == 1
