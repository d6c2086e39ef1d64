"""Comparisons are computed once for each state of their runs, by a child process if they are large."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.runs import Run, RunLocation, ShownQuestions, comparison_of, find_run, leaderboard_of
from holdfast.view import computations as module
from holdfast.view.computations import Computations, Found, Job, JobRun, open_result, run_job
from tests.unit.engine.runs import Asked, given, go, mock
from tests.unit.runs.stores import completed

PATIENCE_SECONDS = 120.0


@pytest.fixture
def places(tmp_path: Path) -> list[RunLocation]:
    """Two runs of a model that is right; the second time on the even samples only."""
    found = []
    for name, wrong in (("a", "x"), ("b", "13579")):
        tasks = [Asked(rows=[{"id": f"s{n}", "input": f"{n}", "target": f"{n}"[-1]} for n in range(8)])]
        tasks[0].fields = {"scorers": ["includes"], "prompt": f"{{input}} {wrong}"}
        tasks[0].solver = answers(wrong)
        go(tmp_path, given(tasks, [mock()]), run_id=name)
        found.append(find_run(str(tmp_path), name))
    return found


def answers(wrong: str) -> Callable[..., Any]:
    async def solve(sample: Any, ctx: Any) -> str:
        return "no" if sample.target in wrong else str(sample.target)

    return solve


@pytest.fixture
def computations() -> Iterator[Computations]:
    found = Computations()
    yield found
    found.close()


def job(places: list[RunLocation], kind: str = "compare", evaluation: str = "") -> Job:
    return Job(kind, tuple(map(JobRun, places)), evaluation)  # type: ignore[arg-type]


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_result_is_that_of_the_command(places: list[RunLocation]) -> None:
    runs = [Run(place) for place in places]
    wanted = comparison_of(runs, questions=ShownQuestions(0))
    found = open_result(run_job(job(places)))
    assert found.outcome.comparison is not None
    assert [len(each.changed) for each in wanted.comparisons] == [4]
    bare = tuple(msgspec.structs.replace(each, changed=[]) for each in wanted.comparisons)
    assert found.outcome.comparison == msgspec.structs.replace(wanted, comparisons=bare)
    assert [table.head.count for table in found.tables] == [each.common for each in wanted.comparisons]
    board = open_result(run_job(job(places, "leaderboard"))).outcome.leaderboard
    assert board == leaderboard_of(runs)
    for run in runs:
        run.close()


def test_a_small_one_is_there_at_once_and_computed_once(
    places: list[RunLocation], computations: Computations, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Job] = []

    def counted(each: Job) -> bytes:
        calls.append(each)
        return run_job(each)

    monkeypatch.setattr(module, "run_job", counted)
    for _ in range(3):
        found = computations.find(job(places), (1, 1), 10)
        assert (found.is_current, found.is_running) == (True, False)
    assert len(calls) == 1


def test_a_large_one_is_computed_by_a_child_and_is_the_same(
    places: list[RunLocation], computations: Computations
) -> None:
    found = computations.find(job(places), (1, 1), 10**9)
    assert (found.computed, found.is_running) == (None, True)
    wait_for(lambda: computations.find(job(places), (1, 1), 10**9).is_current)
    computed = computations.find(job(places), (1, 1), 10**9).computed
    assert computed is not None
    assert computed.outcome == open_result(run_job(job(places))).outcome
    assert computed.tables[0].counts() == open_result(run_job(job(places))).tables[0].counts()


def test_the_old_result_stays_until_the_new_one_is_there_and_a_live_run_is_not_computed_all_the_time(
    places: list[RunLocation], computations: Computations, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("holdfast.view.computations.time.monotonic", lambda: clock[0])
    first = computations.find(job(places), (1, 1), 10)
    again = computations.find(job(places), (2, 1), 10)
    assert again == Found(first.computed, is_current=False, is_running=False)
    clock[0] += 60.0
    later = computations.find(job(places), (3, 1), 10)
    assert later.is_current
    assert later.computed is not first.computed


def test_a_problem_is_a_result(tmp_path: Path, computations: Computations) -> None:
    alone = completed(tmp_path, "alone")
    found = computations.find(job([alone]), (1,), 10)
    assert found.is_current
    assert found.computed is not None
    assert "has one model for each task" in found.computed.outcome.problem


def test_a_fault_is_a_sentence_and_not_the_end_of_the_server(
    places: list[RunLocation], computations: Computations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Job) -> bytes:
        raise MemoryError("no room")

    monkeypatch.setattr(module, "run_job", fail)
    found = computations.find(job(places), (1, 1), 10)
    assert found.computed is not None
    assert "could not be computed" in found.computed.outcome.problem


def test_a_child_that_dies_is_a_sentence(
    places: list[RunLocation], computations: Computations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.view.computations.sys.executable", "/bin/false")
    computations.find(job(places), (1, 1), 10**9)
    wait_for(lambda: computations.find(job(places), (1, 1), 10**9).computed is not None)
    computed = computations.find(job(places), (1, 1), 10**9).computed
    assert computed is not None
    assert "could not be computed" in computed.outcome.problem


def test_a_fault_is_not_kept_as_the_result_of_a_run_that_no_longer_changes(
    places: list[RunLocation], computations: Computations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Job) -> bytes:
        raise MemoryError("no room")

    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(module, "_AGAIN_FACTOR", 0)
    with monkeypatch.context() as patch:
        patch.setattr(module, "run_job", fail)
        computations.find(job(places), (1, 1), 10)
    found = computations.find(job(places), (1, 1), 10)
    assert found.computed is not None
    assert not found.computed.outcome.problem


def test_only_the_last_results_are_kept(places: list[RunLocation], computations: Computations) -> None:
    for number in range(module._KEPT_MAX + 3):  # noqa: SLF001 - the bound is not part of the interface
        computations.find(job(places, evaluation=f"none {number}"), (1, 1), 10)
    assert len(computations._entries) == module._KEPT_MAX  # noqa: SLF001


def test_closing_ends_a_child_that_is_at_work(places: list[RunLocation], monkeypatch: pytest.MonkeyPatch) -> None:
    found = Computations()
    begun = threading.Event()
    popen: Any = subprocess.Popen

    def slow(command: list[str], **streams: object) -> object:
        begun.set()
        return popen(["/bin/sleep", "600"], **streams)

    monkeypatch.setattr("holdfast.view.computations.subprocess.Popen", slow)
    found.find(job(places), (1, 1), 10**9)
    assert begun.wait(PATIENCE_SECONDS)
    wait_for(lambda: found._child is not None)  # noqa: SLF001
    began = time.monotonic()
    found.close()
    assert time.monotonic() - began < 60
