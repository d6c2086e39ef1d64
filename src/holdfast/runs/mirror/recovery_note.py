"""A note beside a recovered run: its source, and the result.

Because of the note, a `recover` that was killed can be repeated: it continues instead of refusing the existing run. The
note is a hint: if it is missing or damaged, the repetition is refused like any recovery into an existing run.
"""

import os

import msgspec

from holdfast.files import read_file, replace_file
from holdfast.journal.disk import OS_DISK, remove_if_there
from holdfast.journal.mirror.pieces import FolderSource
from holdfast.journal.mirror.restore import uid_of
from holdfast.runs.store.lookup import RunLocation


class RecoveryNote(msgspec.Struct, frozen=True):
    """The source and options of a `recover`, and its result."""

    source: str
    """A folder or a URL."""
    events: bool
    uid: str = ""
    """The uid of the recovered run; empty until the recovery is complete."""
    lost: int = 0
    warnings: tuple[str, ...] = ()

    def write(self, place: RunLocation) -> None:
        replace_file(_path(place), msgspec.json.encode(self))


def read_note(place: RunLocation, source: str, *, events: bool) -> RecoveryNote | None:
    """The note of an earlier call with the same source and the same `events`; None if there is none."""
    try:
        note = msgspec.json.decode(read_file(_path(place)), type=RecoveryNote)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return note if (note.source, note.events) == (source, events) else None


def is_recovered(place: RunLocation, note: RecoveryNote) -> bool:
    """Whether the run at `place` is the complete result that the note describes."""
    return bool(note.uid) and place.began and uid_of(FolderSource(place.folder)) == note.uid


def remove_note(place: RunLocation) -> None:
    remove_if_there(OS_DISK, _path(place))


def _path(place: RunLocation) -> str:
    above, name = os.path.split(place.folder)
    return os.path.join(above, f".recovered-{name}.json")
