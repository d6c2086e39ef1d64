"""Marks of shards that were begun or are complete: small files in the lease folder of the whole run, here or in its
mirror.

With them a worker learns about all shards from one listing. They are only hints: a crash can leave a shard without its
mark, and the next worker that finds it complete adds the mark. A mark of completion counts for one state of the run
(its number of plan blocks and retry rounds), so that an extension or a retry makes all shards candidates again.
"""

import contextlib
import functools
import os
import re

import msgspec

from holdfast import files
from holdfast.errors import StoreError
from holdfast.journal import LEASES, Objects
from holdfast.records import Shard, parse_shard

_MARK = re.compile(r"(begun|complete-\d+-\d+)\.(\d+-of-\d+)")
_BEGUN = "begun"


class MarkedShards(msgspec.Struct, frozen=True):
    """What the marks of a run say."""

    begun: frozenset[Shard] = frozenset()
    complete: frozenset[Shard] = frozenset()


@functools.cache
def _parse(name: str) -> tuple[str, Shard] | None:
    """The kind of a mark, and its shard; None for another object. A worker reads the same names again and again."""
    mark = _MARK.fullmatch(name)
    try:
        return None if mark is None else (mark[1], parse_shard(mark[2]))
    except ValueError:
        return None


class ShardMarks:
    """The marks of one run."""

    def __init__(self, folder: str, objects: Objects | None) -> None:
        """`folder`: that of the run, which all workers share if there are no `objects`."""
        self._folder = os.path.join(folder, LEASES)
        self._objects = objects

    def add_begun(self, shard: Shard) -> None:
        self._add(f"{_BEGUN}.{shard.folder}")

    def add_complete(self, shard: Shard, blocks: int, rounds: int) -> None:
        self._add(f"complete-{blocks}-{rounds}.{shard.folder}")

    def read(self, blocks: int, rounds: int) -> MarkedShards:
        """From one listing; empty if the store cannot be reached."""
        found: dict[str, set[Shard]] = {}
        for kind, shard in filter(None, map(_parse, self._names())):
            found.setdefault(kind, set()).add(shard)
        complete = found.get(f"complete-{blocks}-{rounds}", set())
        return MarkedShards(frozenset(found.get(_BEGUN, set())), frozenset(complete))

    def _names(self) -> list[str]:
        with contextlib.suppress(StoreError, OSError):
            if self._objects is None:
                return files.list_names(self._folder)
            return [each.name.removeprefix(f"{LEASES}/") for each in self._objects.listed(LEASES)]
        return []

    def _add(self, name: str) -> None:
        with contextlib.suppress(StoreError, OSError):  # a hint is not worth stopping for
            if self._objects is not None:
                self._objects.put(f"{LEASES}/{name}", b"")
                return
            files.make_folder(self._folder)
            os.close(files.create_file(os.path.join(self._folder, name)))
