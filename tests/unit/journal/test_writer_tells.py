"""What a writer tells of its troubles, and what a lease knows that a cut journal does not."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from holdfast import files
from holdfast.errors import StoppedError
from holdfast.journal import Lock, OpenRequest, Reader, WriterOptions, appender, journal_folder, open_writer
from holdfast.journal.ownership.lease import Lease, read_lease, this_process, write_lease
from holdfast.runs import find_run
from holdfast.runs.execution.session import open_journal
from holdfast.runs.mirror.claim import claim_run
from tests.journals import QUICK, UID, note
from tests.unit.engine import runs


def test_a_slow_commit_is_told_with_its_seconds_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "SLOW_SECONDS", -1.0)
    told: list[tuple[str, str]] = []

    async def write() -> None:
        options = WriterOptions(disk=QUICK, tell=lambda event, sentence: told.append((event, sentence)))
        opened = await open_writer(str(tmp_path), OpenRequest(UID), options)
        await opened.append(note("1"))
        await opened.close()

    asyncio.run(write())
    assert [event for event, _ in told] == ["journal.commit_slow"]
    assert "for 1 records" in told[0][1]


def test_a_writer_that_lost_its_lease_tells_it_and_acknowledges_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    async def write() -> None:
        options = WriterOptions(disk=QUICK, tell=lambda event, _: told.append(event))
        opened = await open_writer(str(tmp_path), OpenRequest(UID), options)
        await opened.append(note("1"))
        monkeypatch.setattr(Lock, "lost", property(lambda self: True))
        with pytest.raises(StoppedError, match="taken over"):
            await opened.append(note("2"))
        with pytest.raises(StoppedError, match="taken over"):
            await opened.append(note("3"))
        with pytest.raises(StoppedError):
            await opened.close()

    asyncio.run(write())
    assert told == ["lease.lost", "journal.stopped"]
    Lock(str(tmp_path), 0.0).release()  # it let go


def truncated(store: Path) -> int:
    """A whole run, then one whose journal was cut between two records after they had been acknowledged."""
    runs.go(store, runs.given([runs.Asked(rows=runs.rows(4))]))
    lease = read_lease(runs.folder(store))
    assert lease is not None
    acknowledged = lease.durable_n
    seen: list[str] = []

    def keep(kind: str, _: object) -> bool:
        seen.append(kind)
        return seen.count("sample.finished") < 2

    kept = runs.cut_after(store, keep, forget=False)
    assert kept < acknowledged
    return acknowledged - kept


def test_records_that_the_lease_knew_of_and_the_journal_does_not_have_are_reported_lost(tmp_path: Path) -> None:
    lost = truncated(tmp_path)
    ended = runs.go(tmp_path, runs.given([runs.Asked(rows=runs.rows(4))]))
    assert (ended.finished, ended.unfinished) == (4, 0)
    anomalies = [data for kind, data in runs.records(tmp_path) if kind == "anomaly"]
    assert [each["kind"] for each in anomalies] == ["lost"]
    assert anomalies[0]["n_last"] - anomalies[0]["n_first"] + 1 == lost


def test_a_lost_end_of_a_run_is_recorded_by_the_next_start(tmp_path: Path) -> None:
    """The last heartbeat was written before the end record: only `last_n` knows of it."""
    task = runs.given([runs.Asked(rows=runs.rows(4))])
    runs.go(tmp_path, task)
    kept = runs.cut_after(tmp_path, lambda kind, _: kind != "run.completed", forget=False)
    runs.go(tmp_path, task)
    (anomaly,) = [data for kind, data in runs.records(tmp_path) if kind == "anomaly"]
    assert (anomaly["kind"], anomaly["n_first"], anomaly["n_last"]) == ("lost", kept + 1, kept + 1)


def test_a_lease_of_another_epoch_claims_nothing_of_this_journal(tmp_path: Path) -> None:
    """A lease is derived and may be of a fenced process, or a leftover: absurd claims must not become losses."""
    runs.go(tmp_path, runs.given([runs.Asked(rows=runs.rows(2))]))
    place = find_run(str(tmp_path), runs.RUN)
    write_lease(place.folder, Lease(this_process(), 99, 1, 1.0, 1.0, 30.0, acknowledged=10**12))

    async def reopen() -> int:
        opened, logbook = await open_journal(place, Reader(journal_folder(place.folder)).uid, claim_run(None, place))
        n = opened.acknowledged.n
        await opened.close()
        logbook.close()
        return n

    assert asyncio.run(reopen()) < 1000
    assert os.path.exists(os.path.join(place.folder, "lock"))


def test_opening_a_journal_keeps_the_event_loop_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease on a slow file system, or a long chain, must not hold up whoever else works in this loop."""
    runs.go(tmp_path, runs.given([runs.Asked(rows=runs.rows(2))]))
    place = find_run(str(tmp_path), runs.RUN)
    uid = Reader(journal_folder(place.folder)).uid
    read: list[tuple[str, bool]] = []
    open_file = files.open_file

    def watched(path: str, *, write: bool = False) -> int:
        read.append((os.path.basename(path), threading.current_thread() is threading.main_thread()))
        return open_file(path, write=write)

    async def reopen() -> None:
        claimed = claim_run(None, place)
        monkeypatch.setattr(files, "open_file", watched)
        opened, logbook = await open_journal(place, uid, claimed)
        await opened.close()
        logbook.close()

    asyncio.run(reopen())
    assert ("lease.json", False) in read
    assert [name for name, in_loop in read if in_loop] == []
