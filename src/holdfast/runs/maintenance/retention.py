"""Selects runs to remove by age, count or size (`gc`), and removes them so that a crash never leaves half a run.

Rules never select runs that are being written, that cannot be read, or whose batch jobs wait at a server. Runs that are
not completed are selected only by rules that name their status. Counts apply within one experiment. No run needs
another one: a fork has copies of what it reuses.

A run is first renamed to a hidden name, which makes it no run, and then deleted; the next `gc` or `doctor --fix`
deletes what a crash leaves.

If the mirror is removed too, it is removed first: after a crash the folder still has its URL, and the same `gc` command
finishes both.
"""

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence

import msgspec

from holdfast.errors import HeldError, HoldfastError, StoreError, UsageError
from holdfast.journal import (
    SHARDS,
    FolderSource,
    Lock,
    MirrorSource,
    Reader,
    StoredObjects,
    TakeoverTiming,
    journal_folder,
    open_objects,
    refuse_removed,
    remove_run,
    removed_run,
    uid_of,
)
from holdfast.runs.maintenance.recovery import remove_note
from holdfast.runs.mirror.claim import expiry_seconds, forget_removal, note_removal, objects_of, read_mirror_status
from holdfast.runs.mirror.remote import only_run
from holdfast.runs.run import Run
from holdfast.runs.shards.layout import begun_shards
from holdfast.runs.store.lookup import RunLocation, hide_folder, runs_in
from holdfast.runs.summary import RunSummary
from holdfast.state import identity_in, is_current, remove_stale, stamp_of, standing_of

REMOVABLE = ("completed", "interrupted", "failed", "cancelled")
"""Statuses of runs that a rule may select. All others may be in use, or cannot be read."""


class RetentionPolicy(msgspec.Struct, frozen=True):
    """One rule for removing runs. It selects runs by age, count or size, and has exceptions."""

    older_than_days: float | None = None
    keep: int | None = None
    """How many of the newest runs of each experiment are kept."""
    max_bytes: int | None = None
    """The oldest runs are removed until the total size is at most this."""
    experiment: str | None = None
    keep_tagged: bool = True
    keep_latest: bool = True
    """Whether to keep the newest run of each experiment, whatever its age and size."""
    statuses: frozenset[str] = frozenset({"completed"})
    """The statuses of runs that are removed."""

    def covers(self, place: RunLocation) -> bool:
        return self.experiment in (None, place.experiment)


class RemovalCandidate(msgspec.Struct, frozen=True):
    """A run selected for removal, and why."""

    place: RunLocation
    bytes: int
    created: str
    why: str
    stamp: str = ""
    """The state of its files when it was selected."""
    mirror: str = ""
    """The URL of its copy in a mirror."""
    mirror_goes: bool = False
    """Whether that copy is removed as well."""
    rule: int = 0
    """The number of the rule that selected it, from 1; 0 for a run that was named."""


class _Candidate(msgspec.Struct, frozen=True):
    place: RunLocation
    summary: RunSummary
    stamp: str

    @property
    def since(self) -> str:
        """The time from which its age counts. An unfinished run may be resumed weeks after it was created."""
        is_completed = self.summary.status == "completed"
        return self.summary.created if is_completed else self.summary.updated or self.summary.created


def chosen(store: str, policies: Sequence[RetentionPolicy], now: float | None = None) -> list[RemovalCandidate]:
    """The runs that at least one rule selects, the oldest first. Rules about size come last: they count what the others
    leave.
    """
    every = sorted(_candidates(store, policies), key=lambda each: each.summary.created)
    why: dict[str, tuple[int, str]] = {}
    for number, policy in enumerate(policies, 1):
        for each, reason in itertools.chain(_select_old(every, policy, now), _select_surplus(every, policy)):
            why.setdefault(each.place.folder, (number, reason))
    for number, policy in enumerate(policies, 1):
        for each in _select_to_make_room(store, every, policy, why):
            why[each.place.folder] = (number, "to make room")
    found = [(each, *why[each.place.folder]) for each in every if each.place.folder in why]
    return [
        RemovalCandidate(each.place, each.summary.bytes, each.summary.created, reason, each.stamp, rule=number)
        for each, number, reason in found
    ]


def _select_old(
    every: Sequence[_Candidate], policy: RetentionPolicy, now: float | None
) -> Iterator[tuple[_Candidate, str]]:
    if policy.older_than_days is None:
        return
    seconds = max((now or time.time()) - policy.older_than_days * 86400, 0)
    limit = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    age = f"{policy.older_than_days:g} days"
    for each in _removable(every, policy):
        if each.since < limit:
            status = each.summary.status
            yield each, f"older than {age}" if status == "completed" else f"{status}, not written for {age}"


def _select_surplus(every: Sequence[_Candidate], policy: RetentionPolicy) -> Iterator[tuple[_Candidate, str]]:
    if policy.keep is None:
        return
    newest: dict[str, list[str]] = {}
    for each in reversed(every):  # all runs count, also those that may not be removed
        newest.setdefault(each.place.experiment, []).append(each.place.folder)
    for each in _removable(every, policy):
        experiment = each.place.experiment
        if each.place.folder not in newest[experiment][: policy.keep]:
            yield each, f"not one of the newest {policy.keep} of {experiment}"


def _select_to_make_room(
    store: str, every: Sequence[_Candidate], policy: RetentionPolicy, gone: Collection[str]
) -> Iterator[_Candidate]:
    """Yield the oldest runs until the others fit. `gone`: the folders of runs that other rules select."""
    if policy.max_bytes is None:
        return
    known = {each.place.folder: each.summary.bytes for each in every}  # unreadable runs occupy space too
    places = [each for each in runs_in(store) if policy.covers(each) and each.folder not in gone]
    left = sum(known[each.folder] if each.folder in known else each.size() for each in places)
    for each in _removable(every, policy):
        if left <= policy.max_bytes:
            break
        if each.place.folder not in gone:
            left -= each.summary.bytes
            yield each


def _removable(every: Sequence[_Candidate], policy: RetentionPolicy) -> Iterator[_Candidate]:
    """Yield the runs that a rule may remove, the oldest first."""
    newest = {each.place.experiment: each.place.folder for each in every} if policy.keep_latest else {}
    for each in every:
        summary, is_newest = each.summary, newest.get(each.place.experiment) == each.place.folder
        is_kept = is_newest or (policy.keep_tagged and summary.tags) or summary.jobs
        if policy.covers(each.place) and summary.status in policy.statuses and not is_kept:
            yield each


def named(places: Sequence[RunLocation]) -> list[RemovalCandidate]:
    """Select runs that the user named, whatever their status. HeldError if one is being written."""
    for place in places:
        if any(standing_of(each.folder).held for each in (place, *begun_shards(place))):
            raise HeldError(f"{place.run_id} is being written by a live process: stop it first")
    unique = {place.folder: place for place in places}
    return [RemovalCandidate(place, place.size(), "", "named", stamp_of(place.folder)) for place in unique.values()]


def remove(doomed: RemovalCandidate) -> None:
    """Remove a run. A crash leaves the run unchanged, or a hidden folder. UsageError if the run has changed since it
    was selected; HeldError if a live process writes it, here or in its mirror.
    """
    if doomed.place.url:
        _remove_mirror(open_objects(doomed.place.url))
        return
    if os.path.islink(doomed.place.folder):
        raise UsageError(f"{doomed.place.folder} is a link: remove it, and what it leads to, by hand")
    locks = [Lock(doomed.place.folder)]  # no process may start writing it now
    try:
        locks += [Lock(each.folder) for each in begun_shards(doomed.place)]
        if doomed.stamp and stamp_of(doomed.place.folder) != doomed.stamp:
            raise UsageError(f"{doomed.place.run_id} has changed since it was selected; run the command again")
        if doomed.mirror:
            # Before the folder is renamed: a crash in between leaves only a harmless note beside the run.
            objects = open_objects(doomed.mirror)
            goes = doomed.mirror_goes
            with contextlib.suppress(StoreError):  # if it cannot be reached, the note is all that can be done
                goes = goes or read_mirror_status(objects).removed  # a crash interrupted its removal
            if goes:
                _remove_mirror(objects, uid_of(FolderSource(doomed.place.folder)))
                forget_removal(doomed.place)
            else:
                note_removal(doomed.place, doomed.mirror)
        hidden = hide_folder(doomed.place.folder)
        remove_note(doomed.place)
    finally:
        for lock in locks:
            lock.release()
    shutil.rmtree(hidden, ignore_errors=True)


def _remove_mirror(objects: StoredObjects, uid: str = "") -> None:
    """Remove a run from a mirror, its shards first: as long as the root is there, the removal can be repeated."""
    timing = TakeoverTiming(expiry_seconds())
    for name in objects.folders(SHARDS):
        remove_run(objects.below(f"{SHARDS}/{name}"), patience=timing)
    remove_run(objects, uid, timing)


def select_in_mirror(url: str) -> RemovalCandidate:
    """Select the run at a URL in a mirror for removal there. UsageError if it is removed already."""
    objects, experiment, run_id = only_run(url)
    try:
        source = MirrorSource(objects)
        removed = removed_run(source)
        if removed is not None and not removed.remains:
            refuse_removed(source)
        size = sum(each.size for each in objects.listed(""))
    except StoreError as error:
        raise UsageError(str(error)) from error
    url = objects.url.rstrip("/")
    place = RunLocation(url.rsplit("/", 2)[0], experiment, run_id, url, url)
    return RemovalCandidate(place, size, "", "named", mirror=url, mirror_goes=True)


def with_mirror(doomed: RemovalCandidate, *, goes: bool) -> RemovalCandidate:
    """Add the URL of the run's mirror, if it has one and its spec can be read. `goes`: whether the mirror is removed as
    well.
    """
    url = ""
    with contextlib.suppress(HoldfastError, OSError, msgspec.ValidationError), Run(doomed.place) as run:
        mirror = run.spec().mirror
        url = objects_of(mirror.url, doomed.place).url if mirror is not None else ""
    return msgspec.structs.replace(doomed, mirror=url, mirror_goes=goes and bool(url))


def remove_stale_entries() -> tuple[int, int]:
    """Remove cache entries of runs and stores that are gone or were replaced. Returns their number and bytes."""
    return remove_stale(_is_stale)


def _is_stale(path: str) -> bool:
    identity = identity_in(path)
    if identity is None or not is_current(identity):
        return True
    try:
        return bool(identity.uid) and Reader(journal_folder(identity.folder)).uid not in ("", identity.uid)
    except (HoldfastError, OSError):
        return True  # without a journal there is nothing that it could be derived from


def _candidates(store: str, policies: Sequence[RetentionPolicy]) -> Iterator[_Candidate]:
    for place in runs_in(store):
        if not any(policy.covers(place) for policy in policies):
            continue
        try:
            stamp = stamp_of(place.folder)
            with Run(place) as run:
                summary = run.summary()
        except (HoldfastError, OSError):
            continue  # rules never select runs that cannot be read
        yield _Candidate(place, summary, stamp)
