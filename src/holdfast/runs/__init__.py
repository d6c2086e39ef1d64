"""Runs: start, resume, fork, score, inspect, recover and remove them. Used by the command line and the Python API."""

from holdfast.runs.execution.execute import execute, extend, place_for
from holdfast.runs.execution.preparation import Given, check
from holdfast.runs.execution.resume import Retry
from holdfast.runs.execution.session import Ended, Observe
from holdfast.runs.run import Run, open_run
from holdfast.runs.run_list import list_runs
from holdfast.runs.store.lookup import RunPlace, default_store, find_run
from holdfast.runs.summary import RunSummary

__all__ = [
    "Ended",
    "Given",
    "Observe",
    "Retry",
    "Run",
    "RunPlace",
    "RunSummary",
    "check",
    "default_store",
    "execute",
    "extend",
    "find_run",
    "list_runs",
    "open_run",
    "place_for",
]
