"""Runs: start, resume, fork, score, inspect, recover and remove them. Used by the command line and the Python API."""

from holdfast.runs.execution.drift import Retry
from holdfast.runs.execution.execute import execute, extend, new_run_location
from holdfast.runs.execution.preparation import Given, check
from holdfast.runs.execution.session import Observe, RunOutcome
from holdfast.runs.run import Run, open_run
from holdfast.runs.run_list import list_runs
from holdfast.runs.store.lookup import RunLocation, default_store, find_run
from holdfast.runs.summary import RunSummary

__all__ = [
    "Given",
    "Observe",
    "Retry",
    "Run",
    "RunLocation",
    "RunOutcome",
    "RunSummary",
    "check",
    "default_store",
    "execute",
    "extend",
    "find_run",
    "list_runs",
    "new_run_location",
    "open_run",
]
