"""A run and its mirror: claiming it, bringing it home, keeping it.

Order of a start with a mirror, and what is true if we die there: the local lock; the epoch, claimed in the store (from
here on every other machine has lost the run); what the mirror holds and the folder does not, brought in; then the
journal is opened under that epoch. Doing it again is always right.
"""

import os
from collections.abc import Callable, Sequence

from holdfast.api.places import RunPlace
from holdfast.errors import StoreError, UsageError
from holdfast.journal import OS_DISK, folder_name, make_folders
from holdfast.journal.chain import list_chain
from holdfast.journal.claims import Beat, greatest_epoch, read_beat, take_epoch
from holdfast.journal.objects import Objects, StoredObjects, open_objects
from holdfast.journal.pieces import MirrorSource, Source
from holdfast.journal.restoring import Restored, restore
from holdfast.journal.writer import Mirroring
from holdfast.spec import Mirror

Warn = Callable[[str], None]


def objects_of(url: str, place: RunPlace) -> StoredObjects:
    """The run's own part of a mirror: its experiment and its id, as in a store."""
    return open_objects(url).below(f"{folder_name(place.experiment)}/{folder_name(place.run_id)}")


def claim_mirror(mirror: Mirror | None, place: RunPlace, warn: Warn) -> Mirroring | None:
    """The run is ours, here (the caller holds the lock) and in the mirror, and the folder has all that is there.
    HeldError if another machine works on it.
    """
    if mirror is None:
        return None
    objects = objects_of(mirror.url, place)
    try:
        epoch = None
        if mirror.exclusive:
            known = list_chain(OS_DISK, place.journal).epoch if place.began else 0
            epoch = take_epoch(objects, known + 1)
        source = MirrorSource(objects)
        if source.pieces():
            restore(place.folder, [source], warn)
    except StoreError as error:
        raise _unreachable(error) from error
    return Mirroring(objects, epoch, mirror.seconds, mirror.wait)


def bring_home(mirror: Mirror | None, place: RunPlace, warn: Warn) -> Restored | None:
    """For a run that is not here at all: make its folder from the mirror, if that has it. Claims nothing."""
    if mirror is None or place.began:
        return None
    try:
        source = MirrorSource(objects_of(mirror.url, place))
        return restore_whole(place, [source], warn) if source.pieces() else None
    except StoreError as error:
        raise _unreachable(error) from error


def restore_whole(
    place: RunPlace, sources: Sequence[Source], warn: Warn, finish: Callable[[str], None] = lambda folder: None
) -> Restored:
    """A folder that appears whole. Dying before the rename leaves a hidden one, which the next try goes on with."""
    if os.path.isdir(place.folder):  # without a journal: whoever was to begin it did not come to it
        restored = restore(place.folder, sources, warn)
        finish(place.folder)
        return restored
    hidden = hidden_folder(place)
    make_folders(OS_DISK, os.path.dirname(hidden))
    restored = restore(hidden, sources, warn)
    finish(hidden)
    OS_DISK.replace(hidden, place.folder)
    OS_DISK.sync_folder(os.path.dirname(hidden))
    return restored


def hidden_folder(place: RunPlace) -> str:
    """Where a run is put together before it appears: no run has such a name."""
    above, name = os.path.split(place.folder)
    return os.path.join(above, f".{name}.recovering")


def last_beat(objects: Objects) -> tuple[int, Beat | None]:
    """The greatest epoch that was claimed, and what its holder last said."""
    epoch = greatest_epoch(objects)
    return epoch, read_beat(objects, epoch)


def _unreachable(error: StoreError) -> UsageError:
    return UsageError(
        f"{error}; the mirror must be reached at the start: mend that, or go on without one: --set mirror=null"
    )
