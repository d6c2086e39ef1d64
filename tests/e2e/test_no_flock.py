"""One writer where the file system has no locks: numbered terms, their beats, and the fence in the journal."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import Done, environment, exported
from tests.e2e.live_runs import PATIENCE_SECONDS, RUN, Stage, ends, gate, mock, stage, wait_for

CHILD = Path(__file__).with_name("child_no_flock.py")


SOON = 1.0
"""Only the process that wants the run judges whether the holder's term has expired. One that has to be refused waits
for ever, one that has to take over from a holder that is stopped or dead waits a second: so the machine's speed decides
nothing.
"""


def begin(course: Stage, *arguments: str | Path, expiry: float = SOON, host: str = "") -> "subprocess.Popen[str]":
    """`host`: the name of the machine that it believes to be on."""
    return subprocess.Popen(
        [sys.executable, CHILD, str(expiry), *map(str, arguments)],
        cwd=course.folder,
        env=environment({"PYTHONPATH": str(Path.cwd()), "TEST_HOST": host}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> Done:
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return Done(process.returncode, out, err)


def show(course: Stage) -> dict[str, Any]:
    done = finish(begin(course, "show", RUN, "--store", course.store, "--json"))
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def beats(course: Stage) -> int:
    return len(list((course.run / "lease").glob("??????"))) if course.run.exists() else 0


def test_of_two_processes_one_wins_and_a_killed_holder_is_taken_over_when_its_term_has_expired(tmp_path: Path) -> None:
    door = gate(tmp_path)
    course = stage(tmp_path, 10, model=door.model | {"max_connections": 1})
    first = begin(course, *course.command)
    wait_for(lambda: (course.run / "lease.json").exists(), "at work")
    refused = finish(begin(course, *course.resume))
    assert refused.code == 4, refused.err
    assert f"process {first.pid}" in refused.err
    assert show(course)["status"] == "running"
    first.kill()
    first.communicate()
    assert show(course)["status"] == "interrupted"
    door.open()
    done = finish(begin(course, *course.resume, expiry=SOON))
    assert done.code == 0, done.err
    assert show(course)["status"] == "completed"
    assert finish(begin(course, *course.resume)).code == 0, "a term that was ended is not waited for"
    assert len(exported(RUN, course.store)) == 10


def test_a_stopped_holder_that_lost_its_term_stops_when_continued_and_nothing_of_it_counts(tmp_path: Path) -> None:
    door = gate(tmp_path, free=1)
    course = stage(tmp_path, 12, model=door.model | {"max_connections": 1}, grace_seconds=0.1)
    first = begin(course, *course.command)
    wait_for(lambda: course.has_begun() and show(course)["finished"] >= 1, "at work")
    first.send_signal(signal.SIGSTOP)
    door.open()
    second = begin(course, *course.resume, expiry=SOON)
    wait_for(lambda: beats(course) == 2, "taken over")
    wait_for(lambda: len(show(course)["resumes"]) == 1, "gone on")
    first.send_signal(signal.SIGCONT)
    assert ends(first), "it has lost the run and goes on"
    lost = finish(first)
    assert lost.code == 4, lost.err
    assert "taken over by another process" in lost.err
    assert "Traceback" not in lost.err
    assert show(course)["status"] in {"running", "completed"}, "the loser has no say"
    done = finish(second)
    assert done.code == 0, done.err
    found = show(course)
    assert (found["status"], found["finished"], found["failed"]) == ("completed", 12, 0)
    keys = [line["key"] for line in exported(RUN, course.store)]
    assert len(set(keys)) == len(keys) == 12
    again = finish(begin(course, "verify", RUN, "--store", course.store))
    assert again.code == 0, again.out


@pytest.mark.long
def test_a_holder_that_lost_its_term_leaves_no_lease_that_makes_the_next_report_a_loss(tmp_path: Path) -> None:
    """It is continued when the run has completed: its last words must not become the run's."""
    door = gate(tmp_path, free=1)
    course = stage(tmp_path, 6, model=door.model | {"max_connections": 1}, grace_seconds=0.1)
    first = begin(course, *course.command)
    wait_for(lambda: course.has_begun() and show(course)["finished"] >= 1, "at work")
    first.send_signal(signal.SIGSTOP)
    door.open()
    assert finish(begin(course, *course.resume, expiry=SOON)).code == 0
    before = (course.run / "lease.json").read_bytes()
    first.send_signal(signal.SIGCONT)
    finish(first)
    found = show(course)
    assert (found["status"], found["finished"]) == ("completed", 6)
    assert (course.run / "lease.json").read_bytes() == before, "a fenced process has no say"


def test_a_holder_that_lost_its_term_stops_at_once_though_nothing_is_to_be_saved(tmp_path: Path) -> None:
    """It would keep requesting, and paying for, answers that do not count."""
    course = stage(tmp_path, 2, model=mock(3600.0), grace_seconds=0.1)
    first = begin(course, *course.command)
    try:
        wait_for(lambda: (course.run / "lease.json").exists(), "at work")
        first.send_signal(signal.SIGSTOP)
        second = begin(course, *course.resume, expiry=SOON)
        wait_for(lambda: beats(course) == 2, "taken over")
        second.kill()
        second.communicate()
        first.send_signal(signal.SIGCONT)
        assert ends(first), "it has lost the run and goes on"
    finally:
        first.kill()
        first.communicate()
