"""Parquet files, and tables made by Python code: pandas and polars data frames, Arrow tables, any iterable of rows.

All are read in batches. None of these packages is imported unless a file or an object needs it.
"""

import difflib
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from holdfast.datasets.readers import NumberedRow, store_row
from holdfast.datasets.spill import SpooledRows
from holdfast.errors import DataError
from holdfast.records import Row

BATCH_ROWS = 1024
_PARQUET = "Parquet files need pyarrow: pip install 'holdfast[parquet]'"
_BYTES = (bytes, bytearray, memoryview)


def read_parquet(path: str, columns: Sequence[str] = (), files: Sequence[str] = ()) -> Iterator[NumberedRow]:
    """Yield the rows of a Parquet file as plain values. `columns`: those to read, all if empty. Only the columns in
    `files` may hold bytes.
    """
    try:
        arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    except ImportError as error:
        raise DataError(path, _PARQUET) from error
    numbers = itertools.count(1)
    try:
        with parquet.ParquetFile(path) as file:
            _refuse_unknown(path, columns, file.schema_arrow.names)
            for field in file.schema_arrow:
                if field.name not in files and (not columns or field.name in columns) and _is_binary(field.type):
                    problem = f"the column {field.name!r} holds bytes; name it in dataset.files"
                    raise DataError(path, f"{problem}, or leave it out with dataset.columns")
            wanted = [name for name in file.schema_arrow.names if name in columns] if columns else None
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number = next(numbers)
                    yield number, store_row(row, path, number, files)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(path, f"cannot be read as Parquet ({_first_line(error)}); copy it again") from error


def rows_of_object(data: Any) -> Iterable[Row]:
    """The rows of a data frame, an Arrow table, or any iterable of dicts. They can be iterated again."""
    if isinstance(data, list | tuple):
        return list(data)
    kind = (type(data).__module__.partition(".")[0], type(data).__name__)
    if kind == ("polars", "LazyFrame"):
        raise DataError("data", "a LazyFrame has no rows yet; pass frame.collect()")
    batches = _BATCHES.get(kind)
    if batches is not None:
        return TableRows(data, batches)
    if kind[0] in ("pandas", "polars", "pyarrow") and kind[1] != "RecordBatchReader":
        raise DataError("data", f"a {kind[0]} {kind[1]} has no rows with named columns; pass a DataFrame or a Table")
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | dict):
        raise DataError(
            "data", f"expected rows: a list of dicts, a data frame or an iterable, got {type(data).__name__}"
        )
    rows = (row for batch in data for row in batch.to_pylist()) if kind[0] == "pyarrow" else data
    return SpooledRows(rows, _plain_row)


class TableRows(Iterable[Row]):
    """The rows of a table. Only one batch of them is held."""

    def __init__(self, table: Any, batches: Callable[[Any], Iterator[list[Row]]]) -> None:
        self._table = table
        self._batches = batches

    def __iter__(self) -> Iterator[Row]:
        return itertools.chain.from_iterable(self._batches(self._table))


def _pandas(frame: Any) -> Iterator[list[Row]]:
    names = list(map(str, frame.columns))
    for at in range(0, len(frame), BATCH_ROWS):
        part = frame.iloc[at : at + BATCH_ROWS]
        filled = part.astype(object).where(part.notna(), None)  # NaN, NaT and NA are null
        columns = [list(map(_pandas_value, filled.iloc[:, index])) for index in range(len(names))]
        yield [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _pandas_value(value: Any) -> Any:
    """A time as Python's own type, which can be stored."""
    convert = getattr(value, "to_pydatetime", None) or getattr(value, "to_pytimedelta", None)
    return convert() if convert is not None else value


def _polars(frame: Any) -> Iterator[list[Row]]:
    return (part.to_dicts() for part in frame.iter_slices(BATCH_ROWS))


def _arrow(table: Any) -> Iterator[list[Row]]:
    return (batch.to_pylist() for batch in table.to_batches(max_chunksize=BATCH_ROWS))


def _arrow_batch(batch: Any) -> Iterator[list[Row]]:
    return (batch.slice(at, BATCH_ROWS).to_pylist() for at in range(0, batch.num_rows, BATCH_ROWS))


_BATCHES: dict[tuple[str, str], Callable[[Any], Iterator[list[Row]]]] = {
    ("pandas", "DataFrame"): _pandas,
    ("polars", "DataFrame"): _polars,
    ("pyarrow", "Table"): _arrow,
    ("pyarrow", "RecordBatch"): _arrow_batch,
}
"""Reader by package and type. Names are compared, so that no package is imported."""


def _plain_row(value: Any, number: int) -> Row:
    """A row that can be kept on disk: plain values, and bytes where there are some."""
    if not isinstance(value, dict):
        found = "null" if value is None else type(value).__name__
        raise DataError("data", f"expected an object with named columns, found {found}", number, "row")
    return store_row(value, "data", number, [name for name, each in value.items() if _holds_bytes(each)])


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_holds_bytes, value))
    if isinstance(value, dict):
        return any(map(_holds_bytes, value.values()))
    return isinstance(value, _BYTES)


def _is_binary(kind: Any) -> bool:
    """Whether an Arrow type holds bytes, at any depth."""
    if kind.num_fields:
        return any(_is_binary(kind.field(index).type) for index in range(kind.num_fields))
    return "binary" in str(kind)


def _refuse_unknown(path: str, columns: Sequence[str], names: Sequence[str]) -> None:
    for name in columns:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(names)}"
            raise DataError(path, f"no column {name!r}; {hint}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
