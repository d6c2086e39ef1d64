"""Where the shards of a run are."""

import os
from collections.abc import Iterator

from holdfast.files import is_folder, list_names
from holdfast.journal import SHARDS, Entry, Reader, shard_folder
from holdfast.records import RunStarted, Shard, decode, parse_shard
from holdfast.runs.store.lookup import RunLocation


def is_sharded(place: RunLocation) -> bool:
    """Whether the run has shards. A run that has not begun has none."""
    return is_folder(os.path.join(place.folder, SHARDS))


def shard_location(root: RunLocation, shard: Shard) -> RunLocation:
    """A shard as a place to run: it has the names of its run, and a folder of its own."""
    folder = shard_folder(root.folder, shard)
    return RunLocation(root.store, root.experiment, root.run_id, folder, shard=str(shard))


def begun_shards(root: RunLocation) -> Iterator[RunLocation]:
    """The shards that have a journal, in order."""
    found = []
    if not is_sharded(root):
        return
    for name in list_names(os.path.join(root.folder, SHARDS)):
        try:
            found.append(parse_shard(name))
        except ValueError:
            continue  # a hidden folder: being made
    for shard in sorted(found):
        place = shard_location(root, shard)
        if place.began:
            yield place


def read_started(place: RunLocation) -> RunStarted | None:
    """The first record of a run, without reading the others; None if the run has not begun."""
    if not place.began:
        return None
    entries = (each.line for each in Reader(place.journal).read(live=True) if isinstance(each, Entry))
    first = next((line for line in entries if line.t == "run.started"), None)
    return None if first is None else decode(first, RunStarted)


def shard_uid(uid: str, shard: Shard) -> str:
    """The uid of a shard's journal. The checksum of a record depends on it, so that no record of one shard counts in
    another.
    """
    return f"{uid}-{shard.folder}"
