"""Parquet holds what an export says, typed, and memory does not grow with the number of lines."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import polars
import pyarrow  # type: ignore[import-untyped]  # it has no types
import pytest
from pyarrow import parquet

from holdfast.errors import UsageError
from holdfast.records.samples import Answer, Sample
from holdfast.report import ExportLine
from holdfast.report.formats.parquet import write_parquet
from holdfast.runs import Run
from tests.unit.engine.runs import Asked, given, go, rows
from tests.unit.report.export_lines import HOSTILE, failed, line


def written(path: Path, lines: list[ExportLine], kinds: dict[str, str]) -> Any:
    write_parquet(lines, str(path), kinds)
    return parquet.read_table(path)


def test_every_text_comes_back_as_it_was(tmp_path: Path) -> None:
    texts = [HOSTILE, "=1+1", "", "-5", "é\u2028\U0001d518"]
    found = written(tmp_path / "x.parquet", [line(i, output=text) for i, text in enumerate(texts)], {})
    assert found.column("output").to_pylist() == texts


def test_a_score_that_failed_and_one_that_was_not_given_are_told_apart(tmp_path: Path) -> None:
    lines = [
        line(0, scores={"a": True, "b": 0.25, "c": "good"}, reasons={"b": "a quarter"}),
        line(
            1,
            scores_edited={"c": [{"author": "ann"}]},
            scores={"a": None, "b": {"failure": {"message": "broke"}}, "c": "bad"},
        ),
        failed(2, "timeout", "too slow"),
    ]
    found = written(tmp_path / "x.parquet", lines, {"a": "bool", "b": "number", "c": "label"})
    types = [str(found.schema.field(name).type) for name in ("a", "b", "c", "repeat", "cost_usd")]
    assert types == ["bool", "double", "string", "int32", "double"]
    assert found.column("a").to_pylist() == [True, None, None]
    assert found.column("b").to_pylist() == [0.25, None, None]
    assert found.column("c").to_pylist() == ["good", "bad", None]
    assert found.column("score_errors").to_pylist() == [[], [("b", "broke")], []]
    assert found.column("edited").to_pylist() == [[], [("c", "ann")], []]
    assert found.column("reasons").to_pylist() == [[("b", "a quarter")], [], []]
    assert found.column("error_kind").to_pylist() == [None, None, "timeout"]


def test_a_scorer_with_the_name_of_another_column_has_one_of_its_own(tmp_path: Path) -> None:
    found = written(tmp_path / "x.parquet", [line(output="said", scores={"output": 1})], {"output": "number"})
    assert (found.column("output").to_pylist(), found.column("score.output").to_pylist()) == (["said"], [1.0])


def moody(sample: Sample, answer: Answer) -> Any:
    either = True if sample.id == "s0" else 0.5
    return {
        "flag": sample.id == "s0",
        "either": either,
        "mixed": 1 if sample.id == "s0" else "none",
        "silent": None,
        "huge": 10**400,
    }


def test_the_types_of_scores_follow_from_their_values_and_pandas_and_polars_read_them(tmp_path: Path) -> None:
    go(tmp_path, given([Asked(rows=rows(2), scorers=[moody])]))
    path = tmp_path / "x.parquet"
    with Run.find(str(tmp_path), "run-1") as run:
        kinds = run.score_kinds()
        write_parquet(run.lines(), str(path), kinds)
        sheet = run.samples().to_pandas()
    assert kinds == {
        "moody.either": "number",
        "moody.flag": "bool",
        "moody.huge": "label",
        "moody.mixed": "label",
        "moody.silent": "number",
    }
    read = pandas.read_parquet(path)
    assert read["moody.mixed"].tolist() == ["1", "none"]
    assert read["moody.either"].tolist() == [1.0, 0.5]
    assert read["output"].tolist() == sheet["output"].tolist() == ["question 0", "question 1"]
    assert polars.read_parquet(path)["moody.flag"].to_list() == [True, False]


def test_long_answers_are_written_in_several_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_parquet((line(i, output="x" * 1_000_000) for i in range(20)), str(path), {})
    assert [parquet.ParquetFile(path).metadata.row_group(i).num_rows for i in range(3)] == [8, 8, 4]


@pytest.mark.long
def test_a_hundred_thousand_lines_need_little_memory(tmp_path: Path) -> None:
    def lines() -> Iterator[ExportLine]:
        return (line(i, output=f"{i} " * 200, scores={"a": i % 2 == 0}) for i in range(100_000))

    path = tmp_path / "x.parquet"
    write_parquet(lines(), str(path), {"a": "bool"})
    assert parquet.ParquetFile(path).metadata.num_rows == 100_000
    assert pyarrow.default_memory_pool().max_memory() < 64_000_000


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'holdfast\[parquet\]'"):
        write_parquet([], str(tmp_path / "x.parquet"), {})


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--output .*nowhere.*cannot be written"):
        write_parquet([], str(tmp_path / "nowhere" / "x.parquet"), {})
