"""The copy of a sharded run that readers read: it costs only what is new."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Beat, Damage, Entry, Reader, StoredObjects, open_objects, write_beat
from holdfast.journal.object_store import FolderObjects
from holdfast.runs import Run, find_run
from holdfast.runs.shards import copy
from holdfast.state import keep_beat
from tests.e2e.commands import call, write_spec

SAMPLES = 24
SHARDS = 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_spec(tmp_path, SAMPLES, models=[{"name": "m", "provider": "mock", "options": {"reply": "8"}}])
    return tmp_path


def work(folder: Path, *options: str) -> None:
    done = call("run", folder / "eval.yaml", "--id", "x", "--store", folder / "runs", *options, cwd=folder)
    assert done.code == 0, done.said


def shard(number: int) -> tuple[str, str]:
    return "--shard", f"{number}/{SHARDS}"


def looked(folder: Path) -> tuple[str, int]:
    with Run(find_run(str(folder / "runs"), "x")) as run:
        summary = run.summary()
    return summary.status, summary.finished


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The journals that were read, by the names of their folders."""
    names: list[str] = []

    class RecordingReader(Reader):
        def read(self, *, live: bool = False) -> Iterator[Entry | Damage]:
            names.append(Path(self._folder).parent.name)
            return super().read(live=live)

    monkeypatch.setattr(copy, "Reader", RecordingReader)
    return names


def test_only_journals_with_new_records_are_opened(folder: Path, opened: list[str]) -> None:
    for number in (1, 2):
        work(folder, *shard(number))
    first = looked(folder)
    assert sorted(opened) == [f"1-of-{SHARDS}", f"2-of-{SHARDS}", "x", "x"]
    opened.clear()
    assert looked(folder) == first
    assert opened == []
    work(folder, *shard(3))
    status, finished = looked(folder)
    assert (status, finished > first[1]) == ("interrupted", True)
    assert opened == [f"3-of-{SHARDS}"]
    opened.clear()
    work(folder, "--shards", str(SHARDS), "--this-host")
    assert looked(folder) == ("completed", SAMPLES)
    assert sorted(opened) == [f"{number}-of-{SHARDS}" for number in (4, 5, 6)]


def test_a_journal_behind_its_lease_is_read_although_its_files_look_unchanged(
    folder: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may show the state of a file as it was a minute ago."""
    part = ("run", folder / "eval.yaml", "--id", "x", "--store", folder / "runs", *shard(1))
    assert call(*part, "--set", "limits.run.requests=6", "--set", "concurrency.samples=1", cwd=folder).code == 6
    status, before = looked(folder)
    assert (status, before) == ("interrupted", 1)
    opened.clear()
    monkeypatch.setattr(copy, "are_unchanged", lambda journal, before: True)
    work(folder, *shard(1))
    assert looked(folder)[1] > before
    assert opened == [f"1-of-{SHARDS}"]


def test_one_command_updates_the_copy_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work(folder, "--shards", str(SHARDS), "--this-host")
    updates: list[str] = []

    def count(run: str, beat: Beat) -> None:
        updates.append(run)
        keep_beat(run, beat)

    monkeypatch.setattr(copy, "keep_beat", count)
    for command in ("show", "report"):
        assert call(command, "x", "--store", folder / "runs", cwd=folder).code == 0
        assert len(updates) == 1
        updates.clear()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests to object stores, by kind."""
    counts: Counter[str] = Counter()

    def count(name: str, kind: str) -> None:
        call_store = getattr(StoredObjects, name)

        def counted(self: StoredObjects, *arguments: Any) -> Any:
            counts[kind] += 1
            return call_store(self, *arguments)

        monkeypatch.setattr(StoredObjects, name, counted)

    assert FolderObjects.get is StoredObjects.get
    for name, kind in {"get": "get", "pieces": "get", "listed": "list", "folders": "list"}.items():
        count(name, kind)
    return counts


def test_a_shard_that_ended_is_fetched_once_from_its_mirror(folder: Path, requests: Counter[str]) -> None:
    mirror = ("--set", f"mirror={{url: '{(folder / 'mirror').as_uri()}'}}")
    work(folder, "--shards", str(SHARDS), *mirror)
    url = (folder / "mirror" / "sums" / "x").as_uri()
    show = ("show", url, "--json")
    requests.clear()
    first = call(*show, cwd=folder).json()
    assert (first["status"], first["finished"]) == ("completed", SAMPLES)
    assert requests["get"] > 2 * SHARDS
    requests.clear()
    again = call(*show, cwd=folder).json()
    assert again == first
    # The root journal is looked at as any run in a mirror; all shards together cost one listing.
    assert sum(requests.values()) <= 10
    assert [each["status"] for each in again["shards"]] == ["completed"] * SHARDS


def test_a_shard_that_only_this_machine_knows_to_be_complete_is_sent_to_the_mirror(folder: Path) -> None:
    """Its worker was cut off from the store after its claim, before its first heartbeat with a lease."""
    mirror = ("--set", f"mirror={{url: '{(folder / 'mirror').as_uri()}'}}")
    work(folder, "--shards", str(SHARDS), *mirror)
    for name in ("1-of-6", "2-of-6"):
        shutil.rmtree(folder / "mirror" / "sums" / "x" / "shards" / name)
    place = open_objects((folder / "mirror" / "sums" / "x" / "shards" / "1-of-6").as_uri())
    write_beat(place, 1, Beat(1, ended=True))
    work(folder, "--shards", str(SHARDS), *mirror)
    found = call("show", (folder / "mirror" / "sums" / "x").as_uri(), "--json", cwd=folder).json()
    assert (found["status"], found["finished"]) == ("completed", SAMPLES)
