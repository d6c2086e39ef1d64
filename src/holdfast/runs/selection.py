"""The runs of a store or a mirror that a caller wants to list."""

from collections.abc import Sequence

import msgspec

from holdfast.errors import UsageError
from holdfast.journal import is_url
from holdfast.runs.mirror.remote import count_records, list_mirror
from holdfast.runs.summary import RunSummary, list_runs
from holdfast.spec import nearest

STATUSES = ("running", "stalled", "interrupted", "completed", "failed", "cancelled", "unreadable")


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs to list. `limit`: at most so many, the newest; None means all."""

    experiment: str | None = None
    status: str | None = None
    tag: str | None = None
    limit: int | None = None

    def select(self, every: Sequence[RunSummary]) -> list[RunSummary]:
        found = [
            run
            for run in every
            if self.experiment in (None, run.experiment)
            and self.status in (None, run.status)
            and (self.tag is None or self.tag in run.tags)
        ]
        return found if self.limit is None else found[-self.limit :] if self.limit else []


class SelectedRuns(msgspec.Struct, frozen=True):
    """The runs that were chosen, the newest last. `total`: how many there are. `inexact`: the URLs of mirrored runs
    with more records than could be counted.
    """

    runs: list[RunSummary]
    total: int
    inexact: frozenset[str] = frozenset()


def select_runs(where: str, chosen: RunFilter) -> SelectedRuns:
    """List runs of a folder or of a mirror. Raises UsageError for an unknown status."""
    if chosen.status is not None and chosen.status not in STATUSES:
        raise UsageError(f"--status {chosen.status}: there is no such status{nearest(chosen.status, set(STATUSES))}")
    if is_url(where):
        return _select_in_mirror(where, chosen)
    every = list(list_runs(where))
    return SelectedRuns(chosen.select(every), len(every))


def _select_in_mirror(url: str, chosen: RunFilter) -> SelectedRuns:
    """Counting records is slow, so it is done only for runs that are listed, unless a status is selected: only the
    records have it.
    """
    if chosen.tag is not None:
        raise UsageError(
            f"--tag {chosen.tag}: the list of a mirror comes from heartbeats, which have no tags; leave it out, or "
            "show one run with: holdfast show URL"
        )
    every = list_mirror(url)
    of_experiment = [each for each in every if chosen.experiment in (None, each.summary.experiment)]
    is_part = chosen.status is None and chosen.limit is not None
    counted = list(map(count_records, of_experiment[-(chosen.limit or 0) :] if is_part else of_experiment))
    inexact = frozenset(each.summary.folder for each in counted if not each.exact)
    return SelectedRuns(chosen.select([each.summary for each in counted]), len(every), inexact)
