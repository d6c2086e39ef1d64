"""The list of a run's samples that the viewer pages through, sorts, filters and searches.

`file` owns the database in the user's cache, `rows` reads the samples of a run, `writer` brings pages of the database
up to date, `upkeep` decides which and does it in the background, `filters`, `queries` and `lines` answer requests.
Everything is derived from the run and can be deleted at any time.
"""

from holdfast.view.table.file import FAILURES, is_damage
from holdfast.view.table.filters import (
    COLUMN_PREFIX,
    FILTERS,
    SCORE_PREFIX,
    SORTS,
    SampleFilter,
    parse_filter,
    without_scores,
)
from holdfast.view.table.lines import RunFacts, SampleLine, read_names
from holdfast.view.table.queries import (
    LIMIT_MAX,
    LOOKED_MAX,
    CauseCount,
    FoundSamples,
    SampleQuery,
    count_causes,
    find_neighbours,
    find_samples,
)
from holdfast.view.table.upkeep import SampleTable, SampleTables, TableProgress

__all__ = [
    "COLUMN_PREFIX",
    "FAILURES",
    "FILTERS",
    "LIMIT_MAX",
    "LOOKED_MAX",
    "SCORE_PREFIX",
    "SORTS",
    "CauseCount",
    "FoundSamples",
    "RunFacts",
    "SampleFilter",
    "SampleLine",
    "SampleQuery",
    "SampleTable",
    "SampleTables",
    "TableProgress",
    "count_causes",
    "find_neighbours",
    "find_samples",
    "is_damage",
    "parse_filter",
    "read_names",
    "without_scores",
]
