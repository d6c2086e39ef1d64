"""Data sets: turns a file or a list of rows into samples, one at a time.

`open_rows` reads a file, `rows_in_memory` takes rows made by Python code, and `samples` assigns their columns and
refuses duplicate ids. Rows are streamed: a data set is never held in memory as a whole.
"""

from holdfast.datasets.columns import Columns, resolve_columns, samples
from holdfast.datasets.files import (
    BadFileError,
    FileColumns,
    FileContent,
    Fingerprint,
    Keep,
    ReferenceCache,
    ending_of,
    type_of_name,
)
from holdfast.datasets.readers import FORMATS, open_rows, rows_in_memory

__all__ = [
    "FORMATS",
    "BadFileError",
    "Columns",
    "FileColumns",
    "FileContent",
    "Fingerprint",
    "Keep",
    "ReferenceCache",
    "ending_of",
    "open_rows",
    "resolve_columns",
    "rows_in_memory",
    "samples",
    "type_of_name",
]
