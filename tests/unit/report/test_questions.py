"""Every line of an export has what was asked: input, target, prompt, and chosen columns of the row."""

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet  # type: ignore[import-untyped]  # it has no types

from holdfast.errors import UsageError
from holdfast.plan import read_lines
from holdfast.plan.files import LineFile
from holdfast.records.samples import Answer, Sample
from holdfast.report import ExportLine, QuestionReader, parse_columns, sample_table, with_events, write_csv
from holdfast.report.formats.parquet import write_parquet
from holdfast.report.questions import readable_input, value_text
from holdfast.runs import Run
from tests.unit.engine.runs import RUN, Asked, folder, given, go, lines, mock, rows
from tests.unit.report.export_lines import line

ROWS = [
    {"id": "a", "question": "1 + 1", "target": 2, "level": 1, "tags": ["x"], "easy": True, "share": 0.5},
    {"id": "b", "question": "2 + 2", "target": 4, "level": 3, "tags": [], "easy": False, "share": 1},
    {"id": "c", "question": "3 + 3", "target": 6, "note": "=1+1"},
]
PROMPT: dict[str, Any] = {"system": "Be exact.", "prompt": "Compute {question}."}


def asked(line: ExportLine) -> tuple[Any, Any, Any, Any]:
    return line.input, line.target, line.prompt, line.row


def lines_with(store: Path, *columns: str) -> list[ExportLine]:
    with Run.find(str(store), RUN) as run:
        return list(run.lines(columns=columns))


def test_every_repeat_of_every_model_has_its_input_target_and_prompt(tmp_path: Path) -> None:
    task = Asked(rows=ROWS, fields={**PROMPT, "repeats": 2})
    go(tmp_path, given([Asked("first", rows=rows(2)), task], [mock(name="a"), mock(name="b")]))
    first = [(f"question {i}", f"question {i}", f"question {i}", None) for i in range(2)]
    second = [(row["question"], row["target"], f"Compute {row['question']}.", None) for row in ROWS for _ in range(2)]
    assert [asked(line) for line in lines(tmp_path)] == [*first, *first, *second, *second]
    with Run.find(str(tmp_path), RUN) as run:
        assert {asked(line) for line in run.lines(asked=False)} == {(None, None, None, None)}


@pytest.mark.parametrize(
    ("fields", "row", "found"),
    [
        ({"prompt": "Say {word}"}, {"word": "no"}, ("Say no", None, "Say no")),
        ({"prompt": "{{ word | upper }}", "template": "jinja"}, {"word": "no"}, ("NO", None, "NO")),
        (
            {"messages": [{"role": "user", "content": "One"}, {"role": "assistant", "content": "?"}]},
            {"input": "x"},
            ("x", None, "One"),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Say {word}"}]}]},
            {"word": "no"},
            ("Say no", None, "Say no"),
        ),
        ({"messages": [{"role": "system", "content": "Talk"}]}, {"input": 7, "target": ["a"]}, (7, ["a"], None)),
        ({}, {"input": "Hello", "target": {"a": 1}}, ("Hello", {"a": 1}, "Hello")),
    ],
)
def test_the_prompt_is_the_last_user_message_and_the_input_without_a_column(
    tmp_path: Path, fields: dict[str, Any], row: dict[str, Any], found: tuple[Any, ...]
) -> None:
    go(tmp_path, given([Asked(rows=[{"id": "a", **row}], fields=fields)]))
    assert [asked(line)[:3] for line in lines(tmp_path)] == [found]


def test_a_conversation_is_an_input_whose_last_question_people_see(tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "well"},
        {"role": "user", "content": [{"type": "text", "text": "second"}]},
    ]
    go(tmp_path, given([Asked(rows=[{"id": "a", "input": talk}])]))
    (found,) = lines(tmp_path)
    assert (found.input, found.prompt, readable_input(found)) == (talk, "second", "second")
    (cell,) = sample_table([found]).columns()["input"]
    assert msgspec.json.decode(cell) == talk


def test_the_rendered_prompt_is_the_one_that_was_sent(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=ROWS, fields=PROMPT)]))
    for each in with_events(lines(tmp_path), folder(tmp_path), of_finished=True):
        assert each.messages is not None
        assert [message["content"] for message in each.messages if message["role"] == "user"] == [each.prompt]
        assert each.input is not None


def test_without_recorded_data_nothing_of_a_row_is_known(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=ROWS, fields=PROMPT)], record_data=False))
    found = lines_with(tmp_path, "level")
    assert [asked(line) for line in found] == [(None, None, None, None)] * 3
    with Run.find(str(tmp_path), RUN) as run:
        assert run.questions("task", ["a"]) == {}
        assert run.row_columns(["level"]) == ("level",)
        assert run.row_columns(["row.*"]) == ()
        table = run.samples(columns=["level"]).columns()
        story = run.show("task/mock/a/1")
    assert (table["input"], table["row.level"]) == ([None] * 3, [None] * 3)
    assert (story.input, story.target, story.prompt) == (None, None, None)


@pytest.mark.filterwarnings("ignore::holdfast.errors.DamageWarning")
def test_rows_that_cannot_be_read_leave_the_results_as_they_are(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=ROWS, fields=PROMPT)]))
    before = lines(tmp_path)
    path = Path(folder(tmp_path), "data.jsonl.zst")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    nothing = dict.fromkeys(("input", "target", "prompt"))
    expected = [msgspec.structs.replace(each, **nothing) for each in before]
    assert lines(tmp_path) == expected
    path.unlink()
    assert lines_with(tmp_path, "level") == expected
    with Run.find(str(tmp_path), RUN) as run:
        assert run.questions("task", ["a"]) == {}
        assert run.samples(columns=["level"]).columns()["row.level"] == [None] * 3


def test_a_row_that_is_missing_takes_only_its_own_question_with_it(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=ROWS)]))
    path = str(Path(folder(tmp_path), "data.jsonl.zst"))
    kept = list(read_lines(path))
    LineFile(path).write([kept[0], kept[2]])
    with pytest.warns(match="data"):
        assert [line.target for line in lines(tmp_path)] == [2, None, 6]


def test_the_questions_of_some_samples_are_found_by_id(tmp_path: Path) -> None:
    other = [{"id": "c", "question": "other"}, {"id": "d", "question": "only here"}]
    go(tmp_path, given([Asked(rows=ROWS, fields=PROMPT), Asked("other", rows=other)]))
    with Run.find(str(tmp_path), RUN) as run:
        found = run.questions("task", {"c", "a", "d"})
        assert run.questions("nothing", {"a"}) == {}
    assert {name: (each.input, each.target) for name, each in found.items()} == {"a": ("1 + 1", 2), "c": ("3 + 3", 6)}
    assert found["c"].prompt == "Compute 3 + 3."


def test_a_template_that_cannot_be_compiled_here_leaves_the_prompt_out(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=ROWS)]))
    with Run.find(str(tmp_path), RUN) as run:
        planned = run.planned("task/mock/a/1")
    broken = {"name": "task", "prompt": "{% if %}", "template": "jinja"}
    lacking = {"name": "task", "prompt": "{nothing}"}
    strange = {"name": "task", "prompt": 7}
    raising = {"name": "task", "prompt": "{{ 1 // 0 }}", "template": "jinja"}
    for task in (broken, lacking, strange, raising, {"name": "other"}):
        found = QuestionReader(folder(tmp_path), {"tasks": [task]}).of("task", planned.data)
        assert (found.input, found.prompt) == ("1 + 1", None)


def test_chosen_columns_are_in_the_row_of_each_line(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=ROWS)]))
    assert [line.row for line in lines_with(tmp_path, "row.level", "tags")] == [
        {"level": 1, "tags": ["x"]},
        {"level": 3, "tags": []},
        {"level": None, "tags": None},
    ]
    assert [line.row for line in lines_with(tmp_path, "row.*")] == ROWS
    with Run.find(str(tmp_path), RUN) as run:
        every = ("id", "question", "target", "level", "tags", "easy", "share", "note")
        assert run.row_columns(["*"]) == run.row_columns(["level", "row.*"]) == every
        with pytest.raises(UsageError, match="no row has a column 'levels'; did you mean 'level'"):
            run.samples(columns=["levels"])
        kinds = run.column_kinds(every)
        table = run.samples(columns=["tags", "note"])
    told = {"level": "integer", "easy": "bool", "share": "number", "tags": "text", "note": "text"}
    assert {name: kinds[name] for name in told} == told
    assert list(table.columns())[-5:] == ["input", "target", "prompt", "row.tags", "row.note"]
    assert table.columns()["row.tags"] == ['["x"]', "[]", None]
    frame = table.to_pandas()
    assert frame["target"].tolist() == [2, 4, 6]
    assert table.to_polars()["row.note"].to_list() == [None, None, "=1+1"]


def test_names_of_columns_are_parsed() -> None:
    assert parse_columns(["question", " row.level", "", "question"]) == ("question", "level")
    assert parse_columns(["level", "row.*"]) == parse_columns(["*"]) == ("*",)
    assert parse_columns([""]) == ()


CLASHING = line(scores={"input": 1, "prompt": 2, "row.level": 3}, input="asked", target=["t"], row={"level": "hard"})
SCORERS = ["input", "prompt", "row.level"]


def test_csv_has_what_was_asked_last_and_scorers_of_such_names_a_prefix() -> None:
    out = io.StringIO()
    write_csv(iter([CLASHING, line(input="=1+1")]), out, SCORERS, ["level"])
    first, second = csv.DictReader(io.StringIO(out.getvalue()))
    assert list(first)[-4:] == ["input", "target", "prompt", "row.level"]
    assert [first[name] for name in list(first)[-4:]] == ["asked", '["t"]', "", "hard"]
    assert [first[f"score.{name}"] for name in SCORERS] == ["1", "2", "3"]
    assert (second["input"], second["row.level"]) == ("'=1+1", "")


def test_a_frame_has_what_was_asked_last_and_scorers_of_such_names_a_prefix() -> None:
    found = sample_table([CLASHING], ["level"]).columns()
    assert list(found)[-5:] == ["edited", "input", "target", "prompt", "row.level"]
    assert [found[f"score.{name}"] for name in SCORERS] == [[1], [2], [3]]
    assert (found["input"], found["row.level"]) == (["asked"], ["hard"])


def test_parquet_has_typed_columns_of_the_row_last(tmp_path: Path) -> None:
    path = str(tmp_path / "x.parquet")
    other = line(input=[{"role": "user"}], target=1.5, prompt="p", row={"level": None, "n": 3, "any": [1]})
    kinds = {"level": "text", "n": "integer", "any": "text"}
    write_parquet([CLASHING, other], path, dict.fromkeys(SCORERS, "number"), kinds)
    found = parquet.read_table(path)
    assert found.column_names[-6:] == ["input", "target", "prompt", "row.level", "row.n", "row.any"]
    assert str(found.schema.field("row.n").type) == "int64"
    assert found.column("input").to_pylist() == ["asked", '[{"role":"user"}]']
    assert found.column("target").to_pylist() == ['["t"]', "1.5"]
    assert found.column("row.any").to_pylist() == [None, "[1]"]
    assert [found.column(f"score.{name}").to_pylist()[0] for name in SCORERS] == [1.0, 2.0, 3.0]


def test_values_are_texts_as_they_are_and_json_otherwise() -> None:
    assert [value_text(value) for value in ("a", 1, True, None, {"a": [1]})] == ["a", "1", "true", None, '{"a":[1]}']


def test_a_scorer_named_input_is_apart_from_the_input_in_a_run(tmp_path: Path) -> None:
    def input(sample: Sample, answer: Answer) -> bool:
        return bool(answer.text == sample.input)

    go(tmp_path, given([Asked(rows=ROWS[:1], scorers=[input])]))
    with Run.find(str(tmp_path), RUN) as run:
        found = run.samples().columns()
    assert (found["input"], found["score.input"]) == (["1 + 1"], [True])
