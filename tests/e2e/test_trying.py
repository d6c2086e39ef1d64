"""Trying an evaluation: a part of it, a dry run of it, and one without a spec file. A trial grows into the whole."""

import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.models import count_message_tokens
from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import (
    Done,
    call,
    exported,
    finish,
    run,
    shown,
    snapshot,
    start,
    sums,
    wait_until,
    write_rows,
    write_spec,
)

WHOLE = re.compile(r"keeping these answers: holdfast (.*)")
ADHOC = ("--model", "mock", "--data", "sums.jsonl", "--prompt", "Compute: {question}", "--scorer", "numeric")


def two_by_two(folder: Path, rows: int = 4) -> Path:
    """Two tasks with two models; the second task is asked of one of them only."""
    dataset = {"path": "sums.jsonl", "id": "id", "input": "question", "target": "answer"}
    told = {"options": {"reply": ["8", "16", "{last}"]}, "provider": "mock"}
    return write_spec(
        folder,
        rows,
        models=[{"name": "a", **told}, {"name": "b", **told, "params": {"temperature": 1}}],
        tasks=[
            {"name": "one", "dataset": dataset, "prompt": "Compute: {question}", "scorers": ["numeric"], "repeats": 2},
            {"name": "two", "dataset": dataset, "scorers": ["includes"], "models": ["b"]},
        ],
    )


def by_key(run_id: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What a run says of its keys, without how long they took."""
    lines = exported(run_id, folder / "runs")
    return {line["key"]: {**line, "seconds": 0} for line in lines}


def grow(done: Done, folder: Path) -> Done:
    """Type the command that a limited run ends with."""
    found = WHOLE.search(done.out)
    assert found, done.said
    return call(*shlex.split(found[1]), cwd=folder)


def refused(done: Done, *named: str) -> None:
    assert done.code == 2, done.said
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    for each in named:
        assert each in done.err


@pytest.mark.parametrize(
    "part",
    [
        ["--limit", "1"],
        ["--sample", "s0003", "--sample", "s0001"],
        pytest.param(["--task", "two"], marks=pytest.mark.long),
        pytest.param(["--model", "b"], marks=pytest.mark.long),
        pytest.param(["--model", "a"], marks=pytest.mark.long),
        ["--limit", "2", "--task", "one", "--model", "b", "--sample", "s0002"],
    ],
    ids=" ".join,
)
def test_the_command_at_the_end_of_a_trial_makes_it_the_run_that_was_planned_in_full(
    tmp_path: Path, part: list[str]
) -> None:
    spec = two_by_two(tmp_path)
    assert call("run", spec, "--id", "whole", cwd=tmp_path).code == 0
    tried = call("run", spec, "--id", "part", *part, cwd=tmp_path)
    assert tried.code == 0, tried.err
    assert len(by_key("part", tmp_path)) < len(by_key("whole", tmp_path))
    grown = grow(tried, tmp_path)
    assert grown.code == 0, grown.err
    assert by_key("part", tmp_path) == by_key("whole", tmp_path)
    told, whole = (shown(name, tmp_path / "runs") for name in ("part", "whole"))
    assert [told[name] for name in ("planned", "finished", "status", "usage")] == [
        whole[name] for name in ("planned", "finished", "status", "usage")
    ]
    assert told["steps"]["live"] == whole["steps"]["live"]  # nothing was asked twice
    means = [{(s["task"], s["model"], s["scorer"]): (s["mean"], s["n"]) for s in x["scores"]} for x in (told, whole)]
    assert means[0] == means[1]
    assert call("run", spec, "--id", "part", cwd=tmp_path).code == 0  # from now on it is the whole


def test_the_command_holds_what_was_set_and_where_the_run_is(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 3)
    sets = ["--set", "tasks.sums.prompt=Add: {question}", "--store", str(tmp_path / "my runs")]
    tried = call("run", spec, "--id", "x", "--limit", "1", *sets, cwd=tmp_path)
    assert grow(tried, tmp_path).code == 0
    assert shown("x", tmp_path / "my runs")["planned"] == 3


@pytest.mark.parametrize("limit", ["7", "100"])
def test_a_limit_that_leaves_nothing_out_is_not_called_a_part(tmp_path: Path, limit: str) -> None:
    done = call("run", write_spec(tmp_path, 6), "--id", "x", "--limit", limit, cwd=tmp_path)
    assert (done.code, WHOLE.search(done.out)) == (0, None)


def test_a_part_of_the_models_continues_with_values_set_anew(tmp_path: Path) -> None:
    spec = two_by_two(tmp_path)
    assert call("run", spec, "--id", "part", "--task", "two", "--model", "b", cwd=tmp_path).code == 0
    done = call("resume", "part", "--set", "concurrency.samples=2", cwd=tmp_path)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--sample", "s001"], "did you mean 's0001'?"),
        (
            ["--sample", "s0001", "--sample", "zzz", "--limit", "1"],
            "no task has a sample 'zzz'; ids look like 's0001'",
        ),
        (["--task", "two", "--model", "a"], "no task runs with it"),
        (["--task", "tow"], "did you mean 'two'?"),
        (["--model", "c"], "valid are a, b"),
        (["--prompt", "x"], "--set tasks.NAME.prompt"),
        (["--param", "temperature=0"], "--set models.NAME.params"),
    ],
    ids=str,
)
def test_a_part_that_is_not_there_is_refused_with_the_nearest_name(
    tmp_path: Path, options: list[str], named: str
) -> None:
    spec = two_by_two(tmp_path)
    before = snapshot(tmp_path)
    refused(run("run", spec, *options, cwd=tmp_path), named)
    assert snapshot(tmp_path) == before


def test_a_dry_run_prints_the_exact_messages_and_sends_and_writes_nothing(tmp_path: Path) -> None:
    with start_server_process() as server:
        spec = write_spec(tmp_path, 5, server.base_url, task={"system": "Be exact.", "repeats": 2})
        before = snapshot(tmp_path)
        done = run("run", spec, "--id", "x", "--dry-run", cwd=tmp_path)
        told = run("run", spec, "--dry-run", "--limit", "2", "--json", cwd=tmp_path).json()
        assert server.stats().requests == 0
    assert done.code == 0, done.err
    assert "sums with arith: 10 answers" in done.out
    for number, row in enumerate(sums(5)):
        assert (f"    user: Compute: {row['question']}\n" in done.out) is (number < 3)
    assert done.out.count("    system: Be exact.\n") == 3
    assert snapshot(tmp_path) == before
    (cell,) = told["cells"]
    assert (told["planned"], cell["keys"], list(cell["first"])) == (4, 4, ["s0001", "s0002"])
    assert cell["first"]["s0002"] == [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": f"Compute: {sums(2)[1]['question']}"},
    ]
    counted = sum(count_message_tokens(each) for messages in cell["first"].values() for each in messages)
    assert cell["input_tokens"] == counted * 2


def test_a_dry_run_of_what_cannot_run_is_refused(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, task={"prompt": "{qestion}"})
    refused(run("run", spec, "--dry-run", cwd=tmp_path), "tasks[0].prompt", "did you mean 'question'?")


def test_a_run_without_a_spec_is_a_run_like_any_other(tmp_path: Path) -> None:
    write_rows(tmp_path / "sums.jsonl", sums(4))
    first = run("run", *ADHOC, "--system", "Be exact.", "--id", "q", "--limit", "2", cwd=tmp_path)
    assert first.code == 0, first.err
    again = call("run", *ADHOC, "--system", "Be exact.", "--id", "q", "--limit", "2", cwd=tmp_path)
    assert (again.code, again.out) == (0, first.out)
    other = call("run", *ADHOC, "--system", "Be brief.", "--id", "q", "--limit", "2", cwd=tmp_path)
    assert other.code == 3
    assert "tasks.sums.system" in other.err
    assert grow(first, tmp_path).code == 0
    assert call("resume", "q", cwd=tmp_path).code == 0
    told = shown("q", tmp_path / "runs")
    assert (told["experiment"], told["planned"], told["status"]) == ("ad-hoc", 4, "completed")
    assert list(by_key("q", tmp_path)) == [f"sums/mock/s000{i}/1" for i in (1, 2, 3, 4)]


def test_a_run_without_a_spec_sends_its_parameters(tmp_path: Path) -> None:
    rows = [{"name": f"r{i}", "ask": f"{i} + 1", "right": str(i + 1)} for i in (1, 2)]
    write_rows(tmp_path / "odd.jsonl", rows)
    columns = ["--input", "ask", "--target", "right", "--id-column", "name"]
    with start_server_process() as server:
        models = ["--model", "openai/arith-1", "--base-url", server.base_url, "--param", "temperature=0"]
        scorers = ["--scorer", "numeric", "--scorer", "{exact_match: {strip: false}}", "--param", "stop=[x]"]
        done = run("run", *models, "--data", "odd.jsonl", *columns, *scorers, "--id", "q", cwd=tmp_path)
    assert done.code == 0, done.said
    assert {key: line["scores"]["numeric"] for key, line in by_key("q", tmp_path).items()} == {
        "odd/arith-1/r1/1": True,
        "odd/arith-1/r2/1": True,
    }
    assert {each["scorer"] for each in shown("q", tmp_path / "runs")["scores"]} == {"numeric", "exact_match"}
    (model,) = stored_spec(tmp_path / "runs" / "ad-hoc" / "q")["models"]
    assert (model["params"], model["base_url"]) == ({"temperature": 0, "stop": ["x"]}, server.base_url)


def stored_spec(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "spec.yaml").read_text())
    return found


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "say what to run"),
        (["--model", "mock"], "--data is missing"),
        (["--data", "sums.jsonl"], "--model is missing"),
        (["--data", "sum.jsonl", "--model", "mock"], "did you mean sums.jsonl?"),
        (["--data", "sums.jsonl", "--model", "gpt-x"], "openai/gpt-x"),
        (["--data", "sums.jsonl", "--model", "mok"], "--model mok: did you mean mock?"),
        (["--data", "sums.jsonl", "--model", "opnai"], "--model opnai: did you mean openai/MODEL?"),
        (["--data", "sums.jsonl", "--model", "opnai/gpt-x"], "--model: provider 'opnai' is not known"),
        (["--data", "sums.jsonl", "--model", "openai/x", "--base-url", "nowhere"], "--base-url"),
        (["--data", "sums.jsonl", "--model", "mock", "--scorer", "numerc"], "--scorer: unknown scorer 'numerc'"),
        (["--data", "sums.jsonl", "--model", "mock", "--prompt", "{qestion}"], "--prompt: no column"),
        (["--data", "sums.jsonl", "--model", "mock", "--input", "qestion"], "--data"),
        (["--data", "sums.jsonl", "--model", "mock", "--param", "temperature"], "NAME=VALUE"),
        (["--data", "sums.jsonl", "--model", "mock", "--sample", "s001"], "--sample: no task has a sample"),
        (["--data", "sums.jsonl", "--model", "mock", "--task", "sms"], "did you mean 'sums'?"),
        (["sums.jsonl"], "is data, not a spec"),
        (["solver.py"], "solver.py is Python, not a spec; start it with: python solver.py"),
    ],
    ids=str,
)
def test_options_that_make_no_run_are_refused_by_their_names(tmp_path: Path, arguments: list[str], named: str) -> None:
    write_rows(tmp_path / "sums.jsonl", sums(2))
    (tmp_path / "solver.py").write_text("print('never run')\n")
    before = snapshot(tmp_path)
    refused(call("run", *arguments, cwd=tmp_path), named)
    assert snapshot(tmp_path) == before


def test_several_options_that_make_no_run_are_all_named(tmp_path: Path) -> None:
    write_rows(tmp_path / "sums.jsonl", sums(2))
    wrong = ("--scorer", "numerc", "--prompt", "{qestion}")
    done = call("run", "--data", "sums.jsonl", "--model", "mock", *wrong, cwd=tmp_path)
    assert done.code == 2
    scorer, prompt = done.err.splitlines()
    assert scorer.startswith("holdfast: --scorer: unknown scorer 'numerc'")
    assert prompt.startswith("  --prompt: no column 'qestion'")


def test_two_models_of_one_name_get_names_that_differ(tmp_path: Path) -> None:
    write_rows(tmp_path / "sums.jsonl", sums(1))
    (tmp_path / "own.py").write_text("async def answer(request):\n    return '8'\n")
    done = run("run", "--model", "mock/x", "--model", "own:answer/x", "--data", "sums.jsonl", "--id", "q", cwd=tmp_path)
    assert done.code == 0, done.err
    assert list(by_key("q", tmp_path)) == ["sums/x/s0001/1", "sums/own:answer%2Fx/s0001/1"]


def test_a_killed_run_without_a_spec_continues_without_its_data(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "sums.jsonl", sums(40))
    with start_server_process(Behaviour(latency_seconds=0.05)) as server:
        options = [
            "--model",
            "openai/arith-1",
            "--base-url",
            server.base_url,
            "--data",
            data.name,
            "--scorer",
            "numeric",
        ]
        slowly = ["--set", "concurrency.samples=4", "--prompt", "Compute: {question}", "--id", "q"]
        with start("run", *options, *slowly, cwd=tmp_path) as process:
            assert wait_until(lambda: server.stats().requests >= 12, process)
            finish(process, signal.SIGKILL)
        data.unlink()
        done = run("resume", "q", cwd=tmp_path)
        assert done.code == 0, done.err
        assert 40 <= server.stats().requests <= 40 + 4
    assert {line["scores"]["numeric"] for line in by_key("q", tmp_path).values()} == {True}
