"""A run that is asked to stop: nothing new begins, what is under way is kept, and the process ends in any case."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import finish, run
from tests.e2e.live_runs import Stage, alive, begun, ends, gate, is_stopping, mock, stage, wait_for


@pytest.mark.parametrize(
    "solver", ["swallow_cancellation", "block_for_ever", pytest.param("try_for_ever", marks=pytest.mark.long)]
)
def test_a_process_ends_after_two_signals_whatever_its_solver_does(tmp_path: Path, solver: str) -> None:
    course = stage(
        tmp_path, 2, task={"solver": f"mine:{solver}"}, model=mock(3600.0 if solver == "try_for_ever" else 0.0)
    )
    with alive(course) as process:
        wait_for((course.folder / "begun").exists, "at work")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)  # two of one kind could become one
        assert ends(process), "two signals, and it still runs"
    assert process.returncode == 130
    assert course.status() == "interrupted"


def test_a_solver_that_swallows_cancellation_does_not_outlast_the_grace(tmp_path: Path) -> None:
    course = stage(tmp_path, 2, task={"solver": "mine:swallow_cancellation"})
    with alive(course) as process:
        begun(course, process)
        process.send_signal(signal.SIGTERM)
        assert ends(process), "one signal and a grace of 1 s, and it still runs"
    assert process.returncode == 130


def test_requests_in_flight_at_the_first_signal_end_and_are_not_bought_twice(tmp_path: Path) -> None:
    model = gate(tmp_path)
    course = stage(
        tmp_path, 8, task={"solver": "mine:twice"}, model={**model.model, "max_connections": 4}, grace_seconds=3600
    )
    with alive(course) as process:
        wait_for(lambda: len(model.asked) == 4, "four in flight")
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_stopping(course), "told to stop")
        model.open()
        done = finish(process)
    assert done.code == 130, done.err
    assert len(model.asked) == 4, "nothing began, and what was under way ended"
    found = course.show()
    assert (found["status"], found["reason"]) == ("interrupted", "stopped by SIGTERM")
    assert found["steps"]["live"] == 4
    assert run(*course.resume, cwd=tmp_path).code == 0
    assert (len(model.asked), len(set(model.asked))) == (16, 16)


def test_requests_that_wait_for_a_connection_do_not_begin_after_the_signal(tmp_path: Path) -> None:
    model = gate(tmp_path)
    course = stage(
        tmp_path, 2, task={"solver": "mine:ask_many"}, model={**model.model, "max_connections": 2}, grace_seconds=3600
    )
    with alive(course) as process:
        wait_for(lambda: len(model.asked) == 2, "two in flight")
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_stopping(course), "told to stop")
        model.open()
        done = finish(process)
    assert done.code == 130
    assert len(model.asked) == 2


def test_a_parked_sample_is_no_stall_while_others_end(tmp_path: Path) -> None:
    """Draining holds back what would ask anew: that is our doing, not the sample's."""
    stall_seconds = 1.0
    model = gate(tmp_path, some=4)
    spec: dict[str, Any] = {"on_stall": "cancel-sample", "stall_seconds": stall_seconds, "grace_seconds": 3600}
    task = {"solver": "mine:twice", "sample_retries": 0}
    course = stage(tmp_path, 8, task=task, model={**model.model, "max_connections": 8}, **spec)
    with alive(course) as process:
        wait_for(lambda: len(model.asked) == 8, "eight in flight")
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_stopping(course), "told to stop")
        model.open_for_some()
        wait_for(lambda: course.show()["steps"]["live"] == 4, "four answered")
        parked = lease_time(course)
        wait_for(lambda: lease_time(course) > parked + 2 * stall_seconds, "parked for long")
        model.open()
        done = finish(process)
    assert done.code == 130
    found = course.show()
    assert (found["status"], found["failed"]) == ("interrupted", 0), found["failures"]
    assert "sample.stalled" not in course.events()


def lease_time(course: Stage) -> float:
    """When the run's last heartbeat was written: its watch has looked at the samples then."""
    return float(json.loads((course.run / "lease.json").read_text())["at"])


def test_the_grace_bounds_the_wait_for_requests_under_way(tmp_path: Path) -> None:
    course = stage(tmp_path, 2, model=mock(3600.0), grace_seconds=0.5)
    with alive(course) as process:
        begun(course, process)
        process.send_signal(signal.SIGTERM)
        assert ends(process)
    assert process.returncode == 130
    assert course.status() == "interrupted"


def test_the_second_signal_stops_now(tmp_path: Path) -> None:
    course = stage(tmp_path, 2, model=mock(3600.0), grace_seconds=3600)
    with alive(course) as process:
        begun(course, process)
        process.send_signal(signal.SIGTERM)
        assert not ends(process, 1), "the first one waits for requests under way"
        process.send_signal(signal.SIGINT)
        assert ends(process)
    assert process.returncode == 130
    assert course.status() == "interrupted"


def test_answers_that_were_being_scored_when_the_run_stopped_are_counted(tmp_path: Path) -> None:
    course = stage(tmp_path, 3, task={"scorers": ["mine:slow_scorer"]}, stall_seconds=60)
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: course.show()["finished"] == 3, "three answers")
        done = finish(process, signal.SIGTERM)
    assert done.code == 130
    assert "answers kept: 3 of 3" in done.err
    assert course.show()["finished"] == 3


def test_a_scorer_that_hangs_after_a_resume_is_seen_and_can_be_stopped(tmp_path: Path) -> None:
    course = stage(tmp_path, 3, task={"scorers": ["mine:hanging_scorer"]})
    with alive(course) as process:
        begun(course, process)
        wait_for(lambda: course.show()["finished"] == 3, "three answers")
        finish(process, signal.SIGKILL)
    with alive(course, *course.resume) as process:
        wait_for(lambda: course.status() == "stalled", "seen")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert ends(process), "two signals, and it still runs"
    assert process.returncode == 130


def test_signals_that_arrive_together_are_one_where_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster signals the process and its shell, which forwards the signal: requests in flight must not be lost."""
    monkeypatch.setenv("HOLDFAST_SIGNAL_GAP", "600")
    model = gate(tmp_path)
    course = stage(tmp_path, 4, task={"solver": "mine:twice"}, model=model.model, grace_seconds=3600)
    with alive(course) as process:
        wait_for(lambda: len(model.asked) == 4, "four in flight")
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_stopping(course), "told to stop")
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
        model.open()
        done = finish(process)
    assert done.code == 130, done.err
    assert course.show()["steps"]["live"] == 4
