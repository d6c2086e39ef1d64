"""Tables and exports: what a person or another program reads of a run."""

from holdfast.report.cells import CellReport, RunReport, ScorerReport, report_cells
from holdfast.report.export import ExportLine, export_lines, write_csv, write_jsonl

__all__ = [
    "CellReport",
    "ExportLine",
    "RunReport",
    "ScorerReport",
    "export_lines",
    "report_cells",
    "write_csv",
    "write_jsonl",
]
