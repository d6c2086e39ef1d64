"""A note beside a recovered run: what it was recovered from, and with which result.

With it, a `recover` that was killed and is repeated continues instead of refusing the run that the first call made. It
is a hint: without it, or with a damaged one, the repetition is refused as for any other run that exists.
"""

import os

import msgspec

from holdfast.files import read_file, replace_file
from holdfast.journal.disk import OS_DISK, remove_if_there
from holdfast.journal.mirror.pieces import FolderSource
from holdfast.journal.mirror.restore import uid_of
from holdfast.runs.store.lookup import RunPlace


class RecoveryNote(msgspec.Struct, frozen=True):
    """What `recover` was asked for, and what it found."""

    source: str
    """The folder or the URL."""
    events: bool
    uid: str = ""
    """Of the run in its new place; empty until the recovery is complete."""
    lost: int = 0
    warnings: tuple[str, ...] = ()

    def write(self, place: RunPlace) -> None:
        replace_file(_path(place), msgspec.json.encode(self))


def read_note(place: RunPlace, source: str, *, events: bool) -> RecoveryNote | None:
    """The note of an earlier call with the same source and the same choice of events."""
    try:
        note = msgspec.json.decode(read_file(_path(place)), type=RecoveryNote)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return note if (note.source, note.events) == (source, events) else None


def is_recovered(place: RunPlace, note: RecoveryNote) -> bool:
    """Whether the run in a place is the one that the note says was completely recovered."""
    return bool(note.uid) and place.began and uid_of(FolderSource(place.folder)) == note.uid


def remove_note(place: RunPlace) -> None:
    remove_if_there(OS_DISK, _path(place))


def _path(place: RunPlace) -> str:
    above, name = os.path.split(place.folder)
    return os.path.join(above, f".recovered-{name}.json")
