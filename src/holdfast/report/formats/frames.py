"""Lines of a run in Python: a sequence that prints as a table and converts to a data frame.

pandas and polars are imported on conversion; if one is missing, the error names the package to install.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from holdfast.errors import UsageError
from holdfast.report.costs import CostLine
from holdfast.report.formats.json_csv import (
    ASKED,
    asked_cells,
    listed,
    row_column,
    score_column,
)
from holdfast.report.lines import ExportLine, ScoreLine
from holdfast.report.text import first_line

if TYPE_CHECKING:
    import pandas
    import polars

_SHOWN_MAX = 20
_WIDTH_MAX = 60
_PLAIN = ("key", "task", "model", "sample_id", "repeat", "status", "output")
_SPENT = (
    "attempt",
    "finish_reason",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cost_usd",
    "seconds",
)

Line = TypeVar("Line")
Columns = dict[str, list[Any]]


class Table(Sequence[Line], Generic[Line]):
    """Lines in plan order, immutable. Prints as a table; `to_pandas` and `to_polars` convert it."""

    def __init__(self, lines: Iterable[Line], columns: Callable[[Sequence[Line]], Columns]) -> None:
        self._lines = tuple(lines)
        self._columns = columns

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines)

    @overload
    def __getitem__(self, index: int) -> Line: ...

    @overload
    def __getitem__(self, index: slice) -> "Table[Line]": ...

    def __getitem__(self, index: int | slice) -> "Line | Table[Line]":
        if isinstance(index, slice):
            return Table(self._lines[index], self._columns)
        return self._lines[index]

    def columns(self) -> Columns:
        """Values by column name, one per line."""
        return self._columns(self._lines)

    def to_pandas(self) -> "pandas.DataFrame":
        frame: pandas.DataFrame = _package("pandas").DataFrame(self.columns())
        return frame

    def to_polars(self) -> "polars.DataFrame":
        """A column with both numbers and texts becomes a column of texts."""
        frame: polars.DataFrame = _package("polars").DataFrame(self.columns(), strict=False)
        return frame

    def __repr__(self) -> str:
        from holdfast.report.tables import (
            as_text,  # imported late: rich is slow to import
            plain_table,
        )

        names, rows = self._shown()
        return f"{as_text(plain_table(names, rows))}{self._rest()}"

    def _repr_html_(self) -> str:
        from holdfast.report.tables import html_table

        return html_table(*self._shown()) + f"<p>{self._rest().strip()}</p>"

    def _shown(self) -> tuple[list[str], list[list[str]]]:
        """The first lines, without empty columns."""
        columns = self._columns(self._lines[:_SHOWN_MAX])
        texts = {
            name: ["" if value in (None, "") else first_line(str(value), _WIDTH_MAX) for value in values]
            for name, values in columns.items()
        }
        filled = {name: values for name, values in texts.items() if any(values)}
        return list(filled), [list(row) for row in zip(*filled.values(), strict=True)]

    def _rest(self) -> str:
        left = len(self) - _SHOWN_MAX
        return f"\n… and {left} more" if left > 0 else "" if len(self) else "(none)"


def sample_table(lines: Iterable[ExportLine], columns: Sequence[str] = ()) -> Table[ExportLine]:
    """`columns`: of the rows."""
    return Table(lines, partial(_sample_columns, columns))


def score_table(lines: Iterable[ScoreLine]) -> Table[ScoreLine]:
    return field_table(lines, ScoreLine.__struct_fields__)


def cost_table(lines: Iterable[CostLine]) -> Table[CostLine]:
    return Table(lines, _cost_columns)


def field_table(lines: Iterable[Line], fields: Sequence[str]) -> Table[Line]:
    """A table with these fields of each line as its columns."""
    return Table(lines, lambda several: {name: [getattr(line, name) for line in several] for name in fields})


def _sample_columns(columns: Sequence[str], lines: Sequence[ExportLine]) -> Columns:
    """As in a CSV export: one column per scorer, with the scorer's name unless that is taken. Last what was asked."""
    made: Columns = {name: [getattr(line, name) for line in lines] for name in _PLAIN}
    made["marks"] = [" ".join(line.marks) for line in lines]
    made["error_kind"] = [line.error.kind if line.error else None for line in lines]
    made["error"] = [line.error.message if line.error else None for line in lines]
    made |= {name: [getattr(line, name) for line in lines] for name in _SPENT}
    given = [line.values for line in lines]
    last = {"edited": [listed(line.edited) for line in lines]}
    asked = [asked_cells(line, columns) for line in lines]
    for at, name in enumerate((*ASKED, *map(row_column, columns))):
        last[name] = [cells[at] for cells in asked]
    for scorer in sorted({scorer for line in lines for scorer in line.scores}):
        made[score_column(scorer, {**made, **last})] = [values.get(scorer) for values in given]
    return made | last


def _cost_columns(lines: Sequence[CostLine]) -> Columns:
    """Tokens are those that were paid for. Savings by replay and orphaned steps are in dollars."""
    made: Columns = {name: [getattr(line, name) for line in lines] for name in ("task", "model", "role", "requests")}
    for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"):
        made[name] = [getattr(line.usage, name) for line in lines]
    made["cost_usd"] = [line.cost.dollars for line in lines]
    made["saved_usd"] = [line.cost.saved_dollars for line in lines]
    made["orphaned_usd"] = [line.cost.orphaned_dollars for line in lines]
    made["finished"] = [line.finished for line in lines]
    made["usd_per_answer"] = [line.dollars_per_sample for line in lines]
    return made


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"to_{name} needs one more package: pip install 'holdfast[{name}]'") from error
