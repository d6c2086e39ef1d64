"""A run that is asked to stop: nothing new begins, what is under way is kept, and the process ends in any case."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import finish, run
from tests.e2e.live_runs import alive, begun, ends, mock, stage, wait_for


@pytest.mark.parametrize("solver", ["swallow_cancellation", "try_for_ever", "block_for_ever"])
def test_a_process_ends_after_two_signals_whatever_its_solver_does(tmp_path: Path, solver: str) -> None:
    course = stage(
        tmp_path, 2, task={"solver": f"mine:{solver}"}, model=mock(3600.0 if solver == "try_for_ever" else 0.0)
    )
    with alive(course) as process:
        wait_for((course.run / "lease.json").exists, "at work")
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
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
    with start_server_process(Behaviour(latency_seconds=1.0)) as server:
        task = {"solver": "mine:twice"}
        model = {"max_connections": 4}
        course = stage(tmp_path, 8, server.base_url, task=task, model=model, grace_seconds=10)
        with alive(course) as process:
            wait_for(lambda: server.stats().in_flight == 4, "four in flight")
            done = finish(process, signal.SIGTERM)
        assert done.code == 130, done.err
        stats = server.stats()
        assert (stats.requests, stats.answered) == (4, 4), "nothing began, and what was under way ended"
        found = course.show()
        assert (found["status"], found["reason"]) == ("interrupted", "stopped by SIGTERM")
        assert found["steps"]["live"] == 4
        assert run(*course.resume, cwd=tmp_path).code == 0
        assert (server.stats().requests, server.stats().repeats) == (16, 0)


def test_requests_that_wait_for_a_connection_do_not_begin_after_the_signal(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=1.0)) as server:
        task = {"solver": "mine:ask_many"}
        course = stage(tmp_path, 2, server.base_url, task=task, model={"max_connections": 2}, grace_seconds=10)
        with alive(course) as process:
            wait_for(lambda: server.stats().in_flight == 2, "two in flight")
            done = finish(process, signal.SIGTERM)
        assert done.code == 130
        assert server.stats().requests == 2


def test_a_parked_sample_is_no_stall_while_others_end(tmp_path: Path) -> None:
    """Draining holds back what would ask anew: that is our doing, not the sample's."""
    with start_server_process(Behaviour(latency_seconds=0.2, jitter_seconds=2.5)) as server:
        spec: dict[str, Any] = {"on_stall": "cancel-sample", "stall_seconds": 0.5, "grace_seconds": 20}
        task = {"solver": "mine:twice", "sample_retries": 0}
        course = stage(tmp_path, 8, server.base_url, task=task, model={"max_connections": 8}, **spec)
        with alive(course) as process:
            wait_for(lambda: server.stats().requests >= 8, "eight in flight")
            done = finish(process, signal.SIGTERM)
    assert done.code == 130
    found = course.show()
    assert (found["status"], found["failed"]) == ("interrupted", 0), found["failures"]
    assert "sample.stalled" not in course.events()


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
        time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        assert ends(process), "two signals, and it still runs"
    assert process.returncode == 130
