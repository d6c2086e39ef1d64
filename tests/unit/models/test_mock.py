"""The mock model: deterministic, to order, and refusing orders that it does not understand."""

import asyncio
import re
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast.models import BadConnectionError, Connection, ModelError, Provider, Request, Retries, make_provider
from holdfast.models.providers.mock import MockOptions, MockProvider
from holdfast.records.samples import Answer, Usage
from tests.unit.models.unpaced import ask


def question(text: str) -> Request:
    return Request([{"role": "system", "content": "be exact"}, {"role": "user", "content": text}])


def mock(**options: Any) -> Provider:
    return make_provider(Connection("mock", "m", options=options))


def outcomes(provider: Provider, requests: list[Request]) -> list[str]:
    """The text of each answer, or the kind of its failure."""

    async def run() -> list[str]:
        seen = []
        for request in requests:
            try:
                seen.append((await provider.generate(request)).text)
            except ModelError as error:
                seen.append(error.kind)
        return seen

    return asyncio.run(run())


HUNDRED = [question(f"question {number}") for number in range(100)]


def test_it_repeats_the_last_user_message_and_counts_words() -> None:
    answer = asyncio.run(mock().generate(question("one two three")))
    assert answer == Answer("one two three", {"role": "assistant", "content": "one two three"}, [], "stop", Usage(5, 3))


def test_a_template_is_filled_whatever_braces_are_in_the_message() -> None:
    assert outcomes(mock(reply="<{last}> {x}"), [question("{last} {y}")]) == ["<{last} {y}> {x}"]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], ""),
        ([{"role": "system", "content": "only"}], ""),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "a"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}], "a"),
        ([{"role": "user", "content": None}], ""),
    ],
)
def test_any_list_of_messages_has_an_answer(messages: list[dict[str, Any]], text: str) -> None:
    assert outcomes(mock(), [Request(messages)]) == [text]


def test_a_list_of_replies_is_used_by_the_request_not_by_its_turn() -> None:
    replies = ["A", "B", "C"]
    first = outcomes(mock(reply=replies), HUNDRED)
    assert set(first) == set(replies)
    assert outcomes(mock(reply=replies), HUNDRED[::-1]) == first[::-1]
    assert outcomes(mock(reply=replies, seed=1), HUNDRED) != first


def test_without_latency_it_never_yields_to_the_event_loop() -> None:
    running: Coroutine[Any, Any, Answer] = MockProvider(MockOptions()).generate(question("x"))
    with pytest.raises(StopIteration) as ended:
        running.send(None)
    assert ended.value.value.text == "x"


def test_latency_and_its_jitter_follow_from_the_request() -> None:
    def waits(requests: list[Request]) -> list[float]:
        seconds: list[float] = []

        async def sleep(wait: float) -> None:
            seconds.append(wait)

        outcomes(MockProvider(MockOptions(latency_seconds=2.0, latency_jitter=1.0), sleep), requests)
        return seconds

    waited = waits(HUNDRED)
    assert len(set(waited)) == 100
    assert all(2.0 <= wait < 3.0 for wait in waited)
    assert waits(HUNDRED[::-1]) == waited[::-1]


def test_a_rate_fails_that_share_of_tries_the_same_in_every_run() -> None:
    order = {"failures": [{"kind": "server", "rate": 0.3}]}
    first = outcomes(mock(**order), HUNDRED)
    assert 15 <= first.count("server") <= 45
    assert outcomes(mock(**order), HUNDRED[::-1]) == first[::-1]
    assert outcomes(mock(**order, seed=2), HUNDRED) != first


def test_a_rate_is_drawn_anew_on_each_try() -> None:
    provider = mock(failures=[{"kind": "server", "rate": 0.5}])
    assert set(outcomes(provider, [HUNDRED[0]] * 50)) == {"server", "question 0"}


def test_every_picks_requests_that_fail_on_each_try() -> None:
    provider = mock(failures=[{"kind": "auth", "every": 4}])
    first = outcomes(provider, HUNDRED)
    assert 10 <= first.count("auth") <= 45
    assert outcomes(provider, HUNDRED) == first


def test_times_lets_the_first_tries_of_each_request_fail() -> None:
    provider = mock(failures=[{"kind": "timeout", "times": 2}])
    assert outcomes(provider, [HUNDRED[0], HUNDRED[1]] * 3) == ["timeout"] * 4 + ["question 0", "question 1"]


def test_what_a_failure_states_must_all_hold() -> None:
    provider = mock(failures=[{"kind": "auth", "every": 4, "times": 1}])
    assert outcomes(provider, HUNDRED).count("auth") > 0
    assert outcomes(provider, HUNDRED).count("auth") == 0


def test_the_first_failure_that_applies_wins() -> None:
    provider = mock(failures=[{"kind": "timeout", "times": 1}, {"kind": "server", "times": 2}, {"kind": "auth"}])
    assert outcomes(provider, [HUNDRED[0]] * 4) == ["timeout", "server", "auth", "auth"]


def test_an_ordered_failure_is_retried_like_any_other() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    provider = mock(failures=[{"kind": "rate_limit", "times": 2, "retry_after": 7, "message": "slow down"}])
    answer, tries = asyncio.run(ask(provider, HUNDRED[0], Retries(2), sleep))
    assert (answer.text, tries, waits) == ("question 0", 3, [7.0, 7.0])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"replies": "x"}, "there is no 'replies'; did you mean 'reply'?"),
        ({"reply": []}, "reply: expected"),
        ({"reply": 1}, "reply: expected"),
        ({"latency_seconds": -1}, "latency_seconds: expected"),
        ({"failures": [{"kind": "no such kind"}]}, "failures[0].kind: invalid enum value 'no such kind'"),
        ({"failures": [{"kind": "server", "rate": 2}]}, "failures[0].rate: expected"),
        ({"failures": [{"kind": "server", "every": 0}]}, "failures[0].every: expected"),
        ({"failures": [{"kind": "server", "evry": 2}]}, "failures[0]: there is no 'evry'; did you mean 'every'?"),
    ],
)
def test_wrong_options_are_refused_with_their_place(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadConnectionError, match=re.escape(f"wrong options for the mock provider: {problem}")):
        mock(**options)


def test_key_order_in_a_request_does_not_matter() -> None:
    def of(params: dict[str, Any]) -> list[str]:
        return outcomes(
            mock(reply=[str(number) for number in range(1000)]), [Request([{"role": "user", "content": "x"}], params)]
        )

    assert of({"a": 1, "b": 2}) == of({"b": 2, "a": 1})
    assert of({"a": 1}) != of({"a": 2})
