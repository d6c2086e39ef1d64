"""A model that has given no answer may be corrected on resume. One that has given answers may not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.runs import find_run
from holdfast.testing import Behaviour, Fault, start_server_process
from tests.e2e.commands import call, exported, run, shown, snapshot, write_spec
from tests.oracle import check_reports

ROWS = 5


def write(folder: Path, bad: dict[str, Any], good: str, **fields: Any) -> Path:
    model = {"provider": "openai", "model": "arith-1", "base_url": good, "max_connections": 1}
    models = [{**model, "name": "bad", **bad}, {**model, "name": "good"}]
    return write_spec(folder, ROWS, models=models, **fields)


def go(folder: Path, *options: str) -> Any:
    return run("run", "eval.yaml", "--id", "x", "--store", "runs", *options, cwd=folder)


def counts(folder: Path) -> tuple[int, ...]:
    found = shown("x", folder / "runs")
    assert found["finished"] + found["failed"] + found["unfinished"] == found["planned"]
    return found["planned"], found["finished"], found["failed"]


@pytest.mark.parametrize("status", [pytest.param("404", marks=pytest.mark.long), "400"])
def test_a_corrected_model_without_answers_is_asked_and_others_are_not_asked_again(tmp_path: Path, status: str) -> None:
    """404 leaves keys unfinished, 400 makes them fail. Neither is an answer."""
    with start_server_process(Behaviour(faults=[Fault(status)])) as wrong, start_server_process() as right:
        write(tmp_path, {"model": "arith-0", "base_url": wrong.base_url}, right.base_url)
        assert go(tmp_path).code == 1
        planned, finished, failed = counts(tmp_path)
        assert (planned, finished, failed > 0) == (2 * ROWS, ROWS, status == "400")
        write(tmp_path, {"params": {"temperature": 0.5}}, right.base_url)
        done = go(tmp_path)
        assert done.code == 0, done.said
        assert counts(tmp_path) == (2 * ROWS, 2 * ROWS, 0)
        assert right.stats().requests == 2 * ROWS
        _check_readers(tmp_path)
        more = call("extend", "x", "--set", "tasks.sums.repeats=2", "--store", "runs", cwd=tmp_path)
        assert more.code == 0, more.said
        assert counts(tmp_path) == (4 * ROWS, 4 * ROWS, 0)
        assert right.stats().requests == 4 * ROWS
        again = call("resume", "x", "--store", "runs", "--set", "models.bad.model=arith-2", cwd=tmp_path)
        assert again.code == 3
        forked = call("fork", "x", "--id", "y", "--store", "runs", cwd=tmp_path)
        assert forked.code == 0, forked.said
        assert right.stats().requests == 4 * ROWS


def _check_readers(folder: Path) -> None:
    found = shown("x", folder / "runs")
    (corrected,) = found["corrections"]
    assert {each["field"] for each in corrected["changes"]} >= {"models.bad.model", "models.bad.params"}
    assert len(found["resumes"]) == 1
    assert "corrected" in call("show", "x", "--store", "runs", cwd=folder).out
    lines = exported("x", folder / "runs")
    assert [line["status"] for line in lines] == ["finished"] * 2 * ROWS
    assert len({line["key"] for line in lines}) == 2 * ROWS
    for command in (("verify", "x", "--scores"), ("verify", "x"), ("report", "x"), ("cost", "x")):
        done = call(*command, "--store", "runs", cwd=folder)
        assert done.code == 0, done.said
    assert check_reports(find_run(str(folder / "runs"), "x")).differences == []
    done = call("recover", folder / "runs" / "sums" / "x", "--no-events", "--output", folder / "copy", cwd=folder)
    assert done.code == 0, done.said
    assert call("verify", "x", "--store", folder / "copy", cwd=folder).code == 0
    copy = call("show", "x", "--store", folder / "copy", "--json", cwd=folder).json()
    assert (copy["planned"], copy["finished"], copy["corrections"]) == (2 * ROWS, 2 * ROWS, found["corrections"])


@pytest.mark.parametrize("status", ["404", pytest.param("400", marks=pytest.mark.long)])
def test_a_corrected_model_that_is_called_after_its_model_gets_new_keys(tmp_path: Path, status: str) -> None:
    """Without a `name`, a model is called what it is called at its server: correcting one corrects the other."""
    with start_server_process(Behaviour(faults=[Fault(status)])) as wrong, start_server_process() as right:
        model = {"provider": "openai", "max_connections": 1, "base_url": right.base_url}
        good = {**model, "model": "arith-1", "name": "good"}
        fields: dict[str, Any] = {"task": {"models": ["org/arith-o", "good"]}, "limits": {"run": {"requests": 1000}}}
        write_spec(
            tmp_path, ROWS, models=[{**model, "model": "org/arith-o", "base_url": wrong.base_url}, good], **fields
        )
        assert go(tmp_path).code == 1
        assert counts(tmp_path)[:2] == (2 * ROWS, ROWS)
        fields["task"] = {"models": ["org/arith-0", "good"]}
        write_spec(tmp_path, ROWS, models=[{**model, "model": "org/arith-0"}, good], **fields)
        done = go(tmp_path)
        assert done.code == 0, done.said
        assert counts(tmp_path) == (2 * ROWS, 2 * ROWS, 0)
        assert right.stats().requests == 2 * ROWS
        lines = exported("x", tmp_path / "runs")
        assert [line["status"] for line in lines] == ["finished"] * 2 * ROWS
        assert [line["model"] for line in lines] == ["org/arith-0"] * ROWS + ["good"] * ROWS
        assert {line["key"].split("/")[1] for line in lines} == {"org%2Farith-0", "good"}
        for command in (("verify", "x", "--scores"), ("verify", "x"), ("report", "x"), ("cost", "x")):
            done = call(*command, "--store", "runs", cwd=tmp_path)
            assert done.code == 0, done.said
            assert "arith-o" not in done.out, "what the model did before counts for its new name"
        assert check_reports(find_run(str(tmp_path / "runs"), "x")).differences == []
        copy = tmp_path / "copy"
        done = call("recover", tmp_path / "runs" / "sums" / "x", "--no-events", "--output", copy, cwd=tmp_path)
        assert done.code == 0, done.said
        assert call("verify", "x", "--store", copy, cwd=tmp_path).code == 0
        assert exported("x", copy) == lines
        assert go(tmp_path).code == 0
        more = call("extend", "x", "--set", "tasks.sums.repeats=2", "--store", "runs", cwd=tmp_path)
        assert more.code == 0, more.said
        assert counts(tmp_path) == (4 * ROWS, 4 * ROWS, 0)
        assert right.stats().requests == 4 * ROWS


def test_a_model_with_answers_keeps_its_name(tmp_path: Path) -> None:
    with start_server_process() as server:
        write(tmp_path, {}, server.base_url)
        assert go(tmp_path, "--set", "limits.run.requests=2").code == 6
        before = snapshot(tmp_path / "runs")
        write(tmp_path, {"name": "other"}, server.base_url)
        done = go(tmp_path)
        assert done.code == 3
        assert "sums with bad has recorded answers or calls" in done.err
        assert snapshot(tmp_path / "runs") == before


def test_a_model_with_answers_is_refused_by_the_name_of_its_cell(tmp_path: Path) -> None:
    with start_server_process() as server:
        write(tmp_path, {}, server.base_url)
        assert go(tmp_path, "--set", "limits.run.requests=2").code == 6
        write(tmp_path, {"model": "arith-2", "params": {"temperature": 1}}, server.base_url)
        before = snapshot(tmp_path / "runs")
        done = go(tmp_path)
        assert done.code == 3
        assert "sums with bad has recorded answers or calls" in done.err
        assert snapshot(tmp_path / "runs") == before


def test_only_what_was_planned_may_differ_with_the_model(tmp_path: Path) -> None:
    """Other rows would not show in the digests of a replaced plan."""
    with start_server_process(Behaviour(faults=[Fault("404")])) as wrong, start_server_process() as right:
        write(tmp_path, {"base_url": wrong.base_url}, right.base_url)
        assert go(tmp_path).code == 1
        write(tmp_path, {"model": "arith-2"}, right.base_url)
        rows = [json.loads(line) for line in (tmp_path / "sums.jsonl").read_text().splitlines()]
        changed = [{**row, "question": "1 + 1"} for row in rows]
        (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
        refused = go(tmp_path)
        assert (refused.code, "tasks.sums.dataset" in refused.err) == (3, True)
        by_name = call("resume", "x", "--store", "runs", "--set", "models.bad.model=arith-2", cwd=tmp_path)
        assert by_name.code == 1, by_name.said  # with the run's own rows; the server still says 404
        assert shown("x", tmp_path / "runs")["corrections"]


def test_answers_that_only_the_mirror_has_protect_the_model(tmp_path: Path) -> None:
    mirror = {"url": f"file://{tmp_path}/mirror", "seconds": 0.1}
    with start_server_process(Behaviour(faults=[Fault("404")])) as wrong, start_server_process() as right:
        write(tmp_path, {"base_url": wrong.base_url}, right.base_url, mirror=mirror)
        assert go(tmp_path).code == 1
        shutil.copytree(tmp_path / "runs", tmp_path / "old")
        write(tmp_path, {"model": "arith-2"}, right.base_url, mirror=mirror)
        assert go(tmp_path).code == 0
        shutil.rmtree(tmp_path / "runs")
        shutil.copytree(tmp_path / "old", tmp_path / "runs")
        write(tmp_path, {"model": "arith-3"}, right.base_url, mirror=mirror)
        done = go(tmp_path)
        assert done.code == 3, done.said
        assert "sums with bad has recorded answers or calls" in done.err
        shutil.rmtree(tmp_path / "runs")
        write(tmp_path, {"model": "arith-2"}, right.base_url, mirror=mirror)
        done = call("recover", f"{mirror['url']}/sums/x", "--output", "runs", cwd=tmp_path)
        assert counts(tmp_path) == (2 * ROWS, 2 * ROWS, 0), done.said
        assert call("verify", "x", "--store", "runs", cwd=tmp_path).code == 0
        assert right.stats().requests == 2 * ROWS
