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
    from holdfast.runs.compare.comparison import ShownQuestions, comparison_of
    from holdfast.runs.compare.gate import GateOptions, gate_result_of
    from holdfast.runs.compare.leaderboard import leaderboard_of
    from holdfast.runs.execution.answer_selection import AnswerSelection
    from holdfast.runs.execution.drift import Retry
    from holdfast.runs.execution.execute import (
        new_event_loop,
        new_run_location,
        run_blocking,
    )
    from holdfast.runs.execution.preparation import (
        Given,
        ServerCheck,
        check,
        check_servers,
        check_startable,
        find_modules_beside,
    )
    from holdfast.runs.execution.progress import LiveDisplay, PlainDisplay, observer, watch_progress
    from holdfast.runs.execution.resume import read_story, stored_spec
    from holdfast.runs.execution.session import Observe, ObservedWork, RunOutcome, is_too_many
    from holdfast.runs.execution.workers import ShardChoice, execute, extend, join, require_claims
    from holdfast.runs.executors.placement import Ended, Placement, PlacementOptions
    from holdfast.runs.executors.process import Supervisor, WorkerCommand, find_supervisor
    from holdfast.runs.executors.ray_pool import RayChoice, RayPool, check_hosts, check_ray, connected, count_places
    from holdfast.runs.executors.totals import WorkerTotals, whole_run
    from holdfast.runs.export import (
        Export,
        ReportChoice,
        lines_to_export,
        report_format,
        report_source,
        select_lines,
    )
    from holdfast.runs.fork import Forecast, Fork, is_made_fork, make_fork
    from holdfast.runs.maintenance.configuration import RetentionRule, configuration_path, name_option, read_policies
    from holdfast.runs.maintenance.merge import Merged, merge
    from holdfast.runs.maintenance.recoverable import Recoverable, damage_of, list_recoverable
    from holdfast.runs.maintenance.recovery import Recovered, RecoveryOptions, check_mirror, recover, restore_into
    from holdfast.runs.mirror.remote import find_in_mirror
    from holdfast.runs.overrides import (
        Overrides,
        assignments,
        left_without_failures,
        load_given,
        resolve_run,
        resolve_spec_file,
    )
    from holdfast.runs.replay import open_replay, play, replay_in_debugger
    from holdfast.runs.requests import add_note, cancel, change_tags, set_score, tune
    from holdfast.runs.run import Run, open_run
    from holdfast.runs.scoring import (
        Edit,
        Scored,
        ScoreRequest,
        Trial,
        find_author,
        given_to_score,
        resolve_scorers,
        try_scorers,
    )
    from holdfast.runs.selection import RunFilter, list_runs, select_runs
    from holdfast.runs.shard_scorer import rescan_anomalies, score
    from holdfast.runs.shards.layout import shard_location
    from holdfast.runs.shards.origins import Origin, find_origins, read_session
    from holdfast.runs.shards.standings import shard_standings
    from holdfast.runs.store.lookup import (
        RunLocation,
        command_with_runs,
        default_store,
        find_run,
        finish_removals,
        folders_in,
        newest_runs,
        suggest_resume_command,
        wrong_names,
    )
    from holdfast.runs.store.trust import references_of, state_folder
    from holdfast.runs.summary import (
        EvaluationLine,
        MirrorProgress,
        RunSummary,
        ShardStatus,
        WaitingJob,
        count_shards,
    )
    from holdfast.runs.verification import ScoresChecked, verify_files, verify_mirrored
else:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = lazy_exports(
        __name__,
        {
            "actions": "naming_parameters",
            "compare.changes": "CHANGES Change ChangedValues KeyTable KeyTableHead TableRow changes_of",
            "compare.comparison": "ShownQuestions comparison_of",
            "compare.gate": "GateOptions gate_result_of",
            "compare.leaderboard": "leaderboard_of",
            "execution.answer_selection": "AnswerSelection",
            "execution.drift": "Retry",
            "execution.execute": "new_event_loop new_run_location run_blocking",
            "execution.preparation": "Given ServerCheck check check_servers check_startable find_modules_beside",
            "execution.progress": "LiveDisplay PlainDisplay observer watch_progress",
            "execution.resume": "read_story stored_spec",
            "execution.session": "Observe ObservedWork RunOutcome is_too_many",
            "executors.placement": "Ended Placement PlacementOptions",
            "executors.process": "Supervisor WorkerCommand find_supervisor",
            "executors.ray_pool": "RayChoice RayPool check_hosts check_ray connected count_places",
            "executors.totals": "WorkerTotals whole_run",
            "export": "Export ReportChoice lines_to_export report_format report_source select_lines",
            "fork": "Forecast Fork is_made_fork make_fork",
            "maintenance.configuration": "RetentionRule configuration_path name_option read_policies",
            "maintenance.recoverable": "Recoverable damage_of list_recoverable",
            "maintenance.recovery": "Recovered RecoveryOptions check_mirror recover restore_into",
            "maintenance.merge": "Merged merge",
            "mirror.remote": "find_in_mirror",
            "overrides": ("Overrides assignments left_without_failures load_given resolve_run resolve_spec_file"),
            "replay": "open_replay play replay_in_debugger",
            "requests": "add_note cancel change_tags set_score tune",
            "run": "Run open_run",
            "scoring": ("Edit ScoreRequest Scored Trial find_author given_to_score resolve_scorers try_scorers"),
            "selection": "RunFilter list_runs select_runs",
            "shard_scorer": "rescan_anomalies score",
            "shards.layout": "shard_location",
            "shards.origins": "Origin find_origins read_session",
            "shards.standings": "shard_standings",
            "store.lookup": (
                "RunLocation command_with_runs default_store find_run finish_removals folders_in newest_runs "
                "suggest_resume_command wrong_names"
            ),
            "store.trust": "references_of state_folder",
            "summary": "EvaluationLine MirrorProgress RunSummary ShardStatus WaitingJob count_shards",
            "verification": "ScoresChecked verify_files verify_mirrored",
            "execution.workers": "ShardChoice execute extend join require_claims",
        },
    )

__all__ = [
    "CHANGES",
    "AnswerSelection",
    "Change",
    "ChangedValues",
    "Edit",
    "Ended",
    "EvaluationLine",
    "Export",
    "Forecast",
    "Fork",
    "GateOptions",
    "Given",
    "KeyTable",
    "KeyTableHead",
    "LiveDisplay",
    "Merged",
    "MirrorProgress",
    "Observe",
    "ObservedWork",
    "Origin",
    "Overrides",
    "Placement",
    "PlacementOptions",
    "PlainDisplay",
    "RayChoice",
    "RayPool",
    "Recoverable",
    "Recovered",
    "RecoveryOptions",
    "ReportChoice",
    "RetentionRule",
    "Retry",
    "Run",
    "RunFilter",
    "RunLocation",
    "RunOutcome",
    "RunSummary",
    "ScoreRequest",
    "Scored",
    "ScoresChecked",
    "ServerCheck",
    "ShardChoice",
    "ShardStatus",
    "ShownQuestions",
    "Supervisor",
    "TableRow",
    "Trial",
    "WaitingJob",
    "WorkerCommand",
    "WorkerTotals",
    "add_note",
    "assignments",
    "cancel",
    "change_tags",
    "changes_of",
    "check",
    "check_hosts",
    "check_mirror",
    "check_ray",
    "check_servers",
    "check_startable",
    "command_with_runs",
    "comparison_of",
    "configuration_path",
    "connected",
    "count_places",
    "count_shards",
    "damage_of",
    "default_store",
    "execute",
    "extend",
    "find_author",
    "find_in_mirror",
    "find_modules_beside",
    "find_origins",
    "find_run",
    "find_supervisor",
    "finish_removals",
    "folders_in",
    "gate_result_of",
    "given_to_score",
    "is_made_fork",
    "is_too_many",
    "join",
    "leaderboard_of",
    "left_without_failures",
    "lines_to_export",
    "list_recoverable",
    "list_runs",
    "load_given",
    "make_fork",
    "merge",
    "name_option",
    "naming_parameters",
    "new_event_loop",
    "new_run_location",
    "newest_runs",
    "observer",
    "open_replay",
    "open_run",
    "play",
    "read_policies",
    "read_session",
    "read_story",
    "recover",
    "references_of",
    "replay_in_debugger",
    "report_format",
    "report_source",
    "require_claims",
    "rescan_anomalies",
    "resolve_run",
    "resolve_scorers",
    "resolve_spec_file",
    "restore_into",
    "run_blocking",
    "score",
    "select_lines",
    "select_runs",
    "set_score",
    "shard_location",
    "shard_standings",
    "state_folder",
    "stored_spec",
    "suggest_resume_command",
    "try_scorers",
    "tune",
    "verify_files",
    "verify_mirrored",
    "watch_progress",
    "whole_run",
    "wrong_names",
]
