"""`mirror.wait`: nothing is acknowledged that is not in the store too, and nobody waits for ever."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import FencedError, StoppedError
from holdfast.journal import OpenRequest, Writer, WriterOptions, open_writer
from holdfast.journal.mirror.pieces import MirrorSource
from holdfast.journal.mirror.restore import restore
from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.claims import take_epoch
from holdfast.journal.writer import MirrorOptions
from tests.journals import QUICK, UID, note, read_all
from tests.stores import Broken, MemoryObjects, Outage

PATIENCE_SECONDS = 30.0


def with_writer(
    run: Path, mirroring: MirrorOptions, work: Callable[[Writer], Coroutine[Any, Any, None]], epoch: int | None = None
) -> list[str]:
    """What was told meanwhile."""
    told: list[str] = []
    run.mkdir()

    async def all_of_it() -> None:
        options = WriterOptions(disk=QUICK, mirror=mirroring, tell=lambda event, message: told.append(event))
        writer = await open_writer(str(run), OpenRequest(UID, epoch), options)
        try:
            await work(writer)
        finally:
            await writer.close()

    asyncio.run(asyncio.wait_for(all_of_it(), PATIENCE_SECONDS))
    return told


def waiting(objects: Objects, epoch: int | None = None, last_seconds: float = 5.0) -> MirrorOptions:
    return MirrorOptions(objects, epoch, seconds=0.01, wait=True, beat_seconds=0.01, last_seconds=last_seconds)


def keys_in(objects: MemoryObjects, place: Path) -> list[str]:
    restore(str(place), [MirrorSource(MemoryObjects(dict(objects.held)))], pytest.fail)
    return read_all(str(place / "journal")).keys


async def outage_felt(outage: Outage, times: int = 1) -> None:
    await asyncio.to_thread(outage.wait, times)


async def append_until_refused(writer: Writer) -> None:
    for index in range(1000):
        await writer.append(note(f"late{index}"))


def test_what_is_acknowledged_is_there(tmp_path: Path) -> None:
    objects = MemoryObjects()

    async def work(writer: Writer) -> None:
        for index in range(5):
            await writer.append(note(f"k{index}"))
            assert keys_in(objects, tmp_path / f"at-{index}") == [f"k{each}" for each in range(index + 1)]

    with_writer(tmp_path / "run", waiting(objects), work)


def test_without_waiting_it_is_acknowledged_while_the_store_is_out(tmp_path: Path) -> None:
    """The other side of the promise: a store never slows a run that does not ask for it."""
    outage = Outage()
    outage.now = True

    async def work(writer: Writer) -> None:
        await writer.append(note("a"))

    mirroring = MirrorOptions(Broken(MemoryObjects(), outage), seconds=0.01, last_seconds=0.1)
    assert "mirror.behind" in with_writer(tmp_path / "run", mirroring, work)


def test_an_outage_is_waited_for(tmp_path: Path) -> None:
    objects, outage = MemoryObjects(), Outage()

    async def work(writer: Writer) -> None:
        await writer.append(note("before"))
        outage.now = True
        save = asyncio.ensure_future(writer.append(note("during")))
        await outage_felt(outage, 3)
        assert not save.done(), "acknowledged, and not there"
        outage.now = False
        await save
        assert keys_in(objects, tmp_path / "again") == ["before", "during"]

    with_writer(tmp_path / "run", waiting(Broken(objects, outage)), work)


def test_closing_during_an_outage_acknowledges_nothing_that_is_not_there(tmp_path: Path) -> None:
    objects, outage = MemoryObjects(), Outage()
    saves: list[asyncio.Future[Any]] = []

    async def work(writer: Writer) -> None:
        await writer.append(note("before"))
        outage.now = True
        saves.append(asyncio.ensure_future(writer.append(note("during"))))
        await outage_felt(outage)
        await writer.close()
        with pytest.raises(StoppedError, match="not in the mirror"):
            await saves[0]

    with_writer(tmp_path / "run", waiting(Broken(objects, outage), last_seconds=0.1), work)
    assert keys_in(objects, tmp_path / "again") == ["before"]


def test_closing_sends_what_is_waited_for(tmp_path: Path) -> None:
    objects, outage = MemoryObjects(), Outage()

    async def work(writer: Writer) -> None:
        outage.now = True
        save = asyncio.ensure_future(writer.append(note("during")))
        await outage_felt(outage)
        outage.now = False
        await writer.close()
        await save

    with_writer(tmp_path / "run", waiting(Broken(objects, outage)), work)
    assert keys_in(objects, tmp_path / "again") == ["during"]


def test_one_that_has_lost_the_run_is_told_and_has_nothing_acknowledged(tmp_path: Path) -> None:
    objects = MemoryObjects()
    epoch = take_epoch(objects, 1)

    async def work(writer: Writer) -> None:
        await writer.append(note("mine"))
        objects.create("lease/000002", b"{}")
        with pytest.raises(FencedError):
            await append_until_refused(writer)
        assert writer.lost
        with pytest.raises(StoppedError, match="taken over"):
            await writer.append(note("too late"))

    mirroring = waiting(objects, epoch)
    with pytest.raises(StoppedError, match="taken over"):
        with_writer(tmp_path / "run", mirroring, work, epoch)


def test_one_that_learns_only_at_its_end_that_it_has_lost_the_run_does_not_end_well(tmp_path: Path) -> None:
    """A process that was stopped, replaced and woken may write its last record before its mirror's thread looks."""
    objects = MemoryObjects()
    epoch = take_epoch(objects, 1)

    async def work(writer: Writer) -> None:
        await writer.append(note("mine"))
        objects.create("lease/000002", b"{}")

    unhurried = MirrorOptions(objects, epoch, seconds=PATIENCE_SECONDS, beat_seconds=PATIENCE_SECONDS)
    with pytest.raises(FencedError, match="taken over"):
        with_writer(tmp_path / "run", unhurried, work, epoch)
