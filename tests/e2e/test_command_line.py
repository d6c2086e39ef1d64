"""Every command of the contract, its output for scripts, and its exit codes."""

import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import (
    Done,
    call,
    exported,
    finish,
    kill_when,
    run,
    shown,
    snapshot,
    start,
    sums,
    wait_until,
    write_rows,
    write_spec,
)
from tests.e2e.json_schema import problems

SHOWN = {
    "run_id",
    "experiment",
    "status",
    "reason",
    "created",
    "updated",
    "completed",
    "planned",
    "finished",
    "failed",
    "unfinished",
    "steps",
    "usage",
    "scores",
    "evaluations",
    "resumes",
    "anomalies",
}
EXPORTED = {"key", "task", "model", "sample_id", "repeat", "status", "output", "error", "scores"}
ADDED = ("anomalies", "cached_tokens", "cost_usd", "group", "marks", "reasoning_tokens", "scores_edited")
READABLE_ID = re.compile(r"\d{8}-\d{6}-[a-z]+-[a-z]+")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with start_server_process() as started:
        yield started


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the run `first` is complete: six sums, of which a mock that says 8 gets one right."""
    folder = tmp_path_factory.mktemp("finished")
    write_spec(folder)
    assert call("run", "eval.yaml", "--id", "first", cwd=folder).code == 0
    return folder


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three runs of two experiments, one of them interrupted."""
    folder = tmp_path_factory.mktemp("several")
    spec = write_spec(folder, tags=["nightly"])
    assert call("run", spec, "--id", "alpha-1", cwd=folder).code == 0
    spec = write_spec(folder, experiment="other")
    assert call("run", spec, "--id", "alpha-2", cwd=folder).code == 0
    spec = write_spec(folder, experiment="other", model={"options": {"latency_seconds": 60}})
    interrupt(folder, "run", spec, "--id", "beta")
    return folder


def interrupt(folder: Path, *command: str | Path, number: signal.Signals = signal.SIGINT) -> Done:
    """Start a command that will not end by itself, and stop it once its run has begun."""
    with start(*command, cwd=folder) as process:
        assert process.stderr is not None
        said = process.stderr.readline()  # "run EXPERIMENT/ID in FOLDER": the engine works
        done = finish(process, number)
    return Done(done.code, done.out, said + done.err)


def test_a_first_evaluation_takes_two_commands(tmp_path: Path) -> None:
    made = run("init", "first-steps", cwd=tmp_path)
    assert made.code == 0, made.err
    done = run("run", "first-steps/eval.yaml", "--id", "first", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "completed" in done.out
    told = shown("first", tmp_path / "runs")
    assert (told["status"], told["failed"]) == ("completed", 0)
    assert told["scores"]


def test_init_touches_no_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text("mine")
    done = call("init", cwd=tmp_path)
    assert (done.code, os.listdir(tmp_path)) == (2, ["eval.yaml"])
    assert "eval.yaml" in done.err
    assert (tmp_path / "eval.yaml").read_text() == "mine"


def test_running_a_complete_run_again_prints_its_report_and_sends_no_request(
    tmp_path: Path, server: ServerProcess
) -> None:
    spec = write_spec(tmp_path, base_url=server.base_url)
    first = run("run", spec, "--id", "same", cwd=tmp_path)
    asked = server.stats().requests
    before = snapshot(tmp_path)
    again = run("run", spec, "--id", "same", cwd=tmp_path)
    assert (first.code, again.code) == (0, 0)
    assert again.out == first.out
    assert server.stats().requests == asked
    assert snapshot(tmp_path) == before


def test_a_run_without_an_id_gets_one_that_can_be_read(tmp_path: Path) -> None:
    done = call("run", write_spec(tmp_path), cwd=tmp_path)
    (made,) = os.listdir(tmp_path / "runs" / "sums")
    assert done.code == 0
    assert READABLE_ID.fullmatch(made)
    assert f"sums/{made}" in done.out


def test_each_run_without_an_id_is_a_new_one(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    assert [call("run", spec, cwd=tmp_path).code for _ in range(2)] == [0, 0]
    assert len(os.listdir(tmp_path / "runs" / "sums")) == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["alpha-1", "alpha-2", "beta"]),
        (["--experiment", "other"], ["alpha-2", "beta"]),
        (["--status", "completed"], ["alpha-1", "alpha-2"]),
        (["--status", "interrupted"], ["beta"]),
        (["--tag", "nightly"], ["alpha-1"]),
        (["--limit", "2"], ["alpha-2", "beta"]),
        (["--experiment", "other", "--status", "completed"], ["alpha-2"]),
        (["--experiment", "nobody"], []),
    ],
)
def test_ls_lists_the_runs_that_are_asked_for_the_newest_last(
    several: Path, options: list[str], expected: list[str]
) -> None:
    told = call("ls", *options, "--json", cwd=several)
    assert told.code == 0
    assert [each["run_id"] for each in told.json()] == expected
    table = call("ls", *options, cwd=several)
    assert table.code == 0
    assert [name for name in ("alpha-1", "alpha-2", "beta") if name in table.out] == expected


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_ls_refuses_a_limit_that_means_nothing(several: Path, limit: str) -> None:
    done = call("ls", "--limit", limit, cwd=several)
    assert done.code == 2
    assert "limit" in done.err


def test_ls_of_an_empty_store_says_so(tmp_path: Path) -> None:
    assert call("ls", "--json", cwd=tmp_path).json() == []
    assert "There is no folder runs, so no runs" in call("ls", cwd=tmp_path).out
    assert os.listdir(tmp_path) == []


def test_ls_passes_over_what_is_no_run(tmp_path: Path) -> None:
    call("run", write_spec(tmp_path), "--id", "good", cwd=tmp_path)
    (tmp_path / "runs" / "notes.txt").write_text("mine")
    (tmp_path / "runs" / "sums" / "notes.txt").write_text("mine")
    (tmp_path / "runs" / "sums" / "folder").mkdir()
    (tmp_path / "runs" / "sums" / "begun" / "journal").mkdir(parents=True)
    done = call("ls", "--json", "--status", "completed", cwd=tmp_path)
    assert [each["run_id"] for each in done.json()] == ["good"]


def test_show_tells_all_that_the_contract_names(finished: Path) -> None:
    told = shown("first", finished / "runs")
    assert set(told) >= SHOWN
    assert set(told["steps"]) >= {"live", "replayed", "orphaned"}
    assert (told["run_id"], told["experiment"], told["status"]) == ("first", "sums", "completed")
    assert (told["planned"], told["finished"], told["failed"], told["unfinished"]) == (6, 6, 0, 0)
    assert told["steps"] == {"live": 6, "replayed": 0, "orphaned": 0, "taken_over": 0}
    assert told["created"] <= told["completed"] <= told["updated"]
    assert told["usage"]["input_tokens"] == 6 * 4
    (score,) = told["scores"]
    assert (score["task"], score["model"], score["scorer"], score["n"]) == ("sums", "arith", "numeric", 6)
    assert score["mean"] == pytest.approx(1 / 6)
    assert len(told["evaluations"]) == 1
    assert (told["resumes"], told["anomalies"], told["reason"]) == ([], [], "")


def test_show_tells_a_person_the_same(finished: Path) -> None:
    done = call("show", "first", cwd=finished)
    assert done.code == 0
    assert "sums/first  completed" in done.out
    assert "6 finished, 0 failed, 0 unfinished" in done.out


def test_show_tells_the_story_of_one_key(finished: Path) -> None:
    told = call("show", "first", "sums/arith/s0002/1", "--json", cwd=finished)
    assert told.code == 0
    (attempt,) = told.json()["attempts"]
    assert (told.json()["status"], attempt["status"], len(attempt["steps"])) == ("finished", "finished", 1)
    assert [score["scorer"] for score in told.json()["scores"]] == ["numeric"]
    read = call("show", "first", "sums/arith/s0002/1", cwd=finished).out
    assert "Compute: 2 + 14" in read
    assert "numeric: False" in read


def test_show_refuses_a_key_that_is_not_in_the_run(finished: Path) -> None:
    done = call("show", "first", "sums/arith/s9999/1", cwd=finished)
    assert (done.code, done.out) == (2, "")
    assert "s9999" in done.err


def test_report_shows_each_cell_with_its_uncertainty(finished: Path) -> None:
    (cell,) = call("report", "first", "--json", cwd=finished).json()["cells"]
    assert (cell["task"], cell["model"], cell["planned"], cell["finished"], cell["failed"]) == (
        "sums",
        "arith",
        6,
        6,
        0,
    )
    summary = cell["scorers"][0]["summary"]
    assert summary["mean"] == pytest.approx(1 / 6)
    assert 0 < summary["low"] < summary["mean"] < summary["high"] < 1
    assert summary["standard_error"] > 0
    read = call("report", "first", cwd=finished).out
    assert all(word in read for word in ("0.1667", "16.7% right", "95% interval", "numeric", "24 in, 6 out"))


def test_verify_finds_a_whole_run_whole(finished: Path) -> None:
    assert call("verify", "first", cwd=finished).code == 0
    told = call("verify", "first", "--json", cwd=finished).json()
    assert (told["ok"], told["errors"]) == (True, [])


@pytest.mark.parametrize("name", ["journal/000001.jsonl.zst", "plan.jsonl.zst", "data.jsonl.zst"])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_verify_finds_a_flipped_byte_and_exits_5(tmp_path: Path, name: str, place: float) -> None:
    call("run", write_spec(tmp_path), "--id", "hurt", cwd=tmp_path)
    path = tmp_path / "runs" / "sums" / "hurt" / name
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 0x40
    path.write_bytes(content)
    done = call("verify", "hurt", cwd=tmp_path)
    assert done.code == 5
    assert "damaged" in done.out
    told = call("verify", "hurt", "--json", cwd=tmp_path)
    assert told.code == 5
    assert path.name in " ".join(told.json()["errors"])


@pytest.mark.parametrize("name", ["plan.jsonl.zst", "data.jsonl.zst"])
def test_verify_finds_a_file_that_is_gone_and_exits_5(tmp_path: Path, name: str) -> None:
    call("run", write_spec(tmp_path), "--id", "hurt", cwd=tmp_path)
    (tmp_path / "runs" / "sums" / "hurt" / name).unlink()
    done = call("verify", "hurt", cwd=tmp_path)
    assert done.code == 5
    assert name in done.out


def test_a_resume_with_a_changed_plan_exits_5_and_sends_no_request(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    call("run", spec, "--id", "hurt", cwd=tmp_path)
    path = tmp_path / "runs" / "sums" / "hurt" / "plan.jsonl.zst"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    before = snapshot(tmp_path)
    done = call("run", spec, "--id", "hurt", cwd=tmp_path)
    assert done.code == 5
    assert "plan.jsonl.zst" in done.err
    assert snapshot(tmp_path) == before


def test_export_writes_a_line_for_each_key(finished: Path) -> None:
    lines = exported("first", finished / "runs")
    assert [line["key"] for line in lines] == [f"sums/arith/s{i:04d}/1" for i in range(1, 7)]
    assert all(set(line) >= EXPORTED for line in lines)
    assert lines[0] | {"seconds": 0} == {
        "key": "sums/arith/s0001/1",
        "task": "sums",
        "model": "arith",
        "sample_id": "s0001",
        "repeat": 1,
        "status": "finished",
        "output": "8",
        "error": None,
        "scores": {"numeric": True},
        "attempt": 1,
        "finish_reason": "stop",
        "input_tokens": 4,
        "output_tokens": 1,
        "seconds": 0,
        "tool_calls": [],
        "reasons": {"numeric": "read 8"},
        "input": "1 + 7",
        "target": "8",
        "prompt": "Compute: 1 + 7",
        "row": None,
    } | {name: lines[0][name] for name in ADDED}
    assert (lines[0]["marks"], lines[0]["cost_usd"], lines[0]["scores_edited"], lines[0]["anomalies"]) == (
        [],
        None,
        {},
        {},
    )


def test_export_to_a_file_writes_the_same(finished: Path, tmp_path: Path) -> None:
    done = call("export", "first", "--format", "jsonl", "--output", tmp_path / "out.jsonl", cwd=finished)
    assert (done.code, done.out) == (0, "")
    assert (tmp_path / "out.jsonl").read_text() == call("export", "first", cwd=finished).out


def test_export_as_csv_has_a_column_for_each_scorer(finished: Path, tmp_path: Path) -> None:
    printed = call("export", "first", "--format", "csv", cwd=finished)
    assert call("export", "first", "--format", "csv", "--output", tmp_path / "out.csv", cwd=finished).code == 0
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    with open(tmp_path / "out.csv", newline="") as file:
        assert list(csv.DictReader(file)) == rows
    spent = {"attempt", "input_tokens", "output_tokens", "seconds", "cost_usd"}
    assert set(rows[0]) == (EXPORTED - {"scores"}) | spent | {
        "numeric",
        "score_errors",
        "reasons",
        "marks",
        "anomalies",
        "edited",
        "input",
        "target",
        "prompt",
    }
    assert [row["numeric"] for row in rows] == ["True", *["False"] * 5]


def test_export_refuses_a_format_and_a_folder_that_are_not_there(finished: Path, tmp_path: Path) -> None:
    wrong = call("export", "first", "--format", "xml", cwd=finished)
    nowhere = call("export", "first", "--output", tmp_path / "no" / "out", cwd=finished)
    assert (wrong.code, nowhere.code) == (2, 2)
    assert "csv" in wrong.err
    assert str(tmp_path / "no" / "out") in nowhere.err


def test_check_says_what_a_spec_means_and_creates_nothing(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, task={"repeats": 3})
    before = snapshot(tmp_path)
    told = call("check", spec, "--json", cwd=tmp_path)
    assert told.code == 0
    assert (told.json()["planned"], told.json()["tasks"], told.json()["models"]) == (18, ["sums"], ["arith"])
    assert "18" in call("check", spec, cwd=tmp_path).out
    assert call("check", spec, "--set", "tasks[0].repeats=2", "--json", cwd=tmp_path).json()["planned"] == 12
    assert snapshot(tmp_path) == before


def test_the_schema_accepts_the_example_and_refuses_a_slip(tmp_path: Path) -> None:
    schema = json.loads(run("schema", cwd=tmp_path).out)
    call("init", cwd=tmp_path)
    example = yaml.safe_load((tmp_path / "eval.yaml").read_text())
    assert problems(schema, example) == []
    assert problems(schema, {**example, "taks": []}) != []
    assert problems(schema, {**example, "tasks": [{**example["tasks"][0], "repeats": 0}]}) != []
    assert problems(schema, {**example, "tasks": [{**example["tasks"][0], "scorers": "numeric"}]}) != []


@pytest.mark.parametrize(
    "changes",
    [
        {"defaults": {"repeats": 2}},
        {"roles": {"judge": {"provider": "mock"}}},
        {"models": [{"provider": "openai", "model": "qwen3-8b"}]},
        {"defaults": {"provider": "mock"}, "models": [{"name": "a"}, {"name": "b"}]},
    ],
    ids=["defaults", "a role without a name", "a model without a name", "a default provider"],
)
def test_the_schema_accepts_whatever_the_command_accepts(tmp_path: Path, changes: dict[str, Any]) -> None:
    """An editor that marks a working spec as wrong is worse than none."""
    spec = write_spec(tmp_path, **changes)
    assert call("check", spec, cwd=tmp_path, env={"OPENAI_API_KEY": "k"}).code == 0
    assert problems(json.loads(call("schema", cwd=tmp_path).out), yaml.safe_load(spec.read_text())) == []


@pytest.mark.parametrize("name", ["alpha-1", "alp", "latest", "runs/sums/alpha-1", "sums/alpha-1"])
def test_a_run_is_named_by_its_id_a_prefix_latest_or_its_folder(tmp_path: Path, name: str) -> None:
    spec = write_spec(tmp_path)
    call("run", spec, "--id", "beta", cwd=tmp_path)
    call("run", spec, "--id", "alpha-1", cwd=tmp_path)
    assert call("show", name, "--json", cwd=tmp_path).json()["run_id"] == "alpha-1"
    assert call("resume", name, cwd=tmp_path).code == 0


def test_a_prefix_of_two_runs_is_refused_with_both_names(several: Path) -> None:
    done = call("show", "alpha", cwd=several)
    assert done.code == 2
    assert "alpha-1" in done.err
    assert "alpha-2" in done.err


@pytest.mark.parametrize("command", ["show", "report", "verify", "export", "resume"])
def test_a_run_that_does_not_exist_is_refused(several: Path, command: str) -> None:
    before = snapshot(several)
    done = call(command, "nobody", cwd=several)
    assert (done.code, done.out) == (2, "")
    assert "nobody" in done.err
    assert snapshot(several) == before


def test_failed_samples_exit_1_and_are_shown_not_averaged_in(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("400", rate=0.4)], seed=3)) as faulty:
        done = run("run", write_spec(tmp_path, 12, faulty.base_url), "--id", "some", cwd=tmp_path)
    assert done.code == 1
    assert "bad_request" in done.out
    lines = exported("some", tmp_path / "runs")
    failed = [line for line in lines if line["status"] == "failed"]
    told = shown("some", tmp_path / "runs")
    assert 0 < told["failed"] == len(failed) < 12
    assert (told["status"], told["unfinished"]) == ("completed", 0)
    assert {(line["output"], line["error"]["kind"]) for line in failed} == {(None, "bad_request")}
    assert {str(line["scores"]) for line in failed} == {"{}"}
    (score,) = told["scores"]
    assert (score["n"], score["mean"]) == (12 - len(failed), 1.0)


@pytest.mark.parametrize(("allowed", "code"), [(0, 1), (5, 1), (6, 0), (0.9, 1), (1, 1)])
def test_fail_on_error_says_how_many_failures_are_allowed(tmp_path: Path, allowed: float, code: int) -> None:
    failing = {"options": {"failures": [{"kind": "content_filter"}]}}
    spec = write_spec(tmp_path, 6, model=failing, fail_on_error=allowed)
    assert call("run", spec, "--id", "x", cwd=tmp_path).code == code


@pytest.mark.parametrize(
    "arguments", [["walk"], ["run"], ["run", "--nope"], ["run", "a.yaml", "--limit", "x"], ["show"], ["ls", "surplus"]]
)
def test_a_command_that_cannot_be_understood_exits_2(tmp_path: Path, arguments: list[str]) -> None:
    done = call(*arguments, cwd=tmp_path)
    assert done.code == 2
    assert "Traceback" not in done.said
    assert os.listdir(tmp_path) == []


def test_help_lists_the_commands(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert done.code == 0
    assert all(name in done.out for name in ("run", "resume", "check", "ls", "show", "report", "verify", "export"))


def test_help_does_not_wait_for_what_it_does_not_need(tmp_path: Path) -> None:
    program = "import sys\nfrom holdfast.cli.main import main\nsys.argv = ['holdfast', '--help']\n"
    unneeded = {"aiohttp", "numpy", "scipy", "holdfast.report", "holdfast.runs"}
    program += f"try:\n    main()\nfinally:\n    print('loaded', {unneeded} & set(sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("loaded set()\n")


@pytest.mark.parametrize(
    "arguments", [["ls"], ["show", "first"], ["report", "first"], ["run", "eval.yaml", "--id", "first"]]
)
def test_looking_at_a_run_does_not_import_numpy_or_scipy(finished: Path, arguments: list[str]) -> None:
    program = f"import sys\nfrom holdfast.cli.main import main\nsys.argv = {['holdfast', *arguments]}\n"
    program += "try:\n    main()\nfinally:\n    print('loaded', {'numpy', 'scipy'} & set(sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", program], cwd=finished, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "loaded set()"), done.stderr


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("models.arith.params.temperature=0.9", "models.arith.params"),
        ("models[0].options.reply=nine", "models.arith.options"),
        ("tasks.sums.prompt=Add {question}", "tasks.sums.prompt"),
        ("seed=7", "seed"),
        ("tasks[0].repeats=2", "tasks.sums.repeats"),
        ("limits.sample.seconds=5", "limits.sample.seconds"),
    ],
)
def test_a_resume_that_would_mix_two_experiments_exits_3_and_changes_nothing(
    finished: Path, change: str, field: str
) -> None:
    before = snapshot(finished)
    done = call("run", "eval.yaml", "--id", "first", "--set", change, cwd=finished)
    assert (done.code, done.out) == (3, "")
    assert field in done.err
    assert "result" in done.err
    assert snapshot(finished) == before
    assert call("resume", "first", "--set", change, cwd=finished).code == 3
    assert snapshot(finished) == before


def test_a_refusal_shows_both_values(finished: Path) -> None:
    done = call("run", "eval.yaml", "--id", "first", "--set", "seed=7", cwd=finished)
    assert "seed (result)\n  stored: 0\n  given:  7\n" in done.err


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {50256: -100}},
        {"stop": ["\n"], "temperature": 0, "nested": {"a": [1.5, None, True]}},
        {"cutoff": "2024-01-01"},
        {"seed": 123456789012345678901234567890},
    ],
    ids=["numbers as keys", "nested values", "a date", "a very large number"],
)
def test_an_unchanged_spec_is_no_drift_whatever_its_params_hold(tmp_path: Path, params: dict[str, Any]) -> None:
    spec = write_spec(tmp_path, model={"params": params})
    spec.write_text(spec.read_text().replace("'2024-01-01'", "2024-01-01"))  # as people write a date
    first = call("run", spec, "--id", "same", cwd=tmp_path)
    again = call("run", spec, "--id", "same", cwd=tmp_path)
    assert (first.code, again.code) == (0, 0), again.err


def test_what_only_changes_speed_is_accepted_and_remembered(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    call("run", spec, "--id", "x", cwd=tmp_path)
    assert call("run", spec, "--id", "x", "--set", "models.arith.max_connections=2", cwd=tmp_path).code == 0
    (resumed,) = shown("x", tmp_path / "runs")["resumes"]
    (change,) = resumed["changes"]
    assert (change["field"], change["old"], change["new"]) == ("models.arith.max_connections", 64, 2)
    written = (tmp_path / "runs" / "sums" / "x" / "spec.yaml").read_text()
    assert re.search(r"^# Resumed by holdfast \S+ at \S+: models.arith.max_connections: 64 -> 2$", written, re.M)
    assert yaml.safe_load(written)["models"][0]["max_connections"] == 2


def test_a_run_that_another_live_process_holds_exits_4(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, model={"options": {"latency_seconds": 60}})
    with start("run", spec, "--id", "held", cwd=tmp_path) as holder:
        assert holder.stderr is not None
        holder.stderr.readline()
        refused = call("run", spec, "--id", "held", cwd=tmp_path)
        assert shown("held", tmp_path / "runs")["status"] == "running"
        assert call("verify", "held", cwd=tmp_path).code == 0
        finish(holder, signal.SIGKILL)
    assert refused.code == 4
    assert "another live process" in refused.err
    if os.path.exists("/proc/locks"):
        assert f"(process {holder.pid} on {os.uname().nodename})" in refused.err
    assert shown("held", tmp_path / "runs")["status"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_saves_says_how_to_continue_and_exits_130(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "a folder"  # with a space: what is printed has to be a command all the same
    folder.mkdir()
    with start_server_process(Behaviour(latency_seconds=0.3)) as slow:
        spec = write_spec(folder, 40, slow.base_url, model={"max_connections": 4})
        with start("run", spec, "--id", "cut off", "--store", folder / "store", cwd=folder) as process:
            assert wait_until(lambda: slow.stats().requests >= 8, process)  # so four are saved
            done = finish(process, number)
        assert done.code == 130, done.err
        told = shown("cut off", folder / "store")
        assert (told["status"], told["reason"]) == ("interrupted", f"stopped by {number.name}")
        assert 0 < told["unfinished"] < 40
        command = shlex.split(done.err.split("Continue with: holdfast ")[1])
        resumed = call(*command, "--set", "models.arith.max_connections=40", cwd=folder)
        assert resumed.code == 0, resumed.err
        assert slow.stats().repeats <= 4
    assert [line["scores"] for line in exported("cut off", folder / "store")] == [{"numeric": True}] * 40
    assert shown("cut off", folder / "store")["status"] == "completed"


def test_a_second_signal_ends_at_once_and_keeps_what_was_saved(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, model={"options": {"latency_seconds": 60}})
    with start("run", spec, "--id", "x", cwd=tmp_path) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        done = finish(process, signal.SIGINT)
    assert done.code in (130, -signal.SIGINT)
    assert shown("x", tmp_path / "runs")["status"] == "interrupted"


def test_a_new_run_of_an_interrupted_spec_names_the_command_that_continues(tmp_path: Path) -> None:
    slow = write_spec(tmp_path, model={"options": {"latency_seconds": 60, "reply": "8"}})
    store = tmp_path / "elsewhere"
    interrupt(tmp_path, "run", slow, "--id", "cut", "--store", store)
    with start("run", slow, "--store", store, cwd=tmp_path) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.stderr.readline()
        finish(process, signal.SIGINT)
    command = shlex.split(said.split("holdfast resume ")[1])
    assert command == ["cut", "--store", str(store)]


def test_show_of_an_interrupted_run_names_the_command_that_continues(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, model={"options": {"latency_seconds": 60}})
    store = tmp_path / "elsewhere"
    interrupt(tmp_path, "run", spec, "--id", "cut", "--store", store)
    out = call("show", "cut", "--store", store, cwd=tmp_path).out
    assert shlex.split(out.split("Continue with: holdfast ")[1]) == ["resume", "cut", "--store", str(store)]


def test_resume_takes_a_spec_and_refuses_what_differs(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    call("run", spec, "--id", "x", cwd=tmp_path)
    assert call("resume", "x", spec, cwd=tmp_path).code == 0
    assert call("resume", "x", write_spec(tmp_path, seed=1), cwd=tmp_path).code == 3


def test_a_run_continues_without_its_spec_and_its_data(tmp_path: Path) -> None:
    """The run holds its rows and its spec; only the model has to be there."""
    with start_server_process(Behaviour(latency_seconds=0.2)) as slow:
        spec = write_spec(tmp_path, 12, slow.base_url, model={"max_connections": 2})
        assert kill_when(lambda: slow.stats().requests >= 4, "run", spec, "--id", "x", cwd=tmp_path)
        spec.unlink()
        (tmp_path / "sums.jsonl").unlink()
        done = call("resume", "x", "--set", "models.arith.max_connections=12", cwd=tmp_path)
    assert done.code == 0, done.err
    assert {line["status"] for line in exported("x", tmp_path / "runs")} == {"finished"}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--limit", "1"], ["one/a/s0001/1", "one/b/s0001/1", "two/a/s0001/1", "two/b/s0001/1"]),
        (["--sample", "s0002", "--task", "one"], ["one/a/s0002/1", "one/b/s0002/1"]),
        (["--task", "two", "--model", "b"], ["two/b/s0001/1", "two/b/s0002/1"]),
        (
            ["--model", "a", "--sample", "s0001", "--sample", "s0002", "--task", "one"],
            ["one/a/s0001/1", "one/a/s0002/1"],
        ),
    ],
    ids=["limit", "sample", "task and model", "two samples"],
)
def test_a_part_of_a_spec_can_be_run(tmp_path: Path, options: list[str], keys: list[str]) -> None:
    dataset = {"path": "sums.jsonl", "input": "question", "target": "answer"}
    spec = write_spec(
        tmp_path,
        2,
        models=[{"name": "a", "provider": "mock"}, {"name": "b", "provider": "mock"}],
        tasks=[{"name": "one", "dataset": dataset}, {"name": "two", "dataset": dataset}],
    )
    assert call("run", spec, "--id", "part", *options, cwd=tmp_path).code == 0
    assert [line["key"] for line in exported("part", tmp_path / "runs")] == keys


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--task", "sumz"], "'sums'"),
        (["--model", "arit"], "'arith'"),
        (["--sample", "nobody"], "no task has a sample"),
        (["--sample", "s0001", "--sample", "nobody"], "nobody"),
        (["--limit", "0"], "--limit"),
        (["--limit", "-3"], "--limit"),
        (["--set", "tasks[7].prompt=x"], "tasks[7]"),
        (["--set", "nonsense"], "field=value"),
        (["--set", "tasks[0].promt=x"], "'prompt'"),
        (["--id", ""], "name"),
        (["--id", "a\nb"], "printable"),
    ],
)
def test_a_selection_that_means_nothing_is_refused(tmp_path: Path, options: list[str], hint: str) -> None:
    spec = write_spec(tmp_path)
    done = call("run", spec, *options, cwd=tmp_path)
    assert done.code == 2
    assert hint in done.err
    assert not (tmp_path / "runs").exists()


def test_a_dotenv_file_beside_the_command_is_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("# ours\nexport REPLY='8'\nOTHER=\"from the file\" \n")
    spec = write_spec(tmp_path, model={"options": {"reply": "${REPLY}"}}, description="${OTHER}")
    assert call("run", spec, "--id", "file", cwd=tmp_path).code == 0
    assert exported("file", tmp_path / "runs")[0]["output"] == "8"
    assert shown("file", tmp_path / "runs")["description"] == "from the file"


def test_the_environment_wins_over_a_dotenv_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("REPLY=8\n")
    spec = write_spec(tmp_path, model={"options": {"reply": "${REPLY}"}})
    call("run", spec, "--id", "x", cwd=tmp_path, env={"REPLY": "16"})
    assert exported("x", tmp_path / "runs")[0]["output"] == "16"


def test_the_store_can_be_named_by_the_environment(tmp_path: Path) -> None:
    named = {"HOLDFAST_STORE": str(tmp_path / "named")}
    assert call("run", write_spec(tmp_path), "--id", "x", cwd=tmp_path, env=named).code == 0
    assert [each["run_id"] for each in call("ls", "--json", cwd=tmp_path, env=named).json()] == ["x"]
    assert sorted(os.listdir(tmp_path / "named")) == ["sums"]
    assert not (tmp_path / "runs").exists()


def test_a_store_named_in_a_dotenv_file_is_ignored_and_said(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HOLDFAST_STORE=named\n")
    done = call("run", write_spec(tmp_path), "--id", "x", cwd=tmp_path)
    assert done.code == 0
    assert "HOLDFAST_STORE is ignored" in done.err
    assert not (tmp_path / "named").exists()


def test_the_progress_file_ends_with_how_the_run_ended(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    call("run", write_spec(tmp_path, progress_file=str(path)), "--id", "x", cwd=tmp_path)
    told = json.loads(path.read_text())
    assert (told["run_id"], told["planned"], told["finished"], told["failed"]) == ("x", 6, 6, 0)


def test_a_progress_file_that_cannot_be_written_does_not_hurt_the_run(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, progress_file=str(tmp_path / "no" / "progress.json"))
    done = call("run", spec, "--id", "x", cwd=tmp_path)
    assert shown("x", tmp_path / "runs")["status"] == "completed"
    assert done.code == 0


def test_progress_goes_to_standard_error_and_the_report_to_standard_output(tmp_path: Path) -> None:
    done = run("run", write_spec(tmp_path), "--id", "x", cwd=tmp_path)
    assert done.err.startswith("run sums/x in ")
    assert "6/6" in done.err
    assert done.out.startswith("sums/x  completed")


def test_output_that_nobody_reads_to_its_end_is_no_error(tmp_path: Path) -> None:
    call("run", write_spec(tmp_path, 2000), "--id", "x", cwd=tmp_path)
    with start("export", "x", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")


def test_names_with_slashes_colons_and_escapes_work_from_end_to_end(tmp_path: Path) -> None:
    rows = [{**row, "id": name} for row, name in zip(sums(4), ["a/b", "50%", "Größe 1", "x:y"], strict=True)]
    spec = write_spec(
        tmp_path,
        experiment="über/all",
        models=[{"name": "Qwen/Qwen3-8B", "provider": "mock"}, {"name": "base:adapter", "provider": "mock"}],
    )
    write_rows(tmp_path / "sums.jsonl", rows)
    assert call("run", spec, "--id", "v1.0/a b", cwd=tmp_path).code == 0
    lines = exported("v1.0/a b", tmp_path / "runs")
    names = ["a/b", "50%", "Größe 1", "x:y"]
    assert [(line["model"], line["sample_id"]) for line in lines] == [
        (model, name) for model in ("Qwen/Qwen3-8B", "base:adapter") for name in names
    ]
    assert lines[0]["key"] == "sums/Qwen%2FQwen3-8B/a%2Fb/1"
    assert call("show", "v1.0/a b", lines[0]["key"], cwd=tmp_path).code == 0
    assert call("run", spec, "--id", "v1.0/a b", "--task", "sums", cwd=tmp_path).code == 0


def test_names_labels_and_errors_with_brackets_are_shown_as_they_are(tmp_path: Path) -> None:
    """What is between brackets is no markup: `[/INST]` is in half of all prompts."""
    (tmp_path / "labels.py").write_text("def label(sample, answer):\n    return '[/INST]'\n")
    (tmp_path / "bad.py").write_text("async def solve(sample, ctx):\n    raise ValueError('[/b] [red]')\n")
    dataset = {"path": "sums.jsonl", "input": "question", "target": "answer"}
    spec = write_spec(
        tmp_path,
        1,
        experiment="[bold]",
        models=[{"name": "[/m]", "provider": "mock"}],
        tasks=[
            {"name": "[/t]", "dataset": dataset, "scorers": ["labels:label"]},
            {"name": "u", "dataset": dataset, "solver": "bad:solve", "prompt": "[INST]{question}[/INST]"},
        ],
    )
    done = call("run", spec, "--id", "[red]", cwd=tmp_path)
    assert (done.code, done.err.count("Traceback")) == (1, 0)
    for command in (
        "ls",
        "show [red]",
        "report [red]",
        "show [red] u/[%2Fm]/s0001/1",
        "show [red] [%2Ft]/[%2Fm]/s0001/1",
    ):
        shown_text = call(*command.split(), cwd=tmp_path)
        assert shown_text.code == 0, shown_text.err
    assert "[/INST]" in call("report", "[red]", cwd=tmp_path).out
    assert "[bold]/[red]" in call("show", "[red]", cwd=tmp_path).out
    assert "[red]" in call("ls", cwd=tmp_path).out
    refused = call("run", spec, "--id", "[red]", "--set", "tasks[1].prompt=[/INST]{question}x", cwd=tmp_path)
    assert refused.code == 3
    assert "[/INST]" in refused.err
