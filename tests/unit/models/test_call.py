"""The times of one request: of all its tries, rounded, and without what was nothing."""

import contextvars

import msgspec

from holdfast.models.call import ModelCall, current_call
from holdfast.records.facts import Step


def test_what_was_nothing_is_not_written() -> None:
    call = ModelCall([], {}, [])
    call.first = 0.12344
    step = Step(1, "solve/1", "q", timing=call.timing())
    assert msgspec.json.encode(step) == b'{"o":1,"scope":"solve/1","q":"q","timing":{"first":0.1234}}'


def test_a_try_that_failed_is_lost_and_the_next_begins_anew() -> None:
    call = ModelCall([], {}, [])
    call.connect, call.first = 0.5, 0.7
    call.failed(2.0)
    call.first = 0.25
    assert (call.lost, call.connect, call.first) == (2.0, 0.0, 0.25)


def test_a_rate_limit_is_never_more_than_all_of_the_waiting() -> None:
    call = ModelCall([], {}, [])
    call.held(1.0, 3.0)
    call.held(2.0, 0.5)
    assert (call.queue, call.limited) == (3.0, 1.5)


def test_a_call_is_found_in_its_own_context_and_nowhere_else() -> None:
    inside = contextvars.copy_context()
    call = ModelCall([], {}, [])
    inside.run(current_call.set, call)
    assert inside.run(current_call.get) is call
    assert current_call.get() is None


def test_repeats_of_a_sample_share_its_name() -> None:
    assert {ModelCall([], {}, [], f"t/m/s/{repeat}").sample for repeat in (1, 2)} == {"t/m/s"}
