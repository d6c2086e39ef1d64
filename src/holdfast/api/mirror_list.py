"""The runs of a mirror, each with what is known of it without reading its plan and data.

A run's heartbeat says how far it is. Of a run whose process ended it says everything. Of one that was killed it may be
some records behind: then its journal is counted, which is fetched into the user's cache once, and afterwards only what
is new. A run that was removed from the mirror is not listed.
"""

import contextlib
from datetime import UTC, datetime

import msgspec

from holdfast.api.elsewhere import fetch_journal, read_heartbeats
from holdfast.api.recovering import mirrored_runs
from holdfast.api.summaries import MirrorStanding, RunSummary
from holdfast.errors import HoldfastError
from holdfast.journal.claims import Beat
from holdfast.journal.objects import open_objects
from holdfast.state import Index, standing_by, standing_of, status_by, status_of


class MirrorRun(msgspec.Struct, frozen=True):
    """A run of a mirror."""

    summary: RunSummary
    exact: bool
    """False if the mirror may hold records that the summary does not count."""


def list_mirror(url: str) -> list[MirrorRun]:
    """Every run of a mirror as its last heartbeat says, the one that was last heard of last."""
    every = list(mirrored_runs(open_objects(url)))
    beats = read_heartbeats([objects for objects, _, _ in every])
    found = [
        _heard(objects.url, experiment, run_id, heard.beat or Beat(0))
        for (objects, experiment, run_id), heard in zip(every, beats, strict=True)
        if not heard.removed
    ]
    return sorted(found, key=lambda each: each.summary.updated)


def count_records(found: MirrorRun) -> MirrorRun:
    """The same with the counts and the status of its records; unchanged if they cannot all be read."""
    if found.exact:
        return found
    with contextlib.suppress(HoldfastError):
        place = fetch_journal(found.summary.folder)
        index = Index(place.folder)
        try:
            if index.lost or index.story.started is None:
                return found  # the heartbeat counted what is lost
            status, reason = status_of(index.story, index.unfinished, standing_of(place.folder))
            counted = msgspec.structs.replace(
                found.summary,
                status=status,
                reason=reason,
                updated=found.summary.updated or index.story.updated,
                planned=index.story.planned,
                finished=index.finished,
                failed=index.failed,
                unfinished=index.unfinished,
            )
        finally:
            index.close()
        return MirrorRun(counted, exact=True)
    return found


def _heard(url: str, experiment: str, run_id: str, beat: Beat) -> MirrorRun:
    """What a heartbeat says. That of a live run is as new as can be; that of one that was released is its last word."""
    standing = standing_by(beat)
    status, reason = status_by(standing)
    lease = standing.lease
    if lease is None:
        return MirrorRun(RunSummary(run_id, experiment, status, reason, folder=url), exact=False)
    summary = RunSummary(
        run_id=run_id,
        experiment=experiment,
        status=status,
        reason=reason,
        updated=datetime.fromtimestamp(lease.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        planned=lease.planned,
        finished=lease.finished,
        failed=lease.failed,
        unfinished=max(lease.planned - lease.finished - lease.failed, 0),
        folder=url,
        mirror=MirrorStanding(url, standing.mirrored or 0, lease.acknowledged, lease.mirror_behind),
    )
    return MirrorRun(summary, exact=standing.held or (beat.ended and lease.released))
