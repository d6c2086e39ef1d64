"""Built-in scorers and extractors through the real command: in a run, over a run, and what `check` refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from holdfast.runs import Run
from holdfast.sandbox.confinement import PLAIN, why_no_namespaces
from tests.e2e.commands import call, exported

ROWS = [
    {"id": "a", "q": "so\n4", "target": "#### 4", "tests": "assert True"},
    {"id": "b", "q": "```python\ndef f():\n    return 5\n```", "target": "#### 5", "tests": "assert f() == 5"},
]
SCORERS: list[Any] = [
    {"exact_match": {"extract": "last_line", "extract_target": {"after": {"marker": "####"}}}},
    {"all_of": {"of": ["numeric", {"regex": {"pattern": "def"}}]}},
    {"weighted": {"of": ["numeric", "token_f1"], "weights": [3, 1], "extract_target": "number"}},
    {"taxonomy": {"correct": "numeric", "labels": {"code": {"regex": {"pattern": "def"}}}}},
    {"code_tests": {"tests": "tests"}},
    {"consistency": {"extract": "number"}},
    "bleu",
    "chrf",
    "edit_similarity",
    {"json_schema": {"schema": {"type": "object"}}},
    "length",
]
WANTED: dict[str, dict[str, Any]] = {
    "a": {"exact_match": True, "all_of": False, "weighted": 0.75 + 0.25 * 2 / 3, "taxonomy": "correct"},
    "b": {
        "exact_match": False,
        "all_of": True,
        "weighted": 0.75 + 0.25 * 2 / 6,
        "taxonomy": "correct",
        "code_tests": True,
    },
}


def write(folder: Path, scorers: list[Any]) -> None:
    folder.joinpath("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    task = {"name": "t", "dataset": {"path": "rows.jsonl"}, "prompt": "{q}", "repeats": 2, "scorers": scorers}
    spec = {"models": [{"name": "parrot", "provider": "mock"}], "tasks": [task]}
    folder.joinpath("eval.yaml").write_text(yaml.safe_dump(spec))


def namespaces() -> dict[str, str]:
    return {PLAIN: "1"} if why_no_namespaces() else {}


def check_scores(store: Path) -> None:
    lines = exported("r", store)
    assert len(lines) == 4
    for line in lines:
        told = line["scores"]
        assert {name: told[name] for name in WANTED[line["sample_id"]]} == WANTED[line["sample_id"]]
        assert (told["consistency"], told["json_schema"]) == (1, False)
        assert all(0 <= told[name] <= 1 for name in ("bleu", "chrf", "edit_similarity"))


def test_they_score_while_a_run_works(tmp_path: Path) -> None:
    write(tmp_path, SCORERS)
    done = call("run", "eval.yaml", "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path, env=namespaces())
    assert done.code == 0, done.said
    check_scores(tmp_path / "runs")


def test_they_score_a_run_that_has_ended_from_a_file_and_from_the_command_line(tmp_path: Path) -> None:
    write(tmp_path, ["includes"])
    store = tmp_path / "runs"
    assert call("run", "eval.yaml", "--id", "r", "--store", store, cwd=tmp_path).code == 0
    tmp_path.joinpath("more.yaml").write_text(yaml.safe_dump(SCORERS))
    done = call("score", "r", "--scorers", "more.yaml", "--store", store, cwd=tmp_path, env=namespaces())
    assert done.code == 0, done.said
    assert "4 answers scored; no request was sent" in done.err
    check_scores(store)
    said = "{exact_match: {extract: last_line, name: last}}"
    assert call("score", "r", "--scorers", said, "--store", store, cwd=tmp_path).code == 0
    assert {line["scores"]["last"] for line in exported("r", store)} == {False}


@pytest.mark.parametrize(
    ("scorer", "problem"),
    [
        (
            {"all_of": {"of": ["numerik"]}},
            "tasks[0].scorers[0].of[0]: unknown scorer 'numerik'; did you mean",
        ),
        (
            {"numeric": {"extract": "last_lin"}},
            "tasks[0].scorers[0].extract: unknown extractor 'last_lin'",
        ),
        ({"numeric": {"extrct": "x"}}, "tasks[0].scorers[0]: numeric has no argument 'extrct'"),
        ({"embedding_similarity": {"model": "m"}}, "pip install 'holdfast[neural]'"),
        ({"json_schema": {"schema": {"type": "objec"}}}, "the schema is not valid"),
    ],
)
def test_what_is_wrong_is_found_by_check(scorer: Any, problem: str, tmp_path: Path) -> None:
    write(tmp_path, [scorer])
    done = call("check", "eval.yaml", cwd=tmp_path)
    assert done.code == 2
    assert problem in done.err
    assert "Traceback" not in done.said


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{numeric: [", "--scorers"),
        ("{numeric: {tolerence: 1}}", "did you mean 'tolerance'?"),
        ("gone.yaml", "gone.yaml: no such file"),
        ("eval.yaml", "must hold a list of scorers"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_one_sentence(entry: str, problem: str, tmp_path: Path) -> None:
    write(tmp_path, ["includes"])
    store = tmp_path / "runs"
    assert call("run", "eval.yaml", "--id", "r", "--store", store, cwd=tmp_path).code == 0
    done = call("score", "r", "--scorers", entry, "--store", store, cwd=tmp_path)
    assert done.code == 2
    assert problem in done.err
    assert "Traceback" not in done.said


def test_from_python_functions_may_stand_in_an_entry(tmp_path: Path) -> None:
    def last_word(text: str) -> str | None:
        return text.split()[-1] if text.split() else None

    @holdfast.scorer
    def short(sample: holdfast.Sample, answer: holdfast.Answer, longest: int = 10) -> bool:
        return len(answer.text) <= longest

    entries: list[Any] = [
        {"exact_match": {"extract": last_word}},
        {"all_of": {"of": ["includes", short.using(longest=5)], "name": "both"}},
        short.using(extract=last_word, longest=1),
    ]
    task = holdfast.Task("t", data=[{"id": "a", "q": "it is 4", "target": "4"}], prompt="{q}", scorers=entries)
    run: Run = holdfast.run(task, models=["mock"], store=str(tmp_path), quiet=True)
    (line,) = run.lines()
    assert dict(line.scores) == {"exact_match": True, "both": False, "short": True}
