"""Tables and exports: what a person or another program reads of a run."""

from holdfast.report.cells import CellReport, Example, RunReport, ScorerReport, report_cells
from holdfast.report.export import ExportLine, export_lines, write_csv, write_jsonl
from holdfast.report.planned import PlannedKey, find_planned, nearest_key

__all__ = [
    "CellReport",
    "Example",
    "ExportLine",
    "PlannedKey",
    "RunReport",
    "ScorerReport",
    "export_lines",
    "find_planned",
    "nearest_key",
    "report_cells",
    "write_csv",
    "write_jsonl",
]
