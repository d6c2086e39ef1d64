"""What people and other programs read of a run: reports, tables, exports, comparisons.

Everything here only reads: `cells` computes a report from the index, `tables` and `formats` show it, `story` tells one
key, `compare` compares runs and models. Formats are registered in `formats.FORMATS`.
"""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.report.anomalies import Anomalies, CellAnomalies, equal_answers, unlooked
    from holdfast.report.cells import (
        BenchmarkData,
        CellReport,
        Example,
        PartialEvaluation,
        RunReport,
        ScorerReport,
        report_cells,
    )
    from holdfast.report.compare.comparison import (
        Adjustment,
        CommonKeys,
        Comparison,
        Observe,
        add_questions,
        adjust_p_values,
        compare_sides,
        differing_scorers,
        family_size,
    )
    from holdfast.report.compare.gate import (
        POWER,
        GateRule,
        GateVerdict,
        RequiredScore,
        judge_against,
        judge_level,
        shortcomings,
    )
    from holdfast.report.compare.leaderboard import Board, Ranked, leaderboards
    from holdfast.report.compare.pairwise import (
        PairwiseBoard,
        PairwiseRule,
        pairwise_boards,
        pairwise_methods,
        ranked_by_strength,
    )
    from holdfast.report.compare.results import ComparisonResult, GateResult, LeaderboardResult
    from holdfast.report.compare.sentences import (
        common_model,
        comparison_method,
        comparison_sentences,
        comparison_title,
        describe_boards,
        overlap_line,
    )
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
    from holdfast.report.compare.suite import Suite, SuiteModel, SuiteTask, suite_of
    from holdfast.report.costs import (
        Cost,
        CostLine,
        PaidTwice,
        StoredBenchmark,
        StoredSpec,
        cost_lines,
        paid_twice,
        sum_costs,
        total,
        unpriced_line,
        used_dollars,
    )
    from holdfast.report.examples import survey_answers
    from holdfast.report.formats import FORMATS, ExportSource, OutputFormat, ReportSource, find_format, formats_of
    from holdfast.report.formats.frames import Table, cost_table, field_table, sample_table, score_table
    from holdfast.report.formats.json_csv import escape_formula, write_csv, write_jsonl
    from holdfast.report.formats.latex import latex_notes, latex_table
    from holdfast.report.formats.markdown import markdown, markdown_table
    from holdfast.report.formats.parquet import score_kinds
    from holdfast.report.formats.plots import IMAGES, PLOT_KINDS, Plot, collect_plot_data, draw, planned_plots
    from holdfast.report.formats.restrictions import (
        WITHHELD,
        restricted_tasks,
        withhold,
        withhold_examples,
        withhold_messages,
    )
    from holdfast.report.formats.run_page import RunOrigin, RunPage, shown_keys
    from holdfast.report.lineage import (
        LifeReport,
        LineageReport,
        SavedWork,
        changed_fields,
        lineage_report,
        lineage_sentences,
    )
    from holdfast.report.lines import (
        EventLine,
        ExportLine,
        ScoreLine,
        conversation_of,
        export_lines,
        score_lines,
        with_events,
    )
    from holdfast.report.profile import (
        PHASES,
        ProfileReport,
        model_profiles,
        phase_table,
        profile_lines,
        profile_report,
    )
    from holdfast.report.progress.lines import ProgressLayout, note_lines, plain_line
    from holdfast.report.progress.page import progress_html
    from holdfast.report.progress.view import ProgressTracker, ProgressView, jobs_text
    from holdfast.report.questions import (
        UNKNOWN,
        MakeQuestion,
        Question,
        QuestionReader,
        asked_texts,
        column_kinds,
        parse_columns,
        readable_input,
        resolve_columns,
        value_text,
    )
    from holdfast.report.reduction import SampleGroups, read_weights
    from holdfast.report.selection import KeyFilter, PlannedKey, choose, find_planned, key_at, nearest_key
    from holdfast.report.story import (
        AttemptStory,
        KeyRecords,
        KeyStory,
        ScoreStory,
        StepOutline,
        StepStory,
        activity_of,
        attempts_of,
        collect,
        judgings_of,
        scores_of,
        started_at,
    )
    from holdfast.report.summaries.agreement import judges_of
    from holdfast.report.tables import (
        anomaly_lines,
        cost_sentences,
        duration,
        failure_lines,
        group_lines,
        left_out_lines,
        marked_lines,
        profile_title,
        report_table,
        retry_lines,
        short,
        tokens,
        wrong_lines,
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
        format_mean,
        format_number,
        format_p,
        human_bytes,
        lines_of,
        money,
        name_parameters,
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
            "anomalies": "Anomalies CellAnomalies equal_answers unlooked",
            "cells": "BenchmarkData CellReport Example PartialEvaluation RunReport ScorerReport report_cells",
            "compare.comparison": (
                "Adjustment CommonKeys Comparison Observe add_questions adjust_p_values compare_sides "
                "differing_scorers family_size"
            ),
            "compare.gate": "POWER GateRule GateVerdict RequiredScore judge_against judge_level shortcomings",
            "compare.leaderboard": "Board Ranked leaderboards",
            "compare.pairwise": "PairwiseBoard PairwiseRule pairwise_boards pairwise_methods ranked_by_strength",
            "compare.suite": "Suite SuiteModel SuiteTask suite_of",
            "compare.results": "ComparisonResult GateResult LeaderboardResult",
            "compare.sentences": (
                "common_model comparison_method comparison_sentences comparison_title describe_boards overlap_line"
            ),
            "compare.sides": (
                "CellName Measure Side SideAnswers choose_measures pairs_between pairs_within sides_in sides_of"
            ),
            "costs": (
                "Cost CostLine PaidTwice StoredBenchmark StoredSpec cost_lines paid_twice sum_costs total "
                "unpriced_line used_dollars"
            ),
            "examples": "survey_answers",
            "formats.restrictions": "WITHHELD restricted_tasks withhold withhold_examples withhold_messages",
            "formats": "FORMATS ExportSource OutputFormat ReportSource find_format formats_of",
            "formats.frames": "Table cost_table field_table sample_table score_table",
            "formats.json_csv": "escape_formula write_csv write_jsonl",
            "formats.latex": "latex_notes latex_table",
            "formats.markdown": "markdown markdown_table",
            "formats.parquet": "score_kinds",
            "formats.plots": "IMAGES PLOT_KINDS Plot collect_plot_data draw planned_plots",
            "formats.run_page": "RunOrigin RunPage shown_keys",
            "lineage": "LifeReport LineageReport SavedWork changed_fields lineage_report lineage_sentences",
            "lines": "EventLine ExportLine ScoreLine conversation_of export_lines score_lines with_events",
            "profile": "PHASES ProfileReport model_profiles phase_table profile_lines profile_report",
            "progress.lines": "ProgressLayout note_lines plain_line",
            "progress.page": "progress_html",
            "progress.view": "ProgressTracker ProgressView jobs_text",
            "questions": (
                "UNKNOWN MakeQuestion Question QuestionReader asked_texts column_kinds parse_columns readable_input "
                "resolve_columns value_text"
            ),
            "reduction": "SampleGroups read_weights",
            "selection": "KeyFilter PlannedKey choose find_planned key_at nearest_key",
            "story": (
                "AttemptStory KeyRecords KeyStory ScoreStory StepOutline StepStory activity_of attempts_of collect "
                "judgings_of scores_of started_at"
            ),
            "summaries.agreement": "judges_of",
            "tables": (
                "anomaly_lines cost_sentences duration failure_lines group_lines left_out_lines marked_lines "
                "profile_title report_table retry_lines short tokens wrong_lines"
            ),
            "text": (
                "Grid bar brief content_text count_of counted describe_methods describe_missing dollars first_line "
                "format_interval format_mean format_number format_p human_bytes lines_of money name_parameters "
                "shortened status_text "
                "status_tone text_of without_scorer_name"
            ),
        },
    )

__all__ = [
    "FORMATS",
    "IMAGES",
    "PHASES",
    "PLOT_KINDS",
    "POWER",
    "UNKNOWN",
    "WITHHELD",
    "Adjustment",
    "Anomalies",
    "AttemptStory",
    "BenchmarkData",
    "Board",
    "CellAnomalies",
    "CellName",
    "CellReport",
    "CommonKeys",
    "Comparison",
    "ComparisonResult",
    "Cost",
    "CostLine",
    "EventLine",
    "Example",
    "ExportLine",
    "ExportSource",
    "GateResult",
    "GateRule",
    "GateVerdict",
    "Grid",
    "KeyFilter",
    "KeyRecords",
    "KeyStory",
    "LeaderboardResult",
    "LifeReport",
    "LineageReport",
    "MakeQuestion",
    "Measure",
    "Observe",
    "OutputFormat",
    "PaidTwice",
    "PairwiseBoard",
    "PairwiseRule",
    "PartialEvaluation",
    "PlannedKey",
    "Plot",
    "ProfileReport",
    "ProgressLayout",
    "ProgressTracker",
    "ProgressView",
    "Question",
    "QuestionReader",
    "Ranked",
    "ReportSource",
    "RequiredScore",
    "RunOrigin",
    "RunPage",
    "RunReport",
    "SampleGroups",
    "SavedWork",
    "ScoreLine",
    "ScoreStory",
    "ScorerReport",
    "Side",
    "SideAnswers",
    "StepOutline",
    "StepStory",
    "StoredBenchmark",
    "StoredSpec",
    "Suite",
    "SuiteModel",
    "SuiteTask",
    "Table",
    "activity_of",
    "add_questions",
    "adjust_p_values",
    "anomaly_lines",
    "asked_texts",
    "attempts_of",
    "bar",
    "brief",
    "changed_fields",
    "choose",
    "choose_measures",
    "collect",
    "collect_plot_data",
    "column_kinds",
    "common_model",
    "compare_sides",
    "comparison_method",
    "comparison_sentences",
    "comparison_title",
    "content_text",
    "conversation_of",
    "cost_lines",
    "cost_sentences",
    "cost_table",
    "count_of",
    "counted",
    "describe_boards",
    "describe_methods",
    "describe_missing",
    "differing_scorers",
    "dollars",
    "draw",
    "duration",
    "equal_answers",
    "escape_formula",
    "export_lines",
    "failure_lines",
    "family_size",
    "field_table",
    "find_format",
    "find_planned",
    "first_line",
    "format_interval",
    "format_mean",
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
    "key_at",
    "latex_notes",
    "latex_table",
    "leaderboards",
    "left_out_lines",
    "lineage_report",
    "lineage_sentences",
    "lines_of",
    "markdown",
    "markdown_table",
    "marked_lines",
    "model_profiles",
    "money",
    "name_parameters",
    "nearest_key",
    "note_lines",
    "overlap_line",
    "paid_twice",
    "pairs_between",
    "pairs_within",
    "pairwise_boards",
    "pairwise_methods",
    "parse_columns",
    "phase_table",
    "plain_line",
    "planned_plots",
    "profile_lines",
    "profile_report",
    "profile_title",
    "progress_html",
    "ranked_by_strength",
    "read_weights",
    "readable_input",
    "report_cells",
    "report_table",
    "resolve_columns",
    "restricted_tasks",
    "retry_lines",
    "sample_table",
    "score_kinds",
    "score_lines",
    "score_table",
    "scores_of",
    "short",
    "shortcomings",
    "shortened",
    "shown_keys",
    "sides_in",
    "sides_of",
    "started_at",
    "status_text",
    "status_tone",
    "suite_of",
    "sum_costs",
    "survey_answers",
    "text_of",
    "tokens",
    "total",
    "unlooked",
    "unpriced_line",
    "used_dollars",
    "value_text",
    "with_events",
    "withhold",
    "withhold_examples",
    "withhold_messages",
    "without_scorer_name",
    "write_csv",
    "write_jsonl",
    "wrong_lines",
]
