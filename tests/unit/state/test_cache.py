"""The cache folder: where it is, who may use it, how large it grows."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast.state.cache as cache_module
from holdfast.runs.maintenance.retention import remove_stale_entries
from holdfast.state import Catalogue, Index
from holdfast.state.cache import kind_folder, make_room, remove_entry
from tests.caches import catalogue_file, index_file
from tests.unit.state.stories import finished, new_run, started, step


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "cache"


def private(tmp_path: Path) -> Path:
    return tmp_path / "temporary" / f"holdfast-{os.geteuid()}"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def index_of(folder: Path, keys: int = 2) -> tuple[str, Path]:
    """A run and the file of its index."""
    run = new_run(folder, [started(keys), step(0), finished(0)])
    Index(run).close()
    return run, index_file(run)


def test_the_folder_is_the_first_that_is_named_and_is_private(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kind_folder("runs") == str(cache / "runs")
    assert (mode(cache), mode(cache / "runs")) == (0o700, 0o700)
    monkeypatch.delenv("HOLDFAST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "xdg" / "holdfast" / "runs").mkdir(parents=True, mode=0o755)
    assert kind_folder("runs") == str(tmp_path / "xdg" / "holdfast" / "runs")
    assert mode(tmp_path / "xdg" / "holdfast") == 0o700, "as older versions left it"
    assert mode(tmp_path / "xdg" / "holdfast" / "runs") == 0o700
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert kind_folder("runs") == str(tmp_path / "home" / ".cache" / "holdfast" / "runs")


def networked(device: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 {os.major(device)}:{os.minor(device)} / / rw shared:1 - nfs4 server:/share rw\n")
    monkeypatch.setattr(cache_module, "_MOUNTS", str(mounts))
    monkeypatch.setattr(cache_module, "_kind_of", vars(cache_module)["_kind_of"].__wrapped__)


def test_a_networked_cache_is_replaced_by_a_private_temporary_folder(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to tell from the first")
    cache.mkdir()
    local = shared / f"holdfast-test-{os.getpid()}"
    local.mkdir()
    try:
        monkeypatch.setenv("TMPDIR", str(local))
        networked(cache.stat().st_dev, tmp_path, monkeypatch)
        assert kind_folder("runs") == str(local / f"holdfast-{os.geteuid()}" / "runs")
        _, path = index_of(tmp_path / "store")
        assert path.is_relative_to(local)
        assert list(cache.rglob("*.db")) == []
    finally:
        shutil.rmtree(local)


def test_where_everything_is_networked_there_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networked(tmp_path.stat().st_dev, tmp_path, monkeypatch)
    assert kind_folder("runs") is None
    run = new_run(tmp_path / "store", [started(2), finished(0)])
    index = Index(run)
    assert (index.finished, list(tmp_path.rglob("*.db"))) == (1, [])
    index.close()


@pytest.mark.parametrize("obstacle", ["file", "read-only"])
def test_a_cache_that_cannot_be_written_is_replaced(
    obstacle: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if obstacle == "file":
        cache.write_text("")
    else:
        cache.mkdir()
        access = os.access  # for root every folder can be written
        monkeypatch.setattr(os, "access", lambda path, mode: path != str(cache) and access(path, mode))
    assert kind_folder("runs") == str(private(tmp_path) / "runs")
    assert mode(private(tmp_path)) == 0o700


@pytest.mark.parametrize("trap", ["link", "open to all", "another user's"])
def test_a_temporary_folder_that_another_user_may_have_made_is_not_used(
    trap: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("")
    if trap == "link":
        (tmp_path / "elsewhere").mkdir()
        private(tmp_path).symlink_to(tmp_path / "elsewhere")
    elif trap == "open to all":
        private(tmp_path).mkdir()
        private(tmp_path).chmod(0o777)
    else:
        mine = os.geteuid()
        private(tmp_path).mkdir()
        (tmp_path / "temporary" / f"holdfast-{mine + 1}").mkdir(mode=0o700)
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert kind_folder("runs") is None


def test_the_least_recently_used_goes_first_and_open_readers_are_not_disturbed(tmp_path: Path, cache: Path) -> None:
    runs = [index_of(tmp_path / name) for name in "abc"]
    for age, (_, path) in enumerate(runs):
        os.utime(path, (1e9 + age, 1e9 + age))
    reader = Index(runs[0][0])  # marks it as used
    os.utime(runs[0][1], (1e9 + 9, 1e9 + 9))
    sizes = sum(path.stat().st_size for _, path in runs)
    make_room(str(cache), bytes_max=sizes - 1, now=1e9 + 10)
    assert [path.exists() for _, path in runs] == [True, False, True]
    make_room(str(cache), bytes_max=0, now=1e9 + 10)
    assert [path.exists() for _, path in runs] == [False] * 3
    assert [row.o for row in reader.answers()] == [0]
    reader.close()


def test_the_bound_is_kept_whenever_something_is_added(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = index_of(tmp_path / "a")
    bound = first.stat().st_size * 2
    monkeypatch.setenv("HOLDFAST_CACHE_BYTES", str(bound))
    for name in "bcde":
        _, last = index_of(tmp_path / name)
    left = list(cache.rglob("*.db"))
    assert last in left
    assert sum(path.stat().st_size for path in left) <= bound


def test_what_was_unused_for_a_month_goes_and_so_do_abandoned_temporary_files(cache: Path, tmp_path: Path) -> None:
    _, path = index_of(tmp_path / "a")
    left = path.with_suffix(".db.tmp")
    left.touch()
    used = path.stat().st_mtime
    make_room(str(cache), now=used + 2 * 86400)
    assert (path.exists(), left.exists()) == (True, False)
    make_room(str(cache), now=used + 31 * 86400)
    assert not path.exists()


def test_a_copy_that_another_process_reads_is_not_removed(cache: Path) -> None:
    copy = cache / "copies" / "x"
    copy.mkdir(parents=True)
    program = (
        "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_SH); "
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(copy / "in-use")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not remove_entry(str(copy))
        process.communicate()
    assert remove_entry(str(copy))
    assert not copy.exists()


def test_stale_entries_are_removed_and_others_stay(tmp_path: Path, cache: Path) -> None:
    store = tmp_path / "a"
    (_, kept), (gone_run, gone), (replaced_run, replaced) = (index_of(tmp_path / name) for name in "abc")
    catalogue = Catalogue(str(store), "form")
    catalogue.put("folder", "stamp", b"told")
    catalogue.close()
    (cache / "runs" / "of-an-older-version.db").write_bytes(b"SQLite format 3\0")
    shutil.rmtree(gone_run)
    shutil.copytree(replaced_run, f"{replaced_run}-copy")
    shutil.rmtree(replaced_run)
    os.mkdir(f"{replaced_run}-between")  # else the copy may get the inode that was freed
    os.rename(f"{replaced_run}-copy", replaced_run)
    count, size = remove_stale_entries()
    assert sorted(cache.rglob("*.db")) == sorted([kept, catalogue_file(store)])
    assert (count, gone.exists(), replaced.exists()) == (3, False, False)
    assert size > 0


def test_processes_that_read_at_once_with_one_cache_or_several_all_see_the_truth(tmp_path: Path) -> None:
    run = new_run(tmp_path / "store", [started(40), *(each for o in range(40) for each in (step(o), finished(o)))])
    program = (
        "import sys; from holdfast.state import Index\n"
        "for _ in range(10):\n"
        "    index = Index(sys.argv[1]); print(index.finished, len(list(index.answers()))); index.close()\n"
    )
    caches = ["one", "one", "one", "another"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, run],
            env={**os.environ, "HOLDFAST_CACHE": str(tmp_path / name)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in caches
    ]
    assert [process.communicate() for process in processes] == [("40 40\n" * 10, "")] * 4
