"""Content that a run holds: stored once, whole, checked when it is read, taken over by a fork."""

import errno
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import files
from holdfast.datasets import FileContent, ReferenceCache
from holdfast.errors import JournalError, SpecError
from holdfast.journal.blobs import BlobError, BlobStore, blob_path, blob_size, check_blob_files, read_blob, read_pieces
from holdfast.journal.disk import OsDisk
from holdfast.plan import StoredRows, check_blobs, inputs_of, prepare, write_plan
from holdfast.records.keys import Reference, parse_reference
from holdfast.spec import Spec
from tests.e2e.commands import write_rows
from tests.unit.plan.plans import Plan, plan_of, spec_of, task

PNG = b"\x89PNG\r\n\x1a\n" + b"p" * 100


def stored(folder: Path, data: bytes = PNG) -> Reference:
    return BlobStore(str(folder)).keep(FileContent(data=data), ReferenceCache())


def spec_with_files(folder: Path, pictures: list[Any], **fields: Any) -> Spec:
    path = write_rows(folder / "rows.jsonl", [{"id": i, "q": "?", "picture": each} for i, each in enumerate(pictures)])
    return spec_of(tasks=[task(dataset={"path": str(path), "files": ["picture"]}, **fields)])


def blobs(run: Path) -> list[str]:
    return sorted(os.listdir(run / "blobs"))


def pictures(plan: Plan) -> list[str]:
    return [line.sample().row["picture"] for line in plan.data]


def test_equal_content_is_stored_once(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(PNG)
    plan = plan_of(tmp_path / "run", spec_with_files(tmp_path, ["a.png", "b.png", "a.png"]))
    reference = parse_reference(pictures(plan)[0])
    assert reference is not None
    assert pictures(plan) == [str(reference)] * 3
    assert blobs(tmp_path / "run") == [reference.digest]
    assert read_blob(str(tmp_path / "run"), reference) == PNG
    assert blob_size(str(tmp_path / "run"), str(reference)) == len(PNG)


def test_a_plan_depends_on_content_and_not_on_paths(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "c.png").write_bytes(PNG + b"!")
    first = plan_of(tmp_path / "one", spec_with_files(tmp_path, ["a.png"]))
    os.rename(tmp_path / "a.png", tmp_path / "b.png")
    moved = plan_of(tmp_path / "two", spec_with_files(tmp_path, ["b.png"]))
    other = plan_of(tmp_path / "three", spec_with_files(tmp_path, ["c.png"]))
    assert first.digests == moved.digests
    assert first.digests != other.digests


def test_what_cannot_be_read_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(SpecError, match=r"tasks\[0\].dataset: .*rows.jsonl, line 1: column 'picture': no such file"):
        plan_of(tmp_path / "run", spec_with_files(tmp_path, ["gone.png"]))
    assert os.listdir(tmp_path / "run") == []


def test_files_need_the_data_to_be_recorded(tmp_path: Path) -> None:
    spec = spec_of(record_data=False, tasks=[task(dataset={"files": ["picture"]})])
    with pytest.raises(SpecError, match=r"tasks\[0\].dataset.files: .*record_data is off"):
        plan_of(tmp_path / "run", spec, {"t": [{"q": 1, "picture": PNG}]})


def test_a_file_in_a_text_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tasks=[task(dataset={"files": ["picture"]}, prompt="See {picture}")])
    with pytest.raises(SpecError, match=r"tasks\[0\].prompt: 'picture' is a file and cannot be part of a text"):
        plan_of(tmp_path / "run", spec, {"t": [{"q": 1, "picture": PNG}]})


def test_missing_and_damaged_content_is_reported_with_its_file(tmp_path: Path) -> None:
    reference = stored(tmp_path)
    path = Path(blob_path(str(tmp_path), reference))
    path.write_bytes(PNG[:-1] + b"!")
    with pytest.raises(BlobError, match=f"{reference.digest} is damaged"):
        read_blob(str(tmp_path), reference)
    path.unlink()
    with pytest.raises(BlobError, match=f"{reference.digest} cannot be read"):
        read_blob(str(tmp_path), reference)
    assert blob_size(str(tmp_path), str(reference)) is None


def test_every_blob_that_rows_and_examples_name_is_checked(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(PNG + name.encode())
    write_rows(tmp_path / "shots.jsonl", [{"id": 1, "q": "?", "picture": "b.png", "target": "x"}])
    spec = spec_with_files(tmp_path, ["a.png"], fewshot={"path": str(tmp_path / "shots.jsonl")})
    plan = plan_of(tmp_path / "run", spec)
    run, inputs = str(tmp_path / "run"), inputs_of(prepare(spec, {}, {}))
    assert len(blobs(tmp_path / "run")) == 2
    assert list(check_blobs(run, spec, plan.planned.cells, inputs)) == []
    for name in blobs(tmp_path / "run"):
        (tmp_path / "run" / "blobs" / name).write_bytes(b"other")
    assert [error.partition(": ")[2] for error in check_blobs(run, spec, plan.planned.cells, inputs)] == [
        "its content has another digest; restore it from a copy of the run"
    ] * 2


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
def test_a_fork_takes_content_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    spec = spec_with_files(tmp_path, ["a.png"])
    parent = plan_of(tmp_path / "parent", spec)
    os.unlink(tmp_path / "a.png")
    if not links:
        monkeypatch.setattr(files, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
    rows = StoredRows(str(tmp_path / "parent"), parent.planned.cells)
    (tmp_path / "fork").mkdir()
    planned = write_plan(str(tmp_path / "fork"), spec, prepare(spec, {"t": rows}, {}), str(tmp_path / "parent"))
    assert planned.plan == parent.planned.plan
    name = blobs(tmp_path / "fork")
    assert name == blobs(tmp_path / "parent")
    assert os.stat(tmp_path / "fork" / "blobs" / name[0]).st_nlink == (2 if links else 1)


def test_content_that_the_parent_has_lost_is_reported(tmp_path: Path) -> None:
    reference = stored(tmp_path / "elsewhere")
    store = BlobStore(str(tmp_path / "fork"), str(tmp_path / "parent"))
    with pytest.raises(JournalError, match=f"parent/blobs/{reference.digest} is missing"):
        store.keep(reference, ReferenceCache())


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
def test_one_content_is_taken_over_by_several_threads_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """None of them sees it before all are about to make it. Of a sandbox's file only the digest is known."""
    reference = Reference(stored(tmp_path / "parent").digest, "")
    (tmp_path / "fork").mkdir()
    store = BlobStore(str(tmp_path / "fork"), str(tmp_path / "parent"))
    about_to, link = threading.Barrier(4), files.link

    def late(source: str, target: str) -> None:
        about_to.wait()
        if not links:
            raise OSError(errno.EPERM, "no links here")
        link(source, target)

    monkeypatch.setattr(files, "link", late)
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: store.keep(reference, ReferenceCache()), range(4)))
    assert taken == [reference] * 4
    assert blobs(tmp_path / "fork") == [reference.digest]
    assert read_blob(str(tmp_path / "fork"), reference) == PNG


def test_damaged_content_is_not_copied_from_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = stored(tmp_path / "parent")
    Path(blob_path(str(tmp_path / "parent"), reference)).write_bytes(PNG + b"!")
    (tmp_path / "fork").mkdir()
    monkeypatch.setattr(files, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
    with pytest.raises(JournalError, match=f"{reference.digest} is damaged"):
        BlobStore(str(tmp_path / "fork"), str(tmp_path / "parent")).keep(reference, ReferenceCache())
    assert blobs(tmp_path / "fork") == []


def test_what_a_died_start_left_is_used_or_replaced(tmp_path: Path) -> None:
    reference = stored(tmp_path)
    before = os.stat(blob_path(str(tmp_path), reference)).st_mtime_ns
    (tmp_path / "blobs" / "new-1.tmp").write_bytes(b"half")
    (tmp_path / "blobs" / "new-7.tmp").write_bytes(b"half")
    assert stored(tmp_path) == reference
    assert os.stat(blob_path(str(tmp_path), reference)).st_mtime_ns == before
    stored(tmp_path, PNG + b"more")
    assert "new-1.tmp" not in blobs(tmp_path)
    BlobStore(str(tmp_path)).remove_leftovers()
    assert len(blobs(tmp_path)) == 2


class RecordingDisk(OsDisk):
    """Writes down what becomes durable, and when."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def write(self, handle: int, buffers: Sequence[bytes | memoryview]) -> int:
        self.events.append("write")
        return super().write(handle, buffers)

    def sync(self, handle: int) -> None:
        self.events.append("sync")
        super().sync(handle)

    def replace(self, temporary: str, path: str) -> None:
        self.events.append("name")
        super().replace(temporary, path)

    def sync_folder(self, path: str) -> None:
        self.events.append(f"sync {os.path.basename(path)}")
        super().sync_folder(path)


def test_content_is_durable_before_it_has_its_name_and_all_names_at_the_end(tmp_path: Path) -> None:
    disk = RecordingDisk()
    store = BlobStore(str(tmp_path / "run"), disk=disk)
    for data in (PNG, PNG + b"!", PNG):
        store.keep(FileContent(data=data), ReferenceCache())
    store.sync()
    folders = [f"sync {tmp_path.name}", "sync run"]
    assert disk.events == [*folders, *(["write", "sync", "name"] * 2), "sync blobs"]


def test_names_that_a_died_process_left_are_made_durable_too(tmp_path: Path) -> None:
    stored(tmp_path)
    disk = RecordingDisk()
    store = BlobStore(str(tmp_path), disk=disk)
    store.keep(FileContent(data=PNG), ReferenceCache())
    store.sync()
    assert disk.events == ["sync blobs"]


def test_content_in_pieces_is_durable_before_it_has_its_name_and_stored_once(tmp_path: Path) -> None:
    disk = RecordingDisk()
    store = BlobStore(str(tmp_path), disk=disk)
    digest = store.keep_pieces([b"one ", b"and ", b"two"])
    assert store.keep_pieces([b"one and two"]) == digest
    store.sync()
    assert disk.events == [f"sync {tmp_path.name}", "write", "write", "write", "sync", "name", "sync blobs"]
    assert b"".join(read_pieces(str(tmp_path), digest)) == b"one and two"


def test_what_a_full_disk_cuts_short_is_removed(tmp_path: Path) -> None:
    class FullDisk(OsDisk):
        def sync(self, handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    store = BlobStore(str(tmp_path), disk=FullDisk())
    with pytest.raises(OSError, match="No space left"):
        store.keep_pieces([b"one ", b"and ", b"two"])
    with pytest.raises(OSError, match="No space left"):
        store.keep(FileContent(data=PNG), ReferenceCache())
    assert os.listdir(tmp_path / "blobs") == []


def test_many_threads_may_keep_content_at_once(tmp_path: Path) -> None:
    store = BlobStore(str(tmp_path))
    contents = [[b"x" * 1000, bytes([number % 7]) * 1000] for number in range(100)]
    with ThreadPoolExecutor(8) as threads:
        digests = list(threads.map(store.keep_pieces, contents))
    assert sorted(set(digests)) == blobs(tmp_path)
    assert list(check_blob_files(str(tmp_path), digests)) == []
    (tmp_path / "blobs" / digests[0]).write_bytes(b"other")
    assert [error.partition(" is ")[2].partition(":")[0] for error in check_blob_files(str(tmp_path), digests)] == [
        "damaged"
    ]
