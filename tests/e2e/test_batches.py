"""Jobs of a batch API with the real command: kills at every stage, and what goes wrong in jobs. The server counts."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from holdfast.testing import BatchBehaviour, BatchStats, Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import call, exported, finish, run, shown, start, wait_until, write_spec
from tests.e2e.json_schema import problems
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
        done = call(*self.command, cwd=self.folder)
        assert done.code == code, done.said
        return done.said

    def outputs(self) -> dict[str, str | None]:
        return {line["sample_id"]: line["output"] for line in exported(RUN, self.store)}


STYLES = ["openai", "anthropic"]
each_style = pytest.mark.parametrize("style", ["openai", pytest.param("anthropic", marks=pytest.mark.long)])


@contextmanager
def course(
    folder: Path, samples: int, batch: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **jobs: Any
) -> Iterator[Course]:
    with start_server_process(Behaviour(batch=BatchBehaviour(**jobs))) as server:
        write_spec(folder, samples, server.base_url, model={"batch": {**QUICK, **(batch or {})}, **(model or {})})
        yield Course(folder, server)


def right(samples: int) -> dict[str, str | None]:
    return {f"s{i:04d}": str(8 * i) for i in range(1, samples + 1)}


@each_style
def test_a_run_in_jobs_makes_no_single_request(tmp_path: Path, style: str) -> None:
    with course(tmp_path, 200, {"requests": 80}, {"provider": style}) as it:
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


@pytest.mark.parametrize(
    ("stage", "style"),
    [
        pytest.param(stage, style, marks=[] if style == "openai" or "id" in stage else [pytest.mark.long])
        for stage in STAGES
        for style in STYLES
    ],
)
def test_no_request_is_in_two_jobs_however_the_run_is_killed(tmp_path: Path, stage: str, style: str) -> None:
    happened, jobs, batch = STAGES[stage]
    with course(tmp_path, 200, batch, {"provider": style}, **jobs) as it:
        it.kill_when(happened)
        it.go_on()
        seen = it.server.batches()
        assert [job.requests for job in seen.jobs] == [200]
        assert set(seen.by_digest.values()) == {1}
        assert it.server.stats().requests == 0
        assert it.outputs() == right(200)


@each_style
def test_what_a_job_leaves_out_garbles_or_doubles_is_asked_alone_or_passed_over(tmp_path: Path, style: str) -> None:
    faults: dict[str, Any] = {
        "missing_every": 50,
        "malformed_every": 40,
        "overloaded_every": 30,
        "doubled_every": 7,
        "unknown": 3,
    }
    with course(tmp_path, 120, model={"provider": style}, **faults) as it:
        said = it.go_on()
        alone = {i for i in range(1, 121) if any(i % every == 0 for every in (50, 40, 30))}
        assert it.server.stats().requests == len(alone)
        assert it.server.stats().repeats == 0
        assert [job.requests for job in it.server.batches().jobs] == [120]
        assert it.outputs() == right(120)
        assert f"{120 - len(alone)} of 120 answers" in said
        assert "they are skipped" in said


@each_style
def test_a_request_that_its_job_says_is_refused_is_not_asked_again(tmp_path: Path, style: str) -> None:
    with course(tmp_path, 8, model={"provider": style}, refused_every=4) as it:
        it.go_on(1)
        assert it.server.stats().requests == 0
        found = shown(RUN, it.store)
        assert (found["finished"], found["failed"]) == (6, 2)
        assert {each["kind"] for each in found["failures"]} == {"content_filter"}


@each_style
@pytest.mark.parametrize("status", ["expired", "cancelled", "failed"])
def test_what_a_job_has_not_come_to_goes_into_the_next_one(tmp_path: Path, status: str, style: str) -> None:
    with course(tmp_path, 20, model={"provider": style}, ends=[status]) as it:
        it.go_on()
        left = 20 if status == "failed" else 10
        assert [job.requests for job in it.server.batches().jobs] == [20, left]
        assert it.server.stats().requests == 0
        assert it.outputs() == right(20)


def test_jobs_that_never_answer_end_as_failures_with_a_reason(tmp_path: Path) -> None:
    with course(tmp_path, 3, model={"request_retries": 1}, ends=["failed"] * 9) as it:
        (tmp_path / "eval.yaml").write_text((tmp_path / "eval.yaml").read_text() + "defaults: {sample_retries: 0}\n")
        it.go_on(1)
        assert len(it.server.batches().jobs) == 2
        assert "test server: the job failed" in shown(RUN, it.store)["failures"][0]["example"]["message"]


@pytest.mark.parametrize(
    "statuses", [[500, 503], *(pytest.param([each], marks=pytest.mark.long) for each in (503, 429))], ids=str
)
def test_a_submission_that_fails_for_a_while_is_made_again(tmp_path: Path, statuses: list[int]) -> None:
    with course(tmp_path, 5, {"settle_seconds": 0.1}, refusals=statuses) as it:
        it.go_on()
        assert [job.requests for job in it.server.batches().jobs] == [5]
        assert it.outputs() == right(5)


def test_a_submission_that_is_refused_stops_the_cell_and_buys_nothing_at_the_full_price(tmp_path: Path) -> None:
    with course(tmp_path, 5, refusals=[400]) as it:
        said = it.go_on(1)
        assert it.server.stats().requests == 0
        assert it.server.batches().jobs == []
        assert "the server rejects the job" in said
        assert (shown(RUN, it.store)["failed"], shown(RUN, it.store)["unfinished"]) == (0, 5)
        it.go_on()
        assert it.outputs() == right(5)


def test_each_turn_of_a_conversation_is_a_round_of_jobs_also_after_a_kill(tmp_path: Path) -> None:
    with course(tmp_path, 30, polls=4) as it:
        (tmp_path / "twice.py").write_text(ASK_TWICE)
        spec = (tmp_path / "eval.yaml").read_text()
        (tmp_path / "eval.yaml").write_text(spec.replace("  scorers:", "  solver: twice:ask_twice\n  scorers:"))
        it.kill_when(lambda seen: len(seen.jobs) == 2 and seen.looks >= 6)
        it.go_on()
        assert [job.requests for job in it.server.batches().jobs] == [30, 30]
        assert it.server.stats().requests == 0
        assert it.outputs() == right(30)


def test_an_interrupted_run_leaves_its_jobs_and_says_so(tmp_path: Path) -> None:
    with course(tmp_path, 10, polls=1000) as it:
        with start(*it.command, cwd=tmp_path) as process:
            assert wait_until(lambda: it.server.batches().looks > 1, process)
            live = shown(RUN, it.store)
            done = finish(process, signal.SIGINT)
        assert done.code == 130
        assert "1 job, 10 requests waiting, oldest" in done.err
        assert live["status"] == "running"
        assert [(each["id"], each["requests"]) for each in live["jobs"]] == [("batch_1", 10)]
        assert "1 job, 10 requests waiting" in call("show", RUN, "--store", it.store, cwd=tmp_path).out
        forked = call("fork", RUN, "--store", it.store, "--dry-run", cwd=tmp_path)
        assert "would pay for them again" in forked.err
        assert len(it.server.batches().jobs) == 1


def test_what_is_in_jobs_is_collected_also_when_the_rest_is_asked_alone(tmp_path: Path) -> None:
    with course(tmp_path, 10, {"requests": 6, "samples": 6}, polls=2) as it:
        it.kill_when(lambda seen: seen.looks >= 1)
        done = run("resume", RUN, "--store", it.store, "--set", "models[0].batch=false", cwd=tmp_path)
        assert done.code == 0, done.said
        assert [job.requests for job in it.server.batches().jobs] == [6]
        assert it.server.stats().requests == 4
        assert it.outputs() == right(10)


def test_a_job_that_may_not_be_looked_at_stops_the_run_and_is_not_bought_again(tmp_path: Path) -> None:
    with course(tmp_path, 5, locked=1) as it:
        said = it.go_on(130)
        assert "cannot be collected: auth" in said
        assert shown(RUN, it.store)["failed"] == 0
        it.go_on()
        assert [job.requests for job in it.server.batches().jobs] == [5]
        assert it.outputs() == right(5)


def test_results_that_are_cut_off_are_read_again(tmp_path: Path) -> None:
    with course(tmp_path, 40, cuts=2) as it:
        it.go_on()
        assert it.outputs() == right(40)
        assert it.server.stats().requests == 0


def test_a_job_that_the_server_has_lost_is_made_again(tmp_path: Path) -> None:
    with course(tmp_path, 5, polls=1000) as it:
        it.kill_when(lambda seen: seen.looks > 0)
    with start_server_process() as other:
        done = call(
            "resume", RUN, "--store", it.store, "--set", f"models.arith.base_url={other.base_url}", cwd=tmp_path
        )
        assert done.code == 0, done.said
        assert [job.requests for job in other.batches().jobs] == [5]
        assert it.outputs() == right(5)


def test_cancel_leaves_the_jobs_and_says_so(tmp_path: Path) -> None:
    with course(tmp_path, 5, polls=40) as it:
        with start(*it.command, cwd=tmp_path) as process:
            assert wait_until(lambda: it.server.batches().looks > 0, process)
            cancelled = call("cancel", RUN, "--store", it.store, cwd=tmp_path)
            finish(process)
        assert "1 job, 5 requests waiting" in cancelled.out
        assert "the next start collects them" in cancelled.out
        it.go_on()
        assert len(it.server.batches().jobs) == 1


def test_a_time_limit_does_not_run_while_a_job_is_waited_for(tmp_path: Path) -> None:
    with course(tmp_path, 3, {"quiet_seconds": 1.2}) as it:
        spec = (tmp_path / "eval.yaml").read_text()
        (tmp_path / "eval.yaml").write_text(f"{spec}limits: {{sample: {{seconds: 0.8}}}}\n")
        it.go_on()
        assert it.outputs() == right(3)
        assert max(line["seconds"] for line in exported(RUN, it.store)) < 0.8


def test_a_provider_without_a_batch_api_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    write_spec(tmp_path, 3, model={"provider": "google", "model": "g", "options": {}, "batch": True})
    done = call("run", tmp_path / "eval.yaml", "--store", tmp_path / "runs", cwd=tmp_path)
    assert done.code == 2
    assert "models[0].batch" in done.err
    assert not (tmp_path / "runs").exists()


def test_editors_take_a_batch_that_is_written_as_yes(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 3, "http://127.0.0.1:1/v1", model={"batch": True})
    assert problems(json.loads(call("schema", cwd=tmp_path).out), yaml.safe_load(spec.read_text())) == []


def test_a_server_that_keeps_no_metadata_is_warned_of(tmp_path: Path) -> None:
    with course(tmp_path, 3, forgets=True) as it:
        assert "does not keep the metadata" in it.go_on()
        assert it.outputs() == right(3)
