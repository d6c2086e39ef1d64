"""What people and other programs read of a run: reports, tables, exports, comparisons.

Everything here only reads: `cells` computes a report from the index, `tables` and `formats` show it, `story` tells one
key, `compare` compares runs and models. Formats are registered in `formats.FORMATS`.
"""

from holdfast.report.cells import CellReport, Example, RunReport, ScorerReport, report_cells
from holdfast.report.formats.frames import Table, cost_table, sample_table, score_table
from holdfast.report.formats.lines import ExportLine, ScoreLine, export_lines, score_lines, write_csv, write_jsonl
from holdfast.report.selection import PlannedKey, find_planned, nearest_key
from holdfast.report.story import KeyStory

__all__ = [
    "CellReport",
    "Example",
    "ExportLine",
    "KeyStory",
    "PlannedKey",
    "RunReport",
    "ScoreLine",
    "ScorerReport",
    "Table",
    "cost_table",
    "export_lines",
    "find_planned",
    "nearest_key",
    "report_cells",
    "sample_table",
    "score_lines",
    "score_table",
    "write_csv",
    "write_jsonl",
]
