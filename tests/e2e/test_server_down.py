"""A server that goes away is waited for: no sample fails because of it, it shows, and Ctrl-C still stops at once."""

import signal
from pathlib import Path
from typing import Any

from holdfast.testing import Behaviour, Fault, Load, ServerProcess, start_server_process
from tests.e2e.commands import finish, run
from tests.e2e.live_runs import Stage, alive, stage, wait_for

SLOW = Behaviour(latency_seconds=0.05)


def waiting(course: Stage) -> None:
    wait_for(lambda: "model.waiting" in course.events(), "the run waits for the server")


def port_of(server: ServerProcess) -> int:
    return int(server.base_url.split(":")[2].split("/")[0])


def staged(folder: Path, server: ServerProcess, rows: int, **model: Any) -> Stage:
    return stage(folder, rows, server.base_url, model=model)


def test_a_server_that_is_killed_and_started_again_costs_no_sample(tmp_path: Path) -> None:
    server = start_server_process(SLOW)
    course = staged(tmp_path, server, 200, max_connections=8, request_retries=1)
    with alive(course) as process:
        wait_for(lambda: server.stats().answered > 20, "some answers")
        server.close()
        waiting(course)
        wait_for(lambda: "waiting for the server" in str(course.show()["reason"]), "`show` says so")
        assert course.status() == "running"
        with start_server_process(SLOW, port_of(server)):
            done = finish(process)
    assert done.code == 0, done.err
    assert (course.show()["finished"], course.show()["failed"]) == (200, 0)
    assert course.events().count("model.answers") == 1
    assert "run.stalled" not in course.events()


def test_a_run_that_waits_for_its_server_stops_at_once(tmp_path: Path) -> None:
    server = start_server_process(SLOW)
    course = stage(tmp_path, 200, server.base_url, grace_seconds=30.0)
    with alive(course) as process:
        wait_for(lambda: server.stats().answered > 20, "some answers")
        server.close()
        waiting(course)
        done = finish(process, signal.SIGINT)
    assert done.code == 130
    found = course.show()
    assert (found["status"], found["failed"]) == ("interrupted", 0)
    assert found["unfinished"] > 0


def test_when_patience_is_over_the_rest_stays_unfinished(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("500")])) as server:
        course = staged(tmp_path, server, 100, patience_seconds=2.0)
        done = run(*course.command, cwd=tmp_path)
        assert server.stats().requests < 100
    assert done.code == 1
    found = course.show()
    assert (found["status"], found["failed"], found["unfinished"]) == ("failed", 0, 100)
    assert "no answer for" in found["reason"]


def test_a_server_that_never_answered_is_given_up_soon_and_one_that_answered_in_an_earlier_process_is_not(
    tmp_path: Path,
) -> None:
    server = start_server_process(SLOW)
    limits = {"patience_seconds": 600.0, "first_contact_seconds": 1.0}
    course = staged(tmp_path, server, 200, **limits)
    server.close()
    done = run(*course.command, cwd=tmp_path)
    assert done.code == 1
    assert "none before in this run (first_contact_seconds)" in course.show()["reason"]
    assert course.show()["unfinished"] == 200
    with start_server_process(SLOW, port_of(server)) as back, alive(course) as process:
        wait_for(lambda: back.stats().answered > 20, "some answers")
        finish(process, signal.SIGINT)
    with alive(course) as process:
        wait_for(lambda: "waiting up to 600 s for it (patience_seconds)" in str(course.log()), "the resume is patient")
        assert finish(process, signal.SIGINT).code == 130


def test_the_limit_of_a_server_is_found_and_nothing_fails(tmp_path: Path) -> None:
    """Few refusals, and none of them uses up the one retry of a request."""
    with start_server_process(Behaviour(latency_seconds=0.02, load=Load(in_flight=5))) as server:
        course = staged(tmp_path, server, 300, request_retries=1)
        done = run(*course.command, cwd=tmp_path)
        stats = server.stats()
    assert done.code == 0, done.err
    assert (stats.answered, course.show()["failed"]) == (300, 0)
    assert stats.faults.get("429", 0) < 60


def test_what_headers_say_is_left_is_not_overdrawn(tmp_path: Path) -> None:
    load = Load(per_second=100, tells=True, retry_after="1")
    with start_server_process(Behaviour(latency_seconds=0.01, load=load)) as server:
        course = staged(tmp_path, server, 250, max_connections=16)
        done = run(*course.command, cwd=tmp_path)
        stats = server.stats()
    assert done.code == 0, done.err
    assert stats.faults.get("429", 0) <= 16
