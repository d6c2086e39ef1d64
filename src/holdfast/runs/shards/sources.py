"""Which folders the shards of a run are read from: its own folder or, if its workers have disks of their own, copies of
what is in the mirror.

A shard that this machine works on, or has completed, is read here. The others are copied as any run in a mirror, into
the folder of the copy of the whole run. One listing of the mirror tells which of them can have changed: a shard whose
objects are the same, and whose last heartbeat said that it ended, costs no request.
"""

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
import xxhash

from holdfast import files
from holdfast.errors import HoldfastError, UsageError
from holdfast.journal import OS_DISK, PIECES, SHARDS, StoredObjects, list_chain, open_objects
from holdfast.records import Shard, parse_shard
from holdfast.runs.mirror.claim import mirrored_epoch, objects_of
from holdfast.runs.mirror.remote import copy_location, fetch, update_copy
from holdfast.runs.shards.layout import begun_shards
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import FOLDER_VARIABLE, entry_path, hold_copy, identify, mark_used, standing_of

_CONCURRENCY = 16
_LISTING = "listing"
"""Beside the copy of a shard that has ended: a digest of the objects that it was made from."""
_log = logging.getLogger("holdfast")


@contextlib.contextmanager
def hold_copies(root: RunLocation, uid: str) -> Iterator[str]:
    """The folder in the cache for copies of a run and of its shards, locked."""
    identity = identify("copies", root.folder, uid)
    above = None if identity is None else entry_path("copies", identity.name)
    if above is None:
        raise UsageError(f"there is no folder for copies of runs: set {FOLDER_VARIABLE} to one that can be written")
    hold_copy(above)
    handle = files.open_or_create(os.path.join(above, "lock"))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield above
        mark_used(above)
    finally:
        os.close(handle)


def fetch_shards(root: RunLocation, uid: str, mirror: str, only: Shard | None = None) -> list[RunLocation]:
    """As `shards_to_read`, for a caller that reads no other copy of the run."""
    with hold_copies(root, uid) as above:
        return shards_to_read(root, mirror, above, only)


def shards_to_read(root: RunLocation, mirror: str, above: str, only: Shard | None = None) -> list[RunLocation]:
    """The shards that have begun, or `only` one, each where its newest records are. `mirror`: the URL in the run's
    spec, if any. `above`: a folder for copies of shards. The caller holds its lock.
    """
    begun = ((parse_shard(each.shard), each) for each in begun_shards(root))
    found = {shard: each for shard, each in begun if only in (None, shard)}
    if root.url or mirror:
        try:
            objects = open_objects(root.url) if root.url else objects_of(mirror, root)
            listed = _list_shards(objects, only)
            elsewhere = [
                shard
                for shard, names in listed.items()
                if shard not in found or not _is_newest(found[shard], _epoch_in(names))
            ]
            places = {each: _copy_location(root, each, objects, above) for each in elsewhere}
            with ThreadPoolExecutor(_CONCURRENCY, "holdfast-fetch") as pool:
                errors = list(pool.map(lambda each: _update(places[each], listed[each], objects), elsewhere))
            found |= {each: place for each, place in places.items() if place.began}
            if wrong := [each for each in errors if each]:
                _warn(root, f"{len(wrong)} of {len(listed)} shards: {wrong[0]}")
        except (HoldfastError, OSError, ValueError) as error:
            _warn(root, str(error))
    return [found[shard] for shard in sorted(found)]


def root_to_read(root: RunLocation, mirror: str) -> RunLocation:
    """The run's folder or, if another machine has recorded something in the root journal since, a copy of that."""
    if root.url or not mirror:
        return root
    with contextlib.suppress(HoldfastError, OSError):  # `shards_to_read` reports it
        objects = objects_of(mirror, root)
        if not _is_newest(root, mirrored_epoch(objects)):
            return fetch(objects, copy_location(objects, root.experiment, root.run_id))
    return root


def _warn(root: RunLocation, reason: str) -> None:
    _log.warning("%s: what other workers have done cannot be read from its mirror (%s)", root.run_id, reason)


Listing = Mapping[str, int]
"""The objects of one shard, by their names below its folder, and their sizes."""


def _list_shards(objects: StoredObjects, only: Shard | None) -> dict[Shard, dict[str, int]]:
    """The objects of all shards that have records in a mirror, or of one of them, from one listing."""
    found: dict[str, dict[str, int]] = {}
    for each in objects.listed(SHARDS if only is None else f"{SHARDS}/{only.folder}"):
        _, folder, name = each.name.split("/", 2)
        found.setdefault(folder, {})[name] = each.size
    return {parse_shard(folder): names for folder, names in found.items() if _epoch_in(names)}


def _epoch_in(listing: Listing) -> int:
    """The greatest epoch with records; 0 if a worker has claimed the shard and recorded nothing yet."""
    folders = (name.split("/") for name in listing if name.startswith(f"{PIECES}/"))
    return max((int(parts[1]) for parts in folders if parts[1].isdigit()), default=0)


def _is_newest(here: RunLocation, epoch: int) -> bool:
    """Whether no other machine has continued a journal since this one wrote it. `epoch`: the greatest in the mirror."""
    return standing_of(here.folder).held or list_chain(OS_DISK, here.journal).epoch >= epoch


def _copy_location(root: RunLocation, shard: Shard, objects: StoredObjects, above: str) -> RunLocation:
    folder = os.path.join(above, SHARDS, shard.folder, "run")
    url = f"{objects.url.rstrip('/')}/{SHARDS}/{shard.folder}"
    return RunLocation(above, root.experiment, root.run_id, folder, url, shard=str(shard))


def _update(place: RunLocation, listing: Listing, objects: StoredObjects) -> str:
    """Bring the copy of a shard up to date. Returns what went wrong; the copy is then as it was before."""
    path = os.path.join(os.path.dirname(place.folder), _LISTING)
    digest = xxhash.xxh3_128_hexdigest(msgspec.json.encode(sorted(listing.items()))).encode()
    with contextlib.suppress(OSError):
        if files.read_own_file(path) == digest:
            return ""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        # The listing is older than this heartbeat and these records, so one that is still the same has nothing new.
        beat = update_copy(objects.below(f"{SHARDS}/{parse_shard(place.shard).folder}"), place)
        if beat is not None and beat.ended:
            files.replace_file(path, digest)
    except (HoldfastError, OSError) as error:
        return str(error)
    return ""
