"""Who can read a run: its owner alone, unless the user or the store says that it is shared."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import files
from holdfast.errors import HeldError
from holdfast.journal import OS_DISK, Lock, make_run_folder
from holdfast.journal.ownership.lease import Holder, Lease, write_lease
from tests.e2e.commands import call, write_spec
from tests.security.users import as_nobody, needs_root

RUN = "x"


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def make_run(place: Path, umask: int = 0o022, **environment: str) -> Path:
    """A run with a picture among its rows, whose journal is sealed, and that was continued by a note."""
    dataset = {"path": "sums.jsonl", "id": "id", "input": "question", "target": "answer", "files": ["picture"]}
    spec = write_spec(place, rows=1, task={"dataset": dataset})
    (place / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (place / "sums.jsonl").write_text('{"id": "a", "question": "1 + 7", "answer": "8", "picture": "picture.png"}\n')
    before = os.umask(umask)
    try:
        for arguments in (("run", str(spec), "--id", RUN), ("note", RUN, "a note"), ("show", RUN)):
            done = call(*arguments, cwd=place, env=environment)
            assert done.code == 0, done.err
    finally:
        os.umask(before)
    return place / "runs" / "sums" / RUN


def modes(run: Path) -> tuple[set[int], set[int]]:
    """Those of all folders, and those of all files."""
    every = [run, *run.rglob("*")]
    assert {path.name for path in every} >= {"journal", "blobs", "lock", "lease.json", "log.jsonl", "spec.yaml"}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in every if path.is_dir()}
    return folders, {stat.S_IMODE(path.stat().st_mode) for path in every if path.is_file()}


def test_a_run_is_private_and_its_store_follows_the_umask(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert modes(run) == ({0o700}, {0o600})
    assert [stat.S_IMODE(above.stat().st_mode) for above in (run.parent, run.parent.parent)] == [0o755, 0o755]


@pytest.mark.parametrize(("umask", "expected"), [(0o022, (0o755, 0o644)), (0o002, (0o775, 0o664))])
def test_with_holdfast_shared_a_run_follows_the_umask(tmp_path: Path, umask: int, expected: tuple[int, int]) -> None:
    run = make_run(tmp_path, umask, HOLDFAST_SHARED="1")
    assert modes(run) == ({expected[0]}, {expected[1]})


def test_a_run_in_a_store_that_the_group_can_write_follows_the_umask(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o775)
    assert modes(make_run(tmp_path, 0o007)) == ({0o770}, {0o660})


def test_a_run_of_an_earlier_version_keeps_its_modes(tmp_path: Path) -> None:
    run = make_run(tmp_path, HOLDFAST_SHARED="1")
    before = {path: path.stat().st_mode for path in run.rglob("*") if path.suffix == ".zst"}
    assert call("note", RUN, "another", cwd=tmp_path).code == 0
    assert {path: path.stat().st_mode for path in before} == before
    assert modes(run) == ({0o755}, {0o644})


def test_an_export_follows_the_umask(tmp_path: Path, usual_umask: None) -> None:
    make_run(tmp_path)
    assert call("export", RUN, "--output", "out.jsonl", cwd=tmp_path).code == 0
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o644


def test_a_fork_and_a_recovered_run_are_private_too(tmp_path: Path, usual_umask: None) -> None:
    run = make_run(tmp_path)
    assert call("fork", RUN, "--id", "y", cwd=tmp_path).code == 0
    assert modes(run.parent / "y") == ({0o700}, {0o600})
    done = call("recover", str(run), "--output", str(tmp_path / "elsewhere"), cwd=tmp_path)
    assert done.code == 0, done.err
    found = [path for path in (tmp_path / "elsewhere" / "sums" / RUN).rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}


def test_what_is_kept_in_the_cache_is_private(tmp_path: Path) -> None:
    make_run(tmp_path, HOLDFAST_CACHE=str(tmp_path / "cache"))
    every = list((tmp_path / "cache").rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in every if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in every if path.is_file()} == {0o600}


@needs_root
def test_another_user_cannot_read_a_private_run_and_can_read_a_shared_one(tmp_path: Path, usual_umask: None) -> None:
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & stat.S_IXOTH:
            above.chmod(above.stat().st_mode | stat.S_IXOTH)
    run = tmp_path / "store" / "sums" / RUN
    make_run_folder(OS_DISK, str(run))
    files.replace_file(str(run / "lease.json"), b"mine")

    def read() -> None:
        with pytest.raises(PermissionError):
            files.read_file(str(run / "lease.json"))

    as_nobody(read)
    run.chmod(0o755)
    files.replace_file(str(run / "lease.json"), b"ours")
    as_nobody(lambda: files.read_file(str(run / "lease.json")))


@needs_root
def test_a_lock_of_another_user_is_judged_by_the_lease(tmp_path: Path, usual_umask: None) -> None:
    """A team-mate who may read a run and not write it: a live run is held, one at rest is refused by permission."""
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.geteuid() and not above.stat().st_mode & stat.S_IXOTH:
            above.chmod(above.stat().st_mode | stat.S_IXOTH)
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").touch(0o600)
    now = 4e9

    def take(error: type[BaseException]) -> None:
        with pytest.raises(error):
            Lock(str(run), wait_seconds=0)

    for released, expected in ((False, HeldError), (True, PermissionError)):
        write_lease(str(run), Lease(Holder(1, "another-machine"), 1, 1, now, now, 60.0, released=released))
        as_nobody(lambda expected=expected: take(expected))  # type: ignore[misc] # binds the loop's value
