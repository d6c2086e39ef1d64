"""Tombstones: which runs were removed from a mirror.

`lease/removed/<uid>` is created before the first object of a run is deleted, and is never deleted itself. It lies below
`lease/`, so a writer sees it in the list that it reads with each heartbeat, without another request. A crash while
objects are deleted leaves the tombstone and the rest; the next removal deletes the rest.

A tombstone names one uid. A new run of the same id has another uid and ignores it. The new run starts with an epoch
above that of the tombstone, so an object that a process of the removed run sends late never counts.
"""

import contextlib
import re
from collections.abc import Iterable

import msgspec

from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.claims import FOLDER as LEASES
from holdfast.journal.ownership.lease import clock_time

FOLDER = f"{LEASES}/removed"
UNKNOWN = "unknown"
"""The name of the tombstone of a run whose uid cannot be read, or cannot be part of an object's name."""
_UID = re.compile(r"[0-9A-Za-z_-]{1,100}")


class Tombstone(msgspec.Struct, frozen=True, omit_defaults=True):
    uid: str
    at: float = 0.0
    """When the removal began; 0 if the tombstone is damaged."""
    epoch: int = 0
    """The greatest epoch of the removed run. A new run starts above it."""

    @property
    def when(self) -> str:
        return clock_time(self.at) if self.at else "an unknown date"


def tombstone_name(uid: str) -> str:
    return f"{FOLDER}/{uid if _UID.fullmatch(uid) else UNKNOWN}"


def is_tombstone(name: str) -> bool:
    return name.startswith(f"{FOLDER}/")


def write_tombstone(objects: Objects, tombstone: Tombstone) -> None:
    """Create-only: if two processes remove the run at once, the first date counts."""
    objects.create(tombstone_name(tombstone.uid), msgspec.json.encode(tombstone))


def read_tombstone(objects: Objects, uid: str) -> Tombstone | None:
    """None if the run was not removed."""
    return _read(objects, tombstone_name(uid))


def read_tombstones(objects: Objects, names: Iterable[str]) -> list[Tombstone]:
    """The tombstones among these object names, the newest first."""
    found = [_read(objects, name) for name in names if is_tombstone(name)]
    return sorted(filter(None, found), key=lambda each: each.at, reverse=True)


def _read(objects: Objects, name: str) -> Tombstone | None:
    """A damaged tombstone still counts: its name says which run was removed."""
    data = objects.get(name)
    if data is None:
        return None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode(data, type=Tombstone)
    return Tombstone(name.removeprefix(f"{FOLDER}/"))
