"""Whether the reports of a run are right: every number is computed again from the journal, scores are made again."""

import asyncio
import contextlib

import msgspec

from holdfast.api.places import RunPlace
from holdfast.api.runs import Run
from holdfast.journal import Reader
from holdfast.report.differing import differences
from holdfast.report.recounting import Recount
from holdfast.report.rescoring import rescore
from holdfast.state import Index


class ScoresChecked(msgspec.Struct):
    """What `verify --scores --json` says: a contract, fields are only ever added."""

    records: int = 0
    numbers: int = 0
    """Of all reports, one for each evaluation, that were compared."""
    differences: list[str] = msgspec.field(default_factory=list)
    rescored: dict[str, int] = msgspec.field(default_factory=dict)
    """By scorer: how many recorded scores were made again."""
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """By scorer: why it was not asked again."""
    unchecked: list[str] = msgspec.field(default_factory=list)
    """Parts of the reports that were not compared, each with the reason."""


def check_scores(place: RunPlace) -> ScoresChecked:
    """Reads the journal from its beginning, beside the index that reports are made from. Writes nothing."""
    found = ScoresChecked()
    recount = Recount()
    with Run(place) as run:
        for evaluation in [*run.report().evaluations] or [""]:
            report = run.report(evaluation)
            if recount.last != run.last_record():  # the run may be at work
                recount = _recount(place, run.last_record())
            where = f"evaluation {evaluation}: " if len(report.evaluations) > 1 else ""
            again = asyncio.run(rescore(place.folder, recount, evaluation))
            tally = differences(report, recount)
            found.differences += [f"{where}{each}" for each in (*tally.wrong, *again.differences)]
            found.numbers += tally.numbers
            found.records = recount.records
            for name, count in again.again.items():
                found.rescored[name] = found.rescored.get(name, 0) + count
            found.skipped |= again.skipped
    if recount.removed:
        found.unchecked.append("speed of models: the steps that it is computed from were removed (recover --no-events)")
    return found


def check_index(place: RunPlace) -> list[str]:
    """Compare the totals of the index with those of the journal, read from its beginning. A sentence for each
    difference; an index that has any is removed, and rebuilt by the next reader.
    """
    with contextlib.closing(Index(place.folder)) as index:
        with contextlib.closing(Index(place.folder, kept=False, last=index.last_n)) as fresh:
            expected = fresh.totals()
        found = index.totals()
        wrong = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
        if wrong:
            index.remove()
    told = (f"{name}: {found.get(name)} instead of {expected.get(name)}" for name in wrong)
    return [f"the index was wrong and is rebuilt by the next command: {', '.join(told)}"] if wrong else []


def _recount(place: RunPlace, last: int) -> Recount:
    with contextlib.closing(Reader(place.journal)) as reader:
        return Recount(last).read(reader.read(live=True)).read_groups(place.folder)
