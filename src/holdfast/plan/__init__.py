"""From a spec to exact keys, and the two files that pin them."""

from holdfast.plan.blobs import BlobError, BlobStore, blob_size, check_kept, read_blob, read_pieces
from holdfast.plan.comparing import changed_inputs, changed_rows
from holdfast.plan.extending import Extension
from holdfast.plan.files import (
    DATA,
    PLAN,
    RESTORE,
    DataLine,
    PlanLine,
    StoredRows,
    data_lines,
    originals,
    planned_lines,
    read_lines,
    rows_of,
)
from holdfast.plan.integrity import Flaw, check_blobs, check_originals, check_sizes, find_problem
from holdfast.plan.planning import (
    Planned,
    Rows,
    Work,
    check_groups,
    inputs_of,
    judges_of,
    models_of,
    prepare,
    survey,
    write_plan,
)
from holdfast.plan.replacement import Replacement

__all__ = [
    "DATA",
    "PLAN",
    "RESTORE",
    "BlobError",
    "BlobStore",
    "DataLine",
    "Extension",
    "Flaw",
    "PlanLine",
    "Planned",
    "Replacement",
    "Rows",
    "StoredRows",
    "Work",
    "blob_size",
    "changed_inputs",
    "changed_rows",
    "check_blobs",
    "check_groups",
    "check_kept",
    "check_originals",
    "check_sizes",
    "data_lines",
    "find_problem",
    "inputs_of",
    "judges_of",
    "models_of",
    "originals",
    "planned_lines",
    "prepare",
    "read_blob",
    "read_lines",
    "read_pieces",
    "rows_of",
    "survey",
    "write_plan",
]
