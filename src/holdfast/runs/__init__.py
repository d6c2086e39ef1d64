"""Runs: start, resume, fork, score, inspect, recover and remove them. Used by the command line and the Python API."""

from typing import TYPE_CHECKING

from holdfast.lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.runs.actions import naming_parameters
    from holdfast.runs.compare.changes import (
        CHANGES,
        Change,
        ChangedValues,
        KeyTable,
        KeyTableHead,
        TableRow,
        changes_of,
    )
    from holdfast.runs.compare.comparison import comparison_of
    from holdfast.runs.compare.gate import GateOptions, gate_result_of
    from holdfast.runs.compare.leaderboard import leaderboard_of
    from holdfast.runs.execution.answer_selection import AnswerSelection
    from holdfast.runs.execution.drift import Retry
    from holdfast.runs.execution.execute import (
        execute,
        extend,
        new_event_loop,
        new_run_location,
        run_blocking,
        run_in_loop,
    )
    from holdfast.runs.execution.preparation import Given, check, check_startable
    from holdfast.runs.execution.progress import LiveDisplay, PlainDisplay, watch_progress
    from holdfast.runs.execution.session import Observe, RunOutcome
    from holdfast.runs.export import Export, lines_to_export, select_lines
    from holdfast.runs.maintenance.configuration import RetentionRule, configuration_path, name_option, read_policies
    from holdfast.runs.overrides import (
        Overrides,
        assignments,
        left_without_failures,
        load_given,
        resolve_given,
        resolve_run,
        resolve_spec_file,
    )
    from holdfast.runs.run import Run, open_run
    from holdfast.runs.scoring import ScoreRequest
    from holdfast.runs.selection import RunFilter, list_runs, select_runs
    from holdfast.runs.store.lookup import RunLocation, default_store, find_run
    from holdfast.runs.store.provenance import SpecVersion
    from holdfast.runs.summary import EvaluationLine, RunSummary
else:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = lazy_exports(
        __name__,
        {
            "actions": "naming_parameters",
            "compare.changes": "CHANGES Change ChangedValues KeyTable KeyTableHead TableRow changes_of",
            "execution.answer_selection": "AnswerSelection",
            "compare.comparison": "comparison_of",
            "compare.gate": "GateOptions gate_result_of",
            "compare.leaderboard": "leaderboard_of",
            "execution.drift": "Retry",
            "execution.execute": "execute extend new_event_loop new_run_location run_blocking run_in_loop",
            "execution.preparation": "Given check check_startable",
            "store.provenance": "SpecVersion",
            "execution.progress": "LiveDisplay PlainDisplay watch_progress",
            "execution.session": "Observe RunOutcome",
            "export": "Export lines_to_export select_lines",
            "overrides": "Overrides assignments left_without_failures load_given resolve_given resolve_run "
            "resolve_spec_file",
            "run": "Run open_run",
            "scoring": "ScoreRequest",
            "selection": "RunFilter list_runs select_runs",
            "maintenance.configuration": "RetentionRule configuration_path name_option read_policies",
            "store.lookup": "RunLocation default_store find_run",
            "summary": "EvaluationLine RunSummary",
        },
    )

__all__ = [
    "CHANGES",
    "AnswerSelection",
    "Change",
    "ChangedValues",
    "EvaluationLine",
    "Export",
    "GateOptions",
    "Given",
    "KeyTable",
    "KeyTableHead",
    "LiveDisplay",
    "Observe",
    "Overrides",
    "PlainDisplay",
    "RetentionRule",
    "Retry",
    "Run",
    "RunFilter",
    "RunLocation",
    "RunOutcome",
    "RunSummary",
    "ScoreRequest",
    "SpecVersion",
    "TableRow",
    "assignments",
    "changes_of",
    "check",
    "check_startable",
    "comparison_of",
    "configuration_path",
    "default_store",
    "execute",
    "extend",
    "find_run",
    "gate_result_of",
    "leaderboard_of",
    "left_without_failures",
    "lines_to_export",
    "list_runs",
    "load_given",
    "name_option",
    "naming_parameters",
    "new_event_loop",
    "new_run_location",
    "open_run",
    "read_policies",
    "resolve_given",
    "resolve_run",
    "resolve_spec_file",
    "run_blocking",
    "run_in_loop",
    "select_lines",
    "select_runs",
    "watch_progress",
]
