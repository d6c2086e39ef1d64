"""A run on a disk that is full: it waits, says so once, and can be stopped."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.commands import call, environment, exported, finish, write_spec

MEGABYTES = 2
HURRIED = """
import sys
from holdfast.cli.main import main
from holdfast.runs.execution import session
session._END_SECONDS = 1.0
sys.argv = ["holdfast", *sys.argv[1:]]
main()
"""
"""The command, with less patience for a disk that does not take the last records."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with little room."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small tmpfs needs root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_it_waits_and_two_signals_end_it_and_it_continues_when_there_is_space(tmp_path: Path, small: Path) -> None:
    reply = {"reply": "x" * 20_000, "latency_seconds": 0.02}
    path = write_spec(tmp_path, 200, model={"options": reply, "max_connections": 2}, grace_seconds=0.5)
    command = [sys.executable, "-c", HURRIED, "run", str(path), "--id", "r", "--store", str(small)]
    log = small / "sums" / "r" / "log.jsonl"
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), text=True, stdout=pipe, stderr=pipe) as process:
        end = time.monotonic() + 120
        while not log.exists() or "journal.disk_full" not in log.read_text():
            assert process.poll() is None, finish(process).err
            assert time.monotonic() < end, "the disk never filled"
            time.sleep(0.1)
        while "waits for free disk space" not in call("show", "r", "--store", small, cwd=tmp_path).out:
            assert process.poll() is None, finish(process).err
            assert time.monotonic() < end, call("show", "r", "--store", small, cwd=tmp_path).said
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        done = finish(process)
    assert done.code == 130, done.err
    assert "the run continues by itself" in done.err
    assert done.err.count("No space left") <= 2, "it says so once a minute, not once a second"
    assert "Traceback" not in done.err
    assert "holdfast resume r" in done.err
    subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
    faster = ("--set", "models.arith.max_connections=20")
    assert call("resume", "r", "--store", small, *faster, cwd=tmp_path).code == 0
    assert len({line["key"] for line in exported("r", small)}) == 200
    assert call("verify", "r", "--store", small, cwd=tmp_path).code == 0
