"""Specs that include others, conditions of sweeps, and several specs in one command, as a user starts them."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from holdfast.errors import SpecError
from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import Done, call, exported, finish, run, shown, start, sums, wait_until, write_rows, write_spec
from tests.e2e.json_schema import problems

MODEL = {"name": "arith", "provider": "mock", "options": {"reply": "8"}}
TASK = {"name": "sums", "dataset": {"path": "sums.jsonl"}, "prompt": "Compute: {question}", "scorers": ["numeric"]}
SCORER = "def mine(sample, answer) -> bool:\n    return answer.text == sample.target\n"


def write(path: Path, **content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def share(folder: Path, rows: int = 3, **main: Any) -> Path:
    """A spec whose models, task and data are in another folder."""
    write(folder / "shared" / "base.yaml", experiment="base", models=[MODEL], tasks=[TASK])
    write_rows(folder / "shared" / "sums.jsonl", sums(rows))
    return write(folder / "eval.yaml", include="shared/base.yaml", experiment="mine", **main)


def is_refused(done: Done, said: str) -> bool:
    """In one sentence, before anything is created."""
    assert "Traceback" not in done.err
    return (done.code, done.out, done.err.count("\n")) == (2, "", 1) and said in done.err


# include


def test_a_run_of_included_files_is_continued_when_they_are_gone(tmp_path: Path) -> None:
    """What is recorded is the merged spec, so neither a resume nor a change of the files mixes two experiments."""
    with start_server_process(Behaviour(latency_seconds=0.05)) as server:
        spec = share(tmp_path, 40, grace_seconds=0.2)
        model = {"name": "arith", "provider": "openai", "model": "arith-1", "base_url": server.base_url}
        base = {"models": [{**model, "max_connections": 2}], "tasks": [TASK]}
        write(tmp_path / "shared" / "base.yaml", **base)
        with start("run", "eval.yaml", "--id", "x", cwd=tmp_path) as process:
            assert wait_until(lambda: server.stats().requests >= 5, process)
            finish(process, signal.SIGKILL)
        stored = yaml.safe_load((tmp_path / "runs" / "mine" / "x" / "spec.yaml").read_text())
        assert "include" not in stored
        assert [task["name"] for task in stored["tasks"]] == ["sums"]
        changed = {**base, "tasks": [{**TASK, "prompt": "Add: {question}"}]}
        write(tmp_path / "shared" / "base.yaml", **changed)
        drift = call("run", "eval.yaml", "--id", "x", cwd=tmp_path)
        assert (drift.code, "tasks.sums.prompt" in drift.err) == (3, True), drift.err
        shutil.rmtree(tmp_path / "shared")
        spec.unlink()
        resumed = call("resume", "x", cwd=tmp_path)
        assert resumed.code == 0, resumed.err
        assert server.stats().requests <= 40 + 2
    assert shown("x", tmp_path / "runs")["finished"] == 40


def test_the_same_values_in_one_file_or_in_two_are_the_same_run(tmp_path: Path) -> None:
    share(tmp_path)
    assert call("run", "eval.yaml", "--id", "x", cwd=tmp_path).code == 0
    task = {**TASK, "dataset": {"path": "shared/sums.jsonl"}}
    whole = write(tmp_path / "whole.yaml", experiment="mine", models=[MODEL], tasks=[task])
    again = call("run", whole, "--id", "x", cwd=tmp_path)
    assert (again.code, "no request was sent" in again.err) == (0, True), again.err
    assert shown("x", tmp_path / "runs")["resumes"] == []


def test_set_comes_after_included_files_and_defaults(tmp_path: Path) -> None:
    share(tmp_path, defaults={"repeats": 2})
    assert call("check", "eval.yaml", "--json", cwd=tmp_path).json()["planned"] == 6
    assert call("check", "eval.yaml", "--set", "tasks.sums.repeats=4", "--json", cwd=tmp_path).json()["planned"] == 12


def test_modules_beside_an_included_file_are_found_by_a_run_and_by_its_resume(tmp_path: Path) -> None:
    share(tmp_path)
    (tmp_path / "shared" / "shared_scorer.py").write_text(SCORER)
    task = {**TASK, "scorers": ["shared_scorer:mine"]}
    write(tmp_path / "shared" / "base.yaml", models=[MODEL], tasks=[task])
    done = run("run", "eval.yaml", "--id", "x", "--limit", "1", cwd=tmp_path)
    assert done.code == 0, done.err
    (tmp_path / "eval.yaml").unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    more = run("extend", "x", "--set", "limit=null", "--store", tmp_path / "runs", cwd=elsewhere)
    assert more.code == 0, more.err
    assert [line["scores"]["mine"] for line in exported("x", tmp_path / "runs")] == [True, False, False]


def test_two_modules_of_one_name_are_refused_with_both_paths(tmp_path: Path) -> None:
    share(tmp_path)
    for folder in (tmp_path, tmp_path / "shared"):
        (folder / "twice_scorer.py").write_text(SCORER)
    write(tmp_path / "shared" / "base.yaml", models=[MODEL], tasks=[{**TASK, "scorers": ["twice_scorer:mine"]}])
    done = run("check", "eval.yaml", cwd=tmp_path)
    paths = f"{tmp_path}/twice_scorer.py and {tmp_path}/shared/twice_scorer.py"
    assert is_refused(done, f"there are two modules of this name, {paths}; rename one"), done.err


def test_a_run_of_another_person_names_the_folders_of_included_files(tmp_path: Path) -> None:
    share(tmp_path)
    (tmp_path / "shared" / "their_scorer.py").write_text(SCORER)
    write(tmp_path / "shared" / "base.yaml", models=[MODEL], tasks=[{**TASK, "scorers": ["their_scorer:mine"]}])
    assert run("run", "eval.yaml", "--id", "x", "--limit", "1", cwd=tmp_path).code == 0
    other = {"XDG_STATE_HOME": str(tmp_path / "other")}
    refused = run("extend", "x", "--set", "limit=null", cwd=tmp_path, env=other)
    assert (refused.code, f"looked for in {tmp_path} and {tmp_path}/shared" in refused.err) == (2, True), refused.err
    assert run("extend", "x", "--set", "limit=null", "--trust", cwd=tmp_path, env=other).code == 0


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ({"sed": 1}, "eval.yaml: unknown field 'sed'; did you mean 'seed'? (from shared/base.yaml)"),
        ({"tasks": [{**TASK, "scorers": ["numerc"]}]}, "(from shared/base.yaml)"),
        ({"tasks": [{**TASK, "dataset": {"path": "gone.jsonl"}}]}, "shared/gone.jsonl"),
        ({"tasks": [{**TASK, "prompt": "{missing}"}]}, "(from shared/base.yaml)"),
        ({"anomalies_except": ["x"]}, "(from shared/base.yaml)"),
        ({"include": "nothing.yaml"}, "shared/base.yaml: include: shared/nothing.yaml: no such file"),
        ({"include": ["../eval.yaml"]}, "a file cannot include itself: eval.yaml -> shared/base.yaml -> eval.yaml"),
        ({"include": {"a": 1}}, "shared/base.yaml: include: expected a file name or a list of file names, got dict"),
    ],
)
def test_a_mistake_in_an_included_file_is_one_sentence_that_names_it(
    tmp_path: Path, base: dict[str, Any], said: str
) -> None:
    share(tmp_path)
    write(tmp_path / "shared" / "base.yaml", **{"models": [MODEL], "tasks": [TASK], **base})
    for command in ("check", "run"):
        done = call(command, "eval.yaml", cwd=tmp_path)
        assert is_refused(done, said), done
    assert not (tmp_path / "runs").exists()


def test_python_reads_included_files_too(tmp_path: Path) -> None:
    spec = share(tmp_path)
    with holdfast.run(str(spec), store=str(tmp_path / "runs"), quiet=True) as found:
        assert (found.summary().finished, found.summary().experiment) == (3, "mine")
    with pytest.raises(SpecError, match="only a spec file can include others"):
        holdfast.run(str(spec), include="x.yaml", quiet=True)
    with pytest.raises(SpecError, match="run one spec at a time"):
        holdfast.run([str(spec), str(spec)], quiet=True)


def test_the_schema_accepts_includes_and_conditions(tmp_path: Path) -> None:
    schema = json.loads(call("schema", cwd=tmp_path).out)
    model = {**MODEL, "params": {"seed": [1, 2]}, "when": {"seed": 1}}
    assert problems(schema, {"include": "base.yaml"}) == []
    assert problems(schema, {"include": ["a.yaml", "b.yaml"], "models": [{**model, "when": [{"seed": [1]}]}]}) == []
    assert problems(schema, {"models": [model], "tasks": [TASK]}) == []
    assert problems(schema, {"include": 7})
    assert problems(schema, {"models": [model]}), "without an include, tasks are required"


# when


def sweep(folder: Path, **when: Any) -> Path:
    write_rows(folder / "sums.jsonl", sums(2))
    model = {**MODEL, "params": {"temperature": [0, 0.7], "seed": [1, 2]}}
    task = {**TASK, "prompt": {"short": "{question}", "long": "Compute: {question}"}}
    parts = {"models": [{**model, **when.get("model", {})}], "tasks": [{**task, **when.get("task", {})}]}
    return write(folder / "eval.yaml", experiment="swept", **parts)


def test_a_condition_leaves_the_combinations_that_it_names(tmp_path: Path) -> None:
    greedy = [{"temperature": 0, "seed": 1}, {"temperature": 0.7}]
    cold = [{"prompt": "short", "temperature": 0}, {"prompt": "long", "temperature": 0.7}]
    spec = sweep(tmp_path, model={"when": greedy}, task={"when": cold})
    checked = call("check", spec, cwd=tmp_path)
    assert checked.code == 0, checked.err
    assert checked.out.splitlines()[:2] == [
        "models[0].when keeps 3 of 4 combinations",
        "tasks[0].when keeps 3 of 6 combinations",
    ]
    assert call("check", spec, "--json", cwd=tmp_path).json()["combinations"] == [
        {"place": "models[0].when", "kept": 3, "total": 4},
        {"place": "tasks[0].when", "kept": 3, "total": 6},
    ]
    assert call("run", spec, "--id", "x", cwd=tmp_path).code == 0
    found = {(line["task"], line["model"]) for line in exported("x", tmp_path / "runs")}
    assert found == {
        ("sums+short", "arith+t0+s1"),
        ("sums+long", "arith+t0.7+s1"),
        ("sums+long", "arith+t0.7+s2"),
    }
    assert call("resume", "x", cwd=tmp_path).code == 0
    again = call("run", spec, "--id", "x", cwd=tmp_path)
    assert (again.code, "no request was sent" in again.err) == (0, True)


def test_a_task_in_python_has_conditions_too(tmp_path: Path) -> None:
    prompts = {"short": "{question}", "long": "Compute: {question}"}
    task = holdfast.Task("sums", sums(2), prompts, scorers=["numeric"], when={"prompt": "long"})
    with holdfast.run(task, models=["mock"], store=str(tmp_path / "runs"), quiet=True) as found:
        assert {cell.task for cell in found.report().cells} == {"sums+long"}


def test_a_looser_condition_extends_a_run_and_a_resume_is_refused(tmp_path: Path) -> None:
    spec = sweep(tmp_path, model={"when": {"temperature": 0}})
    assert call("run", spec, "--id", "x", cwd=tmp_path).code == 0
    sweep(tmp_path)
    refused = call("run", spec, "--id", "x", cwd=tmp_path)
    assert (refused.code, "holdfast extend x" in refused.err) == (3, True), refused.err
    assert call("extend", "x", spec, cwd=tmp_path).code == 0
    assert shown("x", tmp_path / "runs")["finished"] == 2 * 2 * 4


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("models.arith.when={temprature: 0}", "'temprature' is not swept here; did you mean 'temperature'?"),
        ("models.arith.when={temperature: 5}", "models[0].when.temperature: no value 5; there are: 0, 0.7"),
        ("tasks.sums.when={model: nobody}", "tasks[0].when.model: no value 'nobody'"),
        ("tasks.sums.when=short", "tasks[0].when: expected a mapping of swept fields to values"),
        ("tasks.sums.when=[]", "tasks[0].when: an empty list keeps no combination"),
    ],
)
def test_a_condition_with_a_mistake_is_refused(tmp_path: Path, assignment: str, said: str) -> None:
    sweep(tmp_path)
    for command in ("check", "run"):
        done = call(command, "eval.yaml", "--set", assignment, cwd=tmp_path)
        assert is_refused(done, said), done
    assert not (tmp_path / "runs").exists()


# several specs


def two(folder: Path, rows: int = 3, **second: Any) -> None:
    """Two specs of one experiment, whose second can be changed."""
    write_rows(folder / "sums.jsonl", sums(rows))
    parts = {"experiment": "both", "models": [MODEL], "tasks": [TASK]}
    write(folder / "a.yaml", **parts)
    write(folder / "b.yaml", **{**parts, **second})


def listed(folder: Path) -> list[str]:
    return sorted(each["run_id"] for each in call("ls", "--json", cwd=folder).json())


def test_specs_are_run_one_after_the_other_and_the_same_command_continues_them(tmp_path: Path) -> None:
    two(tmp_path)
    done = call("run", "a.yaml", "b.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 0, done.err
    assert listed(tmp_path) == ["x-a", "x-b"]
    assert "spec 1 of 2: a.yaml" in done.err
    assert "spec 2 of 2: b.yaml" in done.err
    assert done.err.splitlines()[-1] == "2 of 2 specs done"
    assert done.out.index("both/x-a") < done.out.index("both/x-b")
    again = call("run", "a.yaml", "b.yaml", "--id", "x", cwd=tmp_path)
    assert (again.code, again.err.count("no request was sent")) == (0, 2), again.err
    assert call("run", "a.yaml", "b.yaml", cwd=tmp_path).code == 0
    assert len(listed(tmp_path)) == 4, "without --id every start makes new runs"


def test_options_apply_to_each_spec(tmp_path: Path) -> None:
    two(tmp_path)
    options = ("--limit", "1", "--set", "tasks.sums.repeats=2", "--store", "elsewhere")
    assert call("run", "a.yaml", "b.yaml", "--id", "x", *options, cwd=tmp_path).code == 0
    for name in ("x-a", "x-b"):
        assert shown(name, tmp_path / "elsewhere")["planned"] == 2
    dry = call("run", "a.yaml", "b.yaml", "--dry-run", "--json", cwd=tmp_path).json()
    assert [(each["spec"], each["planned"]) for each in dry] == [("a.yaml", 3), ("b.yaml", 3)]
    assert "spec" not in call("run", "a.yaml", "--dry-run", "--json", cwd=tmp_path).json()


@pytest.mark.parametrize(
    ("second", "options", "said"),
    [
        ({"sed": 1}, [], "b.yaml: unknown field 'sed'"),
        ({"tasks": [{**TASK, "dataset": {"path": "gone.jsonl"}}]}, [], "gone.jsonl"),
        ({"tasks": [{**TASK, "name": "other"}]}, ["--task", "sums"], "b.yaml: --task sums: the spec has no task"),
        ({"tasks": [{**TASK, "name": "other"}]}, ["--set", "tasks.sums.repeats=2"], "b.yaml: --set tasks.sums.repeats"),
        ({"models": [{"name": "m", "provider": "openai", "model": "m"}]}, [], "b.yaml: models[0]"),
    ],
)
def test_a_mistake_in_a_later_spec_is_found_before_the_first_is_started(
    tmp_path: Path, second: dict[str, Any], options: list[str], said: str
) -> None:
    two(tmp_path, **second)
    done = call("run", "a.yaml", "b.yaml", *options, cwd=tmp_path)
    assert (done.code, done.out, said in done.err) == (2, "", True), done
    assert not (tmp_path / "runs").exists()


def test_two_specs_that_would_be_one_run_are_refused(tmp_path: Path) -> None:
    two(tmp_path)
    (tmp_path / "sub").mkdir()
    shutil.copy(tmp_path / "sums.jsonl", tmp_path / "sub")
    shutil.copy(tmp_path / "a.yaml", tmp_path / "sub" / "a.yaml")
    done = call("run", "a.yaml", "sub/a.yaml", "--id", "x", cwd=tmp_path)
    assert is_refused(done, "--id x: a.yaml and sub/a.yaml would both be the run both/x-a"), done
    assert is_refused(call("run", "a.yaml", "a.yaml", "--id", "x", cwd=tmp_path), "both/x-a")
    assert is_refused(call("run", "a.yaml", "b.yaml", "--data", "sums.jsonl", cwd=tmp_path), "--data is for a run")
    assert is_refused(call("run", "a.yaml", "sums.jsonl", cwd=tmp_path), "sums.jsonl is data, not a spec")


def test_a_run_with_failures_does_not_keep_the_next_from_being_run(tmp_path: Path) -> None:
    two(tmp_path)
    (tmp_path / "broken_solver.py").write_text("async def solve(sample, ctx):\n    raise ValueError('no')\n")
    bad = {**TASK, "solver": "broken_solver:solve", "sample_retries": 0}
    write(tmp_path / "a.yaml", experiment="both", models=[MODEL], tasks=[bad])
    done = run("run", "a.yaml", "b.yaml", "--id", "x", cwd=tmp_path)
    assert done.code == 1, done.err
    assert done.err.splitlines()[-1] == "1 of 2 specs done; not done: a.yaml (exit code 1)"
    assert shown("x-b", tmp_path / "runs")["finished"] == 3


def test_a_refused_resume_does_not_keep_the_next_from_being_run(tmp_path: Path) -> None:
    two(tmp_path)
    assert call("run", "a.yaml", "b.yaml", "--id", "x", "--limit", "1", cwd=tmp_path).code == 0
    shutil.rmtree(tmp_path / "runs" / "both" / "x-b")
    done = call("run", "a.yaml", "b.yaml", "--id", "x", cwd=tmp_path)
    assert (done.code, "resume refused" in done.err) == (3, True), done.err
    assert shown("x-b", tmp_path / "runs")["finished"] == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("run_id", [None, "x"])
def test_an_interrupt_ends_the_list_and_says_how_to_continue(
    tmp_path: Path, number: signal.Signals, run_id: str | None
) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        write_spec(tmp_path, 40, server.base_url, model={"max_connections": 1}, grace_seconds=0.2)
        shutil.copy(tmp_path / "eval.yaml", tmp_path / "b.yaml")
        options = ["--id", run_id] if run_id else []
        with start("run", "eval.yaml", "b.yaml", *options, cwd=tmp_path) as process:
            assert wait_until(lambda: server.stats().requests >= 3, process)
            done = finish(process, number)
    assert done.code == 130, done.err
    assert len(listed(tmp_path)) == 1
    again = "run the same command again" if run_id else "start with: holdfast run b.yaml"
    last = f"0 of 2 specs done; not done: eval.yaml (exit code 130); not started: b.yaml; {again}"
    assert done.err.splitlines()[-1] == last


def test_a_cancelled_run_does_not_keep_the_next_from_being_run(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.1)) as server:
        write_spec(tmp_path, 30, server.base_url, model={"max_connections": 1}, grace_seconds=0.2)
        write(tmp_path / "b.yaml", experiment="sums", models=[MODEL], tasks=[TASK])
        with start("run", "eval.yaml", "b.yaml", "--id", "x", cwd=tmp_path) as process:
            assert wait_until(lambda: server.stats().requests >= 3, process)
            assert call("cancel", "x-eval", cwd=tmp_path).code == 0
            done = finish(process)
    assert done.code == 130, done.err
    assert shown("x-eval", tmp_path / "runs")["status"] == "cancelled"
    assert shown("x-b", tmp_path / "runs")["finished"] == 30


def test_a_killed_list_is_continued_by_the_same_command_without_a_repeated_request(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.03)) as server:
        write_spec(tmp_path, 20, server.base_url, model={"max_connections": 2})
        spec = yaml.safe_load((tmp_path / "eval.yaml").read_text())
        write(tmp_path / "b.yaml", **{**spec, "tasks": [{**spec["tasks"][0], "prompt": "Add: {question}"}]})
        with start("run", "eval.yaml", "b.yaml", "--id", "x", cwd=tmp_path) as process:
            assert wait_until(lambda: server.stats().requests >= 25, process)
            finish(process, signal.SIGKILL)
        done = run("run", "eval.yaml", "b.yaml", "--id", "x", cwd=tmp_path)
        assert done.code == 0, done.err
        assert server.stats().requests <= 40 + 2, "only what was in flight at the kill"
    assert [shown(name, tmp_path / "runs")["finished"] for name in ("x-eval", "x-b")] == [20, 20]


STUCK = """\
import asyncio

async def endless():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def solve(sample, ctx):
    asyncio.get_running_loop().create_task(endless())
    return "8"
"""


def test_code_that_cannot_be_cancelled_keeps_neither_the_next_run_nor_the_end_waiting(tmp_path: Path) -> None:
    two(tmp_path)
    (tmp_path / "stuck_solver.py").write_text(STUCK)
    task = {**TASK, "solver": "stuck_solver:solve"}
    write(tmp_path / "a.yaml", experiment="both", models=[MODEL], tasks=[task])
    done = run("run", "a.yaml", "b.yaml", "--id", "x", cwd=tmp_path)
    assert (done.code, done.err.splitlines()[-1]) == (0, "2 of 2 specs done"), done.err
    assert shown("x-b", tmp_path / "runs")["finished"] == 3


def test_a_warning_of_a_later_run_is_printed_once(tmp_path: Path) -> None:
    two(tmp_path, limits={"run": {"requests": 1}})
    done = call("run", "a.yaml", "b.yaml", "--id", "x", cwd=tmp_path)
    assert (done.code, done.err.count("the run will probably stop there")) == (6, 1), done.err


def test_check_looks_at_every_spec_also_after_a_bad_one(tmp_path: Path) -> None:
    two(tmp_path)
    write(tmp_path / "bad.yaml", sed=1)
    done = call("check", "a.yaml", "bad.yaml", "b.yaml", "gone.yaml", cwd=tmp_path)
    assert done.code == 2
    assert [line.split()[0] for line in done.out.splitlines()] == ["a.yaml", "b.yaml"]
    named = [line.removeprefix("holdfast: ").strip().partition(":")[0] for line in done.err.splitlines()]
    assert named == ["bad.yaml", "bad.yaml", "gone.yaml"], "every problem names its spec"
    found = call("check", "a.yaml", "bad.yaml", "--json", cwd=tmp_path)
    assert (found.code, [(each["spec"], len(each["errors"])) for each in found.json()]) == (
        2,
        [("a.yaml", 0), ("bad.yaml", 2)],
    )
    assert call("check", "a.yaml", "b.yaml", cwd=tmp_path).code == 0
    assert sorted(os.listdir(tmp_path)) == ["a.yaml", "b.yaml", "bad.yaml", "sums.jsonl"]
