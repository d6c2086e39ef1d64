"""The newest heartbeats of the shards of a run: in its folder or, of workers with disks of their own, in its mirror.

Reads only, and no journal: it is what a worker can know about all shards without fetching them.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

from holdfast.errors import StoreError
from holdfast.records import Shard
from holdfast.runs.mirror.claim import last_beat, objects_of
from holdfast.runs.shards.layout import shard_location
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import Standing, standing_by, standing_of

_CONCURRENCY = 16


def newer(one: Standing, other: Standing) -> Standing:
    """That of the later writer."""
    epochs = [each.lease.epoch if each.lease is not None else -1 for each in (one, other)]
    return other if epochs[1] > epochs[0] else one


def shard_standings(root: RunLocation, count: int, mirror: str) -> dict[Shard, Standing]:
    """By shard, without those that have not begun. `mirror`: the URL in the run's spec, if any. If it cannot be
    reached, only the shards of this store are known.
    """

    def look(shard: Shard) -> Standing:
        place = shard_location(root, shard)
        found = standing_of(place.folder)
        if mirror and not found.held:
            with contextlib.suppress(StoreError):
                _, beat = last_beat(objects_of(mirror, place))
                return newer(found, standing_by(beat)) if beat is not None else found
        return found

    shards = [Shard(number, count) for number in range(1, count + 1)]
    with ThreadPoolExecutor(_CONCURRENCY, "holdfast-look") as pool:
        found = zip(shards, pool.map(look, shards), strict=True)
        return {shard: standing for shard, standing in found if standing.lease is not None}


def has_failures(standing: Standing) -> bool:
    """Whether a shard has, or may have, failed samples. A worker that was killed may have recorded failures after its
    last heartbeat.
    """
    lease = standing.lease
    return lease is not None and bool(lease.failed or not (lease.end or standing.held))
