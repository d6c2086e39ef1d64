"""Which requests go wrong."""

import pytest

from holdfast.testing import Behaviour, Fault, Storm
from holdfast.testing.behaviour import Arrival, fault_for, lasting_fault, latency_for

ARRIVALS = [Arrival(number, f"digest {number}", 1) for number in range(1, 201)]


def kinds(*faults: Fault, seed: int = 0) -> list[str]:
    chosen = [fault_for(Behaviour(faults=faults, seed=seed), arrival) for arrival in ARRIVALS]
    return [fault.kind if fault else "" for fault in chosen]


def test_a_fault_without_conditions_always_happens() -> None:
    assert set(kinds(Fault("500"))) == {"500"}


def test_first_and_every_count_requests() -> None:
    assert kinds(Fault("500", first=3)) == ["500"] * 3 + [""] * 197
    assert kinds(Fault("500", every=4)) == ["", "", "", "500"] * 50
    assert kinds(Fault("500", every=2, first=4)) == ["", "500", "", "500"] + [""] * 196


def test_a_rate_follows_from_the_request_and_the_seed() -> None:
    some = kinds(Fault("500", rate=0.25))
    assert 25 <= some.count("500") <= 75
    assert kinds(Fault("500", rate=0.25)) == some
    assert kinds(Fault("500", rate=0.25), seed=1) != some


def test_the_same_request_is_drawn_anew_when_it_comes_again() -> None:
    behaviour = Behaviour(faults=[Fault("500", rate=0.5)])
    assert {fault_for(behaviour, Arrival(1, "d", seen)) is None for seen in range(50)} == {True, False}


def test_a_fault_can_be_met_a_few_times_by_the_same_request_and_then_no_more() -> None:
    behaviour = Behaviour(faults=[Fault("500", times=2)])
    assert [fault_for(behaviour, Arrival(9, "d", seen)) is None for seen in (1, 2, 3)] == [False, False, True]


def test_a_sticky_fault_is_met_always_or_never() -> None:
    behaviour = Behaviour(faults=[Fault("500", rate=0.5, sticky=True)])
    for arrival in ARRIVALS:
        met = {fault_for(behaviour, Arrival(seen, arrival.digest, seen)) is None for seen in range(1, 9)}
        assert met == {lasting_fault(behaviour, arrival.digest) is None}
    assert 50 <= sum(lasting_fault(behaviour, each.digest) is None for each in ARRIVALS) <= 150


def test_storms_come_and_go_and_come_before_other_faults() -> None:
    behaviour = Behaviour(faults=[Fault("404")], storms=[Storm(10, 3, [Fault("503")])])
    met = [fault_for(behaviour, arrival) for arrival in ARRIVALS[:12]]
    assert [each.kind for each in met if each] == ["503"] * 3 + ["404"] * 7 + ["503"] * 2


@pytest.mark.parametrize(("every", "lasts"), [(10, 0), (10, 11), (0, 0)])
def test_a_storm_that_never_comes_or_never_ends_is_refused(every: int, lasts: int) -> None:
    with pytest.raises(ValueError, match="a storm lasts"):
        Storm(every, lasts, [Fault("503")])


def test_the_first_fault_that_applies_happens() -> None:
    assert kinds(Fault("reset", first=1), Fault("429", first=2), Fault("hang", first=3))[:4] == [
        "reset",
        "429",
        "hang",
        "",
    ]


def test_latency_has_a_floor_and_a_jitter() -> None:
    assert {latency_for(Behaviour(latency_seconds=2.0), arrival) for arrival in ARRIVALS} == {2.0}
    waits = {latency_for(Behaviour(latency_seconds=2.0, jitter_seconds=1.0), arrival) for arrival in ARRIVALS}
    assert len(waits) == 200
    assert all(2.0 <= wait < 3.0 for wait in waits)


@pytest.mark.parametrize("kind", ["", "200", "600", "42", "hangs", "5000"])
def test_a_fault_that_does_not_exist_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="not known"):
        Fault(kind)


def test_every_zeroth_request_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Fault("500", every=0)


def test_a_trickled_answer_does_not_hide_a_fault_that_lasts() -> None:
    lasting = Fault("content-filter", rate=1.0, sticky=True)
    behaviour = Behaviour(faults=[Fault("trickle", rate=1.0, times=3), lasting])
    assert fault_for(behaviour, Arrival(1, "a", 1)) == lasting
    assert fault_for(Behaviour(faults=behaviour.faults[:1]), Arrival(1, "a", 1)) == behaviour.faults[0]
