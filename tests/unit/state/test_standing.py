"""A run's status from its lock and its lease: a dead process is never running, a silent one is stalled."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from holdfast import files
from holdfast.journal import Lock
from holdfast.journal.ownership.lease import Holder, Lease, Stall, boot_id, this_process, write_lease
from holdfast.records.facts import RunEnded
from holdfast.state import Standing, Story, is_held, standing_of, status_of
from holdfast.state.story import End

HOST = socket.gethostname()


def lease(at: float, holder: Holder | None = None, stall: Stall | None = None, released: bool = False) -> Lease:
    return Lease(holder or this_process(), 1, 1, at, at, 5.0, stall=stall, released=released)


def status(standing: Standing, story: Story | None = None, unfinished: int = 1) -> str:
    return status_of(story or Story(), unfinished, standing)[0]


def ended(kind: str, unfinished: int = 0) -> Story:
    return Story(end=End(kind, "", RunEnded(1, 0, unfinished, "")))


@pytest.mark.parametrize(
    ("silent", "expected"), [(0.0, "running"), (6.9, "running"), (7.1, "stalled"), (1e6, "stalled")]
)
def test_a_holder_is_stalled_when_it_is_silent_for_its_stall_seconds_and_some_slack(
    silent: float, expected: str
) -> None:
    assert status(Standing(True, lease(1000.0), 1000.0 + silent)) == expected


def test_a_holder_that_says_that_nothing_moves_is_stalled() -> None:
    assert status(Standing(True, lease(1000.0, stall=Stall(990.0, "why")), 1000.0)) == "stalled"


def test_a_holder_that_has_not_beaten_yet_is_running() -> None:
    assert status(Standing(True, None, 1.0)) == "running"
    assert status(Standing(True, lease(0.0, released=True), 1e6)) == "running"


@pytest.mark.parametrize("found", [None, lease(1.0), lease(1.0, released=True), lease(1.0, stall=Stall(1.0, "why"))])
def test_without_a_holder_and_a_last_word_a_run_is_interrupted_with_a_reason(found: Lease | None) -> None:
    told, reason = status_of(Story(), 1, Standing(False, found, 2.0))
    assert told == "interrupted"
    assert reason


@pytest.mark.parametrize("kind", ["run.failed", "run.cancelled", "run.interrupted", "run.completed"])
def test_a_run_at_rest_is_what_its_last_record_says(kind: str) -> None:
    assert status(Standing(False, lease(1.0), 2.0), ended(kind), 0) == kind.removeprefix("run.")


def test_a_completed_run_that_lost_answers_is_interrupted() -> None:
    assert status(Standing(False), ended("run.completed"), 2) == "interrupted"


FORGED = {
    "another process got its number": Holder(os.getpid(), HOST, boot_id(), "1"),
    "the machine was restarted": Holder(os.getpid(), HOST, "another boot", this_process().started),
    "it is gone": Holder(2**22 + 1, HOST, boot_id(), "1"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_lease_alone_never_makes_a_run_running(tmp_path: Path, name: str) -> None:
    write_lease(str(tmp_path), lease(time.time(), FORGED[name]))
    (tmp_path / "lock").touch()
    standing = standing_of(str(tmp_path))
    assert not standing.held
    assert status(standing) == "interrupted"


def test_a_lease_of_a_live_process_without_a_lock_is_not_running_either(tmp_path: Path) -> None:
    write_lease(str(tmp_path), lease(time.time()))
    assert status(standing_of(str(tmp_path))) == "interrupted"


def test_a_lock_held_with_the_lease_of_another_host_is_running(tmp_path: Path) -> None:
    lock = Lock(str(tmp_path))
    write_lease(str(tmp_path), lease(time.time(), Holder(1, "elsewhere", "boot", "1")))
    assert status(standing_of(str(tmp_path))) == "running"
    lock.release()


def test_a_lock_that_a_child_inherited_from_a_dead_process_is_not_held(tmp_path: Path) -> None:
    """A child that was made without Python's knowledge keeps the lock: the run must not look alive."""
    program = (
        "import fcntl, os, subprocess, sys\n"
        "handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(handle, fcntl.LOCK_EX)\n"
        "child = subprocess.Popen(['sleep', '30'], pass_fds=[handle], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "lock"], stdout=subprocess.PIPE, text=True, check=True
    )
    child = int(done.stdout)
    try:
        assert not is_held(str(tmp_path))
        write_lease(str(tmp_path), lease(time.time(), FORGED["it is gone"]))
        assert not standing_of(str(tmp_path)).held
    finally:
        os.kill(child, 9)


@pytest.mark.parametrize("way", ["forbidden", "link"])
def test_a_lock_that_cannot_be_opened_is_judged_by_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    open_file = files.open_file

    def refuse(path: str, *, write: bool = False) -> int:
        if path.endswith("lock"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return open_file(path, write=write)

    if way == "link":
        (tmp_path / "lock").symlink_to(tmp_path / "nowhere")
    else:
        (tmp_path / "lock").touch()
        monkeypatch.setattr(files, "open_file", refuse)
    assert standing_of(str(tmp_path)).held is False, "nobody ever wrote a lease"
    now, elsewhere = time.time(), Holder(1, "another-machine")
    for holder, at, released, held in (
        (this_process(), now, False, True),
        (this_process(), now, True, False),
        (msgspec.structs.replace(this_process(), pid=1 << 30), now, False, False),
        (elsewhere, now, False, True),
        (elsewhere, now - 3600, False, False),
    ):
        write_lease(str(tmp_path), Lease(holder, 1, 1, at, at, 60.0, released=released))
        assert is_held(str(tmp_path)) is held, (holder, at, released)


def test_a_run_whose_lock_and_lease_may_not_be_read_is_not_taken_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, *, write: bool = False) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    (tmp_path / "lock").touch()
    monkeypatch.setattr(files, "open_file", refuse)
    monkeypatch.setattr("holdfast.state.status._copied_beat", lambda _: None)
    assert is_held(str(tmp_path))


def test_a_look_does_not_disturb_a_holder_nor_another_look(tmp_path: Path) -> None:
    assert not is_held(str(tmp_path)), "a look makes no lock"
    assert not (tmp_path / "lock").exists()
    lock = Lock(str(tmp_path))
    assert is_held(str(tmp_path))
    other = os.open(tmp_path / "lock", os.O_RDONLY)
    lock.release()
    fcntl.flock(other, fcntl.LOCK_SH)
    assert not is_held(str(tmp_path))
    os.close(other)
