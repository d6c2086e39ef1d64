"""Lists the runs of a store or a mirror that a caller wants, with their summaries. Reads only.

Summaries of runs that have not changed come from the catalogue, a cache that can be deleted at any time. One run that
cannot be read never hides the others.
"""

import os
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import DamagedError, UsageError, reason_of
from holdfast.journal import is_url
from holdfast.runs.store.lookup import RunLocation, runs_in
from holdfast.runs.summary import RunSummary
from holdfast.spec import nearest
from holdfast.state import Catalogue, is_held, stamp_of

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
    from holdfast.runs.mirror.remote import count_records, list_mirror  # late: the runs of a store do not need it

    every = list_mirror(url)
    of_experiment = [each for each in every if chosen.experiment in (None, each.summary.experiment)]
    is_part = chosen.status is None and chosen.limit is not None
    counted = list(map(count_records, of_experiment[-(chosen.limit or 0) :] if is_part else of_experiment))
    inexact = frozenset(each.summary.folder for each in counted if not each.exact)
    return SelectedRuns(chosen.select([each.summary for each in counted]), len(every), inexact)


def list_runs(store: str) -> Iterator[RunSummary]:
    """Every run of a store, the newest last."""
    catalogue = Catalogue(store, ",".join(RunSummary.__struct_fields__)) if os.path.isdir(store) else None
    summaries, folders = [], set[str]()
    for place in runs_in(store):
        folders.add(place.folder)
        try:
            summary = _load_cached(catalogue, place)
            if summary is None:
                from holdfast.runs.run import Run  # late: usually every summary is in the catalogue

                stamp = stamp_of(place.folder)  # before reading: a change in between invalidates the cached summary
                with Run(place, quiet=True, sizes_only=True) as run:
                    summary = run.summary()
                if catalogue is not None and summary.status not in {"running", "stalled"}:
                    catalogue.put(place.folder, stamp, msgspec.json.encode(summary))
            if os.path.isdir(place.folder):
                summaries.append(summary)
        except Exception as error:  # noqa: BLE001 - no error of one run may hide the others
            if os.path.isdir(place.folder):  # else it was removed in the meantime
                names, damage = (
                    (place.run_id, place.experiment),
                    [str(error)] if isinstance(error, DamagedError) else [],
                )
                summaries.append(RunSummary(*names, "unreadable", reason_of(error), folder=place.folder, damage=damage))
    if catalogue is not None:
        catalogue.keep_only(folders)
        catalogue.close()
    yield from sorted(summaries, key=lambda summary: summary.created)


def _load_cached(catalogue: Catalogue | None, place: RunLocation) -> RunSummary | None:
    """The cached summary of a run that no process writes and whose files have not changed; None if there is none."""
    if catalogue is None or is_held(place.folder):
        return None
    cached = catalogue.find(place.folder, stamp_of(place.folder))
    try:
        summary = None if cached is None else msgspec.json.decode(cached, type=RunSummary)
    except msgspec.DecodeError:
        return None
    if summary is None or summary.status == "interrupted":
        return None  # the reason of an interruption also depends on the lock and the lease, not only on files
    return msgspec.structs.replace(summary, bytes=place.size())
