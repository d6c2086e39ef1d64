"""A list of runs says what a fresh look says, with the catalogue, without it, and whatever has become of it."""

import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.commands.control import note_run, tag_run
from holdfast.journal.ownership.lease import Lease, this_process, write_lease
from holdfast.runs import RunSummary, list_runs
from holdfast.state import Catalogue, Index, stamp_of
from tests.caches import catalogue_file, doctor, index_file
from tests.journals import flipped
from tests.unit.engine.runs import Asked, given, go, rows
from tests.unit.runs.stores import ROWS, completed, held, interrupted, listed, of_newer_format, with_failures


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HOLDFAST_CACHE", str(folder))
    return folder


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which runs' indexes were opened."""
    seen: list[str] = []
    original = Index.__init__

    def opened(self: Index, run: str, *, kept: bool = True, last: int | None = None) -> None:
        seen.append(os.path.basename(run))
        original(self, run, kept=kept, last=last)

    monkeypatch.setattr(Index, "__init__", opened)
    return seen


def fresh(store: Path) -> list[RunSummary]:
    """What is said without a catalogue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.runs.selection.Catalogue", NoCatalogue)
        return list(list_runs(str(store)))


class NoCatalogue:
    def __init__(self, store: str, form: str) -> None: ...

    def find(self, folder: str, stamp: str) -> None: ...

    def put(self, folder: str, stamp: str, told: bytes) -> None: ...

    def keep_only(self, folders: set[str]) -> None: ...

    def close(self) -> None: ...


def agrees(store: Path) -> bool:
    told = list(list_runs(str(store)))
    again = list(list_runs(str(store)))
    return told == again == fresh(store)


def catalog(store: Path) -> Path:
    return catalogue_file(store)


def test_a_list_agrees_with_a_fresh_look_after_every_kind_of_change(tmp_path: Path) -> None:
    assert agrees(tmp_path)
    completed(tmp_path, "a")
    assert agrees(tmp_path)
    cut = interrupted(tmp_path, "b")
    with_failures(tmp_path, "c")
    assert agrees(tmp_path)
    go(tmp_path, given([Asked(rows=rows(ROWS))]), run_id="b")
    assert agrees(tmp_path)
    assert listed(tmp_path)["b"].status == "completed"
    tag_run("a", ["nightly"], str(tmp_path))
    note_run("a", "a good one", str(tmp_path))
    assert agrees(tmp_path)
    assert listed(tmp_path)["a"].tags == ["nightly"]
    shutil.rmtree(cut.folder)
    assert agrees(tmp_path)
    assert list(listed(tmp_path)) == ["a", "c"]


def test_a_store_that_was_renamed_is_listed_with_its_new_folders(tmp_path: Path) -> None:
    store = tmp_path / "one"
    completed(store)
    assert agrees(store)
    os.rename(store, tmp_path / "two")
    assert agrees(tmp_path / "two")
    assert listed(tmp_path / "two")["done"].folder.startswith(str(tmp_path / "two"))
    assert list(list_runs(str(store))) == []


def test_another_run_in_the_same_folder_is_seen(tmp_path: Path) -> None:
    place = completed(tmp_path)
    assert agrees(tmp_path)
    shutil.rmtree(place.folder)
    interrupted(tmp_path, "done")
    assert agrees(tmp_path)
    assert listed(tmp_path)["done"].status == "interrupted"


def test_runs_at_rest_are_not_looked_at_again(tmp_path: Path, looks: list[str]) -> None:
    for name in ("a", "b"):
        completed(tmp_path, name)
    interrupted(tmp_path, "c")
    listed(tmp_path)
    assert sorted(looks) == ["a", "b", "c"]
    listed(tmp_path)
    assert sorted(looks) == ["a", "b", "c", "c"]  # how a process died depends on more than the run's files


def test_a_live_run_is_looked_at_every_time_and_afterwards_once(tmp_path: Path, looks: list[str]) -> None:
    place = completed(tmp_path)
    listed(tmp_path)
    with held(place):
        assert [listed(tmp_path)["done"].status for _ in range(2)] == ["running"] * 2
    assert listed(tmp_path)["done"].status == "completed"
    assert len(looks) == 3


def test_300_runs_are_listed_the_second_time_without_opening_a_journal(tmp_path: Path, looks: list[str]) -> None:
    place = completed(tmp_path, "r000")
    for number in range(1, 300):
        shutil.copytree(place.folder, os.path.join(os.path.dirname(place.folder), f"r{number:03}"))
    assert len(listed(tmp_path)) == 300
    assert len(listed(tmp_path)) == 300
    assert len(looks) == 300


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process has it for itself."""
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.flock(file, fcntl.LOCK_EX); "
        "fcntl.lockf(file, fcntl.LOCK_EX); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            process.communicate()


def test_a_catalogue_that_another_process_locks_is_used_all_the_same(tmp_path: Path) -> None:
    completed(tmp_path)
    listed(tmp_path)
    with locked(catalog(tmp_path)):
        assert agrees(tmp_path)
        completed(tmp_path, "meanwhile")
        assert sorted(listed(tmp_path)) == ["done", "meanwhile"]
    assert agrees(tmp_path)


def test_an_index_that_another_process_locks_is_used_all_the_same(tmp_path: Path) -> None:
    place = interrupted(tmp_path)
    listed(tmp_path)
    with locked(index_file(place.folder)):
        go(tmp_path, given([Asked(rows=rows(ROWS))]), run_id="cut")
        assert listed(tmp_path)["cut"].status == "completed"
    assert agrees(tmp_path)


GARBAGE = {
    "empty": b"",
    "text": b"this is no database",
    "header only": b"SQLite format 3\0" + bytes(84),
    "zeros": bytes(8192),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_a_damaged_catalogue_is_made_anew(tmp_path: Path, content: bytes, looks: list[str]) -> None:
    completed(tmp_path)
    listed(tmp_path)
    catalog(tmp_path).write_bytes(content)
    assert agrees(tmp_path)
    listed(tmp_path)
    before = len(looks)
    listed(tmp_path)
    assert len(looks) == before, "it is in use again"


def test_a_catalogue_cut_short_is_no_obstacle(tmp_path: Path) -> None:
    completed(tmp_path)
    listed(tmp_path)
    whole = catalog(tmp_path).read_bytes()
    for size in range(0, len(whole), len(whole) // 20):
        catalog(tmp_path).write_bytes(whole[:size])
        assert agrees(tmp_path), size


def test_a_catalogue_of_another_form_is_no_obstacle(tmp_path: Path) -> None:
    completed(tmp_path)
    catalogue = Catalogue(str(tmp_path), "another form")
    catalogue.put("folder", "stamp", b"told")
    catalogue.close()
    assert agrees(tmp_path)


@pytest.mark.parametrize("told", [b"", b"{}", b"[1]", b'{"run_id": 5}', b"\xff\xfe", ["a list"], None, 7], ids=repr)
def test_what_a_catalogue_should_not_hold_is_passed_over(tmp_path: Path, told: object) -> None:
    completed(tmp_path)
    listed(tmp_path)

    def change(directory: bytes) -> bytes:
        runs = msgspec.msgpack.decode(directory)
        return msgspec.msgpack.encode({folder: (stamp, told) for folder, (stamp, _) in runs.items()})

    doctor(catalog(tmp_path), change)
    assert agrees(tmp_path)


def test_a_folder_in_the_place_of_the_catalogue_is_no_obstacle(tmp_path: Path) -> None:
    completed(tmp_path)
    catalog(tmp_path).mkdir()
    assert agrees(tmp_path)


def test_no_flipped_bit_changes_a_list(tmp_path: Path) -> None:
    completed(tmp_path)
    truth = fresh(tmp_path)
    listed(tmp_path)
    content = catalog(tmp_path).read_bytes()
    chance = random.Random(0)
    for _ in range(60):
        catalog(tmp_path).write_bytes(flipped(content, chance.randrange(len(content)), 1 << chance.randrange(8)))
        assert list(list_runs(str(tmp_path))) == truth


def test_a_catalogue_in_the_store_is_not_opened_and_none_is_made_there(tmp_path: Path, looks: list[str]) -> None:
    """Of an older version, or forged."""
    completed(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as database:
        database.execute("CREATE TABLE runs (folder TEXT, stamp TEXT, told BLOB)")
    before = (tmp_path / "catalog.db").stat()
    assert [listed(tmp_path)["done"].status for _ in range(2)] == ["completed"] * 2
    assert len(looks) == 1
    assert (tmp_path / "catalog.db").stat() == before
    assert sorted(os.listdir(tmp_path)) == ["catalog.db", "tests"]


def test_without_a_cache_it_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    completed(tmp_path)
    nowhere = tmp_path / "a file"
    nowhere.write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE", str(nowhere))
    monkeypatch.setenv("TMPDIR", str(nowhere))
    assert agrees(tmp_path)


def test_one_run_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    completed(tmp_path, "a")
    of_newer_format(completed(tmp_path, "b"))
    completed(tmp_path, "c")
    assert {"a", "c"} <= set(listed(tmp_path))


def test_a_run_that_goes_away_while_it_is_listed_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(tmp_path, "a")
    place = completed(tmp_path, "b")
    completed(tmp_path, "c")

    def gone(folder: str) -> str:
        if folder == place.folder and os.path.exists(folder):
            shutil.rmtree(folder)
        return stamp_of(folder)

    monkeypatch.setattr("holdfast.runs.selection.stamp_of", gone)
    assert sorted(listed(tmp_path)) == ["a", "c"]


def test_a_stamp_changes_with_every_record_and_not_with_a_look(tmp_path: Path) -> None:
    place = completed(tmp_path)
    before = stamp_of(place.folder)
    listed(tmp_path)
    with held(place):
        assert stamp_of(place.folder) == before
    note_run("done", "something", str(tmp_path))
    assert stamp_of(place.folder) != before


def test_a_stamp_changes_with_every_record_of_a_shard(tmp_path: Path) -> None:
    journal = tmp_path / "shards" / "1-of-2" / "journal"
    journal.mkdir(parents=True)
    (journal / "000001.jsonl").write_text("one\n")
    before = stamp_of(str(tmp_path))
    assert stamp_of(str(tmp_path)) == before
    (journal / "000001.jsonl").write_text("one\ntwo\n")
    assert stamp_of(str(tmp_path)) != before


def test_a_reason_that_depends_on_when_it_is_asked_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, then the machine was restarted: how the process ended is told as a fresh look tells it."""
    place = interrupted(tmp_path)
    write_lease(place.folder, Lease(this_process(), 1, 1, time.time(), time.time(), 60.0))
    listed(tmp_path)
    monkeypatch.setattr("holdfast.journal.ownership.lease.boot_id", lambda: "another boot")
    assert agrees(tmp_path)


def test_the_size_of_a_run_is_that_of_a_fresh_look(tmp_path: Path) -> None:
    place = completed(tmp_path)
    listed(tmp_path)
    Path(place.folder, "log.jsonl").write_bytes(bytes(100_000))
    assert agrees(tmp_path)


def test_several_processes_that_list_at_once_all_get_the_list(tmp_path: Path) -> None:
    for number in range(8):
        completed(tmp_path, f"r{number}")
    program = (
        "import sys; from holdfast.runs import list_runs\n"
        "for _ in range(5): found = [each.run_id for each in list_runs(sys.argv[1])]\n"
        "print(*sorted(found))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate()[0] for process in processes]
    assert said == [" ".join(f"r{number}" for number in range(8)) + "\n"] * 4
    assert agrees(tmp_path)


def test_a_catalogue_that_is_gone_while_it_is_open_fails_nothing(tmp_path: Path) -> None:
    completed(tmp_path)
    listed(tmp_path)
    catalogue = Catalogue(str(tmp_path), ",".join(RunSummary.__struct_fields__))
    catalog(tmp_path).unlink()
    catalogue.put("folder", "stamp", b"told")
    catalogue.keep_only(set())
    assert catalogue.find("folder", "other stamp") is None
    catalogue.close()
    assert catalogue.find("folder", "stamp") is None
