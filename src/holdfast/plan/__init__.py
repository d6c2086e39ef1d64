"""From a spec to exact keys, and the two files that pin them."""

from holdfast.plan.blobs import BlobError, BlobStore, blob_size, check_blobs, check_kept, read_blob, read_pieces
from holdfast.plan.comparing import changed_inputs, changed_rows
from holdfast.plan.extending import Extension
from holdfast.plan.files import (
    DATA,
    PLAN,
    DataLine,
    PlanLine,
    StoredRows,
    data_lines,
    digest_file,
    originals,
    planned_lines,
    read_lines,
    rows_of,
)
from holdfast.plan.planning import Planned, Rows, Work, inputs_of, judges_of, models_of, prepare, survey, write_plan

__all__ = [
    "DATA",
    "PLAN",
    "BlobError",
    "BlobStore",
    "DataLine",
    "Extension",
    "PlanLine",
    "Planned",
    "Rows",
    "StoredRows",
    "Work",
    "blob_size",
    "changed_inputs",
    "changed_rows",
    "check_blobs",
    "check_kept",
    "data_lines",
    "digest_file",
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
