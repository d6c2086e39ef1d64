"""`score` of sharded runs: several processes share the shards, and a choice is one of the whole run."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Behaviour, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, finish, shown, start, wait_until, write_spec

ROWS = 40
CONNECTIONS = 2
VERDICT = """
import holdfast

@holdfast.scorer
async def verdict(sample, answer, ctx):
    said = await ctx.generate(f"Is the answer to {sample.id} right?", role="judge")
    return len(said.text)
"""
SCORE = ("score", "x", "--scorers", "verdict.py")
EXPIRY = {"HOLDFAST_EXPIRY_SECONDS": "2"}


def call_in(folder: Path, *arguments: str | Path, store: str = "runs") -> Done:
    env = {**EXPIRY, "HOLDFAST_CACHE": str(folder / f"cache-{store}")}
    return call(*arguments, "--store", folder / store, cwd=folder, env=env)


def write_run(folder: Path, server: ServerProcess, **more: Any) -> Path:
    (folder / "verdict.py").write_text(VERDICT)
    judge = {"provider": "openai", "model": "judge-1", "base_url": server.base_url, "max_connections": CONNECTIONS}
    return write_spec(folder, ROWS, roles={"judge": judge}, **more)


def start_scoring(folder: Path) -> Any:
    return start(*SCORE, "--store", folder / "runs", cwd=folder, env=EXPIRY)


def test_processes_that_score_at_once_share_the_shards(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        spec = write_run(tmp_path, server)
        assert call_in(tmp_path, "run", spec, "--id", "x", "--shards", "8", "--this-host").code == 0
        both = [start_scoring(tmp_path) for _ in range(2)]
        for process in both:
            done = finish(process)
            assert done.code == 0, done.said
        stats = server.stats()
    assert (stats.requests, stats.repeats) == (ROWS, 0)
    assert stats.max_in_flight > 2, "both asked the judge at the same time"
    assert {tuple(line["scores"]) for line in exported("x", tmp_path / "runs")} == {("verdict",)}
    summary = shown("x", tmp_path / "runs")
    assert (summary["status"], [each["status"] for each in summary["shards"]]) == ("completed", ["completed"] * 8)
    assert call_in(tmp_path, "verify", "x").code == 0


def test_a_killed_scoring_is_continued_by_the_others(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        spec = write_run(tmp_path, server)
        assert call_in(tmp_path, "run", spec, "--id", "x", "--shards", "4", "--this-host").code == 0
        killed, other = start_scoring(tmp_path), start_scoring(tmp_path)
        assert wait_until(lambda: server.stats().requests >= 10, killed)
        finish(killed, signal.SIGKILL)
        done = finish(other)
        assert done.code == 0, done.said
        # Of each connection: the request in flight, and an answer that was received and not recorded yet.
        assert server.stats().repeats <= 2 * CONNECTIONS
    assert {tuple(line["scores"]) for line in exported("x", tmp_path / "runs")} == {("verdict",)}


def test_all_shards_have_one_progress(tmp_path: Path) -> None:
    with start_server_process(Behaviour()) as server:
        spec = write_run(tmp_path, server)
        assert call_in(tmp_path, "run", spec, "--id", "x", "--shards", "4", "--this-host").code == 0
        done = call_in(tmp_path, *SCORE)
    assert done.code == 0, done.said
    assert done.err.count("scoring") == 1, done.err
    assert f"scoring {ROWS} answers of sums/x\n{ROWS}/{ROWS}  100%" in done.err
    assert done.err.count("%") == 1, "no display for each shard"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_scoring_of_all_shards(tmp_path: Path, number: signal.Signals) -> None:
    with start_server_process(Behaviour(latency_seconds=0.2)) as server:
        spec = write_run(tmp_path, server)
        assert call_in(tmp_path, "run", spec, "--id", "x", "--shards", "4", "--this-host").code == 0
        process = start_scoring(tmp_path)
        assert wait_until(lambda: server.stats().requests >= 1, process)
        done = finish(process, number)
        asked = server.stats().requests
        assert (done.code, done.err.count(f"{number.name}: stopping")) == (130, 1), done.said
        assert asked <= 3 * CONNECTIONS, "those in flight at the signal, and a few before it"
        said = re.search(r"(\d+) answers? scored; (\d+) left, run the same command to continue", done.err)
        assert said is not None, done.err
        assert (int(said[1]) + int(said[2]), int(said[1]) <= asked) == (ROWS, True)
        assert call_in(tmp_path, *SCORE).code == 0
        assert (server.stats().requests, server.stats().repeats) == (ROWS, 0)


def test_a_budget_leaves_the_answers_of_all_other_shards(tmp_path: Path) -> None:
    with start_server_process(Behaviour()) as server:
        spec = write_run(tmp_path, server)
        assert call_in(tmp_path, "run", spec, "--id", "x", "--shards", "4", "--this-host").code == 0
        call_in(tmp_path, "resume", "x", "--set", f"limits.run.requests={ROWS + 3}")
        done = call_in(tmp_path, *SCORE)
        assert (done.code, server.stats().requests) == (6, 3), done.said
    assert f"3 answers scored; {ROWS - 3} left, stopped at a budget" in done.err


def test_a_worker_that_answers_scores_its_own_answers(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=5)) as server:
        spec = write_run(tmp_path, server, models=[{"name": "m", "provider": "openai", "base_url": server.base_url}])
        part = ("--id", "x", "--shards", "2", "--this-host", "--set", "models.m.max_connections=1")
        worker = start("run", spec, *part, "--store", tmp_path / "runs", cwd=tmp_path, env=EXPIRY)
        assert wait_until(lambda: server.stats().requests >= 1, worker)
        refused = call_in(tmp_path, *SCORE)
        finish(worker, signal.SIGKILL)
    assert (refused.code, "live process" in refused.err) == (4, True), refused.said


def test_a_worker_on_another_machine_scores_its_own_answers(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.5)) as server:
        mirror = {"url": (tmp_path / "mirror").as_uri(), "seconds": 0.2}
        model = {"name": "m", "provider": "openai", "base_url": server.base_url, "max_connections": 20}
        spec = write_run(tmp_path, server, mirror=mirror, models=[model])
        assert call_in(tmp_path, "run", spec, "--id", "x", "--shard", "1/2", store="one").code == 0
        before = server.stats().requests
        env = {**EXPIRY, "HOLDFAST_CACHE": str(tmp_path / "cache-two")}
        part = ("--id", "x", "--shard", "2/2", "--set", "models.m.max_connections=1", "--store", tmp_path / "two")
        worker = start("run", spec, *part, cwd=tmp_path, env=env)
        assert wait_until(lambda: server.stats().requests > before + 2, worker)
        refused = call_in(tmp_path, *SCORE, store="one")
        is_live = worker.poll() is None
        finish(worker, signal.SIGKILL)
    assert is_live, "it did not wait for the end of the worker"
    assert (refused.code, "live process" in refused.err) == (4, True), refused.said


@pytest.mark.parametrize("options", [("--limit", "3"), ("--sample", "s0007"), ("--wrong",)])
def test_a_choice_is_one_of_the_whole_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    with start_server_process(Behaviour()) as server:
        spec = write_run(tmp_path, server)
        assert call_in(tmp_path, "run", spec, "--id", "x", "--shards", "5", "--this-host").code == 0
        assert call_in(tmp_path, "run", spec, "--id", "y").code == 0
        counts, asked = [], []
        for run in ("x", "y"):
            done = call_in(tmp_path, "score", run, "--scorers", "verdict.py", *options)
            assert done.code == 0, done.said
            asked.append(server.stats().requests)
            (evaluation,) = shown(run, tmp_path / "runs")["partial_evaluations"]
            exported_lines = call_in(tmp_path, "export", run, "--evaluation", evaluation).out.splitlines()
            counts.append([line["key"] for line in map(json.loads, exported_lines) if line["scores"]])
        assert counts[0] == counts[1]
        assert asked == [len(counts[0]), 2 * len(counts[0])]
        assert call_in(tmp_path, *SCORE).code == 0  # the rest
        assert server.stats().requests == ROWS + asked[0]
        assert shown("x", tmp_path / "runs")["partial_evaluations"] == []


def test_shards_of_other_machines_are_scored_too(tmp_path: Path) -> None:
    with start_server_process(Behaviour()) as server:
        spec = write_run(tmp_path, server, mirror={"url": (tmp_path / "mirror").as_uri(), "seconds": 0.2})
        for machine, shard in (("one", "1/2"), ("two", "2/2")):
            assert call_in(tmp_path, "run", spec, "--id", "x", "--shard", shard, store=machine).code == 0
        done = call_in(tmp_path, *SCORE, store="one")
        assert done.code == 0, done.said
        assert (server.stats().requests, server.stats().repeats) == (ROWS, 0)
    url = (tmp_path / "mirror" / "sums" / "x").as_uri()
    summary = call_in(tmp_path, "show", url, "--json", store="two").json()
    assert [each["scorer"] for each in summary["scores"]] == ["verdict"]
    assert summary["scores"][0]["n"] == ROWS


def test_a_run_of_which_no_shard_has_begun_is_not_scored(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    assert call_in(tmp_path, "run", spec, "--id", "x", "--shards", "2", "--this-host").code == 0
    for shard in (tmp_path / "runs" / "sums" / "x" / "shards").iterdir():
        shutil.rmtree(shard)  # as if the first worker had been killed before it claimed one
    refused = call_in(tmp_path, "score", "x", "--scorers", "exact_match")
    assert (refused.code, refused.out) == (2, "")
    assert "no shard of x has begun: there is nothing to score" in refused.err


def test_a_score_is_set_by_hand_in_a_shard_of_another_machine(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 8, mirror={"url": (tmp_path / "mirror").as_uri(), "seconds": 0.2})
    for machine, shard in (("one", "1/2"), ("two", "2/2")):
        assert call_in(tmp_path, "run", spec, "--id", "x", "--shard", shard, store=machine).code == 0
    keys = [f"sums/arith/s{number:04d}/1" for number in range(1, 9)]
    for key in keys:
        done = call_in(tmp_path, "score", "x", "--set", key, "numeric=1", "--reason", "read", "--by", "me", store="one")
        assert done.code == 0, done.said
    for machine in ("one", "two"):
        lines = map(json.loads, call_in(tmp_path, "export", "x", store=machine).out.splitlines())
        assert {line["key"]: line["scores"]["numeric"] for line in lines} == dict.fromkeys(keys, True)
    assert call_in(tmp_path, "verify", "x", store="one").code == 0
