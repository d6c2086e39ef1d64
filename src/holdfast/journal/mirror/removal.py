"""Removing a run from its mirror.

Order: claim the run, so that no live process writes it; create the tombstone; delete the claims and heartbeats; delete
plan, data and blobs; delete the pieces of the journal, the first ones last, because they name the uid. A crash leaves
the tombstone and some of the rest, and `remove_run` continues from there. Objects that Holdfast did not write stay.
"""

import shlex
import time

import msgspec

from holdfast.errors import HeldError, UsageError
from holdfast.journal.mirror.pieces import MirrorSource, is_original, parse_piece
from holdfast.journal.mirror.restore import uid_of
from holdfast.journal.mirror.tombstones import Tombstone, is_tombstone, read_tombstones, tombstone_name, write_tombstone
from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.claims import FOLDER as LEASES
from holdfast.journal.ownership.claims import TakeoverTiming, greatest_epoch, is_silent, take_epoch
from holdfast.journal.paths import GRANTS

_ROUNDS = 3


class Removed(msgspec.Struct, frozen=True):
    """A run that was removed from its mirror."""

    tombstone: Tombstone
    remains: int
    """How many of its objects are still there."""


def removed_run(source: MirrorSource) -> Removed | None:
    """The removed run; None if there is no tombstone, or if a new run has replaced the removed one."""
    tombstones = source.tombstones
    if not tombstones:
        return None
    rest = [name for name in source.names() if _is_ours(name)]
    leases = any(name.startswith(f"{LEASES}/") for name in rest)
    if not source.pieces():
        # Leases are deleted first, so leases without a journal belong to a new run that has sent nothing yet.
        return None if leases else Removed(tombstones[0], len(rest))
    uid = uid_of(source)
    for tombstone in tombstones:
        if tombstone_name(uid) == tombstone_name(tombstone.uid):
            return Removed(tombstone, len(rest))
    return None if uid or leases else Removed(tombstones[0], len(rest))


def refuse_removed(source: MirrorSource) -> None:
    """UsageError if there is no run to read, because it was removed."""
    found = removed_run(source)
    if found is not None:
        raise UsageError(f"{source.place} was removed on {found.tombstone.when}{_how_to_finish(source, found)}")


def refuse_unfinished_removal(source: MirrorSource) -> Tombstone | None:
    """The tombstone if nothing else is left of a removed run: a new run may start here. UsageError if more is left."""
    found = removed_run(source)
    if found is not None and found.remains:
        raise UsageError(
            f"{source.place} was removed on {found.tombstone.when}{_how_to_finish(source, found)}; then run this "
            "command again to start a new run, or choose another --id"
        )
    return found.tombstone if found is not None else None


def newest_epoch(objects: Objects) -> int:
    """The greatest epoch of the runs that were removed here; 0 if none was. A new run starts above it."""
    names = [each.name for each in objects.listed(LEASES)]
    return max((each.epoch for each in read_tombstones(objects, names)), default=0)


def remove_run(objects: Objects, uid: str = "", patience: TakeoverTiming | None = None) -> None:
    """Remove the run that a mirror holds. `uid`: the run to remove; empty removes any. HeldError if a live process
    writes it; UsageError if the mirror holds another run.
    """
    source = MirrorSource(objects)
    if not any(map(_is_ours, source.names())):
        return
    if removed_run(source) is None:
        found = uid_of(source)
        if uid and found and uid != found:
            raise UsageError(
                f"{source.place} holds another run of the same name; it stays. To remove it: "
                f"holdfast gc {shlex.quote(source.place)} --mirror --yes"
            )
        timing = patience or TakeoverTiming()
        epoch = max((piece.epoch for piece in source.pieces()), default=0)
        if greatest_epoch(objects):
            epoch = take_epoch(objects, epoch + 1, timing)
        elif not is_silent(objects, 0, timing):  # with mirror.exclusive: false a run has no claim
            raise HeldError(f"{source.place} is being written by a live process; stop it first")
        # The tombstone is created before the first delete: a crash in between is then recognised as a removal.
        write_tombstone(objects, Tombstone(found or uid, time.time(), epoch))
    for _ in range(_ROUNDS):  # list again after deleting: a process that has not seen the tombstone may still upload
        names = sorted((each.name for each in objects.listed("") if _is_ours(each.name)), key=_order)
        if not names:
            return
        for name in names:
            objects.delete(name)


def _order(name: str) -> tuple[int, int, int, int, str]:
    """Sort key for deletion: leases, other files, then pieces of the journal, the first piece last."""
    piece = parse_piece(name, 0)
    if piece is not None:
        return 2, -piece.epoch, -piece.segment, -piece.first, name
    return (0 if name.startswith(f"{LEASES}/") else 1), 0, 0, 0, name


def _is_ours(name: str) -> bool:
    """Whether a mirror wrote the object, and a removal deletes it."""
    if is_tombstone(name):
        return False
    return name.startswith((f"{LEASES}/", f"{GRANTS}/")) or is_original(name) or parse_piece(name, 0) is not None


def _how_to_finish(source: MirrorSource, found: Removed) -> str:
    if not found.remains:
        return ""
    command = f"holdfast gc {shlex.quote(source.place)} --mirror --yes"
    return (
        f", but {found.remains} of its objects are still there: the removal did not finish. Finish it with: {command}"
    )
