"""The driver of a sharded run with a pool that follows a script: which workers are replaced, and when it gives up."""

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from holdfast.engine import ModelProgress, Progress
from holdfast.runs import Ended, Placement, PlacementOptions, WorkerTotals, whole_run
from holdfast.runs.executors.process import WorkerCommand, WorkerReport, worker_environment

PLANNED = 100


def done(count: int, before: int = 0, shard: str = "1/4", failed: int = 0) -> tuple[str, bytes]:
    models = {"m": ModelProgress(25, count - failed, failed, before)}
    progress = Progress(25, count - failed, failed, before, live=count - before, models=models)
    return shard, msgspec.json.encode(progress)


class ScriptedPool:
    """Reports in the given order, one in each pass. A script that is empty reports nothing."""

    def __init__(self, *script: tuple[int, WorkerReport]) -> None:
        self.script = deque(script)
        self.started: list[int] = []
        self.running: set[int] = set()
        self.stopped: list[int] = []
        self.now = 0.0
        self.when_stopped: Callable[[int], None] = lambda worker: None

    def start(self, worker: int) -> None:
        self.started.append(worker)
        self.running.add(worker)

    def wait(self, seconds: float) -> Iterable[tuple[int, WorkerReport]]:
        self.now += seconds
        if self.script and self.script[0][0] in self.running:
            worker, report = self.script.popleft()
            if report.lost or report.code is not None:
                self.running.discard(worker)
            yield worker, report

    def stop(self, worker: int) -> None:
        self.stopped.append(worker)
        self.when_stopped(worker)

    def describe_place(self) -> str:
        return "1 CPUs"


class Driven:
    """One run of the driver, and what it said."""

    def __init__(self, pool: ScriptedPool, workers: int = 1, *, cancelled: bool = False, signals: int = 0) -> None:
        self.said: list[str] = []
        self.totals = WorkerTotals(whole_run({"m": PLANNED}, [], 0.0))
        options = PlacementOptions(workers, 10.0, lambda: cancelled)
        placement = Placement(pool, self.totals, options, self.said.append, lambda: pool.now)
        self.shown: list[Progress] = []
        self.ended: Ended = placement.run(lambda: signals if pool.now > 5 else 0, self.shown.append)


def alive(*shards: tuple[str, bytes]) -> WorkerReport:
    return WorkerReport("node-a", 7, shards)


def exited(code: int, *shards: tuple[str, bytes]) -> WorkerReport:
    return WorkerReport("node-a", 7, shards, code=code)


LOST = WorkerReport(lost="its node died")


def test_a_run_ends_when_its_workers_have_ended() -> None:
    pool = ScriptedPool((1, alive()), (2, alive()), (1, exited(0)), (2, exited(1)))
    driven = Driven(pool, 2)
    assert driven.ended == Ended(1)
    assert pool.started == [1, 2]
    assert driven.said[0] == "worker 1 runs on node-a (process 7)"


def test_a_lost_worker_and_a_killed_one_are_replaced() -> None:
    pool = ScriptedPool((1, alive(done(3))), (1, LOST), (1, alive(done(4, 3))), (1, exited(-9)), (1, exited(0)))
    driven = Driven(pool)
    assert driven.ended == Ended()
    assert pool.started == [1, 1, 1]
    assert "worker 1 died in shard 1/4: its node died; starting another" in driven.said
    assert "worker 1 died in shard 1/4: its process was killed by signal 9; starting another" in driven.said


def test_workers_that_die_without_progress_are_replaced_ever_later_and_then_given_up() -> None:
    pool = ScriptedPool(*([(1, LOST)] * 50))
    driven = Driven(pool)
    assert len(pool.started) == 6
    assert driven.ended.code == 1
    assert driven.ended.reason == "6 workers in a row died without any progress; the last: its node died"
    assert [line.rpartition(" in ")[2] for line in driven.said[1:]] == ["2 s", "4 s", "8 s", "16 s"]


def test_any_progress_lets_the_driver_continue() -> None:
    lives = [(1, exited(-9, done(count, count - 1))) for count in range(1, 21)]
    driven = Driven(ScriptedPool(*lives, (1, exited(0))))
    assert driven.ended == Ended()


def test_an_exit_code_that_all_workers_would_have_stops_the_others() -> None:
    pool = ScriptedPool((1, alive()), (2, alive()), (1, exited(6)))
    pool.when_stopped = lambda worker: pool.script.append((worker, exited(130)))
    driven = Driven(pool, 2)
    assert driven.ended == Ended(6, reason="worker 1 ended: stopped at a budget (exit code 6)")
    assert pool.stopped == [2]
    assert pool.started == [1, 2]


def test_interrupts_are_passed_on_and_nobody_is_replaced() -> None:
    pool = ScriptedPool((1, alive()), (2, alive()))
    pool.when_stopped = lambda worker: pool.script.append((worker, exited(130)))
    driven = Driven(pool, 2, signals=1)
    assert driven.ended == Ended(interrupted=True)
    assert pool.stopped == [1, 2]
    assert pool.started == [1, 2]


def test_workers_that_do_not_stop_are_not_waited_for_longer_than_the_grace_period_and_30_seconds() -> None:
    pool = ScriptedPool((1, alive()))
    driven = Driven(pool, signals=1)
    assert driven.ended.interrupted
    assert "workers 1 did not stop in time and are killed" in driven.said
    assert 40 < pool.now < 60


def test_a_cancelled_run_is_not_continued() -> None:
    pool = ScriptedPool((1, alive()), (1, exited(130)))
    assert Driven(pool, cancelled=True).ended == Ended(interrupted=True)
    assert pool.started == [1]


def test_a_worker_without_a_place_is_reported_and_not_waited_for_at_the_end() -> None:
    pool = ScriptedPool(
        (1, alive()), *([(1, alive())] * 100), (1, exited(0, *(done(25, 0, f"{i}/4") for i in range(1, 5))))
    )
    driven = Driven(pool, 2)
    assert driven.ended == Ended()
    assert "workers 2 wait for a place: each needs 1 CPUs" in driven.said


def test_a_shard_counts_once_however_many_workers_had_it() -> None:
    totals = WorkerTotals(whole_run({"m": PLANNED}, [("m", 10, 2)], 0.0))
    totals.add(1, [done(9, 4)])
    totals.add(2, [done(3, 0, "2/4", failed=1)])
    totals.end(1)
    totals.add(3, [done(12, 9)])
    progress = totals.progress()
    assert (progress.planned, progress.finished, progress.failed, progress.before) == (PLANNED, 20, 3, 12)
    assert progress.live == 5 + 3 + 3
    model = progress.models["m"]
    assert (model.planned, model.finished, model.failed) == (PLANNED, 20, 3)
    assert totals.shard_of(3) == "1/4"
    assert totals.shard_of(1) == ""


def test_a_worker_gets_keys_and_settings_of_the_driver_and_keeps_what_belongs_to_its_machine() -> None:
    sent = {
        "HOLDFAST_STORE": "/shared",
        "PYTHONPATH": "/code",
        "MODEL_KEY": "new",
        "OTHER": "driver",
        "PATH": "/driver/bin",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    own = {"PATH": "/node/bin", "MODEL_KEY": "old", "CUDA_VISIBLE_DEVICES": "3", "RAY_JOB_ID": "1"}
    found = worker_environment(WorkerCommand((), "/", sent, ("MODEL_KEY",)), own)
    assert found == {
        "HOLDFAST_STORE": "/shared",
        "PYTHONPATH": "/code",
        "MODEL_KEY": "new",
        "OTHER": "driver",
        "PATH": "/node/bin",
        "CUDA_VISIBLE_DEVICES": "3",
        "RAY_JOB_ID": "1",
    }
