"""Converts rows of a source into the rows of a task, as benchmarks need it: one row may become none or several."""

from collections.abc import Callable, Iterable, Iterator

from holdfast.datasets.readers import NumberedRow, RowStream
from holdfast.errors import DataError
from holdfast.records import Row

Conversion = Callable[[Row], Row | Iterable[Row] | None]
"""Returns the rows that a row of the source becomes; None: it is left out. KeyError for a column that is missing,
ValueError for a value that it does not understand.
"""


def convert_rows(rows: RowStream, conversion: Conversion, where: str) -> RowStream:
    """Return the converted rows. Rows keep the number of the row that they were made of. `where` names the data."""
    return RowStream(lambda: _converted(rows.again(), conversion, where), rows.unit)


def _converted(rows: RowStream, conversion: Conversion, where: str) -> Iterator[NumberedRow]:
    for number, row in rows:
        try:
            made = conversion(row)
            found = [made] if isinstance(made, dict) else list(made or ())
        except KeyError as error:
            missing = f"the row has no column {error.args[0]!r}; it has: {', '.join(map(str, row))}"
            raise DataError(where, f"{missing}; its layout may have changed", number, rows.unit) from error
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            problem = f"the row cannot be converted ({error}); its layout may have changed"
            raise DataError(where, problem, number, rows.unit) from error
        for each in found:
            yield number, each
