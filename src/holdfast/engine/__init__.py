"""Joins and schedules: one process's work on one run."""

from holdfast.engine.client import identity_of, open_batch_api, open_provider
from holdfast.engine.engine import Engine, Job, Progress
from holdfast.engine.watchdog import Orders, Watch

__all__ = ["Engine", "Job", "Orders", "Progress", "Watch", "identity_of", "open_batch_api", "open_provider"]
