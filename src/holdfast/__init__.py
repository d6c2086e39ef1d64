"""Holdfast runs LLM evaluations that survive crashes. This module only re-exports the public names."""

from typing import TYPE_CHECKING, Any

from holdfast.errors import DriftError, HoldfastError, SpecError
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.api import (
        Run,
        Task,
        benchmark,
        compare,
        compare_async,
        gate,
        gate_async,
        leaderboard,
        leaderboard_async,
        list_runs,
        list_runs_async,
        open_run,
        recover,
        recover_async,
        recoverable,
        recoverable_async,
        run,
        run_async,
    )
    from holdfast.records import Answer, Message, Sample, Score
    from holdfast.score import scorer
    from holdfast.solve import Context, ToolFailedError, solver, tool

_MODULE_OF = {
    "Run": "holdfast.api",
    "Task": "holdfast.api",
    "benchmark": "holdfast.api",
    "compare": "holdfast.api",
    "compare_async": "holdfast.api",
    "gate": "holdfast.api",
    "gate_async": "holdfast.api",
    "leaderboard": "holdfast.api",
    "leaderboard_async": "holdfast.api",
    "list_runs": "holdfast.api",
    "list_runs_async": "holdfast.api",
    "recoverable": "holdfast.api",
    "recoverable_async": "holdfast.api",
    "open_run": "holdfast.api",
    "recover": "holdfast.api",
    "recover_async": "holdfast.api",
    "run": "holdfast.api",
    "run_async": "holdfast.api",
    "Answer": "holdfast.records.samples",
    "Message": "holdfast.records.samples",
    "Sample": "holdfast.records.samples",
    "Score": "holdfast.records.samples",
    "scorer": "holdfast.score",
    "Context": "holdfast.solve",
    "ToolFailedError": "holdfast.solve",
    "solver": "holdfast.solve",
    "tool": "holdfast.solve",
}

__all__ = [
    "Answer",
    "Context",
    "DriftError",
    "HoldfastError",
    "Message",
    "Run",
    "Sample",
    "Score",
    "SpecError",
    "Task",
    "ToolFailedError",
    "__version__",
    "benchmark",
    "compare",
    "compare_async",
    "gate",
    "gate_async",
    "leaderboard",
    "leaderboard_async",
    "list_runs",
    "list_runs_async",
    "open_run",
    "recover",
    "recover_async",
    "recoverable",
    "recoverable_async",
    "run",
    "run_async",
    "scorer",
    "solver",
    "tool",
]


if not TYPE_CHECKING:  # a type checker that saw `__getattr__` would accept every misspelt name

    def __getattr__(name: str) -> Any:
        """Import a public name on first use, so that `import holdfast` stays fast."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        import importlib

        found = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return __all__
