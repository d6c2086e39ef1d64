"""Rows become samples: columns are found or named, ids are there and differ."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.datasets import Columns, open_rows, resolve_columns, rows_in_memory, samples
from holdfast.datasets.columns import DuplicateFinder
from holdfast.errors import DataError
from holdfast.records.samples import Row, Sample

MEGABYTE = 1 << 20


def read(rows: list[Row], columns: Columns | None = None) -> list[Sample]:
    return list(samples(rows_in_memory(rows), columns or Columns(), "task sums"))


def refusal(rows: list[Row], columns: Columns | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(rows, columns)
    assert str(caught.value).startswith("task sums")
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"id": "x", "input": "i", "target": "t"}, ("x", "i", "t")),
        ({"question": "q", "answer": "a"}, ("1", "q", "a")),
        ({"prompt": "p", "label": 3}, ("1", "p", 3)),
        ({"prompt": "p", "input": "i", "question": "q", "label": 1, "target": None, "answer": 2}, ("1", "i", None)),
        ({"q": "2+2", "target": "4"}, ("1", None, "4")),
        ({"id": 7, "input": ["m"]}, ("7", ["m"], None)),
        ({"id": 0, "input": ""}, ("0", "", None)),
        ({"id": 1.5}, ("1.5", None, None)),
    ],
)
def test_columns_are_guessed(row: Row, wanted: tuple[str, Any, Any]) -> None:
    (sample,) = read([row])
    assert (sample.id, sample.input, sample.target) == wanted
    assert sample.row == row


def test_columns_can_be_named() -> None:
    row = {"id": "x", "key": "k", "text": "t", "input": "i", "gold": "g", "target": "no"}
    (sample,) = read([row], Columns("key", "text", "gold"))
    assert (sample.id, sample.input, sample.target) == ("k", "t", "g")


def test_resolved_columns_are_those_that_samples_are_read_by() -> None:
    assert resolve_columns({"question": 1, "label": 2}, Columns()) == Columns("", "question", "label")
    assert resolve_columns({"id": 0, "question": 1}, Columns(input="x")) == Columns("id", "x", "")


def test_without_ids_rows_are_numbered_without_gaps(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('\n{"a":1}\n\n{"a":2}\n')
    assert [sample.id for sample in samples(open_rows(str(path)), Columns(), "x")] == ["1", "2"]


def test_a_missing_column_names_the_nearest() -> None:
    assert "row 1: no column 'questions'; did you mean 'question'?" in refusal(
        [{"id": 1, "question": "q"}], Columns(input="questions")
    )
    assert "no column 'gold'; the row has: id, x" in refusal([{"id": 1, "x": 2}], Columns(target="gold"))
    assert "row 2: no column 'target'" in refusal([{"target": 1}, {"other": 1}])


@pytest.mark.parametrize(
    ("first", "second", "column"),
    [
        ({"x": 1}, {"x": 1, "id": 5}, "id"),
        ({"x": 1}, {"x": 1, "prompt": 5}, "prompt"),
        ({"x": 1, "answer": 1}, {"x": 1, "answer": 1, "target": 5}, "target"),
    ],
)
def test_rows_are_never_read_in_two_ways(first: Row, second: Row, column: str) -> None:
    assert f"row 2: has a column {column!r}, which the first row does not have" in refusal([first, second])


@pytest.mark.parametrize("bad", [None, "", "  ", "\n"])
def test_an_empty_id_is_refused(bad: Any) -> None:
    assert "row 2: the id (column 'id') is empty" in refusal([{"id": 1}, {"id": bad}])


@pytest.mark.parametrize("bad", [True, [], {}, ["a"]])
def test_an_id_is_text_or_a_number(bad: Any) -> None:
    assert "must be text or a number" in refusal([{"id": bad}])


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    assert "the data set is empty" in refusal([])
    for name, content in {
        "a.jsonl": "",
        "b.jsonl": "\n\n",
        "c.csv": "",
        "d.csv": "id,a\n",
        "e.json": "",
        "f.json": "[]",
    }.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match="the data set is empty"):
            list(samples(open_rows(str(tmp_path / name)), Columns(), name))


def test_a_duplicate_id_names_both_places() -> None:
    assert "row 3: id 'a' is already used in row 1" in refusal([{"id": "a"}, {"id": "b"}, {"id": "a"}])
    assert "id '1' is already used in row 1" in refusal([{"id": 1}, {"id": "1"}])


def test_a_duplicate_id_in_a_file_names_both_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('\n{"id":"a"}\n{"id":"b"}\n\n{"id":"a"}\n')
    with pytest.raises(DataError, match=r"x\.jsonl, line 5: id 'a' is already used in line 2"):
        list(samples(open_rows(str(path)), Columns(), str(path)))


def numbered(ids: list[str]) -> Iterator[tuple[int, Row]]:
    return ((number, {"id": id}) for number, id in enumerate(ids, 1))


@given(st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=12), st.booleans())
def test_duplicates_are_found_as_a_dict_would(ids: list[str], once: bool) -> None:
    rows = numbered(ids) if once else list(numbered(ids))
    first = next((at for at in range(len(ids)) if ids[at] in ids[:at]), None)
    if first is None:
        assert [sample.id for sample in samples(rows, Columns(), "x")] == ids
        return
    with pytest.raises(DataError, match=f"already used in row {ids.index(ids[first]) + 1}") as caught:
        list(samples(rows, Columns(), "x"))
    assert caught.value.line == first + 1


def test_two_ids_that_share_a_hash_are_not_one() -> None:
    ids = ["a", "b", "c", "b"]
    seen = DuplicateFinder(lambda: enumerate(ids, 1), hash=lambda data: 42)
    assert [seen.add(id, number) for number, id in enumerate(ids, 1)] == [None, None, None, 2]


@given(st.lists(st.sampled_from([0, 1, 2, 2**63, 2**64 - 1, 1024, 2048]) | st.integers(0, 2**64 - 1), max_size=3000))
def test_only_a_repeated_hash_costs_a_second_reading(hashes: list[int]) -> None:
    """The hash 0 marks a free slot, so it shares a slot with 1; that costs a reading, never a wrong word."""
    readings = 0

    def again() -> Iterator[tuple[int, str]]:
        nonlocal readings
        readings += 1
        return iter(())

    seen = DuplicateFinder(again, hash=lambda data: hashes[int(data)])
    assert all(seen.add(str(index), index) is None for index in range(len(hashes)))
    assert readings == len(hashes) - len({value or 1 for value in hashes})


def assert_memory_is_below(folder: Path, count: int, allowed: int) -> None:
    """Reading `count` rows, and finding that the last repeats the first, takes a few bytes a row."""
    path = folder / "many.jsonl"
    with path.open("w") as file:
        for number in range(count):
            file.write(f'{{"id":"sample-{number}","input":"{"x" * 50}"}}\n')
        file.write('{"id":"sample-0","input":""}\n')
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=f"line {count + 1}: id 'sample-0' is already used in line 1"):
            for _ in samples(open_rows(str(path)), Columns(), str(path)):
                pass
        assert tracemalloc.get_traced_memory()[1] < allowed
    finally:
        tracemalloc.stop()
        path.unlink()


@pytest.mark.long
def test_a_hundred_thousand_rows_take_little_memory(tmp_path: Path) -> None:
    assert_memory_is_below(tmp_path, 100_000, 6 * MEGABYTE)


@pytest.mark.long
def test_a_million_rows_take_little_memory(tmp_path: Path) -> None:
    assert_memory_is_below(tmp_path, 1_000_000, 40 * MEGABYTE)
