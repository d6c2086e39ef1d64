"""Pure numbers: what was measured, how sure that is, and what differs. Nothing here knows what the numbers are of.

No network, clock, files or event loop. numpy and scipy are brought in by the first method that needs them; what draws
at random takes a seed. docs/statistics.md says which method is used when.
"""

from typing import TYPE_CHECKING, Any

from holdfast.stats.intervals import Summary, format_interval, paired_difference, student, summarise, wilson
from holdfast.stats.quantiles import quantile
from holdfast.stats.reducers import (
    at_least,
    cons_at_k,
    maximum,
    mean,
    median,
    mode,
    mode_label,
    pass_at_k,
    pass_power_k,
    reducer,
)

if TYPE_CHECKING:
    from holdfast.stats.resampling import bootstrap

_NEEDS_NUMPY = {
    "bootstrap": "resampling",
}

__all__ = [
    "Summary",
    "at_least",
    "bootstrap",
    "cons_at_k",
    "format_interval",
    "maximum",
    "mean",
    "median",
    "mode",
    "mode_label",
    "paired_difference",
    "pass_at_k",
    "pass_power_k",
    "quantile",
    "reducer",
    "student",
    "summarise",
    "wilson",
]


if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        """A report of a run needs none of these, and so not the time that importing numpy takes."""
        if name not in _NEEDS_NUMPY:
            raise AttributeError(f"module 'holdfast.stats' has no attribute {name!r}")
        import importlib

        found = getattr(importlib.import_module(f"holdfast.stats.{_NEEDS_NUMPY[name]}"), name)
        globals()[name] = found
        return found
