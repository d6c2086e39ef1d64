"""What commands, scripts and notebooks call: run, go on, look."""

from holdfast.api.executing import execute, extend, place_for
from holdfast.api.facade import Task, recover, recover_async, run, run_async
from holdfast.api.places import RunPlace, default_store, find_run
from holdfast.api.preparing import Given, check
from holdfast.api.resuming import Retry
from holdfast.api.run_list import list_runs
from holdfast.api.runs import Run, open_run
from holdfast.api.summaries import RunSummary
from holdfast.api.working import Ended, Observe

__all__ = [
    "Ended",
    "Given",
    "Observe",
    "Retry",
    "Run",
    "RunPlace",
    "RunSummary",
    "Task",
    "check",
    "default_store",
    "execute",
    "extend",
    "find_run",
    "list_runs",
    "open_run",
    "place_for",
    "recover",
    "recover_async",
    "run",
    "run_async",
]
