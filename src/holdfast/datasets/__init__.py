"""Data sets: turns files, tables and lists of rows into samples, one at a time.

A source (`LocalFiles`, `FetchedFiles`) gives the rows of files; `rows_in_memory` those made by Python code. `samples`
assigns columns and refuses duplicate ids; `select_rows` filters, shuffles and samples. Rows are streamed: a data set is
never held in memory as a whole.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.datasets.columns import Columns, RowPosition, resolve_columns, samples
    from holdfast.datasets.conversions import Conversion, convert_rows
    from holdfast.datasets.downloads import download, ending_downloads, hub_address, is_url, showing_progress
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
    from holdfast.datasets.filters import FilterError, RowFilter
    from holdfast.datasets.hub import fetch_hub_files, is_same_revision, pinned_revision
    from holdfast.datasets.readers import FORMATS, ColumnChoice, RowStream, open_rows, rows_in_memory
    from holdfast.datasets.selection import IdentifiedRow, RowSelection, select_rows
    from holdfast.datasets.sources import DataSource, FetchedFiles, JoinedSources, LocalFiles
    from holdfast.datasets.tables import rows_of_object
else:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = lazy_exports(
        __name__,
        {
            "columns": "Columns RowPosition resolve_columns samples",
            "conversions": "Conversion convert_rows",
            "downloads": "download ending_downloads hub_address is_url showing_progress",
            "files": "BadFileError FileColumns FileContent Fingerprint Keep ReferenceCache ending_of type_of_name",
            "filters": "FilterError RowFilter",
            "hub": "fetch_hub_files is_same_revision pinned_revision",
            "readers": "FORMATS ColumnChoice RowStream open_rows rows_in_memory",
            "selection": "IdentifiedRow RowSelection select_rows",
            "sources": "DataSource FetchedFiles JoinedSources LocalFiles",
            "tables": "rows_of_object",
        },
    )

__all__ = [
    "FORMATS",
    "BadFileError",
    "ColumnChoice",
    "Columns",
    "Conversion",
    "DataSource",
    "FetchedFiles",
    "FileColumns",
    "FileContent",
    "FilterError",
    "Fingerprint",
    "IdentifiedRow",
    "JoinedSources",
    "Keep",
    "LocalFiles",
    "ReferenceCache",
    "RowFilter",
    "RowPosition",
    "RowSelection",
    "RowStream",
    "convert_rows",
    "download",
    "ending_downloads",
    "ending_of",
    "fetch_hub_files",
    "hub_address",
    "is_same_revision",
    "is_url",
    "open_rows",
    "pinned_revision",
    "resolve_columns",
    "rows_in_memory",
    "rows_of_object",
    "samples",
    "select_rows",
    "showing_progress",
    "type_of_name",
]
