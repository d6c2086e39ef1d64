"""The question and the target are part of every look at an answer: in lists, comparisons, exports and reports."""

import csv
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pandas
import pytest

import holdfast
from tests.e2e.commands import call, write_rows

ROWS = [
    {"id": "a", "question": "1 + 1 <?>", "answer": "2", "level": 1},
    {"id": "b", "question": "2 + 2", "answer": "4", "level": 2},
    {"id": "c", "question": "3 + 3", "answer": "6", "level": 3},
]
OWN = """
async def answer(request):
    if "3 + 3" in request.messages[-1]["content"]:
        raise ValueError("cannot")
    return "4"

def input(sample, answer):
    return answer.text == sample.target
"""


def write_eval(folder: Path, **fields: Any) -> None:
    (folder / "own.py").write_text(OWN)
    write_rows(folder / "rows.jsonl", ROWS)
    task = {"name": "sums", "dataset": {"path": "rows.jsonl"}, "prompt": "Compute {question}", "sample_retries": 0}
    models = [
        {"name": "four", "provider": "own:answer", "request_retries": 0},
        {"name": "two", "provider": "mock", "options": {"reply": "2"}},
    ]
    spec = {
        "experiment": "asked",
        "models": models,
        "tasks": [{**task, "scorers": ["includes", "own:input"]}],
        **fields,
    }
    (folder / "eval.json").write_text(json.dumps(spec))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("asked")
    write_eval(made)
    assert call("run", "eval.json", "--id", "r", cwd=made).code == 1
    write_eval(made, record_data=False)
    assert call("run", "eval.json", "--id", "hidden", cwd=made).code == 1
    return made


def test_a_wrong_answer_is_listed_with_what_was_asked(folder: Path) -> None:
    said = call("show", "r", "--wrong", "--model", "four", "--columns", "level", cwd=folder).out.splitlines()
    assert said[:6] == [
        "sums/four/a/1  finished  includes=False input=False",
        "  question: 1 + 1 <?>",
        "  target: 2",
        "  prompt: Compute 1 + 1 <?>",
        "  row.level: 1",
        "  answer: 4",
    ]
    failed = call("show", "r", "--failed", cwd=folder).out.splitlines()
    assert failed[1:4] == ["  question: 3 + 3", "  target: 6", "  prompt: Compute 3 + 3"]
    assert failed[4] == "  error: solver: ValueError: cannot"
    (line, *_) = call("show", "r", "--wrong", "--columns", "row.*", "--json", cwd=folder).json()
    assert [line[name] for name in ("input", "target", "prompt")] == ["1 + 1 <?>", "2", "Compute 1 + 1 <?>"]
    assert line["row"] == ROWS[0]


def test_one_key_has_its_target(folder: Path) -> None:
    assert call("show", "r", "sums/four/a/1", cwd=folder).out.splitlines()[2] == "  target: 2"
    found = call("show", "r", "sums/four/a/1", "--json", cwd=folder).json()
    assert [found[name] for name in ("input", "target", "prompt")] == ["1 + 1 <?>", "2", "Compute 1 + 1 <?>"]


def test_columns_need_a_list_and_a_name_that_a_row_has(folder: Path) -> None:
    for wrong, said in (
        (("show", "r", "--columns", "level"), "--columns is for lists of samples"),
        (("report", "r", "--columns", "level"), "--columns is for reports with questions: add --format html or junit"),
        (("report", "r", "--format", "html", "--columns", "levl"), "did you mean 'level'?"),
        (("compare", "r", "--columns", "levl"), "did you mean 'level'?"),
        (("show", "r", "--wrong", "--columns", "levl"), "did you mean 'level'?"),
        (("export", "r", "--columns", "row.levl"), "did you mean 'level'?"),
    ):
        done = call(*wrong, cwd=folder)
        assert (done.code, said in done.err) == (2, True), done.err


def test_every_export_ends_with_what_was_asked_and_the_chosen_columns(folder: Path) -> None:
    for format in ("jsonl", "csv", "parquet"):
        name = f"x.{format}"
        done = call("export", "r", "--format", format, "--columns", "level,id", "--output", name, cwd=folder)
        assert (done.code, done.err) == (0, f"wrote {name}\n")
    lines = [json.loads(line) for line in (folder / "x.jsonl").read_text().splitlines()]
    assert list(lines[0])[-4:] == ["input", "target", "prompt", "row"]
    assert [line["row"] for line in lines] == [{"level": row["level"], "id": row["id"]} for row in ROWS] * 2
    assert "input" in lines[0]["scores"]
    with (folder / "x.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    columns = ["input", "target", "prompt", "row.level", "row.id"]
    assert list(table[0])[-5:] == columns
    expected = [(row["question"], row["answer"], f"Compute {row['question']}", row["level"], row["id"]) for row in ROWS]
    assert [tuple(row[name] for name in columns) for row in table] == [tuple(map(str, row)) for row in expected] * 2
    frame = pandas.read_parquet(folder / "x.parquet")
    assert list(frame)[-5:] == columns
    assert list(frame[columns].itertuples(index=False, name=None)) == expected * 2
    assert frame["score.input"].tolist()[:2] == [False, True]
    with holdfast.open_run("r", store=str(folder / "runs")) as run:
        found = run.samples(columns=["level", "id"]).to_pandas()
    assert list(found)[-5:] == columns
    assert list(found[columns].itertuples(index=False, name=None)) == expected * 2


def test_events_have_what_was_asked_too(folder: Path) -> None:
    done = call("export", "r", "--events", "--columns", "row.*", cwd=folder)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["row"] for line in lines] == ROWS * 2
    assert all(line["prompt"] == line["messages"][0]["content"] for line in lines if line["status"] == "finished")


def test_a_comparison_shows_the_question_above_both_answers(folder: Path) -> None:
    said = call("compare", "r", "--scorer", "includes", "--columns", "level", cwd=folder).out.splitlines()
    at = said.index("  a  False -> True")
    asked = ["    question: 1 + 1 <?>", "    target: 2", "    prompt: Compute 1 + 1 <?>", "    row.level: 1"]
    assert said[at + 1 : at + 7] == [*asked, "    - 4", "    + 2"]
    found = holdfast.compare("r", scorer="includes", columns=["level"], store=str(folder / "runs"))
    assert [each.row for each in found.comparisons[0].changed] == [{"level": 1}, {"level": 2}]
    (found,) = call("compare", "r", "--scorer", "includes", "--json", cwd=folder).json()["comparisons"]
    assert [(each["input"], each["target"]) for each in found["changed"]] == [("1 + 1 <?>", "2"), ("2 + 2", "4")]
    assert found["changed"][0]["prompt"] == "Compute 1 + 1 <?>"


def test_the_question_comes_from_the_run_that_records_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "own", raising=False)
    (folder / "own.py").write_text(OWN.replace('return "4"', 'return "2"'))
    spec = json.loads((folder / "eval.json").read_text())
    (folder / "second.json").write_text(json.dumps({**spec, "record_data": True}))
    assert call("run", "second.json", "--id", "second", cwd=folder).code == 1
    said = call("compare", "hidden", "second", "--scorer", "includes", cwd=folder).out
    assert "    question: 1 + 1 <?>\n    target: 2\n    prompt: Compute 1 + 1 <?>\n    - 4\n    + 2\n" in said


def test_test_cases_of_junit_have_what_was_asked_also_those_that_passed(folder: Path) -> None:
    printed = call("report", "r", "--format", "junit", "--columns", "level", cwd=folder).out
    found = ElementTree.fromstring(printed)
    texts = {case.get("name"): [(part.tag, part.text) for part in case] for case in found.iter("testcase")}
    asked = [f"question: {row['question']}\ntarget: {row['answer']}\nprompt: Compute {row['question']}" for row in ROWS]
    asked = [f"{text}\nrow.level: {row['level']}" for text, row in zip(asked, ROWS, strict=True)]
    assert texts["sums/four/a/1"] == [("failure", f"{asked[0]}\nanswer: 4")]
    assert texts["sums/four/b/1"] == [("system-out", asked[1])]
    assert texts["sums/four/c/1"] == [("error", f"ValueError: cannot\n{asked[2]}")]


def test_scores_in_python_have_what_was_asked(folder: Path) -> None:
    with holdfast.open_run("r", store=str(folder / "runs")) as run:
        frame = run.scores().to_pandas()
        wrong = run.samples(wrong=True, models=["four"])
        with pytest.raises(TypeError, match="samples\\(\\) has no argument 'wrnog'"):
            run.samples(wrnog=True)  # type: ignore[call-arg] # the type checker finds it too
    assert list(frame)[-3:] == ["input", "target", "prompt"]
    (first,) = frame[(frame.key == "sums/four/a/1") & (frame.scorer == "includes")].to_dict("records")
    assert (first["input"], first["target"], first["prompt"]) == ("1 + 1 <?>", "2", "Compute 1 + 1 <?>")
    assert [line.key for line in wrong] == ["sums/four/a/1"]


def test_a_report_saves_itself_in_the_format_of_the_suffix_as_the_command_does(folder: Path) -> None:
    with holdfast.open_run("r", store=str(folder / "runs")) as run:
        report = run.report()
    for suffix, format in (("html", "html"), ("xml", "junit"), ("md", "markdown"), ("json", "json"), ("tex", "latex")):
        columns = ["level"] if format in ("html", "junit") else []
        report.save(folder / f"mine.{suffix}", columns=columns)
        options = ["--columns", "level"] if columns else []
        done = call("report", "r", "--output", f"theirs.{suffix}", *options, cwd=folder)
        assert (done.code, done.err) == (0, f"wrote theirs.{suffix}\n")
        mine, theirs = ((folder / f"{whose}.{suffix}").read_text() for whose in ("mine", "theirs"))
        assert mine == theirs, format
    assert "<dt>row.level</dt>" in (folder / "mine.html").read_text()
    with pytest.raises(holdfast.errors.UsageError, match=r"mine\.txt: name the format with format: markdown \(\.md\)"):
        report.save(folder / "mine.txt")
    refused = call("report", "r", "--output", "mine.txt", cwd=folder)
    assert (refused.code, "name the format with --format: markdown (.md)" in refused.err) == (2, True)


def test_failures_on_the_page_have_the_question_and_the_target(folder: Path) -> None:
    page = call("report", "r", "--format", "html", cwd=folder).out
    start = page.index("<h2>Failures</h2>")
    failures = page[start : page.index("</section>", start)]
    assert re.search(r"<dt>Question</dt><dd><div [^>]*>3 \+ 3</div></dd>", failures)
    assert re.search(r"<dt>Target</dt><dd><div [^>]*>6</div></dd>", failures)
    assert re.search(r"<dt>Prompt</dt><dd><div [^>]*>Compute 3 \+ 3</div></dd>", failures)


def test_without_recorded_data_everything_is_null(folder: Path) -> None:
    done = call("export", "hidden", "--columns", "level", cwd=folder)
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert len(lines) == 6
    assert all(line[name] is None for line in lines for name in ("input", "target", "prompt", "row"))
    said = call("show", "hidden", "--wrong", "--model", "four", cwd=folder).out.splitlines()
    assert said[:2] == ["sums/four/a/1  finished  includes=False input=False", "  answer: 4"]
    junit = call("report", "hidden", "--format", "junit", cwd=folder).out
    assert ">answer: 4<" in junit
    csv_lines = call("export", "hidden", "--format", "csv", "--columns", "level", cwd=folder).out.splitlines()
    assert csv_lines[0].endswith(",input,target,prompt,row.level")
    assert csv_lines[1].endswith(",,,,")


def test_rows_that_an_extension_added_are_shown(tmp_path: Path) -> None:
    write_eval(tmp_path, limit=1)
    assert call("run", "eval.json", "--id", "r", cwd=tmp_path).code == 0
    assert call("extend", "r", "--set", "limit=2", "--set", "tasks.sums.repeats=2", cwd=tmp_path).code == 0
    lines = [json.loads(line) for line in call("export", "r", cwd=tmp_path).out.splitlines()]
    assert len(lines) == 8
    asked = {row["id"]: (row["question"], row["answer"]) for row in ROWS}
    assert all((line["input"], line["target"]) == asked[line["sample_id"]] for line in lines)
    (found,) = call("compare", "r", "--scorer", "includes", "--json", cwd=tmp_path).json()["comparisons"]
    assert {(each["sample_id"], each["input"]) for each in found["changed"]} == {("a", "1 + 1 <?>"), ("b", "2 + 2")}
