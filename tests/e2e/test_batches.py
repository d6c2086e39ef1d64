"""Jobs of a batch API with the real command: kills at every stage, and what goes wrong inside jobs. The server counts."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.testing import BatchBehaviour, BatchStats, Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import call, exported, finish, run, shown, start, wait_until, write_spec
from tests.e2e.live_runs import ASK_TWICE

RUN = "x"
QUICK = {"quiet_seconds": 0.2, "poll_seconds": 0.05, "settle_seconds": 0.3}


class Course(NamedTuple):
    """One run against one server of its own."""

    folder: Path
    server: ServerProcess

    @property
    def store(self) -> Path:
        return self.folder / "runs"

    @property
    def command(self) -> tuple[str | Path, ...]:
        return "run", self.folder / "eval.yaml", "--id", RUN, "--store", self.store

    def kill_when(self, happened: Callable[[BatchStats], bool]) -> None:
        with start(*self.command, cwd=self.folder) as process:
            seen = wait_until(lambda: happened(self.server.batches()), process)
            assert seen, f"the run ended before it was killed: {finish(process).err}"
            finish(process, signal.SIGKILL)

    def go_on(self, code: int = 0) -> str:
        done = run(*self.command, cwd=self.folder)
        assert done.code == code, done.said
        return done.said

    def outputs(self) -> dict[str, str | None]:
        return {line["sample_id"]: line["output"] for line in exported(RUN, self.store)}


@contextmanager
def course(
    folder: Path, samples: int, batch: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **jobs: Any
) -> Iterator[Course]:
    with start_server_process(Behaviour(batch=BatchBehaviour(**jobs))) as server:
        write_spec(folder, samples, server.base_url, model={"batch": {**QUICK, **(batch or {})}, **(model or {})})
        yield Course(folder, server)


def right(samples: int) -> dict[str, str | None]:
    return {f"s{i:04d}": str(8 * i) for i in range(1, samples + 1)}


def test_a_run_in_jobs_makes_no_single_request(tmp_path: Path) -> None:
    with course(tmp_path, 200, {"requests": 80}) as it:
        it.go_on()
        assert sorted(job.requests for job in it.server.batches().jobs) == [40, 80, 80]
        assert it.server.stats().requests == 0
        assert set(it.server.batches().by_digest.values()) == {1}
        assert it.outputs() == right(200)
        assert shown(RUN, it.store)["usage"]["input_tokens"] > 0


class Stage(NamedTuple):
    """When a run is killed: how the server behaves, and what it has seen by then."""

    happened: Callable[[BatchStats], bool]
    jobs: dict[str, Any]
    batch: dict[str, Any]


STAGES = {
    "before the job is made": Stage(lambda seen: seen.hanging == "upload", {"hang": "upload"}, {}),
    "before its id is recorded": Stage(
        lambda seen: seen.hanging == "create", {"hang": "create", "unlisted": 1}, {"settle_seconds": 30.0}
    ),
    "while it is waited for": Stage(lambda seen: seen.looks >= 3, {"polls": 12}, {}),
    "with half of its results read": Stage(lambda seen: seen.hanging == "results", {"hang": "results"}, {}),
}


@pytest.mark.parametrize("stage", STAGES)
def test_no_request_is_in_two_jobs_however_the_run_is_killed(tmp_path: Path, stage: str) -> None:
    happened, jobs, batch = STAGES[stage]
    with course(tmp_path, 200, batch, **jobs) as it:
        it.kill_when(happened)
        it.go_on()
        seen = it.server.batches()
        assert [job.requests for job in seen.jobs] == [200]
        assert set(seen.by_digest.values()) == {1}
        assert it.server.stats().requests == 0
        assert it.outputs() == right(200)
