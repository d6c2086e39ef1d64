"""What people and other programs read of a run: reports, tables, exports, comparisons.

Everything here only reads: `cells` computes a report from the index, `tables` and `formats` show it, `story` tells one
key, `compare` compares runs and models. Formats are registered in `formats.FORMATS`.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.report.cells import CellReport, Example, RunReport, ScorerReport, judges_of, report_cells
    from holdfast.report.compare.sentences import comparison_sentences
    from holdfast.report.compare.sides import CellName, SideAnswers, sides_in, sides_of
    from holdfast.report.costs import (
        Cost,
        CostLine,
        CostReport,
        StoredSpec,
        cost_lines,
        sum_costs,
        total,
        unpriced_line,
    )
    from holdfast.report.formats import FORMATS
    from holdfast.report.formats.frames import Table, cost_table, sample_table, score_table
    from holdfast.report.formats.lines import (
        EventLine,
        ExportLine,
        ScoreLine,
        export_lines,
        score_lines,
        with_events,
        write_csv,
        write_jsonl,
    )
    from holdfast.report.progress import jobs_text, progress_bar, progress_html, progress_line
    from holdfast.report.selection import KeyFilter, PlannedKey, choose, find_planned, nearest_key
    from holdfast.report.story import (
        KeyStory,
        activity_of,
        attempts_of,
        collect,
        judgings_of,
        scores_of,
    )
    from holdfast.report.tables import (
        anomaly_lines,
        cost_sentences,
        duration,
        failure_lines,
        group_lines,
        left_out_lines,
        marked_lines,
        report_table,
        retry_lines,
        short,
        tokens,
    )
    from holdfast.report.text import (
        Grid,
        bar,
        content_text,
        count_of,
        counted,
        describe_methods,
        describe_missing,
        dollars,
        first_line,
        format_interval,
        format_number,
        human_bytes,
        lines_of,
        money,
        shortened,
        status_text,
        status_tone,
        text_of,
        without_scorer_name,
    )
else:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = lazy_exports(
        __name__,
        {
            "cells": "CellReport Example RunReport ScorerReport judges_of report_cells",
            "costs": "Cost CostLine CostReport StoredSpec cost_lines sum_costs total unpriced_line",
            "compare.sentences": "comparison_sentences",
            "compare.sides": "CellName SideAnswers sides_in sides_of",
            "formats": "FORMATS",
            "formats.frames": "Table cost_table sample_table score_table",
            "formats.lines": (
                "EventLine ExportLine ScoreLine export_lines score_lines with_events write_csv write_jsonl"
            ),
            "progress": "jobs_text progress_bar progress_html progress_line",
            "selection": "KeyFilter PlannedKey choose find_planned nearest_key",
            "story": "KeyStory activity_of attempts_of collect judgings_of scores_of",
            "tables": (
                "anomaly_lines cost_sentences duration failure_lines group_lines left_out_lines marked_lines "
                "report_table retry_lines short tokens"
            ),
            "text": (
                "Grid bar content_text count_of counted describe_methods describe_missing dollars first_line "
                "format_interval format_number human_bytes lines_of money "
                "shortened status_text status_tone text_of without_scorer_name"
            ),
        },
    )

__all__ = [
    "FORMATS",
    "CellName",
    "CellReport",
    "Cost",
    "CostLine",
    "CostReport",
    "EventLine",
    "Example",
    "ExportLine",
    "Grid",
    "KeyFilter",
    "KeyStory",
    "PlannedKey",
    "RunReport",
    "ScoreLine",
    "ScorerReport",
    "SideAnswers",
    "StoredSpec",
    "Table",
    "activity_of",
    "anomaly_lines",
    "attempts_of",
    "bar",
    "choose",
    "collect",
    "comparison_sentences",
    "content_text",
    "cost_lines",
    "cost_sentences",
    "cost_table",
    "count_of",
    "counted",
    "describe_methods",
    "describe_missing",
    "dollars",
    "duration",
    "export_lines",
    "failure_lines",
    "find_planned",
    "first_line",
    "format_interval",
    "format_number",
    "group_lines",
    "human_bytes",
    "jobs_text",
    "judges_of",
    "judgings_of",
    "left_out_lines",
    "lines_of",
    "marked_lines",
    "money",
    "nearest_key",
    "progress_bar",
    "progress_html",
    "progress_line",
    "report_cells",
    "report_table",
    "retry_lines",
    "sample_table",
    "score_lines",
    "score_table",
    "scores_of",
    "short",
    "shortened",
    "sides_in",
    "sides_of",
    "status_text",
    "status_tone",
    "sum_costs",
    "text_of",
    "tokens",
    "total",
    "unpriced_line",
    "with_events",
    "without_scorer_name",
    "write_csv",
    "write_jsonl",
]
