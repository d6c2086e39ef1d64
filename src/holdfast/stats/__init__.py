"""Pure numbers: a mean with its uncertainty, and quantiles. Nothing here knows what was measured.

No network, clock, files or event loop. scipy is imported where it is used.
"""

from holdfast.stats.intervals import Summary, format_interval, paired_difference, summarise
from holdfast.stats.quantiles import quantile

__all__ = ["Summary", "format_interval", "paired_difference", "quantile", "summarise"]
