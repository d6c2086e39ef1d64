"""A second implementation of every number in a report, to check the product's by.

It reads the journal itself and shares with reports only the records' types, the prices and the thresholds of anomalies:
no index, no fold, nothing of `stats`. Formulas are other ones than those of `stats` where there are two.
"""

import contextlib

import msgspec

from holdfast.journal import Reader
from holdfast.runs import RunLocation
from holdfast.runs.opened import report_of
from holdfast.state import Index
from tests.oracle.comparison import differences
from tests.oracle.recount import Recount


class Checked(msgspec.Struct):
    """What came of comparing the reports of a run, one for each evaluation, with the journal."""

    records: int = 0
    numbers: int = 0
    differences: list[str] = msgspec.field(default_factory=list)
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Parts of the reports that were not compared, each with the reason."""


def check_reports(place: RunLocation) -> Checked:
    """Compute every number of a run's reports again."""
    found = Checked()
    with contextlib.closing(Index(place.folder)) as index, contextlib.closing(Reader(place.journal)) as reader:
        recount = Recount(index.last_n).read(reader.read(live=True)).read_plan(place.folder).read_groups(place.folder)
        for evaluation in [*index.story.evaluations] or [""]:
            report = report_of(place, index, evaluation)
            where = f"evaluation {evaluation}: " if len(report.evaluations) > 1 else ""
            tally = differences(report, recount)
            found.differences += [f"{where}{each}" for each in tally.wrong]
            found.numbers += tally.numbers
    found.records = recount.records
    if recount.removed:
        found.unchecked.append("speed of models: the steps that it is computed from were removed (recover --no-events)")
    return found
