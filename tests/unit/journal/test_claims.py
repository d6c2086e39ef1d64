"""Claims: one writer among many machines, whatever the store answers."""

import itertools
import os
import subprocess
import sys
import threading
import uuid

import msgspec
import pytest

from holdfast.errors import HeldError, StoreError, UsageError
from holdfast.journal.object_store import Objects, open_objects
from holdfast.journal.ownership.claims import (
    Beat,
    Claim,
    TakeoverTiming,
    greatest_epoch,
    observe_claim,
    read_beat,
    take_epoch,
    write_beat,
)
from holdfast.journal.ownership.lease import Holder, Lease, this_process
from tests.stores import EVERY_KIND, Broken, Bucket, MemoryObjects, failing_every

ELSEWHERE = Holder(4711, "another-machine", "boot", "started")
EXPIRY = 30.0
in_every_kind_of_store = pytest.mark.parametrize("kind_of_store", EVERY_KIND)


class Hours:
    """A clock that only sleeping moves; at each look at a beat, something may happen."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    @property
    def patience(self) -> TakeoverTiming:
        return TakeoverTiming(EXPIRY, self, self.sleep)


def claimed(objects: Objects, epoch: int, holder: Holder, beat: Beat | None = None) -> None:
    assert objects.create(f"lease/{epoch:06d}", msgspec.json.encode(Claim(uuid.uuid4().hex, holder)))
    if beat is not None:
        write_beat(objects, epoch, beat)


def dead_process() -> Holder:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        me = this_process()
        return Holder(process.pid, me.host, me.boot, _started(process.pid), me.space)


def _started(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[19]


@in_every_kind_of_store
def test_the_first_epoch_of_a_new_run_is_the_first(bucket: Bucket) -> None:
    objects = open_objects(f"{bucket.url}/run")
    assert take_epoch(objects, 1) == 1
    assert greatest_epoch(objects) == 1
    assert [each.name for each in objects.listed("lease")] == ["lease/000001"], "the probe is gone"


def test_an_epoch_is_never_below_what_the_journal_has_seen() -> None:
    objects = MemoryObjects()
    assert take_epoch(objects, 7) == 7


@in_every_kind_of_store
def test_if_several_processes_claim_at_once_one_wins_and_the_others_get_held_error(bucket: Bucket) -> None:
    beats = itertools.count(7)  # each differs, or a second late process would see a beat that does not change
    for round_number in range(3):
        url = f"{bucket.url}/run{round_number}"
        barrier = threading.Barrier(4)
        outcomes: list[object] = []

        def take(url: str = url, barrier: threading.Barrier = barrier, outcomes: list[object] = outcomes) -> None:
            objects = open_objects(url)
            barrier.wait()
            try:  # one that comes late sees the winner beat
                patience = TakeoverTiming(sleep=lambda seconds: write_beat(objects, 1, Beat(next(beats))))
                outcomes.append(take_epoch(objects, 1, patience))
            except HeldError as error:
                outcomes.append(error)

        takers = [threading.Thread(target=take) for _ in range(4)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
        won = [each for each in outcomes if isinstance(each, int)]
        assert won == [1], outcomes
        assert len(outcomes) == 4


def test_one_who_took_an_epoch_while_a_greater_one_was_taken_has_lost() -> None:
    objects = MemoryObjects()

    def before(verb: str, name: str) -> str:
        if verb == "create" and name == "lease/000001":
            objects.create("lease/000005", b"{}")
        return "do"

    with pytest.raises(HeldError, match="a moment ago"):
        take_epoch(Broken(objects, before), 1)


def test_one_who_takes_a_greater_epoch_does_not_take_the_run_from_one_who_has_just_begun() -> None:
    """It has seen the end of the holder before, and knows nothing of the one in between."""
    objects = MemoryObjects()

    def before(verb: str, name: str) -> str:
        if verb == "create" and name == "lease/000005":
            assert take_epoch(objects, 1) == 1
        return "do"

    with pytest.raises(HeldError, match="a moment ago"):
        take_epoch(Broken(objects, before), 5)


def test_a_holder_that_wakes_up_at_the_last_moment_is_given_time_to_notice() -> None:
    """What it puts there until it looks again counts, so it must be there when the taker reads."""
    objects, clock = MemoryObjects(), Hours()
    claimed(objects, 1, ELSEWHERE, Beat(3))

    def before(verb: str, name: str) -> str:
        if verb == "create" and name == "lease/000002":
            write_beat(objects, 1, Beat(4))
            assert greatest_epoch(objects) == 1, "the run is still its own"
        return "do"

    assert take_epoch(Broken(objects, before), 1, clock.patience) == 2
    assert clock.slept >= 2 * EXPIRY


def test_a_create_whose_answer_got_lost_is_mine() -> None:
    objects = MemoryObjects()

    def before(verb: str, name: str) -> str:
        return "mumble" if verb == "create" and name == "lease/000001" else "do"

    assert take_epoch(Broken(objects, before), 1) == 1


def test_a_create_whose_answer_got_lost_and_that_was_another_s_is_not_mine() -> None:
    objects = MemoryObjects()

    def before(verb: str, name: str) -> str:
        if verb == "create" and name == "lease/000001":
            if "lease/000001" not in objects.held:
                claimed(objects, 1, ELSEWHERE)
            return "mumble"
        return "do"

    with pytest.raises((HeldError, StoreError)):
        take_epoch(Broken(objects, before), 1)


def test_a_create_that_fails_now_and_then_is_tried_again() -> None:
    objects = MemoryObjects()
    fails = failing_every(2, ("create",))

    def before(verb: str, name: str) -> str:
        return "do" if "probe" in name else fails(verb, name)

    assert take_epoch(Broken(objects, before), 1) == 1


def test_a_dead_holder_of_this_machine_is_over_at_once() -> None:
    objects, clock = MemoryObjects(), Hours()
    claimed(objects, 1, dead_process(), Beat(3))
    assert take_epoch(objects, 1, clock.patience) == 2
    assert clock.slept == 0


@pytest.mark.parametrize("where", [{"boot": "another boot"}, {"space": "pid:[1]"}], ids=["machine", "container"])
def test_a_holder_on_a_machine_or_in_a_container_of_the_same_name_is_waited_for(where: dict[str, str]) -> None:
    """Its number means nothing here: that no process of ours has it does not make it dead."""
    objects, clock = MemoryObjects(), Hours()
    claimed(objects, 1, msgspec.structs.replace(dead_process(), **where), Beat(3))

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        write_beat(objects, 1, Beat(4))

    with pytest.raises(HeldError):
        take_epoch(objects, 1, TakeoverTiming(EXPIRY, clock, sleep))


def test_one_that_has_ended_is_over_at_once() -> None:
    objects, clock = MemoryObjects(), Hours()
    claimed(objects, 1, ELSEWHERE, Beat(3, ended=True))
    assert take_epoch(objects, 1, clock.patience) == 2
    assert clock.slept == 0


@pytest.mark.parametrize("beat", [None, Beat(3)], ids=["no beat yet", "one beat"])
def test_a_silent_holder_elsewhere_is_over_after_its_expiry_and_not_before(beat: Beat | None) -> None:
    objects, clock = MemoryObjects(), Hours()
    claimed(objects, 1, ELSEWHERE, beat)
    assert take_epoch(objects, 1, clock.patience) == 2
    assert clock.slept >= EXPIRY


@pytest.mark.parametrize("holder", [ELSEWHERE, this_process()], ids=["elsewhere", "here"])
def test_a_holder_that_beats_holds_it_and_is_named(holder: Holder) -> None:
    objects, clock = MemoryObjects(), Hours()
    claimed(objects, 1, holder, Beat(3))

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.slept > EXPIRY / 2:
            write_beat(objects, 1, Beat(4))

    with pytest.raises(HeldError, match=rf"process {holder.pid} on {holder.host}"):
        take_epoch(objects, 1, TakeoverTiming(EXPIRY, clock, sleep))
    assert greatest_epoch(objects) == 1


def test_a_holder_is_waited_for_as_long_as_its_own_claim_says() -> None:
    """Not as long as the judge would like: two machines may be set up differently."""
    objects, clock = MemoryObjects(), Hours()
    assert objects.create("lease/000001", msgspec.json.encode(Claim("n", ELSEWHERE, 300.0)))
    assert take_epoch(objects, 1, TakeoverTiming(1.0, clock, clock.sleep)) == 2
    assert clock.slept >= 300.0
    assert msgspec.json.decode(objects.held["lease/000002"], type=Claim).expiry_seconds == 1.0


def test_one_that_ends_while_it_is_watched_is_over() -> None:
    objects, clock = MemoryObjects(), Hours()
    claimed(objects, 1, ELSEWHERE, Beat(3))

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        write_beat(objects, 1, Beat(4, ended=True))

    assert take_epoch(objects, 1, TakeoverTiming(EXPIRY, clock, sleep)) == 2
    assert clock.slept < EXPIRY


def test_a_beat_whose_holder_has_a_wrong_clock_is_judged_by_our_own() -> None:
    """Nothing in a beat is a time that is compared."""
    objects, clock = MemoryObjects(), Hours()
    clock.now = -5e9
    claimed(objects, 1, ELSEWHERE, Beat(3))
    assert take_epoch(objects, 1, clock.patience) == 2


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b'{"count":"x"}', b'{"nonce":1}'])
def test_a_claim_and_a_beat_that_cannot_be_read_are_waited_for(data: bytes) -> None:
    objects, clock = MemoryObjects({"lease/000003": data, "lease/000003.beat": data}), Hours()
    assert read_beat(objects, 3) is None
    assert take_epoch(objects, 1, clock.patience) == 4
    assert clock.slept >= EXPIRY


def test_what_is_no_epoch_in_the_folder_is_none() -> None:
    strange = ("lease/x", "lease/1", "lease/000002.beat", "lease/probe-1", "lease/000009/x", "other/000009")
    assert greatest_epoch(MemoryObjects(dict.fromkeys(strange, b""))) == 0


class Careless(MemoryObjects):
    """Ignores the create-only condition."""

    def create(self, name: str, data: bytes) -> bool:
        self.put(name, data)
        return True


def test_a_store_that_ignores_the_create_only_condition_is_found_and_refused() -> None:
    objects = Careless()
    with pytest.raises(UsageError, match=r"mirror\.exclusive: false"):
        take_epoch(objects, 1)
    assert objects.held == {}, "nothing was taken"


def test_a_careless_store_is_refused_also_when_the_probe_cannot_be_removed() -> None:
    def before(verb: str, name: str) -> str:
        if verb == "delete":
            raise StoreError("memory://store: cannot delete")
        return "do"

    with pytest.raises(UsageError, match=r"mirror\.exclusive: false"):
        take_epoch(Broken(Careless(), before), 1)


def test_this_process_is_what_a_claim_names() -> None:
    objects = MemoryObjects()
    take_epoch(objects, 1)
    assert msgspec.json.decode(objects.held["lease/000001"], type=Claim).holder.pid == os.getpid()


class Watched:
    """A run that somebody else holds, and how many requests a look at it costs."""

    def __init__(self) -> None:
        self.store = MemoryObjects(url=f"memory://{uuid.uuid4().hex}")
        self.asked: list[str] = []
        self.hours = Hours()

    def look(self) -> tuple[bool, int]:
        """Whether it could be taken over, and the number of requests."""
        self.asked.clear()
        is_free, _ = observe_claim(Broken(self.store, self._count), self.hours)
        return is_free, len(self.asked)

    def _count(self, verb: str, name: str) -> str:
        self.asked.append(f"{verb} {name}")
        return "do"


def test_a_look_at_a_run_that_nobody_has_claimed_is_one_request() -> None:
    assert Watched().look() == (True, 1)


def test_a_look_at_a_live_holder_is_one_request_after_the_first() -> None:
    watched = Watched()
    claimed(watched.store, 1, ELSEWHERE, Beat(1))
    assert watched.look() == (False, 3)
    for count in range(2, 6):
        watched.hours.now += EXPIRY * 2
        write_beat(watched.store, 1, Beat(count))
        assert watched.look() == (False, 1)


def test_a_holder_that_does_not_beat_for_an_expiry_can_be_followed() -> None:
    watched = Watched()
    claimed(watched.store, 1, ELSEWHERE, Beat(1))
    assert watched.look()[0] is False
    for seconds in (EXPIRY / 2, EXPIRY / 2 - 1):
        watched.hours.now += seconds
        assert watched.look() == (False, 1)
    watched.hours.now += 2
    assert watched.look() == (True, 2)


def test_a_stop_of_the_observer_is_not_taken_for_one_of_the_holder() -> None:
    watched = Watched()
    claimed(watched.store, 1, ELSEWHERE, Beat(1))
    assert watched.look()[0] is False
    watched.hours.now += 10 * EXPIRY
    assert watched.look() == (False, 1), "the holder may have been stopped as long, with the store"
    write_beat(watched.store, 1, Beat(2))
    watched.hours.now += EXPIRY / 2
    assert watched.look() == (False, 1)


def test_one_that_was_stopped_while_it_watched_does_not_take_the_claim_of_a_live_holder() -> None:
    """It was stopped after it had read the heartbeat and before it looked at the clock."""
    objects, clock = MemoryObjects(), Hours()
    claimed(objects, 1, ELSEWHERE, Beat(1))
    beats, stops = itertools.count(2), list[float]()

    def before(verb: str, name: str) -> str:
        if verb == "get" and name == "lease/000001.beat" and clock.slept and not stops:
            stops.append(clock.now)
            clock.now += 10 * EXPIRY
        return "do"

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.slept > EXPIRY / 3:
            write_beat(objects, 1, Beat(next(beats)))

    with pytest.raises(HeldError):
        take_epoch(Broken(objects, before), 1, TakeoverTiming(EXPIRY, clock, sleep))
    assert greatest_epoch(objects) == 1


def test_a_new_holder_is_seen_although_the_beat_of_the_old_one_is_the_same() -> None:
    watched = Watched()
    claimed(watched.store, 1, ELSEWHERE, Beat(1))
    assert watched.look()[0] is False
    claimed(watched.store, 2, ELSEWHERE, Beat(1))
    for _ in range(3):
        watched.hours.now += EXPIRY / 2
        assert watched.look()[0] is False, "the new holder has just begun"
    write_beat(watched.store, 2, Beat(2, ended=True))
    assert watched.look() == (True, 2)
    assert watched.look() == (True, 2), "a run that has ended costs two requests"


@pytest.mark.parametrize(("mirrored", "end"), [(63, ""), (64, "run.completed")])
def test_an_end_in_a_beat_of_an_earlier_version_counts_if_its_record_is_mirrored(mirrored: int, end: str) -> None:
    lease = Lease(ELSEWHERE, 1, 9, 1.0, 1.0, 30.0, acknowledged=60, end="run.completed", last_n=64)
    store = MemoryObjects({"lease/000001.beat": msgspec.json.encode(Beat(9, False, mirrored, lease))})
    found = read_beat(store, 1)
    assert found is not None
    assert found.lease is not None
    assert (found.lease.end, found.lease.durable_n) == (end, 64)


def test_a_beat_does_not_publish_an_end_that_is_not_mirrored() -> None:
    lease = Lease(ELSEWHERE, 1, 9, 1.0, 1.0, 30.0, acknowledged=64, end="run.completed", last_n=64)
    store = MemoryObjects()
    for mirrored, end in ((1, ""), (64, "run.completed")):
        write_beat(store, 1, Beat(9, False, mirrored, lease))
        written = msgspec.json.decode(store.held["lease/000001.beat"], type=Beat)
        assert written.lease is not None
        assert written.lease.end == end
