"""Requests of another process to a live run: stop, or work with other limits."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Behaviour, Fault, start_server_process
from tests.e2e.commands import call, finish, run
from tests.e2e.live_runs import RUN, alive, begun, ends, gate, mock, stage, wait_for


def test_cancel_from_another_process_stops_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    door = gate(tmp_path, free=2)
    course = stage(tmp_path, 12, model=door.model | {"max_connections": 2})
    with alive(course) as process:
        begun(course, process)
        done = call("cancel", RUN, "--store", course.store, cwd=tmp_path)
        assert done.code == 0, done.err
        assert ends(process)
        stopped = finish(process)
        assert stopped.code == 130
        assert "cancelled; answers kept: " in stopped.err
        assert "interrupted" not in stopped.err
    found = course.show()
    assert found["status"] == "cancelled"
    assert found["unfinished"] > 0
    assert list((course.run / "control").iterdir()) == []
    door.open()
    assert run(*course.resume, cwd=tmp_path).code == 0
    assert course.status() == "completed"


def test_a_request_to_cancel_that_nobody_waits_for_does_not_cancel_the_next_process(tmp_path: Path) -> None:
    door = gate(tmp_path)
    course = stage(tmp_path, 6, model=door.model | {"max_connections": 2})
    with alive(course) as process:
        begun(course, process)
        process.send_signal(signal.SIGSTOP)
        asker = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "cancel", RUN, "--store", course.store],
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        wait_for(lambda: any((course.run / "control").glob("*.wish")), "asked")
        asker.kill()
        asker.wait()
        process.kill()
    door.open()
    done = run(*course.resume, cwd=tmp_path)
    assert done.code == 0, done.err
    assert course.status() == "completed"


@pytest.mark.parametrize("arguments", [["cancel", RUN], ["tune", RUN, "--set", "concurrency.samples=2"]])
def test_a_run_that_is_not_live_cannot_be_cancelled_or_tuned(tmp_path: Path, arguments: list[str]) -> None:
    course = stage(tmp_path, 2)
    assert run(*course.command, cwd=tmp_path).code == 0
    done = call(*arguments, "--store", course.store, cwd=tmp_path)
    assert done.code == 2
    assert done.err == f"holdfast: {RUN} is completed: no process is working on it\n"


@pytest.mark.parametrize(
    "field", ["models.arith.max_connections", pytest.param("concurrency.samples", marks=pytest.mark.long)]
)
def test_tuning_a_live_run_takes_effect_and_is_recorded(tmp_path: Path, field: str) -> None:
    limits: dict[str, Any] = {"model": {"max_connections": 2}} if "models" in field else {"concurrency": {"samples": 2}}
    with start_server_process(Behaviour(latency_seconds=0.3)) as server:
        course = stage(tmp_path, 60, server.base_url, **limits)
        with alive(course) as process:
            begun(course, process)
            assert server.stats().max_in_flight == 2
            done = call("tune", RUN, "--set", f"{field}=12", "--store", course.store, cwd=tmp_path)
            assert done.code == 0, done.err
            wait_for(lambda: server.stats().max_in_flight == 12, "twelve in flight")
            assert finish(process).code == 0
        assert (server.stats().requests, server.stats().max_in_flight) == (60, 12)
    resumes = course.show()["resumes"]
    assert [(each["live"], each["changes"][0]["old"], each["changes"][0]["new"]) for each in resumes] == [(True, 2, 12)]
    assert "12" in (course.run / "spec.yaml").read_text()
    assert run(*course.resume, cwd=tmp_path).code == 0, "the tuned spec is the run's own"


def test_tuning_down_takes_effect_too(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.2)) as server:
        course = stage(tmp_path, 60, server.base_url, model={"max_connections": 12})
        with alive(course) as process:
            begun(course, process)
            changed = "models.arith.max_connections=2"
            assert call("tune", RUN, "--set", changed, "--store", course.store, cwd=tmp_path).code == 0
            wait_for(lambda: server.stats().in_flight <= 2, "two in flight")
            seen = {server.stats().in_flight for _ in range(40)}
            assert max(seen) <= 2
            assert finish(process).code == 0
    assert course.show()["finished"] == 60


@pytest.mark.parametrize(
    "change", ["models.arith.params.temperature=1.0", "limits.sample.seconds=3", "concurrency.samples=0", "no.such=1"]
)
def test_tuning_anything_but_throughput_is_refused_and_changes_nothing(tmp_path: Path, change: str) -> None:
    course = stage(tmp_path, 4, model=mock(20.0))
    with alive(course) as process:
        begun(course, process)
        before = (course.run / "spec.yaml").read_text()
        done = call("tune", RUN, "--set", change, "--store", course.store, cwd=tmp_path)
        assert done.code == 2, done.said
        assert course.status() == "running"
        assert (course.run / "spec.yaml").read_text() == before
    assert course.show()["resumes"] == []


def test_a_wish_that_cannot_be_met_does_not_stop_the_heartbeat(tmp_path: Path) -> None:
    """spec.yaml cannot be written: the change is recorded, the file is not, and the run beats on."""
    course = stage(tmp_path, 4, model=mock(20.0), stall_seconds=0.5)
    with alive(course) as process:
        begun(course, process)
        (course.run / "spec.yaml").unlink()
        (course.run / "spec.yaml").mkdir()
        (course.run / "spec.yaml" / "in the way").touch()
        asker = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "tune", RUN, "--set", "concurrency.samples=2", "--store", course.store],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        _, said = asker.communicate()
        assert "does not respond" not in said
        time.sleep(3)
        assert course.status() == "running"


def test_tuning_does_not_try_failed_samples_again(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.3, faults=[Fault("400", first=2)])) as server:
        model = {"max_connections": 2, "request_retries": 0}
        course = stage(tmp_path, 20, server.base_url, model=model, task={"sample_retries": 0})
        with alive(course) as process:
            wait_for(lambda: course.has_begun() and course.show()["failed"] == 2, "two failed")
            changed = "models.arith.max_connections=4"
            assert call("tune", RUN, "--set", changed, "--store", course.store, cwd=tmp_path).code == 0
            assert finish(process).code == 1
        found = course.show()
        assert (found["status"], found["finished"], found["failed"], found["unfinished"]) == ("completed", 18, 2, 0)
        assert server.stats().requests == 20


def test_what_can_be_tuned_is_in_force_at_once(tmp_path: Path) -> None:
    course = stage(tmp_path, 2, task={"solver": "mine:wait_for_ever", "sample_retries": 0}, stall_seconds=300)
    with alive(course) as process:
        begun(course, process)
        changes = ("--set", "stall_seconds=0.5", "--set", "on_stall=cancel-sample")
        assert call("tune", RUN, *changes, "--store", course.store, cwd=tmp_path).code == 0
        assert ends(process), "accepted, recorded, and without effect"
    assert course.show()["failures"][0]["kind"] == "stalled"
