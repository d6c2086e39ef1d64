"""Data sets: turns a file or a list of rows into samples, one at a time.

`open_rows` reads a file, `rows_in_memory` takes rows made by Python code, and `samples` assigns their columns and
refuses duplicate ids. Rows are streamed: a data set is never held in memory as a whole.
"""

from holdfast.datasets.columns import Columns, resolved, samples
from holdfast.datasets.files import BadFileError, Content, Digests, FileColumns, Keep
from holdfast.datasets.readers import open_rows, rows_in_memory

__all__ = [
    "BadFileError",
    "Columns",
    "Content",
    "Digests",
    "FileColumns",
    "Keep",
    "open_rows",
    "resolved",
    "rows_in_memory",
    "samples",
]
