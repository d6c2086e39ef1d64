"""A second implementation of every number in a report, to check the product's by.

It reads the journal itself and shares with reports only the records' types, the prices and the thresholds of anomalies:
no index, no fold, nothing of `stats`. Formulas are other ones than those of `stats` where there are two.
"""

import contextlib

import msgspec

from holdfast.api import Run, RunPlace
from holdfast.journal import Reader
from tests.oracle.comparison import differences
from tests.oracle.recount import Recount


class Checked(msgspec.Struct):
    """What came of comparing the reports of a run, one for each evaluation, with the journal."""

    records: int = 0
    numbers: int = 0
    differences: list[str] = msgspec.field(default_factory=list)
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Parts of the reports that were not compared, each with the reason."""


def check_reports(place: RunPlace) -> Checked:
    """Compute every number of a run's reports again."""
    found = Checked()
    recount = Recount()
    with Run(place) as run:
        for evaluation in [*run.report().evaluations] or [""]:
            report = run.report(evaluation)
            if recount.last != run.last_record():  # the run may be at work
                recount = _recount(place, run.last_record())
            where = f"evaluation {evaluation}: " if len(report.evaluations) > 1 else ""
            tally = differences(report, recount)
            found.differences += [f"{where}{each}" for each in tally.wrong]
            found.numbers += tally.numbers
            found.records = recount.records
    if recount.removed:
        found.unchecked.append("speed of models: the steps that it is computed from were removed (recover --no-events)")
    return found


def _recount(place: RunPlace, last: int) -> Recount:
    with contextlib.closing(Reader(place.journal)) as reader:
        return Recount(last).read(reader.read(live=True)).read_groups(place.folder)
