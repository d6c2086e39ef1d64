"""Data sets: from a file or a list of rows to samples, one at a time.

`open_rows` reads a file, `rows_in_memory` takes what Python code made, `samples` names their columns and refuses what
would make two answers share a key. A row is read, checked and handed on; a million of them never sit in memory.
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
