"""What people and other programs read of a run: reports, tables, exports, comparisons.

Everything here only reads: `cells` computes a report from the index, `tables` and `formats` show it, `story` tells one
key, `compare` compares runs and models. Formats are registered in `formats.FORMATS`.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.report.anomalies import Anomalies, CellAnomalies, equal_answers
    from holdfast.report.cells import CellReport, Example, RunReport, ScorerReport, judges_of, report_cells
    from holdfast.report.compare.comparison import (
        Adjustment,
        Comparison,
        add_questions,
        adjust_p_values,
        compare_sides,
        differing_scorers,
        family_size,
    )
    from holdfast.report.compare.gate import GateRule, GateVerdict, judge_against, judge_level
    from holdfast.report.compare.leaderboard import Board, leaderboards
    from holdfast.report.compare.results import ComparisonResult, GateResult, LeaderboardResult
    from holdfast.report.compare.sentences import comparison_sentences
    from holdfast.report.compare.sides import (
        CellName,
        Measure,
        Side,
        SideAnswers,
        choose_measures,
        pairs_between,
        pairs_within,
        sides_in,
        sides_of,
    )
    from holdfast.report.costs import (
        Cost,
        CostLine,
        CostReport,
        StoredSpec,
        cost_lines,
        sum_costs,
        total,
        unpriced_line,
        used_dollars,
    )
    from holdfast.report.formats import FORMATS, ExportSource, OutputFormat, find_format, formats_of
    from holdfast.report.formats.frames import Table, cost_table, field_table, sample_table, score_table
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
    from holdfast.report.formats.plots import IMAGES, PLOT_KINDS, Plot, collect_plot_data, planned_plots
    from holdfast.report.progress import jobs_text, progress_bar, progress_html, progress_line
    from holdfast.report.questions import (
        UNKNOWN,
        MakeQuestion,
        Question,
        QuestionReader,
        column_kinds,
        parse_columns,
        readable_input,
        resolve_columns,
        value_text,
    )
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
        brief,
        content_text,
        count_of,
        counted,
        describe_methods,
        describe_missing,
        dollars,
        first_line,
        format_interval,
        format_number,
        format_p,
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
            "anomalies": "Anomalies CellAnomalies equal_answers",
            "cells": "CellReport Example RunReport ScorerReport judges_of report_cells",
            "costs": "Cost CostLine CostReport StoredSpec cost_lines sum_costs total unpriced_line used_dollars",
            "compare.comparison": (
                "Adjustment Comparison add_questions adjust_p_values compare_sides differing_scorers family_size"
            ),
            "compare.gate": "GateRule GateVerdict judge_against judge_level",
            "compare.leaderboard": "Board leaderboards",
            "compare.results": "ComparisonResult GateResult LeaderboardResult",
            "compare.sentences": "comparison_sentences",
            "compare.sides": (
                "CellName Measure Side SideAnswers choose_measures pairs_between pairs_within sides_in sides_of"
            ),
            "formats": "FORMATS ExportSource OutputFormat find_format formats_of",
            "formats.plots": "IMAGES PLOT_KINDS Plot collect_plot_data planned_plots",
            "formats.frames": "Table cost_table field_table sample_table score_table",
            "formats.lines": (
                "EventLine ExportLine ScoreLine export_lines score_lines with_events write_csv write_jsonl"
            ),
            "progress": "jobs_text progress_bar progress_html progress_line",
            "questions": (
                "UNKNOWN MakeQuestion Question QuestionReader column_kinds parse_columns readable_input "
                "resolve_columns value_text"
            ),
            "selection": "KeyFilter PlannedKey choose find_planned nearest_key",
            "story": "KeyStory activity_of attempts_of collect judgings_of scores_of",
            "tables": (
                "anomaly_lines cost_sentences duration failure_lines group_lines left_out_lines marked_lines "
                "report_table retry_lines short tokens"
            ),
            "text": (
                "Grid bar brief content_text count_of counted describe_methods describe_missing dollars first_line "
                "format_interval format_number format_p human_bytes lines_of money "
                "shortened status_text status_tone text_of without_scorer_name"
            ),
        },
    )

__all__ = [
    "FORMATS",
    "IMAGES",
    "PLOT_KINDS",
    "UNKNOWN",
    "Adjustment",
    "Anomalies",
    "Board",
    "CellAnomalies",
    "CellName",
    "CellReport",
    "Comparison",
    "ComparisonResult",
    "Cost",
    "CostLine",
    "CostReport",
    "EventLine",
    "Example",
    "ExportLine",
    "ExportSource",
    "GateResult",
    "GateRule",
    "GateVerdict",
    "Grid",
    "KeyFilter",
    "KeyStory",
    "LeaderboardResult",
    "MakeQuestion",
    "Measure",
    "OutputFormat",
    "PlannedKey",
    "Plot",
    "Question",
    "QuestionReader",
    "RunReport",
    "ScoreLine",
    "ScorerReport",
    "Side",
    "SideAnswers",
    "StoredSpec",
    "Table",
    "activity_of",
    "add_questions",
    "adjust_p_values",
    "anomaly_lines",
    "attempts_of",
    "bar",
    "brief",
    "choose",
    "choose_measures",
    "collect",
    "collect_plot_data",
    "column_kinds",
    "compare_sides",
    "comparison_sentences",
    "content_text",
    "cost_lines",
    "cost_sentences",
    "cost_table",
    "count_of",
    "counted",
    "describe_methods",
    "describe_missing",
    "differing_scorers",
    "dollars",
    "duration",
    "equal_answers",
    "export_lines",
    "failure_lines",
    "family_size",
    "field_table",
    "find_format",
    "find_planned",
    "first_line",
    "format_interval",
    "format_number",
    "format_p",
    "formats_of",
    "group_lines",
    "human_bytes",
    "jobs_text",
    "judge_against",
    "judge_level",
    "judges_of",
    "judgings_of",
    "leaderboards",
    "left_out_lines",
    "lines_of",
    "marked_lines",
    "money",
    "nearest_key",
    "pairs_between",
    "pairs_within",
    "parse_columns",
    "planned_plots",
    "progress_bar",
    "progress_html",
    "progress_line",
    "readable_input",
    "report_cells",
    "report_table",
    "resolve_columns",
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
    "used_dollars",
    "value_text",
    "with_events",
    "without_scorer_name",
    "write_csv",
    "write_jsonl",
]
