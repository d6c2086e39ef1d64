"""How many at a time: soon as many as the server can take, seldom more, and never without end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models.pacing.pace import PaceLimits
from holdfast.models.pacing.window import START, UNHEARD_MAX, Window
from tests.unit.models.pace_world import Server, work

SECONDS = 60


@pytest.mark.parametrize("bears", [1, 3, 10, 50, 200, 400])
def test_nine_tenths_of_a_servers_capacity_are_used_after_a_few_round_trips(bears: int) -> None:
    told = work(PaceLimits(ceiling=800), Server(bears=lambda now: bears), SECONDS)
    reached = next(second for second in range(SECONDS) if told.answered.get(second, 0) >= 0.9 * bears)
    assert reached <= 6
    assert told.per_second(30, SECONDS) >= 0.9 * bears


@pytest.mark.parametrize("bears", [3, 10, 50, 200, 400])
def test_few_requests_are_wasted_on_refusals(bears: int) -> None:
    """Once the capacity of the server is known, hardly any."""
    told = work(PaceLimits(ceiling=800), Server(bears=lambda now: bears), SECONDS)
    late = sum(count for second, count in told.refused.items() if second >= 30)
    assert late <= 0.04 * told.per_second(30, SECONDS) * 30
    assert told.refusals <= 2 * bears + 30


def test_a_server_with_more_capacity_soon_gets_more_and_one_with_less_gets_less() -> None:
    told = work(PaceLimits(ceiling=800), Server(bears=lambda now: 50 if now < 60 else 500 if now < 120 else 20), 180)
    assert told.per_second(110, 120) > 450
    assert 18 <= told.per_second(125, 180) <= 20
    assert sum(count for second, count in told.refused.items() if second >= 122) < 60


def test_a_queue_at_the_server_is_not_filled_without_end() -> None:
    """Nothing is refused: only that answers come no faster says that it is enough."""
    told = work(PaceLimits(ceiling=800), Server(lanes=40), SECONDS)
    assert told.most <= 8 * 40
    assert told.per_second(30, SECONDS) == pytest.approx(40, rel=0.03)


def test_a_slow_model_is_asked_as_often_as_before_after_a_moment() -> None:
    """Sixty-four at a time, though the first answer comes after five seconds."""
    told = work(PaceLimits(ceiling=64), Server(latency_seconds=5.0), 30)
    assert told.answered.get(5) == 64


def test_without_an_answer_no_more_are_sent_than_everybody_may() -> None:
    told = work(PaceLimits(ceiling=5000), Server(latency_seconds=60.0), 59)
    assert told.most == UNHEARD_MAX


def test_a_fixed_window_is_the_ceiling_whatever_happens() -> None:
    window = Window(50, adaptive=False)
    window.refused(1.0, 0.5, 50)
    window.answered(2.0, 0.5)
    assert (window.size, window.seconds_until_growth(3.0)) == (50, math.inf)


def test_refusals_of_one_round_trip_halve_once() -> None:
    window = Window(1000, adaptive=True)
    for _ in range(3):
        window.refused(1.0, 0.5, START)
    assert window.size == START // 2


def test_a_refusal_of_the_next_round_trip_halves_again() -> None:
    window = Window(1000, adaptive=True)
    window.refused(1.0, 0.5, START)
    window.refused(2.0, 1.5, START // 2)
    assert window.size == START // 4


def test_a_window_that_nobody_wants_to_use_does_not_grow() -> None:
    window = Window(1000, adaptive=True)
    for second in range(1, 500):
        window.answered(float(second), second - 0.5)
    assert window.size == START


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["answered", "refused", "full", "change"]),
        st.floats(0, 10),
        st.floats(0, 20),
        st.integers(1, 300),
    )
)


@given(st.integers(1, 200), EVENTS)
def test_it_is_never_less_than_one_nor_more_than_the_ceiling(
    ceiling: int, events: list[tuple[str, float, float, int]]
) -> None:
    window, now = Window(ceiling, adaptive=True), 0.0
    for what, seconds, ago, number in events:
        now += seconds
        if what == "answered":
            window.answered(now, now - ago)
        elif what == "refused":
            before = window.size
            window.refused(now, now - ago, number)
            assert window.size <= before
        elif what == "full":
            assert window.seconds_until_growth(now) >= 0
        else:
            ceiling = number
            window.change(ceiling, adaptive=True)
        assert 1 <= window.size <= ceiling
