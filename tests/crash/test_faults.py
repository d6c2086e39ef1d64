"""Real faults of the operating system: full disk, failing writes and syncs, short writes, no descriptors, read-only."""

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import DiskError, JournalError
from holdfast.journal import OpenRequest, WriterOptions, journal_folder, open_writer, verify
from holdfast.records import draft
from tests.crash.children import Work, check_left_behind, run_child, why_no_strace

needs_strace = pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())


@needs_strace
@pytest.mark.parametrize("when", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("call", ["writev", "fdatasync"])
def test_one_failed_write_or_sync_costs_a_segment_and_no_record(call: str, when: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = run_child(run, Work(alone=True, rounds=1), f"{call}:error=EIO:when={when}")
    assert "done" in outcome.said
    assert len(outcome.acknowledged) == 9
    check_left_behind(run, outcome.acknowledged)


@needs_strace
def test_a_failed_sync_is_reported_and_voids_what_it_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = run_child(run, Work(alone=True, rounds=1), "fdatasync:error=EIO:when=2")
    assert outcome.events == ["journal.poisoned"]
    assert len(outcome.acknowledged) == 9
    assert any("are void" in warning for warning in verify(journal_folder(str(run))).warnings)
    check_left_behind(run, outcome.acknowledged)


@needs_strace
def test_a_journal_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    outcome = run_child(tmp_path / "run", Work(rounds=1), "fdatasync:error=EIO:when=1")
    assert [line for line in outcome.said if "cannot be opened to write: Input/output error" in line]
    check_left_behind(tmp_path / "run", [])


@needs_strace
@pytest.mark.parametrize("call", ["writev", "fdatasync"])
def test_failures_without_end_stop_the_writer_and_keep_what_was_acknowledged(call: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = run_child(run, Work(rounds=1), f"{call}:error=EIO:when=3+")
    stopped = [line for line in outcome.said if line.startswith("stopped")]
    assert len(stopped) == 1
    assert "everything acknowledged is kept" in stopped[0]
    assert "done" not in outcome.said
    assert outcome.acknowledged
    check_left_behind(run, outcome.acknowledged)


@needs_strace
@pytest.mark.parametrize("call", ["?link,?linkat", "fsync"])
def test_a_rotation_that_fails_leaves_the_old_segment_in_use(call: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = run_child(run, Work(rounds=1, records=12), f"{call}:error=EIO:when=5+")
    assert len(outcome.acknowledged) == 12
    check_left_behind(run, outcome.acknowledged)


@needs_strace
def test_a_file_system_without_hard_links_is_good_enough(tmp_path: Path) -> None:
    outcome = run_child(tmp_path / "run", Work(), "?link,?linkat:error=EPERM:when=1+")
    assert len(outcome.acknowledged) == 18
    check_left_behind(tmp_path / "run", outcome.acknowledged)


def test_exhausted_descriptors_do_not_stop_the_writer(tmp_path: Path) -> None:
    outcome = run_child(tmp_path / "run", Work(rounds=1, nofile=3))
    assert len(outcome.acknowledged) == 9
    check_left_behind(tmp_path / "run", outcome.acknowledged)


def test_short_writes_are_continued(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the library that shortens writes")
    library = tmp_path / "short_writes.so"
    source = Path(__file__).with_name("short_writes.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    outcome = run_child(tmp_path / "run", Work(preload=str(library)))
    assert len(outcome.acknowledged) == 18
    check_left_behind(tmp_path / "run", outcome.acknowledged)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "holdfast-test", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def teller(full: threading.Event) -> Callable[[str, str], None]:
    return lambda event, detail: full.set() if event == "journal.disk_full" else None


def test_a_full_disk_is_waited_for_visibly_and_nothing_is_lost(small_disk: Path) -> None:
    full = threading.Event()
    run = small_disk / "run"
    run.mkdir()
    (small_disk / "filler").write_bytes(b"x" * 800_000)

    async def fill() -> int:
        writer = await open_writer(str(run), OpenRequest("run-1"), WriterOptions(tell=teller(full)))
        records = [draft("note", {"id": str(i), "pad": "x" * 20_000}) for i in range(20)]
        appends = [asyncio.ensure_future(writer.append(record)) for record in records]
        await asyncio.to_thread(full.wait)
        assert not all(append.done() for append in appends)
        (small_disk / "filler").unlink()
        positions = await asyncio.gather(*appends)
        await writer.close()
        return len(positions)

    assert asyncio.run(fill()) == 20
    check_left_behind(run, [str(i) for i in range(20)])


def test_closing_while_the_disk_is_full_gives_up_with_a_clear_error(small_disk: Path) -> None:
    full = threading.Event()
    run = small_disk / "run"
    run.mkdir()

    async def fill() -> tuple[object, object]:
        writer = await open_writer(str(run), OpenRequest("run-1"), WriterOptions(tell=teller(full)))
        record = draft("note", {"id": "1", "pad": "x" * 2_000_000})
        append = asyncio.ensure_future(writer.append(record))
        await asyncio.to_thread(full.wait)
        return await asyncio.gather(writer.close(), append, return_exceptions=True)

    closed, appended = asyncio.run(fill())
    assert isinstance(closed, JournalError)
    assert isinstance(appended, JournalError)
    assert "free some space" in str(closed)


def test_a_read_only_folder_is_refused_with_a_clear_error(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(DiskError, match="Read-only file system"):
        asyncio.run(open_writer(str(small_disk), OpenRequest("run-1")))
