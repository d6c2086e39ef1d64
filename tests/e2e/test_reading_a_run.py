"""What people read on a terminal: failures with examples, doubts, keys that are not begun, one thing and two things."""

import csv
import io
import json
import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import call, finish, run, shown, start, write_spec

FRAGILE = "def fragile(sample, answer):\n    return 1 / (sample.id != 's0002')\n"
MOODY = """
import os

async def solve(sample, ctx):
    if sample.id == 's0001' and not os.path.getsize('mended'):
        raise ValueError('not today')
    return await ctx.generate()
"""


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    """A folder in which the run `x` has a failed sample, which a resume can repair, and a failed scorer."""
    (tmp_path / "mended").write_text("")
    (tmp_path / "fragile_scorer.py").write_text(FRAGILE)
    (tmp_path / "moody_solver.py").write_text(MOODY)
    task = {"solver": "moody_solver:solve", "scorers": ["fragile_scorer:fragile"], "sample_retries": 0}
    assert call("run", write_spec(tmp_path, 3, task=task), "--id", "x", cwd=tmp_path).code == 1
    return tmp_path


@pytest.mark.parametrize("command", ["report", "show"])
def test_failures_have_an_example_and_the_command_that_tries_again(failed: Path, command: str) -> None:
    said = call(command, "x", cwd=failed).out
    assert "sums/arith: 1 sample failed: solver, e.g. sums/arith/s0001/1: ValueError: not today" in said
    assert "scorer fragile failed on 1 answer, e.g. sums/arith/s0002/1: ZeroDivisionError" in said
    (again,) = [line for line in said.splitlines() if "try again" in line]
    assert again.startswith("1 sample failed in the solver's code; look at one: holdfast show x sums/arith/s0001/1")
    (failed / "mended").write_text("yes")
    command_again = again.split("try again: holdfast ")[1].split(". ")[0]
    done = call(*shlex.split(command_again), cwd=failed)
    assert (done.code, shown("x", failed / "runs")["failed"]) == (1, 0), "a scorer that breaks is no success"
    assert "try again" not in call(command, "x", cwd=failed).out


def test_show_tells_scripts_of_failures_too(failed: Path) -> None:
    told = call("show", "x", "--json", cwd=failed).json()
    (failure,) = told["failures"]
    assert (failure["kind"], failure["count"], failure["example"]["key"]) == ("solver", 1, "sums/arith/s0001/1")
    (score,) = told["scores"]
    assert (score["failures"], score["no_score"], score["example"]["key"]) == (1, 0, "sums/arith/s0002/1")


def test_a_failed_scorer_is_reported_in_both_exports_and_in_the_story_of_its_key(failed: Path) -> None:
    lines = [json.loads(line) for line in call("export", "x", cwd=failed).out.splitlines()]
    assert "ZeroDivisionError" in lines[1]["scores"]["fragile"]["failure"]["message"]
    rows = list(csv.DictReader(io.StringIO(call("export", "x", "--format", "csv", cwd=failed).out)))
    assert [row["score_errors"].partition(":")[0] for row in rows] == ["", "fragile", ""]
    assert [row["fragile"] for row in rows] == ["", "", "1.0"]
    story = call("show", "x", "sums/arith/s0002/1", cwd=failed).out
    assert "fragile failed: scorer: ZeroDivisionError" in story
    assert "None" not in story


def test_a_key_that_is_planned_and_not_begun_is_shown(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, concurrency={"samples": 1}, model={"options": {"latency_seconds": 60}})
    with start("run", spec, "--id", "x", cwd=tmp_path) as process:
        assert process.stderr is not None
        process.stderr.readline()
        finish(process, signal.SIGINT)
    done = call("show", "x", "sums/arith/s0005/1", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "sums/arith/s0005/1  unfinished" in done.out
    assert "not started yet; it is number 5 in the plan" in done.out
    assert '"question":"5 + 35"' in done.out
    told = call("show", "x", "sums/arith/s0005/1", "--json", cwd=tmp_path).json()
    assert (told["key"], told["o"], told["status"]) == ("sums/arith/s0005/1", 4, "unfinished")
    assert (told["row"]["id"], told["attempts"], told["scores"]) == ("s0005", [], [])


def test_a_key_that_does_not_exist_is_answered_with_the_nearest(tmp_path: Path) -> None:
    call("run", write_spec(tmp_path), "--id", "x", cwd=tmp_path)
    for slip in ("sums/arith/s0005/2", "sums/arit/s0005/1", "s0005"):
        done = call("show", "x", slip, cwd=tmp_path)
        assert (done.code, done.out) == (2, "")
        assert "did you mean 'sums/arith/s0005/1'?" in done.err


DOUBTED: dict[str, Any] = {
    "model": {"api_key_env": "NO_SUCH_KEY", "params": {"temprature": 0}},
    "task": {"prompt": "Say {question"},
}


def test_check_says_what_is_probably_not_meant_and_accepts_it(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, **DOUBTED)
    done = call("check", spec, cwd=tmp_path)
    assert done.code == 0
    warnings = done.err.splitlines()
    assert [line.startswith(f"warning: {spec}: ") for line in warnings] == [True] * 3
    for name in ("{question}", "NO_SUCH_KEY", "'temperature'"):
        assert sum(name in line for line in warnings) == 1, name
    assert len(call("check", spec, "--json", cwd=tmp_path).json()["warnings"]) == 3
    assert call("check", spec, cwd=tmp_path, env={"NO_SUCH_KEY": "k"}).err.count("warning: ") == 2


def test_run_says_the_same_once(tmp_path: Path) -> None:
    done = run("run", write_spec(tmp_path, **DOUBTED), "--id", "x", cwd=tmp_path)
    assert done.code == 0
    assert done.err.count("warning: ") == 3
    assert "warning: " not in done.out


def test_a_spec_without_a_doubt_has_no_warning(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    done = call("check", spec, cwd=tmp_path)
    assert (done.err, done.out) == ("", f"{spec} is valid: 6 answers planned (1 task, 1 model).\n")


def test_one_thing_is_reported_in_the_singular(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 1)
    assert "1 answer planned (1 task, 1 model)" in call("check", spec, cwd=tmp_path).out
    call("run", spec, "--id", "x", cwd=tmp_path)
    assert "records in 1 segment: no damage" in call("verify", "x", cwd=tmp_path).out
    assert "sent 1 time\n" in call("show", "x", "sums/arith/s0001/1", cwd=tmp_path).out


def test_a_cut_list_names_the_option_that_lists_more(tmp_path: Path) -> None:
    call("run", write_spec(tmp_path, 3), "--id", "x", cwd=tmp_path)
    cut = call("show", "x", "--grep", ".", "--limit", "2", cwd=tmp_path).out.splitlines()
    assert cut[-1].startswith(
        "2 of 3 are listed; to list up to 20, add --limit 20. The history of one: holdfast show x "
    )
    assert "are listed" not in call("show", "x", "--grep", ".", "--limit", "20", cwd=tmp_path).out


def test_steps_are_counted_over_all_sessions(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 3)
    call("run", spec, "--id", "x", "--limit", "2", cwd=tmp_path)
    call("extend", "x", spec, cwd=tmp_path)
    for command in ("show", "report"):
        assert "steps: 3 recorded over all sessions, 0 replayed" in call(command, "x", cwd=tmp_path).out


def test_a_refusal_can_be_read_in_80_columns(tmp_path: Path) -> None:
    long = "Answer the question below as exactly as you can, and say nothing else at all: "
    spec = write_spec(tmp_path, task={"prompt": long * 3 + "{question}"})
    call("run", spec, "--id", "x", cwd=tmp_path)
    spec = write_spec(tmp_path, task={"prompt": long * 3 + "please, {question}"})
    done = run("run", spec, "--id", "x", cwd=tmp_path, env={"COLUMNS": "80"})
    assert done.code == 3
    assert "tasks.sums.prompt (result)\n" in done.err
    assert "please, {question}" in done.err
    commands = [line for line in done.err.splitlines() if line.startswith("  holdfast ")]
    assert commands == ["  holdfast resume x", f"  holdfast fork x {spec} --id x-2"], "it can be copied"
    assert max(len(line) for line in done.err.splitlines() if line not in commands) <= 80


def test_the_last_line_of_progress_says_what_failed(failed: Path) -> None:
    os.unlink(failed / "mended")
    done = call("resume", "x", cwd=failed)
    assert done.code == 1
    assert "last failure: sums/arith/s0001/1: solver: FileNotFoundError" in done.err


def test_the_help_of_export_says_what_its_columns_are(tmp_path: Path) -> None:
    said = call("export", "--help", cwd=tmp_path).out
    assert all(
        name in said for name in ("attempt", "output_tokens", "seconds", "score_errors", "reasons", "tool_calls")
    )
