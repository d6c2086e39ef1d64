"""`show --profile` with the real command and a real server: what the server took is in the phases, over a kill too."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import call, kill_when, run, write_spec

LATENCY_SECONDS = 0.05
MINE = """\
import asyncio

async def look(word):
    await asyncio.sleep(0.01)
    return word

async def solve(sample, ctx):
    await ctx.call(look, {"word": sample.id})
    return await ctx.generate()

async def slow(sample, answer):
    await asyncio.sleep(0.01)
    return True
"""
ROWS = 12


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    faults = [Fault("429-retry-after", first=1, retry_after="0.1")]
    with start_server_process(Behaviour(latency_seconds=LATENCY_SECONDS, faults=faults)) as started:
        yield started


def profile_of(folder: Path) -> dict[str, Any]:
    done = call("show", "x", "--store", folder / "runs", "--profile", "--json", cwd=folder)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json()
    return found


def steps_of(folder: Path) -> list[dict[str, Any]]:
    done = call("export", "x", "--store", folder / "runs", "--events", cwd=folder)
    assert done.code == 0, done.err
    return [
        event["d"] for line in done.out.splitlines() for event in json.loads(line)["events"] if event["t"] == "step"
    ]


def test_a_profile_tells_phases_of_every_model_over_a_kill_and_a_resume(tmp_path: Path, server: ServerProcess) -> None:
    write_spec(tmp_path, ROWS, server.base_url, model={"max_connections": 2})
    command = ("run", tmp_path / "eval.yaml", "--id", "x", "--store", tmp_path / "runs")
    assert kill_when(lambda: server.stats().requests >= 6, *command, cwd=tmp_path)
    killed = profile_of(tmp_path)
    assert killed["processes"] == 1
    assert killed["in_flight"]["mean"]

    done = run("resume", "x", "--store", tmp_path / "runs", cwd=tmp_path)
    assert done.code == 0, done.err
    found = profile_of(tmp_path)
    (model,) = found["models"]
    assert (model["name"], model["answered"], model["failed"]) == ("arith", ROWS, 0)
    assert model["requests"] == ROWS + model["retries"]
    for phase in ("queue", "connect", "first byte", "generate", "request"):
        assert model["phases"][phase]["count"] == ROWS
    first = model["phases"]["first byte"]
    slack = 1 - found["relative_error"]
    assert LATENCY_SECONDS * slack <= first["p50"] <= first["p90"] <= first["p99"] <= first["max"]
    assert model["phases"]["request"]["seconds"] >= first["seconds"] >= ROWS * LATENCY_SECONDS
    assert model["phases"]["connect"]["max"] > 0
    assert model["phases"]["queue"]["max"] >= LATENCY_SECONDS * slack  # the first was held back by the 429
    assert model["rate_limited_share"] > 0
    assert (found["processes"], found["commit_processes"]) == (2, 1)
    assert found["commit"]["count"] >= ROWS
    known = [mean for mean in found["in_flight"]["mean"] if mean is not None]
    assert max(known) > 0
    assert None in found["in_flight"]["mean"]


def test_people_see_a_table_and_the_report_a_line_for_each_model(tmp_path: Path, server: ServerProcess) -> None:
    write_spec(tmp_path, ROWS, server.base_url)
    done = call("run", tmp_path / "eval.yaml", "--id", "x", "--store", tmp_path / "runs", cwd=tmp_path)
    assert done.code == 0, done.err
    told = call("show", "x", "--store", tmp_path / "runs", "--profile", cwd=tmp_path)
    assert told.code == 0, told.err
    for word in ("arith", "queue", "connect", "first byte", "generate", "commit", "p50", "in flight: "):
        assert word in told.out
    report = call("report", "x", "--store", tmp_path / "runs", cwd=tmp_path)
    assert "arith: a request takes " in report.out
    as_json = call("report", "x", "--store", tmp_path / "runs", "--format", "json", cwd=tmp_path).json()
    assert as_json["models"][0]["phases"]["request"]["p50"] >= LATENCY_SECONDS * 0.97
    assert "arith: a request takes " in call(
        "report", "x", "--store", tmp_path / "runs", "--format", "markdown", cwd=tmp_path
    ).out.replace("\\", "")


def test_what_a_step_records_is_small_and_within_its_seconds(tmp_path: Path, server: ServerProcess) -> None:
    write_spec(tmp_path, ROWS, server.base_url)
    assert run("run", tmp_path / "eval.yaml", "--id", "x", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    steps = steps_of(tmp_path)
    assert len(steps) == ROWS
    for step in steps:
        timing = step["timing"]
        inside = timing["first"] + timing.get("connect", 0.0) + timing.get("lost", 0.0)
        assert LATENCY_SECONDS <= timing["first"] <= inside <= step["seconds"] + 0.001
        assert all(timing.values())  # what was nothing is not written


def test_tools_and_scorers_have_their_time_and_a_mock_tells_no_first_byte(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    write_spec(tmp_path, 3, task={"solver": "mine:solve", "scorers": ["mine:slow"]})
    done = call("run", tmp_path / "eval.yaml", "--id", "x", "--store", tmp_path / "runs", cwd=tmp_path)
    assert done.code == 0, done.err
    (model,) = profile_of(tmp_path)["models"]
    slowest = {phase: model["phases"][phase]["max"] for phase in ("tools", "score")}
    assert min(slowest.values()) >= 0.01
    assert (model["phases"]["tools"]["count"], model["phases"]["score"]["count"]) == (3, 3)
    assert model["phases"]["queue"]["count"] == model["phases"]["request"]["count"] == 3
    assert model["phases"]["first byte"] is None
    assert re.search(r"first byte +- +-", call("show", "x", "--store", "runs", "--profile", cwd=tmp_path).out)


@pytest.mark.parametrize("other", [("--failed",), ("sums/arith/s0001/1",)])
def test_a_profile_is_of_a_whole_run(tmp_path: Path, other: tuple[str, ...]) -> None:
    done = call("show", "x", *other, "--profile", "--store", tmp_path, cwd=tmp_path)
    assert done.code == 2
    assert "--profile covers a whole run" in done.err
