"""Joins and schedules: one process's work on one run."""

from holdfast.engine.asking import identity_of, open_batch_api, open_provider
from holdfast.engine.running import Engine, Job, Progress
from holdfast.engine.watching import Orders, Watch

__all__ = ["Engine", "Job", "Orders", "Progress", "Watch", "identity_of", "open_batch_api", "open_provider"]
