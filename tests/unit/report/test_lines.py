"""An export has one line for each planned key, in plan order, whatever became of it."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import journal_folder
from holdfast.records.samples import Answer, Sample
from holdfast.report import sample_table, write_csv, write_jsonl
from holdfast.runs import Run
from holdfast.solve import Context
from tests.journals import flipped
from tests.unit.engine.runs import Asked, cut_after, folder, given, go, lines, mock, rows
from tests.unit.report.export_lines import line


def right(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


async def partly(sample: Sample, ctx: Context) -> Any:
    if sample.id == "s1":
        raise ValueError("no")
    return await ctx.generate()


def test_every_key_has_one_line_in_plan_order(tmp_path: Path) -> None:
    task = Asked(rows=rows(3), solver=partly, scorers=[right], fields={"repeats": 2, "sample_retries": 0})
    go(tmp_path, given([task], [mock(name="a"), mock(name="org/b")]))
    found = lines(tmp_path)
    assert [line.key for line in found] == [
        f"task/{model}/s{number}/{repeat}" for model in ("a", "org%2Fb") for number in range(3) for repeat in (1, 2)
    ]
    assert [line.model for line in found] == ["a"] * 6 + ["org/b"] * 6
    assert [line.status for line in found[:6]] == ["finished"] * 2 + ["failed"] * 2 + ["finished"] * 2


def test_a_failed_key_has_its_error_and_neither_output_nor_scores(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), solver=partly, scorers=[right], fields={"sample_retries": 1})]))
    found = lines(tmp_path)[1]
    assert found.error is not None
    assert (found.status, found.output, found.scores, found.attempt) == ("failed", None, {}, 2)
    assert (found.error.kind, found.error.message) == ("solver", "ValueError: no")


def test_a_key_that_was_not_answered_yet_has_a_line_too(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(5), scorers=[right])], concurrency={"samples": 1}))
    cut_after(tmp_path, lambda kind, data: kind != "sample.finished" or data["o"] < 2)
    found = lines(tmp_path)
    assert [line.status for line in found] == ["finished"] * 2 + ["unfinished"] * 3
    assert [(line.output, line.error, line.scores) for line in found[2:]] == [(None, None, {})] * 3


@pytest.mark.filterwarnings("ignore::holdfast.errors.DamageWarning")
def test_an_answer_that_was_damaged_after_the_index_had_seen_it_is_not_exported_as_finished(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(3))], concurrency={"samples": 1}))
    cut_after(tmp_path, lambda kind, data: kind != "run.completed")
    assert [line.status for line in lines(tmp_path)] == ["finished"] * 3
    path = Path(journal_folder(folder(tmp_path)), "000001.jsonl")
    content = path.read_bytes()
    path.write_bytes(flipped(content, content.index(b'"sample.finished"') + 60))
    assert [line.status for line in lines(tmp_path)] == ["unfinished", "finished", "finished"]


def test_jsonl_has_one_object_a_line_with_the_fields_that_scripts_rely_on(tmp_path: Path) -> None:
    task = Asked(rows=rows(3), solver=partly, scorers=[right], fields={"sample_retries": 0})
    go(tmp_path, given([task]))
    out = io.StringIO()
    with Run.find(str(tmp_path), "run-1") as run:
        write_jsonl(run.lines(), out)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    fields = {"key", "task", "model", "sample_id", "repeat", "status", "output", "error", "scores"}
    assert all(fields <= set(line) for line in found)
    assert [line["sample_id"] for line in found] == ["s0", "s1", "s2"]
    assert found[0]["scores"] == {"right": True}


def test_csv_has_one_column_for_each_scorer_and_survives_line_breaks(tmp_path: Path) -> None:
    def told(sample: Sample, answer: Answer) -> str:
        return 'a "label", with\nbreaks'

    data = [{"id": "a,b", "input": 'say "x",\nthen y', "target": "t"}]
    go(tmp_path, given([Asked(rows=data, scorers=[right, told])]))
    out = io.StringIO()
    with Run.find(str(tmp_path), "run-1") as run:
        write_csv(run.lines(), out, run.scorers())
    (row,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert (row["sample_id"], row["output"], row["told"]) == ("a,b", 'say "x",\nthen y', 'a "label", with\nbreaks')
    assert row["right"] == "False"


def moody(sample: Sample, answer: Answer) -> bool | None:
    if sample.id == "s1":
        raise ValueError("cannot say;\nreally")
    return None


def test_a_scorer_that_failed_does_not_look_like_one_that_gave_no_score(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), scorers=[moody, right])]))
    silent, broken = lines(tmp_path)
    assert silent.scores == {"moody": None, "right": True}
    assert broken.scores == {"moody": {"failure": {"message": "ValueError: cannot say;\nreally"}}, "right": True}
    first, second = csv_rows(tmp_path)
    assert (first["moody"], first["score_errors"]) == ("", "")
    assert (second["moody"], second["right"]) == ("", "True")
    assert second["score_errors"] == "moody: ValueError: cannot say;\nreally"


def test_csv_says_what_each_key_took(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), solver=partly, fields={"sample_retries": 1})]))
    finished, failed = csv_rows(tmp_path)
    assert (finished["attempt"], finished["input_tokens"], finished["output_tokens"]) == ("1", "2", "2")
    assert float(finished["seconds"]) >= 0
    assert (failed["attempt"], failed["input_tokens"], failed["output_tokens"]) == ("2", "0", "0")
    assert [str(line.seconds) for line in lines(tmp_path)] == [finished["seconds"], failed["seconds"]]


@pytest.mark.filterwarnings("ignore::holdfast.errors.DamageWarning")
def test_an_answer_lost_to_damage_took_nothing(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(1))], concurrency={"samples": 1}))
    cut_after(tmp_path, lambda kind, data: kind != "run.completed")
    assert (lines(tmp_path)[0].attempt, lines(tmp_path)[0].input_tokens) == (1, 2)
    path = Path(journal_folder(folder(tmp_path)), "000001.jsonl")
    content = path.read_bytes()
    path.write_bytes(flipped(content, content.index(b'"sample.finished"') + 60))
    assert (lines(tmp_path)[0].attempt, lines(tmp_path)[0].input_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("\t=1", "'\t=1"),
        (" =1", "' =1"),
        ("\r=1", "\\r=1"),
        ("-5", "-5"),
        ("+1.5e-3", "+1.5e-3"),
        ("a=1", "a=1"),
        ("nul\0nul", "nul\\u0000nul"),
        ("＝1+1", "'＝1+1"),  # noqa: RUF001 - full-width: Excel takes it for a formula too
        ("　＋1+1", "'　＋1+1"),  # noqa: RUF001
        ("－2+3", "'－2+3"),  # noqa: RUF001
        ("＠SUM(A1)", "'＠SUM(A1)"),  # noqa: RUF001
        ("\r\n=1", "'\r\n=1"),
        ('a "b",\nc', 'a "b",\nc'),
    ],
)
def test_csv_has_nothing_that_a_spreadsheet_would_run_and_leaves_numbers_alone(text: str, shown: str) -> None:
    out = io.StringIO()
    write_csv(iter([line(output=text, scores={"label": text}, reasons={"label": "x"})]), out, ["label"])
    (row,) = csv.DictReader(io.StringIO(out.getvalue(), newline=""))
    assert (row["output"], row["label"]) == (shown, shown)


def test_a_scorer_with_the_name_of_another_column_has_one_of_its_own_in_csv() -> None:
    out = io.StringIO()
    write_csv(iter([line(output="said", scores={"output": 1, "=x": 2})]), out, ["output", "=x"])
    (row,) = csv.DictReader(io.StringIO(out.getvalue()))
    assert (row["output"], row["score.output"], row["'=x"]) == ("said", "1", "2")


def test_a_megabyte_of_answer_is_on_one_line_of_jsonl_and_in_one_field_of_csv() -> None:
    text = "line\n" * 200_000
    out, sheet = io.StringIO(), io.StringIO()
    write_jsonl([line(output=text)], out)
    write_csv(iter([line(output=text)]), sheet, [])
    assert [json.loads(each)["output"] for each in out.getvalue().splitlines()] == [text]
    csv.field_size_limit(2_000_000)
    assert [row["output"] for row in csv.DictReader(io.StringIO(sheet.getvalue(), newline=""))] == [text]


def csv_rows(store: Path) -> list[dict[str, str]]:
    out = io.StringIO()
    with Run.find(str(store), "run-1") as run:
        write_csv(run.lines(), out, run.scorers())
    return list(csv.DictReader(io.StringIO(out.getvalue())))


def test_scores_that_people_set_are_marked_in_every_table() -> None:
    history = {"label": [{"value": "a", "reason": ""}, {"value": "b", "reason": "", "author": "ann", "at": "now"}]}
    lines = [line(scores={"label": "b", "edited": 1}, scores_edited=history), line(1, scores={"label": "a"})]
    out = io.StringIO()
    write_csv(iter(lines), out, ["label", "edited"])
    first, second = csv.DictReader(io.StringIO(out.getvalue()))
    assert (first["label"], first["edited"], first["score.edited"]) == ("b", "label: ann", "1")
    assert second["edited"] == ""
    columns = sample_table(lines).columns()
    assert (columns["edited"], columns["score.edited"]) == (["label: ann", ""], [1, None])
