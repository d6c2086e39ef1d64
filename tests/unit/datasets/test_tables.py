"""Parquet files, data frames, Arrow tables and iterables."""

import datetime
import decimal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from holdfast.datasets import ColumnChoice, open_rows, rows_in_memory, rows_of_object
from holdfast.errors import DataError

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

ROWS: list[dict[str, Any]] = [
    {"id": "a", "choices": ["x", None], "nested": {"label": [1, 2], "day": datetime.date(2024, 5, 1)}, "score": 0.5},
    {"id": "b", "choices": [], "nested": None, "score": float("nan")},
]
PLAIN = [
    {"id": "a", "choices": ["x", None], "nested": {"label": [1, 2], "day": "2024-05-01"}, "score": 0.5},
    {"id": "b", "choices": [], "nested": None, "score": None},
]


def write(path: Path, rows: list[dict[str, Any]], **options: Any) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return str(path)


def test_parquet_rows_are_plain_values(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", ROWS)
    rows = open_rows(path)
    assert rows.unit == "row"
    assert list(rows) == list(enumerate(PLAIN, 1))
    assert list(rows.again()) == list(enumerate(PLAIN, 1))


def test_only_the_needed_columns_of_parquet_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", [{"id": "a", "canary": b"\x00", "q": "1"}])
    with pytest.raises(DataError, match=r"'canary' holds bytes; name it in dataset.files, or leave it out"):
        list(open_rows(path))
    assert list(open_rows(path, choice=ColumnChoice(["q", "id"]))) == [(1, {"id": "a", "q": "1"})]
    assert list(open_rows(path, choice=ColumnChoice(files=["canary"]))) == [
        (1, {"id": "a", "canary": b"\x00", "q": "1"})
    ]
    with pytest.raises(DataError, match=r"no column 'quest'; it has: id, canary, q"):
        list(open_rows(path, choice=ColumnChoice(["quest"])))


def test_bytes_inside_of_a_struct_are_refused_too(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", [{"id": "a", "image": {"bytes": b"\x89PNG", "path": "x.png"}}])
    with pytest.raises(DataError, match="'image' holds bytes"):
        list(open_rows(path))


def test_a_damaged_parquet_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(DataError, match=r"x.parquet: cannot be read as Parquet \(.*\); copy it again"):
        list(open_rows(str(tmp_path / "x.parquet")))


def test_parquet_is_read_in_batches(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", [{"id": i} for i in range(5000)], row_group_size=5000)
    rows = open_rows(path)
    assert [next(rows)[1]["id"] for _ in range(3)] == [0, 1, 2]
    assert sum(1 for _ in rows) == 4997


def test_columns_are_chosen_from_text_formats_as_well(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b,c\n1,2,3\n")
    assert list(open_rows(str(tmp_path / "x.csv"), choice=ColumnChoice(["a", "c"]))) == [(2, {"a": "1", "c": "3"})]


def stored(data: Any) -> list[dict[str, Any]]:
    """As they are planned, twice: planning reads them several times."""
    rows = rows_of_object(data)
    first, second = ([row for _, row in rows_in_memory(rows)] for _ in range(2))
    assert first == second
    return first


def test_a_pandas_frame_gives_rows() -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2],
            "when": [pd.Timestamp("2024-01-02"), pd.NaT],
            "value": [1.5, None],
            "list": [["a"], ["b", "c"]],
            7: ["x", None],
        }
    )
    assert stored(frame) == [
        {"id": 1, "when": "2024-01-02T00:00:00", "value": 1.5, "list": ["a"], "7": "x"},
        {"id": 2, "when": None, "value": None, "list": ["b", "c"], "7": None},
    ]


def test_a_polars_frame_and_arrow_objects_give_rows() -> None:
    rows = [{"id": 1, "list": ["a"], "d": datetime.date(2024, 1, 2)}, {"id": 2, "list": None, "d": None}]
    plain = [{"id": 1, "list": ["a"], "d": "2024-01-02"}, {"id": 2, "list": None, "d": None}]
    table = pa.Table.from_pylist(rows)
    assert stored(pl.DataFrame(rows)) == plain
    assert stored(table) == plain
    assert stored(table.to_batches()[0]) == plain
    assert stored(table.to_reader()) == plain


def test_a_generator_is_read_once_and_can_be_planned_from() -> None:
    taken = []

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(5):
            taken.append(number)
            yield {"id": number, "price": decimal.Decimal("1.50"), "pair": (1, 2)}

    found = rows_of_object(rows())
    partly = iter(found)
    assert next(partly)["id"] == 0
    assert [row["id"] for row in found] == [0, 1, 2, 3, 4]
    assert next(partly) == {"id": 1, "price": "1.50", "pair": [1, 2]}
    assert taken == [0, 1, 2, 3, 4]


def test_bytes_of_a_generator_stay_for_file_columns() -> None:
    rows = rows_of_object(iter([{"image": b"\x89PNG", "q": "x"}]))
    assert list(rows_in_memory(rows, files=["image"])) == [(1, {"image": b"\x89PNG", "q": "x"})]
    with pytest.raises(DataError, match="column 'image' holds bytes"):
        list(rows_in_memory(rows))


def test_rows_of_a_large_table_are_not_held() -> None:
    """At most one batch of dicts exists at any time."""
    table = pa.table({"id": list(range(200_000))})
    rows = iter(rows_of_object(table))
    next(rows)
    assert sum(1 for _ in rows) == 199_999


@pytest.mark.parametrize("data", [5, {"id": 1}, pl.LazyFrame({"a": [1]}), pd.Series([1]), b"x"])
def test_other_objects_are_refused(data: Any) -> None:
    with pytest.raises(DataError):
        rows_of_object(data)


def test_an_iterable_of_something_else_names_the_row() -> None:
    with pytest.raises(DataError, match=r"data, row 2: expected an object with named columns, found int"):
        list(rows_of_object(iter([{"a": 1}, 2])))
