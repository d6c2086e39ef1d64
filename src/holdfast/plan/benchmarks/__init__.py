"""Benchmarks: tasks that ship with Holdfast, each a few declarations and a card."""

from holdfast.plan.benchmarks.card import JUDGE, NOTHING_FLATTERS, Benchmark, task_fields
from holdfast.plan.benchmarks.expansion import adopt_benchmarks, changed_fields, expand_benchmarks, mark_changes
from holdfast.plan.benchmarks.registry import (
    all_benchmarks,
    broken_packages,
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
    "changed_fields",
    "expand_benchmarks",
    "find_benchmark",
    "find_conversion",
    "is_benchmark_name",
    "mark_changes",
    "task_fields",
]
