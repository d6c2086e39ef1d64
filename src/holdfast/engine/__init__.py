"""Joins and schedules: one process's work on one run."""

from holdfast.engine.asking import open_provider
from holdfast.engine.running import Engine, Job, Progress

__all__ = ["Engine", "Job", "Progress", "open_provider"]
