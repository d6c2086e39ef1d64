"""Of a run in a mirror a heartbeat tells whether it runs, and if not, when it was last heard of or how it ended."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.journal.ownership.claims import Beat
from holdfast.journal.ownership.lease import Holder, Lease, this_process
from holdfast.state import keep_beat, standing_by, standing_of, status_by, status_of
from tests.unit.state.stories import ended, fold_of, new_run, started

ELSEWHERE = Holder(17, "another-machine")
DEAD = Holder(2**30, this_process().host, started="1")


def beat(
    age: float = 0.0, holder: Holder = ELSEWHERE, *, over: bool = False, expiry: float = 3000.0, end: str = ""
) -> Beat:
    lease = Lease(holder, 3, 1, time.time() - age, 0.0, 1.0, planned=4, finished=2, acknowledged=9, end=end)
    return Beat(5, over, 7, lease, expiry)


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (lambda: beat(), "running"),
        (lambda: beat(2500), "running"),
        (lambda: beat(-5), "running"),  # its clock is ahead of ours
        (lambda: beat(3500), "interrupted"),
        (lambda: beat(3500, expiry=6000.0), "running"),
        (lambda: beat(over=True), "interrupted"),
        (lambda: beat(over=True, end="run.completed"), "completed"),
        (lambda: beat(over=True, end="run.cancelled"), "cancelled"),
        (lambda: beat(3500, end="run.failed"), "failed"),
        (lambda: beat(holder=DEAD), "interrupted"),
        (lambda: Beat(1), "interrupted"),
    ],
)
def test_a_heartbeat_alone_tells_the_status(told: Callable[[], Beat], status: str) -> None:
    """The heartbeat is made when the test runs: its age matters."""
    assert status_by(standing_by(told()))[0] == status


def test_a_run_that_is_only_scored_keeps_its_status() -> None:
    lease = Lease(ELSEWHERE, 3, 1, time.time(), 0.0, 1.0, scoring=True, end="run.completed")
    assert status_by(standing_by(Beat(1, False, 7, lease)))[0] == "completed"


def test_a_copy_is_judged_by_the_heartbeat_beside_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1)])

    def status() -> tuple[str, str]:
        fold = fold_of(run)
        return status_of(fold.story, fold.unfinished, standing_of(run))

    keep_beat(run, beat())
    assert status() == ("running", "")
    keep_beat(run, beat(4000))
    assert status()[0] == "interrupted"
    assert status()[1].startswith("last heartbeat at ")
    assert status()[1].endswith("from process 17 on another-machine")
    keep_beat(run, Beat(0))
    assert status()[0] == "interrupted"
    assert status()[1].startswith("its last record is of 20")


def test_how_a_run_ended_is_what_its_journal_says(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(0), ended("cancelled")])
    keep_beat(run, beat(4000, end="run.interrupted"))
    fold = fold_of(run)
    assert status_of(fold.story, fold.unfinished, standing_of(run))[0] == "cancelled"
