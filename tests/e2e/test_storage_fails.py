"""Storage that fails at the start of a command: one sentence, exit code 8, and the same command works afterwards.

A path that the user may not write to is another matter: exit code 2, because waiting or repairing does not help.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.children import why_no_strace
from tests.e2e.commands import Done, call, environment, run, write_spec

needs_strace = pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with little room."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Take all the room that is left, down to the last block."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return filler


def assert_storage_failed(done: Done, what: object = "") -> None:
    assert done.code == 8, (what, done.said)
    assert "Traceback" not in done.said, (what, done.said)
    assert "No space left on device" in done.err or "disk is full" in done.err, (what, done.err)


@pytest.mark.long
def test_every_command_that_writes_to_a_full_disk_exits_with_8(tmp_path: Path, small: Path) -> None:
    spec = write_spec(tmp_path, 6)
    store = ("--store", small)
    assert call("run", spec, "--id", "done", *store, cwd=tmp_path).code == 0
    elsewhere = tmp_path / "elsewhere"
    assert call("run", spec, "--id", "other", "--store", elsewhere, cwd=tmp_path).code == 0
    assert call("export", "done", *store, cwd=tmp_path).code == 0  # what is derived is up to date
    filler = fill(small)
    before = sorted(path for path in (small / "sums" / "done").rglob("*") if path.is_file())
    commands: list[tuple[str | Path, ...]] = [
        ("run", spec, "--id", "new", *store),
        ("resume", "done", "--set", "concurrency.samples=3", "--set", "anomalies=false", *store),
        ("extend", "done", "--set", "tasks.sums.repeats=2", *store),
        ("fork", "done", "--id", "child", "--set", "seed=7", *store),
        ("score", "done", "--scorers", "exact_match", *store),
        ("tag", "done", "keep", *store),
        ("note", "done", "seen", *store),
        ("recover", elsewhere / "sums" / "other", "--output", small),
    ]
    for command in commands:
        fill(small)  # a command that failed may have removed what it had made
        assert_storage_failed(run(*command, cwd=tmp_path), command[0])
    assert [path for path in before if not path.exists()] == []
    filler.unlink()
    for command in commands:
        assert run(*command, cwd=tmp_path).code == 0, command[0]


def test_output_to_a_full_disk_exits_with_8(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    spec = write_spec(tmp_path, 6)
    store = tmp_path / "runs"
    assert call("run", spec, "--id", "r", "--store", store, cwd=tmp_path).code == 0
    for command in (["export", "r"], ["report", "r", "--format", "html"]):
        done = run(*command, "--output", "/dev/full", "--store", store, cwd=tmp_path)
        assert_storage_failed(done, command)
    for command in (["export", "r"], ["show", "r", "--json"], ["report", "r"]):
        with open("/dev/full", "w") as full:
            ended = subprocess.run(
                [sys.executable, "-m", "holdfast", *command, "--store", str(store)],
                cwd=tmp_path,
                env=environment(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert_storage_failed(Done(ended.returncode, "", ended.stderr), command)


@needs_strace
@pytest.mark.parametrize("inject", ["fdatasync:error=EIO:when=1+", "fdatasync:error=EIO:when=6+"])
def test_io_errors_at_the_opening_and_later_exit_with_8_and_the_run_can_be_resumed(inject: str, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 20, model={"options": {"reply": "8", "latency_seconds": 0.01}, "max_connections": 1})
    command = [sys.executable, "-m", "holdfast", "run", str(spec), "--id", "r", "--store", str(tmp_path / "runs")]
    traced = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", "trace=fdatasync", "-e", f"inject={inject}"]
    done = subprocess.run([*traced, *command], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 8, done.stderr
    assert "Input/output error" in done.stderr
    assert "Traceback" not in done.stderr
    assert call("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    assert call("verify", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0


def test_a_path_that_may_not_be_written_is_a_mistake_of_usage(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 6)
    (tmp_path / "file").write_text("not a folder")
    done = call("run", spec, "--id", "r", "--store", tmp_path / "file", cwd=tmp_path)
    assert (done.code, "Traceback" in done.err) == (2, False), done.err
    assert call("run", spec, "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    missing = tmp_path / "missing" / "out.jsonl"
    done = call("export", "r", "--store", tmp_path / "runs", "--output", missing, cwd=tmp_path)
    assert (done.code, str(missing) in done.err) == (2, True), done.err
