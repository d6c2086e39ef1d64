"""What commands, scripts and notebooks call: run, go on, look."""

from holdfast.api.executing import Ended, Given, check, execute
from holdfast.api.facade import Task, run, run_async
from holdfast.api.places import RunPlace, default_store, find_run, runs_in
from holdfast.api.runs import Run, RunSummary, list_runs

__all__ = [
    "Ended",
    "Given",
    "Run",
    "RunPlace",
    "RunSummary",
    "Task",
    "check",
    "default_store",
    "execute",
    "find_run",
    "list_runs",
    "run",
    "run_async",
    "runs_in",
]
