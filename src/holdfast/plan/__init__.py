"""From a spec to exact keys, and the two files that pin them."""

from holdfast.plan.comparing import changed_cells, changed_rows
from holdfast.plan.files import DataLine, PlanLine, digest_file, read_lines
from holdfast.plan.planning import DATA, PLAN, Planned, Rows, Work, models_of, prepare, survey, write_plan

__all__ = [
    "DATA",
    "PLAN",
    "DataLine",
    "PlanLine",
    "Planned",
    "Rows",
    "Work",
    "changed_cells",
    "changed_rows",
    "digest_file",
    "models_of",
    "prepare",
    "read_lines",
    "survey",
    "write_plan",
]
