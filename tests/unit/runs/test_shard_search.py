"""How many shards a worker looks at until it has one: many workers must not look at all shards again and again."""

import random
from pathlib import Path

import pytest

from holdfast.journal import Objects
from holdfast.records import Shard
from holdfast.runs.shards.marks import ShardMarks
from holdfast.runs.shards.search import ShardLook, ShardSearch
from tests.stores import MemoryObjects

FREE, HELD, COMPLETE = ShardLook(True, False), ShardLook(False, False), ShardLook(False, True)
EXPIRY = 30.0


class Shards:
    """The shards of one run as all workers see them, and the looks at them."""

    def __init__(self, count: int, state: ShardLook = FREE) -> None:
        self.count = count
        self.states = dict.fromkeys((Shard(number, count) for number in range(1, count + 1)), state)
        self.looks = 0
        self.listings = 0
        self.now = 0.0
        self.marks = ShardMarks("", MemoryObjects())

    def worker(self, seed: int = 1) -> ShardSearch:
        return ShardSearch(self.count, EXPIRY, lambda: self.now, random.Random(seed))

    def next(self, search: ShardSearch, left_out: set[Shard] | None = None) -> Shard | None:
        for shard in search.candidates(left_out or ()):
            self.looks += 1
            if search.note(shard, self.states[shard]):
                return shard
            if search.should_list_marks:
                self.listings += 1
                marked = self.marks.read(1, 0)
                search.learn(marked.begun, marked.complete)
        return None


def test_every_shard_is_found_with_few_looks_and_listings() -> None:
    shards = Shards(200)
    workers = [shards.worker(seed) for seed in range(20)]
    claimed: list[Shard] = []
    while FREE in shards.states.values():
        for search in workers:
            shards.now += EXPIRY
            found = shards.next(search)
            if found is not None:
                claimed.append(found)
                shards.marks.add_begun(found)
                shards.marks.add_complete(found, 1, 0)
                shards.states[found] = COMPLETE
    assert sorted(claimed) == sorted(shards.states)
    shards.now += EXPIRY
    assert [shards.next(search) for search in workers] == [None] * 20
    assert all(search.is_over for search in workers)
    # At most one listing and one look in vain for each claim; at the end ten looks of each worker. Without marks each
    # worker would look at all shards: 4,000 looks.
    assert shards.listings <= 200 + 20
    assert shards.looks <= 2 * 200 + 11 * 20


def test_without_marks_complete_shards_are_looked_at_once() -> None:
    shards = Shards(50, COMPLETE)
    search = shards.worker()
    for _ in range(3):
        assert shards.next(search) is None
        assert (shards.looks, search.is_over) == (50, True)
    search.start_over()
    assert not search.is_over
    shards.next(search)
    assert shards.looks == 100


def test_a_worker_that_waits_looks_at_a_few_shards_at_a_time_and_at_all_of_them_in_turn() -> None:
    shards = Shards(100, HELD)
    for each in shards.states:
        shards.marks.add_begun(each)
    search, dead, found = shards.worker(), Shard(17, 100), None
    shards.states[dead] = FREE
    while found is None and shards.now < 100 / 10 * 3 * EXPIRY:
        found = shards.next(search)
        shards.now += search.pause
    assert found == dead
    assert shards.looks <= 10 * (shards.now / 10 + 10)


def test_a_watched_shard_is_seen_again_before_others_are_watched() -> None:
    """A dead worker is recognised by two looks at its shard, an expiry apart."""
    shards = Shards(100, HELD)
    search = shards.worker()
    search.learn(shards.states.keys(), ())
    first = list(search.candidates())
    shards.now += EXPIRY + 1
    assert list(search.candidates()) == first
    shards.now += EXPIRY
    others = list(search.candidates())
    assert len(others) == len(first) == 10
    assert not set(others) & set(first)


def test_a_worker_that_waits_for_the_last_shard_waits_longer_each_time() -> None:
    shards, pauses = Shards(1, HELD), []
    search = shards.worker()
    for _ in range(20):
        assert shards.next(search) is None
        pauses.append(search.pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == EXPIRY / 3
    assert not search.is_over
    shards.states = dict.fromkeys(shards.states, FREE)
    assert shards.next(search) == Shard(1, 1)
    assert search.pause == 1.0


def test_shards_that_a_worker_cannot_help_are_left_out() -> None:
    shards = Shards(3)
    search, done = shards.worker(), set[Shard]()
    while (found := shards.next(search, done)) is not None:
        done.add(found)  # it stays free: its samples have failed, for example
    assert len(done) == 3
    assert search.is_over


@pytest.mark.parametrize("objects", [None, MemoryObjects()])
def test_marks_of_completion_count_for_one_stage_of_a_run(tmp_path: Path, objects: Objects | None) -> None:
    marks, (one, two, three) = ShardMarks(str(tmp_path), objects), (Shard(number, 3) for number in (1, 2, 3))
    assert marks.read(1, 0).begun == frozenset()
    for _ in range(2):
        marks.add_begun(one)
        marks.add_begun(two)
        marks.add_complete(two, 1, 0)
        marks.add_complete(three, 2, 0)
    assert marks.read(1, 0).begun == {one, two}
    assert marks.read(1, 0).complete == {two}
    assert marks.read(2, 0).complete == {three}
    assert marks.read(2, 1).complete == frozenset()
