"""When the next request may be sent: rates, pauses, what the server's headers leave, and a server that is down."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import Kind, ModelError
from holdfast.models.pacing.pace import Pace, PaceLimits, Quota
from holdfast.models.pacing.retries import TRIPS_AFTER, TRIPS_AFTER_REQUESTS
from tests.unit.models.pace_world import Server, work


def pace(**limits: Any) -> Pace:
    return Pace(PaceLimits(**{"ceiling": 100, "adaptive": False, "patience_seconds": 60.0, **limits}))


def fail(paced: Pace, now: float, kind: Kind, retry_after: float | None = None, request: int = 0) -> bool:
    was_probe = paced.sent(now)
    return paced.failed(now, now, ModelError(kind, "no", retry_after), was_probe, request)


def send_all(paced: Pace, seconds: float, tokens: float = 0.0) -> list[float]:
    """The times at which a client sends that sends as soon as it may and is answered at once."""
    now, sent = 0.0, []
    while now < seconds:
        wait = paced.wait(now)
        if wait > 0:
            now += wait
            continue
        paced.sent(now, tokens)
        paced.answered(now, now)
        sent.append(now)
    return sent


@given(st.integers(1, 900), st.floats(30, 90))
def test_no_minute_has_more_requests_than_it_may(per_minute: int, seconds: float) -> None:
    sent = send_all(pace(requests_per_minute=per_minute), seconds)
    allowed = per_minute + per_minute / 600 + 1
    for first in range(0, len(sent), max(1, len(sent) // 20)):
        assert sum(1 for moment in sent[first:] if moment < sent[first] + 60) <= allowed
    assert len(sent) >= per_minute * seconds / 60 - 1


def test_tokens_of_a_minute_are_spread_over_it() -> None:
    sent = send_all(pace(tokens_per_minute=6000), 60, tokens=100.0)
    assert len(sent) == pytest.approx(60, abs=2)


def test_a_guess_of_tokens_is_put_right_by_what_was_used() -> None:
    paced = pace(tokens_per_minute=600)
    paced.sent(0.0, 10.0)
    paced.answered(0.5, 0.0)
    guessed = paced.wait(0.5)
    paced.used(60, 50, 10.0)
    assert paced.wait(0.5) == pytest.approx(guessed + 10.0)


def test_a_servers_pause_is_the_whole_lines() -> None:
    paced = pace()
    fail(paced, 5.0, "rate_limit", retry_after=7.0)
    assert (paced.wait(5.0), paced.wait(11.0), paced.wait(12.0)) == (7.0, 1.0, 0.0)
    assert paced.held_seconds(5.0) == 7.0


def test_a_pause_is_never_made_shorter_by_a_later_one() -> None:
    paced = pace()
    fail(paced, 0.0, "overload", retry_after=30.0)
    fail(paced, 1.0, "rate_limit", retry_after=1.0)
    assert paced.wait(2.0) == 28.0


def test_one_at_a_time_and_still_refused_the_line_waits_longer_and_longer_until_an_answer() -> None:
    paced = pace(ceiling=1, adaptive=True)
    waits = []
    now = 0.0
    for _ in range(4):
        fail(paced, now, "rate_limit")
        waits.append(paced.wait(now))
        now += waits[-1]
    assert waits == [0.25, 0.5, 1.0, 2.0]
    paced.sent(now)
    paced.answered(now, now)
    fail(paced, now, "rate_limit")
    assert paced.wait(now) == 0.25


def test_a_refusal_without_a_wait_is_waited_for_all_the_same() -> None:
    paced = pace(ceiling=1, adaptive=True)
    fail(paced, 0.0, "rate_limit", retry_after=0.0)
    assert paced.wait(0.0) == 0.25


def test_a_plenty_of_one_thing_makes_no_other_less_scarce() -> None:
    plenty, scarce = Quota(90, 1.0, 100, "output-tokens"), Quota(10, 30.0, 100, "input-tokens")
    for told in ([plenty, scarce], [scarce, plenty]):
        paced = pace()
        paced.update_quotas(0.0, told)
        paced.sent(0.0, 2.0)
        assert paced.wait(0.0) == pytest.approx(5.9), told


def test_a_small_quota_of_one_thing_is_not_little_of_another() -> None:
    paced = pace()
    paced.update_quotas(0.0, [Quota(1_000_000, 1.0, 1_000_000, "input-tokens"), Quota(900, 6.0, 1000, "output-tokens")])
    paced.sent(0.0, 500.0)
    assert paced.wait(0.0) == 0.0


def test_what_goes_in_takes_nothing_of_what_may_come_out() -> None:
    paced = pace(tokens_per_minute=1e9)
    for _ in range(200):
        paced.used(5000, 100, 5100.0)
    paced.update_quotas(0.0, [Quota(30_000, 30.0, 80_000, "output-tokens")])
    paced.sent(0.0, 5100.0)
    assert paced.wait(0.0) == pytest.approx(0.0, abs=0.01)


def test_while_more_than_half_is_left_headers_change_nothing() -> None:
    paced = pace()
    paced.update_quotas(0.0, [Quota(60, 30.0, 100)])
    assert [paced.wait(0.0), paced.sent(0.0), paced.wait(0.0)] == [0.0, False, 0.0]


def test_what_little_is_left_is_spread_until_there_is_more() -> None:
    paced = pace()
    paced.update_quotas(0.0, [Quota(10, 30.0, 100)])
    paced.sent(0.0)
    assert paced.wait(0.0) == pytest.approx(2.9)


def test_nothing_left_is_waited_for() -> None:
    paced = pace()
    paced.update_quotas(0.0, [Quota(0, 30.0, 100)])
    assert paced.wait(0.0) == 30.0


def test_nothing_left_until_a_moment_that_is_past_is_not_waited_for() -> None:
    paced = pace()
    paced.update_quotas(0.0, [Quota(0, 0.0, 100)])
    assert paced.wait(0.0) == 0.0


def test_tokens_that_are_left_hold_the_line_too() -> None:
    paced = pace()
    paced.update_quotas(0.0, [Quota(0, 12.0, 1000, "tokens")])
    assert paced.wait(0.0) == 12.0


def test_a_bucket_that_fills_steadily_is_used_as_fast_as_it_fills_and_never_refuses() -> None:
    """The server: a hundred, ten more a second, reported in every answer."""
    paced, now, level, filled_at, taken = pace(), 0.0, 100.0, 0.0, []
    while now < 60:
        wait = paced.wait(now)
        if wait > 0:
            now += wait
            continue
        level, filled_at = min(100.0, level + 10 * (now - filled_at)), now
        assert level >= 1.0, f"refused at {now}"
        level -= 1.0
        paced.sent(now)
        taken.append(now)
        now += 0.01
        paced.update_quotas(now, [Quota(int(level), (100 - level) / 10, 100)])
        paced.answered(now, now - 0.01)
    assert len([moment for moment in taken if 30 <= moment < 60]) == pytest.approx(300, rel=0.1)


def test_failures_in_a_row_open_the_breaker_and_then_one_goes_at_growing_intervals() -> None:
    paced = pace()
    opened = [fail(paced, 0.0, "connection") for _ in range(TRIPS_AFTER)]
    assert opened == [False] * (TRIPS_AFTER - 1) + [True]
    intervals, now = [], 0.0
    for _ in range(8):
        wait = paced.wait(now)
        intervals.append(wait)
        now += wait
        assert paced.sent(now)
        assert paced.wait(now) == math.inf
        paced.failed(now, now, ModelError("connection", "no"), True)
    assert intervals == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 28.5, 30.0]
    assert paced.breaker.is_over(now)


def test_errors_open_the_breaker_only_if_they_are_of_many_requests() -> None:
    paced = pace()
    assert not any(fail(paced, 0.0, "server", request=number % 15) for number in range(1000))
    assert fail(paced, 0.0, "server", request=15)
    intervals, now = [], 0.0
    for _ in range(6):
        wait = paced.wait(now)
        intervals.append(wait)
        now += wait
        assert paced.sent(now)
        paced.failed(now, now, ModelError("server", "no"), True)
    assert intervals == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0], "a server that says something is asked more often"


def test_any_answer_closes_the_breaker() -> None:
    paced = pace(adaptive=True)
    for number in range(TRIPS_AFTER_REQUESTS):
        fail(paced, 0.0, "server", request=number)
    assert paced.breaker.is_open
    paced.sent(1.0)
    assert paced.answered(1.5, 1.0)
    assert (paced.breaker.is_open, paced.wait(1.5)) == (False, 0.0)


def test_what_a_server_sent_before_it_died_does_not_close_the_breaker() -> None:
    paced = pace()
    paced.sent(0.0)
    for _ in range(TRIPS_AFTER):
        fail(paced, 1.0, "connection")
    assert not paced.answered(1.1, 0.0)
    assert paced.breaker.is_open
    paced.sent(2.0)
    assert paced.answered(2.1, 2.0)


def test_a_refused_request_is_an_answer_of_a_server_that_works() -> None:
    paced = pace()
    for number in range(TRIPS_AFTER_REQUESTS - 1):
        fail(paced, 0.0, "server", request=number)
    fail(paced, 0.0, "context_too_long", request=98)
    assert not fail(paced, 0.0, "server", request=99)


def test_a_probe_that_is_given_up_leaves_room_for_the_next() -> None:
    paced = pace()
    for number in range(TRIPS_AFTER_REQUESTS):
        fail(paced, 0.0, "timeout", request=number)
    assert paced.sent(1.0)
    paced.dropped(True)
    assert paced.wait(1.0) == 0.0


def test_without_patience_the_breaker_never_opens() -> None:
    paced = pace(patience_seconds=0.0)
    assert not any(fail(paced, 0.0, "connection") for _ in range(100))
    assert paced.wait(0.0) == 0.0


def open_breaker(paced: Pace) -> None:
    for _ in range(TRIPS_AFTER):
        fail(paced, 0.0, "connection")
    assert paced.breaker.is_open


def test_a_server_that_never_answered_gets_less_time_than_one_that_did() -> None:
    paced = pace(first_contact_seconds=30.0)
    open_breaker(paced)
    assert [paced.breaker.is_over(now) for now in (29.9, 30.0)] == [False, True]
    paced = pace(first_contact_seconds=30.0)
    paced.sent(0.0)
    paced.answered(0.0, 0.0)
    open_breaker(paced)
    assert [paced.breaker.is_over(now) for now in (30.0, 59.9, 60.0)] == [False, False, True]


@pytest.mark.parametrize(
    ("kind", "has_contact"),
    [
        ("connection", False),
        ("timeout", False),
        ("server", False),
        ("rate_limit", True),
        ("overload", True),
        ("bad_request", True),
        ("auth", True),
    ],
)
def test_a_server_that_refuses_or_is_busy_is_there(kind: Kind, has_contact: bool) -> None:
    paced = pace()
    fail(paced, 0.0, kind)
    assert paced.breaker.has_contact is has_contact


def test_the_last_probe_is_sent_when_the_patience_ends() -> None:
    paced = pace(patience_seconds=10.0)
    open_breaker(paced)
    now, probes = 0.0, []
    while not paced.breaker.is_over(now):
        now += paced.wait(now)
        probes.append(now)
        assert paced.sent(now)
        paced.failed(now, now, ModelError("connection", "no"), True)
    assert probes == [0.5, 1.5, 3.5, 7.5, 10.0]


def test_another_pace_counts_at_once() -> None:
    paced = pace(requests_per_minute=1)
    paced.sent(0.0)
    assert paced.wait(0.0) > 50
    paced.change(PaceLimits(ceiling=100, adaptive=False))
    assert paced.wait(0.0) == 0.0


@given(st.integers(1, 40), st.integers(1, 60), st.sampled_from([0.1, 1.0, 7.0]))
def test_all_work_gets_done_whatever_the_limit_of_a_server(ceiling: int, bears: int, latency: float) -> None:
    told = work(PaceLimits(ceiling=ceiling), Server(latency, lambda now: bears), 20 * latency + 20)
    assert told.most <= ceiling
    assert told.answers >= 0.5 * min(ceiling, bears) * (20 * latency + 20) / latency - 2 * ceiling


def test_a_request_that_times_out_alone_holds_up_no_other() -> None:
    """It may be the one that no server answers; the server did not say that it has too much to do."""
    paced = pace(ceiling=1, adaptive=True)
    for _ in range(20):
        fail(paced, 0.0, "timeout")
    assert paced.wait(0.0) == 0.0
    fail(paced, 0.0, "rate_limit")
    assert paced.wait(0.0) > 0.0
