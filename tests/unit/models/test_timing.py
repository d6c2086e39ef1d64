"""The times of one request: of all its tries, rounded, and without what was nothing."""

import contextvars

import msgspec

from holdfast.models.timing import Timer, begin_timing, under_way
from holdfast.records.facts import Step


def test_what_was_nothing_is_not_written() -> None:
    timer = Timer()
    timer.first = 0.12344
    step = Step(1, "solve/1", "q", timing=timer.timing())
    assert msgspec.json.encode(step) == b'{"o":1,"scope":"solve/1","q":"q","timing":{"first":0.1234}}'


def test_a_try_that_failed_is_lost_and_the_next_begins_anew() -> None:
    timer = Timer()
    timer.connect, timer.first = 0.5, 0.7
    timer.failed(2.0)
    timer.first = 0.25
    assert (timer.lost, timer.connect, timer.first) == (2.0, 0.0, 0.25)


def test_a_rate_limit_is_never_more_than_all_of_the_waiting() -> None:
    timer = Timer()
    timer.held(1.0, 3.0)
    timer.held(2.0, 0.5)
    assert (timer.queue, timer.limited) == (3.0, 1.5)


def test_a_timer_is_found_by_whoever_works_for_the_same_request_and_by_nobody_else() -> None:
    inside = contextvars.copy_context()
    timer = inside.run(begin_timing)
    assert inside.run(under_way.get) is timer
    assert under_way.get() is None
