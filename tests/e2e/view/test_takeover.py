"""A run that another machine takes over from one that was stopped, as the viewer shows it.

The machines are processes with host names of their own, on a file system without locks: leases expire, epochs grow.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live_runs import RUN, Stage, ends, gate, stage, wait_for
from tests.e2e.test_no_flock import SOON, begin, finish, show
from tests.e2e.view.served import Served

SAMPLES = 12
FREE = 3
"""Requests of each machine that are answered at once."""
PAGE = f"/runs/sums/{RUN}/lineage"


@contextmanager
def serving(course: Stage) -> Iterator[Served]:
    """A viewer on a third machine."""
    process = begin(course, "view", course.store, "--port", "0", "--no-open", host="machine-c")
    try:
        assert process.stdout is not None
        base, _, token = process.stdout.readline().strip().partition("/?token=")
        yield Served(base, token)
    finally:
        process.terminate()
        process.communicate()


def lives_of(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(each["host"], each["epoch"], each["ended"], each["finished"]) for each in found["lineage"]["lives"]]


@pytest.mark.long
def test_a_takeover_shows_both_machines_their_epochs_and_what_each_finished(tmp_path: Path) -> None:
    door = gate(tmp_path, free=FREE)
    course = stage(tmp_path, SAMPLES, model=door.model | {"max_connections": 2}, grace_seconds=0.1)
    first = begin(course, *course.command, host="machine-a")
    wait_for(lambda: course.has_begun() and show(course)["finished"] >= FREE, "at work")
    first.send_signal(signal.SIGSTOP)
    second = begin(course, *course.resume, expiry=SOON, host="machine-b")
    try:
        wait_for(lambda: show(course)["finished"] >= 2 * FREE, "taken over")
        with serving(course) as viewer:
            found = viewer.json(PAGE)
            assert found["live"]
            assert lives_of(found) == [("machine-a", 1, "taken over", FREE), ("machine-b", 2, "running", FREE)]
            first_life, second_life = found["lineage"]["lives"]
            assert first_life["reason"] == "machine-b continued the run under epoch 2"
            assert second_life["kept_finished"] == FREE
            assert (found["lineage"]["kills"], found["lineage"]["takeovers"]) == (1, 1)
            page = viewer.html(PAGE)
            assert "1 taken over by another machine" in page
            assert "1 killed" not in page
            assert "epoch 2" in page
            door.open()
            assert finish(second).code == 0
            first.send_signal(signal.SIGCONT)
            assert ends(first), "it has lost the run and continues"
            assert finish(first).code == 4
            check_after(viewer)
    finally:
        for process in (first, second):
            if process.poll() is None:
                process.kill()
                process.communicate()


def check_after(viewer: Served) -> None:
    """What the first machine did after it had lost the run does not count."""
    ended = viewer.json(PAGE)
    assert lives_of(ended) == [
        ("machine-a", 1, "taken over", FREE),
        ("machine-b", 2, "completed", SAMPLES - FREE),
    ]
    keys = [each["key"] for life in (1, 2) for each in viewer.json(f"{PAGE}?life={life}")["chosen"]["samples"]]
    assert len(keys) == len(set(keys)) == SAMPLES
    sample = viewer.json(f"/runs/sums/{RUN}/samples/{keys[0]}")
    assert sample["story"]["status"] == "finished"
