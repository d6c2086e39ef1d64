"""Removing a run from its mirror: a tombstone first, then everything else; a crash is finished by the next removal."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import HeldError, UsageError
from holdfast.journal import verify
from holdfast.journal.mirror.pieces import MirrorSource
from holdfast.journal.mirror.removal import (
    newest_epoch,
    refuse_removed,
    refuse_unfinished_removal,
    remove_run,
    removed_run,
)
from holdfast.journal.mirror.restore import restore, uid_of
from holdfast.journal.mirror.tombstones import FOLDER, is_tombstone, tombstone_name
from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.claims import Beat, TakeoverTiming, take_epoch, write_beat
from tests.journals import OTHER_UID, UID, notes
from tests.stores import Broken, Crash, MemoryObjects, crashing_after
from tests.unit.journal.test_uploader import Session, here, restored, writing

TOMBSTONE = tombstone_name(UID)
AT_ONCE = TakeoverTiming(0.01)


@pytest.fixture(params=[True, False], ids=["claimed", "not claimed"])
def mirrored(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, bytes]:
    """The objects of a run that has ended: sealed and plain segments, a plan, a blob."""
    objects = MemoryObjects()
    run = tmp_path / "run"
    (run / "blobs").mkdir(parents=True)
    (run / "blobs" / "b1").write_bytes(b"blob")
    (run / "plan.jsonl.zst").write_bytes(b"plan")
    with writing(run, objects, take_epoch(objects, 1) if request.param else None) as session:
        session.write(*notes("a", 12))
        session.sent()
        session.seal()
        session.write(*notes("b", 3))
        assert session.end()
    return objects.held


def crashes(held: dict[str, bytes]) -> Iterator[MemoryObjects]:
    """What a store holds if the process that removes the run dies before its 1st, 2nd, ... last change."""
    for count in range(1000):
        objects = MemoryObjects(held)
        try:
            remove_run(Broken(objects, crashing_after(count, ("create", "put", "delete"))), UID, AT_ONCE)
        except Crash:
            yield objects
            continue
        return
    raise AssertionError("it never ended")


def test_a_removal_that_crashes_anywhere_is_finished_by_the_next_one(
    mirrored: dict[str, bytes], tmp_path: Path
) -> None:
    whole = restored(MemoryObjects(mirrored), tmp_path / "whole")
    began = False
    for count, objects in enumerate(crashes(mirrored)):
        source = MirrorSource(objects)
        found = removed_run(source)
        if TOMBSTONE not in objects.held:
            assert not began, "the tombstone was deleted"
            assert found is None
            assert restored(objects, tmp_path / f"{count}") == whole, "something was deleted before the tombstone"
        elif found is None:  # the last deletion of all: nothing but leases would make it a new run
            raise AssertionError(f"what is left counts as a run: {sorted(objects.held)}")
        else:
            began = True
            with pytest.raises(UsageError, match="was removed on"):
                refuse_removed(source)
            if found.remains:
                with pytest.raises(UsageError, match="gc memory://store --mirror --yes"):
                    refuse_unfinished_removal(source)
        remove_run(objects, UID, AT_ONCE)
        assert list(objects.held) == [TOMBSTONE]
    assert began


def test_without_the_uid_of_a_folder_the_journal_says_whose_tombstone_it_is(mirrored: dict[str, bytes]) -> None:
    objects = MemoryObjects({**mirrored, "notes.txt": b"of somebody else"})
    remove_run(objects, patience=AT_ONCE)
    assert sorted(objects.held) == [TOMBSTONE, "notes.txt"]
    found = removed_run(MirrorSource(objects))
    assert found is not None
    assert (found.tombstone.uid, found.remains) == (UID, 0)


def test_a_journal_that_cannot_be_read_is_removed_as_well(mirrored: dict[str, bytes]) -> None:
    damaged = {name: b"?" * len(data) if name.startswith("journal/") else data for name, data in mirrored.items()}
    for objects in (*crashes_of_unknown(damaged), MemoryObjects(damaged)):
        remove_run(objects, patience=AT_ONCE)
        assert list(objects.held) == [f"{FOLDER}/unknown"]


def crashes_of_unknown(held: dict[str, bytes]) -> Iterator[MemoryObjects]:
    for count in range(4):
        objects = MemoryObjects(held)
        with pytest.raises(Crash):
            remove_run(Broken(objects, crashing_after(count, ("delete",))), patience=AT_ONCE)
        yield objects


def test_the_mirror_of_another_run_of_the_same_name_stays(mirrored: dict[str, bytes]) -> None:
    objects = MemoryObjects(mirrored)
    with pytest.raises(UsageError, match="holds another run"):
        remove_run(objects, OTHER_UID, AT_ONCE)
    assert objects.held == mirrored


@pytest.mark.parametrize("claimed", [True, False])
def test_a_live_run_is_not_removed(tmp_path: Path, claimed: bool) -> None:
    objects = MemoryObjects()
    with writing(tmp_path / "run", objects, take_epoch(objects, 1) if claimed else None) as session:
        session.write(*notes("a", 3))
        session.sent()
        with pytest.raises(HeldError, match="live process"):
            remove_run(objects, UID, AT_ONCE)
        assert not any(map(is_tombstone, objects.held))
        assert session.end()
    assert restored(objects, tmp_path / "back") == here(session)


@pytest.mark.parametrize("claimed", [True, False])
def test_a_writer_that_is_still_sending_stops_when_it_sees_the_tombstone(tmp_path: Path, claimed: bool) -> None:
    objects = MemoryObjects()
    epoch = take_epoch(objects, 1) if claimed else None
    session = silent(Session(tmp_path / "run", objects, epoch), objects, epoch)
    remove_run(objects, UID, AT_ONCE)
    session.mirror.start()
    session.until(session.was_lost.is_set)
    assert session.events() == ["lease.lost"]
    assert "was removed" in session.mirror.lost_because
    assert "--set mirror=null" in session.mirror.lost_because
    session.end()
    assert list(objects.held) == [TOMBSTONE], "what it sent, or its heartbeat, is left"


def silent(session: Session, objects: Objects, epoch: int | None) -> Session:
    """As if it had been stopped for long, and is taken for dead."""
    session.write(*notes("a", 3))
    write_beat(objects, epoch or 0, Beat(1, ended=True))
    return session


def test_a_new_run_ignores_the_tombstone_and_what_the_removed_one_sends_late(tmp_path: Path) -> None:
    objects = MemoryObjects()
    with writing(tmp_path / "old", objects, take_epoch(objects, 1)) as old:
        old.write(*notes("old", 12))
        assert old.end()
    late = {name: data for name, data in objects.held.items() if name.startswith("journal/")}
    remove_run(objects, UID, AT_ONCE)
    tombstone = refuse_unfinished_removal(MirrorSource(objects))
    assert tombstone is not None
    assert newest_epoch(objects) == tombstone.epoch > 1
    epoch = take_epoch(objects, newest_epoch(objects) + 1)
    assert removed_run(MirrorSource(objects)) is None, "a run that has begun is not a removed one"
    objects.held.update(late)  # the new run must not become part of the old one
    with writing(tmp_path / "new", objects, epoch, uid=OTHER_UID) as new:
        new.write(*notes("new", 12))
        assert new.end()
    warnings: list[str] = []
    restore(str(tmp_path / "back"), [MirrorSource(objects)], warnings.append)
    found = verify(str(tmp_path / "back" / "journal"), OTHER_UID)
    assert found.ok, found.errors
    assert found.last_n == new.tip.n


def test_nothing_is_created_where_no_run_is() -> None:
    objects = MemoryObjects({"notes.txt": b"of somebody else"})
    remove_run(objects, UID, AT_ONCE)
    assert list(objects.held) == ["notes.txt"]
    assert uid_of(MirrorSource(objects)) == ""
