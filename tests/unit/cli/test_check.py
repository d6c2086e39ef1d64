"""`check` reports all independent problems of a spec at once."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli.commands.check import check_specs
from holdfast.errors import SpecError
from holdfast.runs import Overrides, execute, load_given, new_run_location

ROW = {"id": "1", "question": "2 + 2", "answer": "4"}


def write(folder: Path, **fields: Any) -> str:
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    spec = {
        "experiment": "e",
        "models": [{"name": "m", "provider": "mock"}],
        "tasks": [{"name": "t", "dataset": {"path": "rows.jsonl", "target": "answer"}, "prompt": "{question}"}],
        **fields,
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec))
    return str(path)


def problems_of(path: str) -> list[str]:
    with pytest.raises(SpecError) as found:
        check_specs([path], Overrides(), servers=False, as_json=False)
    lines = str(found.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines), lines
    return [line.removeprefix(f"{path}: ").partition(";")[0] for line in lines]


def test_every_part_that_cannot_be_used_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    data = {"path": "rows.jsonl", "target": "answer"}
    path = write(
        tmp_path,
        models=[
            {"name": "m", "provider": "mock", "options": {"replly": "x"}},
            {"name": "m", "provider": "opnai"},
            {"name": "o", "provider": "openai", "model": "gpt-x"},
        ],
        tasks=[
            {"name": "a", "dataset": {"path": "rws.jsonl"}, "solver": "chatt", "scorers": ["exact_mach", "rubric"]},
            {"name": "b", "dataset": data, "prompt": "{qestion}", "scorers": ["numeric", "numeric"], "models": ["n"]},
            {"name": "c", "dataset": data, "prompt": "{question}", "scorers": ["numeric"]},
        ],
        anomalies_except=["sloow"],
    )
    assert problems_of(path) == [
        "models[1].name: 'm' is already the name of models[0]",
        "tasks[1].models: there is no model 'n'",
        "tasks[0].scorers[0]: unknown scorer 'exact_mach'",
        "tasks[0].scorers[1]: rubric needs the argument 'criteria': write {rubric: {criteria: …}}",
        "tasks[1].scorers[1]: there is a scorer 'numeric' already",
        "anomalies_except[0]: there is no anomaly 'sloow'",
        "tasks[0].solver: there is no solver 'chatt'",
        "models[0].options: wrong options for the mock provider: there is no 'replly'",
        "models[1].provider: provider 'opnai' is not known",
        f"tasks[0].dataset: {tmp_path}/rws.jsonl: no such file",
        "tasks[1].prompt: no column 'qestion' in row '1'",
        "models[2].api_key_env: the environment variable OPENAI_API_KEY is not set, and the server of o needs a key",
    ]


def test_a_sample_that_does_not_exist_is_not_reported_where_data_cannot_be_read(tmp_path: Path) -> None:
    good = {"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{question}"}
    path = write(tmp_path, samples=["7"], tasks=[good, {**good, "name": "u", "dataset": {"path": "none.jsonl"}}])
    assert problems_of(path) == [f"tasks[1].dataset: {tmp_path}/none.jsonl: no such file"]
    assert problems_of(write(tmp_path, samples=["7"])) == ["samples: no task has a sample '7'"]


def test_a_run_that_has_not_begun_reports_all_problems_too(tmp_path: Path) -> None:
    task = {"name": "t", "dataset": {"path": "rows.jsonl"}, "solver": "chatt", "scorers": ["numerc"]}
    given = load_given(write(tmp_path, tasks=[task]), Overrides())
    with pytest.raises(SpecError) as found:
        asyncio.run(execute(given, new_run_location(given, str(tmp_path / "runs"), "r")))
    assert [line.partition(": ")[2].partition(":")[0] for line in str(found.value).splitlines()] == [
        "tasks[0].scorers[0]",
        "tasks[0].solver",
    ]
    assert not (tmp_path / "runs").exists()


def test_several_specs_have_their_problems_as_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {"name": "t", "dataset": {"path": "rows.jsonl"}, "solver": "chatt", "scorers": ["numerc"]}
    path = write(tmp_path, tasks=[task])
    assert check_specs([path, path], Overrides(), servers=False, as_json=True) == 2
    assert [len(each["errors"]) for each in json.loads(capsys.readouterr().out)] == [2, 2]
