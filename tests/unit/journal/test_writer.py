"""The writer: acknowledged in order, bounded in memory, and nobody waits for ever when it ends."""

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.errors import FencedError, HeldError, StoppedError
from holdfast.journal import OpenRequest, Position, Writer, WriterOptions, journal_folder, open_writer, verify
from holdfast.records import Draft, draft
from tests.journals import QUICK, UID, QuickDisk, files_in, note, notes, read_all, small_journal

WIDE = OpenRequest(UID)
HANGING_SECONDS = 20
Result = TypeVar("Result")


@pytest.fixture
def run(tmp_path: os.PathLike[str]) -> str:
    place = os.path.join(tmp_path, "run")
    os.mkdir(place)
    return place


def options(
    disk: QuickDisk = QUICK, queue_bytes: int = 1 << 20, clock: Callable[[], float] = lambda: 1.7e9
) -> WriterOptions:
    return WriterOptions(queue_bytes=queue_bytes, lock_seconds=0.1, disk=disk, clock=clock)


class GatedDisk(QuickDisk):
    """Once closed, each sync waits for a ticket; tells how many have come to wait."""

    def __init__(self) -> None:
        self._tickets = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self.closed = False

    def sync(self, handle: int) -> None:
        if self.closed:
            self._arrived.release()
            self._tickets.acquire()

    def let_pass(self, count: int = 1) -> None:
        self._tickets.release(count)

    async def someone_waits(self) -> None:
        assert await asyncio.to_thread(self._arrived.acquire, timeout=HANGING_SECONDS)


async def settle() -> None:
    """Let everything that is ready in the loop run."""
    for _ in range(50):
        await asyncio.sleep(0)


def start(writer: Writer, records: Sequence[Draft]) -> list["asyncio.Task[Position]"]:
    return [asyncio.ensure_future(writer.append(record)) for record in records]


def finish(story: Coroutine[None, None, Result]) -> Result:
    """Run it to its end; one that waits for ever fails instead of hanging the suite."""
    return asyncio.run(asyncio.wait_for(story, HANGING_SECONDS))


# Acknowledgements.


async def acknowledge_in_order(run: str) -> None:
    writer = await open_writer(run, WIDE, options())
    told: list[int] = []
    tasks = start(writer, notes("a", 300))
    for task in tasks:
        task.add_done_callback(lambda done: told.append(done.result().n))
    await asyncio.gather(*tasks)
    assert writer.acknowledged.n == 301
    await writer.close()
    assert told == list(range(2, 302))
    assert read_all(journal_folder(run)).keys == [f"a-{index}" for index in range(300)]


def test_records_are_acknowledged_in_order_and_are_where_they_are_said_to_be(run: str) -> None:
    finish(acknowledge_in_order(run))


async def acknowledge_only_after_sync(run: str) -> None:
    disk = GatedDisk()
    writer = await open_writer(run, WIDE, options(disk))
    disk.closed = True
    (task,) = start(writer, [note("a")])
    await disk.someone_waits()
    await settle()
    assert not task.done()
    disk.let_pass()
    assert (await task).n == 2
    disk.let_pass(100)
    await writer.close()


def test_nothing_is_acknowledged_before_it_is_synced(run: str) -> None:
    finish(acknowledge_only_after_sync(run))


async def survive_a_clock_that_goes_backwards(run: str) -> None:
    times = iter([1e9, 9e8, 1.5e9, 0.0, -5.0, 1e9, 1e9, 1e9])
    writer = await open_writer(run, WIDE, options(clock=lambda: next(times)))
    for record in notes("a", 5):
        await writer.append(record)
    await writer.close()


def test_a_clock_that_goes_backwards_changes_nothing_but_the_times(run: str) -> None:
    finish(survive_a_clock_that_goes_backwards(run))
    seen = read_all(journal_folder(run))
    assert seen.numbers == [1, 2, 3, 4, 5, 6]
    assert [entry.line.at for entry in seen.entries][1:4] == [
        "1998-07-09T16:00:00.000000Z",
        "2017-07-14T02:40:00.000000Z",
        "1970-01-01T00:00:00.000000Z",
    ]


# Back-pressure.


async def hold_back(run: str) -> list[str]:
    disk = GatedDisk()
    records = notes("a", 6)
    writer = await open_writer(run, WIDE, options(disk, queue_bytes=records[0].size + 1))
    disk.closed = True
    tasks = start(writer, records)
    await disk.someone_waits()
    await settle()
    for task in tasks[1:]:
        task.cancel()  # all of these wait for room
    disk.let_pass(100)
    assert (await tasks[0]).n == 2
    await asyncio.gather(*tasks, return_exceptions=True)
    await writer.close()
    return read_all(journal_folder(run)).keys


def test_cancelling_while_it_waits_for_room_writes_nothing(run: str) -> None:
    assert finish(hold_back(run)) == ["a-0"]


async def admit_one_by_one(run: str) -> list[str]:
    """The first is synced, the second gets its room; the third must still wait, so cancelling it writes nothing."""
    disk = GatedDisk()
    records = notes("a", 3)
    writer = await open_writer(run, WIDE, options(disk, queue_bytes=records[0].size + 1))
    disk.closed = True
    tasks = start(writer, records)
    await disk.someone_waits()
    disk.let_pass()
    await tasks[0]
    await disk.someone_waits()
    await settle()
    tasks[2].cancel()
    disk.let_pass(100)
    await asyncio.gather(*tasks, return_exceptions=True)
    await writer.close()
    return read_all(journal_folder(run)).keys


def test_only_as_many_are_admitted_as_there_is_room_for(run: str) -> None:
    assert finish(admit_one_by_one(run)) == ["a-0", "a-1"]


async def cancel_one_that_was_just_admitted(run: str) -> list[str]:
    """The first is acknowledged and frees its room for the second, which is cancelled before it can use it."""
    records = notes("a", 3)
    writer = await open_writer(run, WIDE, options(queue_bytes=records[0].size + 1))
    tasks: list[asyncio.Task[Position]] = []

    async def append_then_cancel() -> Position:
        position = await writer.append(records[0])
        tasks[1].cancel()
        return position

    async def append_the_second() -> Position:
        return await writer.append(records[1])

    tasks += [asyncio.create_task(append_then_cancel()), asyncio.create_task(append_the_second())]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[1].cancelled()
    await asyncio.wait_for(writer.append(records[2]), 20.0)
    await writer.close()
    return read_all(journal_folder(run)).keys


def test_cancelling_one_that_was_admitted_gives_its_room_back(run: str) -> None:
    assert finish(cancel_one_that_was_just_admitted(run)) == ["a-0", "a-2"]


async def push_through_a_small_queue(run: str) -> None:
    writer = await open_writer(run, OpenRequest(UID, segment_bytes=2000), options(queue_bytes=1000))
    positions = await asyncio.gather(*start(writer, notes("a", 200)))
    await writer.close()
    assert [position.n for position in positions] == sorted(position.n for position in positions)


def test_many_producers_get_through_a_small_queue_in_order(run: str) -> None:
    finish(push_through_a_small_queue(run))
    assert read_all(journal_folder(run)).keys == [f"a-{index}" for index in range(200)]
    assert verify(journal_folder(run), disk=QUICK).ok


async def push_one_that_is_larger_than_the_queue(run: str) -> None:
    writer = await open_writer(run, WIDE, options(queue_bytes=10))
    await asyncio.gather(*start(writer, [draft("note", {"v": "a" * 5000}, f"k{index}") for index in range(5)]))
    await writer.close()


def test_a_record_larger_than_the_queue_goes_through_alone(run: str) -> None:
    finish(push_one_that_is_larger_than_the_queue(run))
    assert read_all(journal_folder(run)).keys == [f"k{index}" for index in range(5)]


async def cancel_what_is_queued(run: str) -> list[str]:
    disk = GatedDisk()
    writer = await open_writer(run, WIDE, options(disk))
    disk.closed = True
    tasks = start(writer, notes("a", 2))
    await disk.someone_waits()
    tasks[0].cancel()
    disk.let_pass(100)
    await asyncio.gather(*tasks, return_exceptions=True)
    await writer.close()
    return read_all(journal_folder(run)).keys


def test_cancelling_what_is_queued_disturbs_no_one_else(run: str) -> None:
    assert finish(cancel_what_is_queued(run)) == ["a-0", "a-1"]


# The end.


async def append_after_close(run: str) -> None:
    writer = await open_writer(run, WIDE, options())
    await writer.append(note("a"))
    await writer.close()
    await writer.close()
    with pytest.raises(StoppedError, match="closed"):
        await writer.append(note("b"))


def test_appending_after_closing_is_refused(run: str) -> None:
    finish(append_after_close(run))
    assert read_all(journal_folder(run)).keys == ["a"]


async def close_while_some_wait(run: str) -> list[object]:
    disk = GatedDisk()
    records = notes("a", 5)
    writer = await open_writer(run, WIDE, options(disk, queue_bytes=records[0].size + 1))
    disk.closed = True
    tasks = start(writer, records)
    await disk.someone_waits()
    closing = asyncio.ensure_future(writer.close())
    await settle()
    disk.let_pass(100)
    await closing
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_closing_saves_what_is_queued_and_tells_those_who_still_wait_for_room(run: str) -> None:
    first, *others = finish(close_while_some_wait(run))
    assert isinstance(first, Position)
    assert all(isinstance(other, StoppedError) for other in others)
    assert read_all(journal_folder(run)).keys == ["a-0"]


async def close_and_seal(run: str) -> None:
    writer = await open_writer(run, WIDE, options())
    await writer.append(note("a"))
    await writer.close(seal_last=True)


def test_closing_for_good_seals_the_last_segment(run: str) -> None:
    finish(close_and_seal(run))
    assert list(files_in(journal_folder(run))) == ["000001.jsonl.zst"]
    assert verify(journal_folder(run), disk=QUICK).ok


class FailingDisk(QuickDisk):
    """Fails every sync with the given error, once told to."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.failing = False
        self.closed: list[int] = []
        self.opened: list[int] = []

    def create(self, path: str) -> int:
        handle = super().create(path)
        self.opened.append(handle)
        return handle

    def close(self, handle: int) -> None:
        self.closed.append(handle)
        super().close(handle)

    def sync(self, handle: int) -> None:
        if self.failing:
            raise self.error


async def fail(run: str, disk: FailingDisk) -> list[object]:
    records = notes("a", 6)
    writer = await open_writer(run, WIDE, options(disk, queue_bytes=records[0].size * 3))
    await writer.append(note("kept"))
    disk.failing = True
    results = await asyncio.gather(*start(writer, records), return_exceptions=True)
    with pytest.raises(StoppedError):
        await writer.close()
    return list(results)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "broken"), RuntimeError("a bug"), MemoryError(), SystemExit(1)], ids=repr
)
def test_whatever_ends_the_thread_everyone_who_waits_is_told(run: str, error: BaseException) -> None:
    disk = FailingDisk(error)
    results = finish(fail(run, disk))
    assert len(results) == 6
    assert all(isinstance(result, StoppedError) for result in results)
    assert "kept" in read_all(journal_folder(run)).keys


def test_a_thread_that_ends_by_a_bug_closes_its_file(run: str) -> None:
    disk = FailingDisk(RuntimeError("a bug"))
    finish(fail(run, disk))
    assert len(disk.opened) == 1
    assert set(disk.opened) <= set(disk.closed)


async def append_after_failure(run: str, count: int) -> list[object]:
    disk = FailingDisk(OSError(errno.EIO, "broken"))
    records = notes("a", count)
    writer = await open_writer(run, WIDE, options(disk, queue_bytes=records[0].size * 3))
    disk.failing = True
    await asyncio.gather(*start(writer, records), return_exceptions=True)
    results = await asyncio.gather(*start(writer, notes("late", 3)), return_exceptions=True)
    await expect(writer.close, StoppedError)
    return list(results)


@pytest.mark.parametrize("count", [1, 3, 10])
def test_appending_after_a_failure_is_refused_and_never_waits_for_room(run: str, count: int) -> None:
    """What was queued when the thread ended takes no room any more."""
    results = finish(append_after_failure(run, count))
    assert len(results) == 3
    assert all(isinstance(result, StoppedError) for result in results)


async def reopen(run: str) -> list[str]:
    writer = await open_writer(run, WIDE, options())
    await writer.append(note("again"))
    await writer.close()
    return read_all(journal_folder(run)).keys


def test_after_a_failure_the_run_can_be_opened_again(run: str) -> None:
    finish(fail(run, FailingDisk(RuntimeError("a bug"))))
    keys = finish(reopen(run))
    assert keys[0] == "kept"
    assert keys[-1] == "again"


# One writer.


async def open_twice(run: str) -> None:
    writer = await open_writer(run, WIDE, options())
    with pytest.raises(HeldError, match="another live process"):
        await open_writer(run, WIDE, options())
    await writer.append(note("a"))
    await writer.close()
    again = await open_writer(run, WIDE, options())
    assert again.epoch == 2
    await again.close()


def test_a_second_writer_is_refused_until_the_first_lets_go(run: str) -> None:
    finish(open_twice(run))


async def expect_fenced(run: str) -> None:
    with pytest.raises(FencedError):
        await open_writer(run, OpenRequest(UID, epoch=1), options())


def test_an_opening_that_is_refused_leaves_no_thread_and_no_lock(run: str) -> None:
    small_journal(journal_folder(run))
    before = {thread for thread in threading.enumerate() if thread.name.startswith("holdfast")}
    finish(expect_fenced(run))
    after = {thread for thread in threading.enumerate() if thread.name.startswith("holdfast")}
    assert after <= before
    assert finish(reopen(run))[-1] == "again"


async def be_taken_over(run: str) -> None:
    """Another machine makes the next segment: this writer must not write it."""
    writer = await open_writer(run, OpenRequest(UID, segment_bytes=400), options())
    await asyncio.to_thread(Path(journal_folder(run), "000002.jsonl").write_bytes, b"of another writer")
    await asyncio.gather(*start(writer, notes("a", 20)))
    await expect(lambda: writer.append(note("too late")), StoppedError)
    await expect(writer.close, StoppedError)


async def expect(call: Callable[[], Awaitable[object]], error: type[Exception]) -> None:
    with pytest.raises(error):
        await call()


def test_a_writer_whose_next_segment_exists_has_lost_the_run(run: str) -> None:
    finish(be_taken_over(run))
    assert Path(journal_folder(run), "000002.jsonl").read_bytes() == b"of another writer"


async def write_behind_a_misnamed_segment(run: str) -> None:
    writer = await open_writer(run, WIDE, options())
    for record in notes("new", 3):
        await writer.append(record)
    await asyncio.sleep(0)
    await writer.close()


def test_a_misnamed_segment_does_not_get_the_hot_one_sealed_and_removed(run: str) -> None:
    folder = journal_folder(run)
    written = small_journal(folder)
    *_, before, last = written.names
    os.replace(os.path.join(folder, last), os.path.join(folder, before))
    finish(write_behind_a_misnamed_segment(run))
    seen = read_all(folder)
    assert [f"new-{index}" for index in range(3)] == [key for key in seen.keys if key.startswith("new")]
    assert written.numbers_in(last) <= set(seen.numbers)
