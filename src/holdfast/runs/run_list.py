"""Lists the runs of a store with their summaries. One run that cannot be read never hides the others.

Summaries of runs that have not changed come from the catalogue, a cache that can be deleted at any time.
"""

import os
from collections.abc import Iterator

import msgspec

from holdfast.errors import DamagedError, reason_of
from holdfast.runs.store.lookup import RunLocation, runs_in
from holdfast.runs.summary import RunSummary
from holdfast.state import Catalogue, is_held, stamp_of


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
