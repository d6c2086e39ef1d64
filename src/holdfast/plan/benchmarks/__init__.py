"""Benchmarks: tasks that ship with Holdfast, each a few declarations and a card."""

from holdfast.plan.benchmarks.card import JUDGE, NOTHING_FLATTERS, Benchmark, task_fields
from holdfast.plan.benchmarks.expansion import (
    adopt_benchmarks,
    change_benchmarks,
    changed_fields,
    find_benchmark_doubts,
    resolve_benchmarks,
)
from holdfast.plan.benchmarks.registry import (
    all_benchmarks,
    broken_packages,
    experiment_of,
    find_benchmark,
    find_conversion,
    is_benchmark_name,
)

__all__ = [
    "JUDGE",
    "NOTHING_FLATTERS",
    "Benchmark",
    "adopt_benchmarks",
    "all_benchmarks",
    "broken_packages",
    "change_benchmarks",
    "changed_fields",
    "experiment_of",
    "find_benchmark",
    "find_benchmark_doubts",
    "find_conversion",
    "is_benchmark_name",
    "resolve_benchmarks",
    "task_fields",
]
