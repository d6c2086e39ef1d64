"""Which files were checked, and in which state: so that derived data is not trusted once its sources have changed.

A stamp is a file's device, inode, size and times. Sealed segments never change; a plain one only grows until its
sealed copy replaces it. Anything else (a missing, cut or rewritten file) makes an index stale, and reading the journal
again from its start finds the damage. What was checked is remembered in the user's cache; without it, it is checked
again.
"""

import contextlib
import os
from collections.abc import Mapping

import msgspec
import xxhash

from holdfast.files import read_own_file, replace_file
from holdfast.journal.chain import is_whole_file, list_chain
from holdfast.journal.disk import OS_DISK
from holdfast.journal.places import parse_segment_name, segment_path
from holdfast.state.cache import Identity, entry_path, identify

Stamps = dict[str, str]
"""By file name: the state of a file."""


def stamp_of_file(path: str) -> str:
    """A file's state; empty if there is no such file."""
    try:
        found = os.lstat(path)
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def stamp_segments(journal: str) -> Stamps:
    """The state of all segments of the run whose journal this is. Take it before reading: what is written later makes a
    file larger.
    """
    files = list_chain(OS_DISK, journal).segments
    return {str(file.name): stamp for file in files if (stamp := stamp_of_file(file.path))}


def have_changed(journal: str, before: Mapping[str, str], now: Mapping[str, str], checked: "CheckedFiles") -> bool:
    """Whether a segment that was read is gone or was rewritten. A segment that was sealed since is checked once."""
    return any(not _is_same(journal, name, stamp, now, checked) for name, stamp in before.items())


def _is_same(journal: str, name: str, before: str, now: Mapping[str, str], checked: "CheckedFiles") -> bool:
    if now.get(name) == before:
        return True
    segment = parse_segment_name(name)
    if segment is None or segment.sealed:
        return False
    if name in now:
        return _has_grown(before, now[name])
    path = segment_path(journal, segment.number, sealed=True)
    sealed = os.path.basename(path)
    stamp = now.get(sealed, "")
    if stamp and checked.stamps.get(sealed) != stamp and is_whole_file(OS_DISK, path):
        checked.remember({**checked.stamps, sealed: stamp})
    return bool(stamp) and checked.stamps.get(sealed) == stamp


def _has_grown(before: str, now: str) -> bool:
    """The same file with more bytes: a writer appended to it."""
    device, inode, size = before.split(":")[:3]
    return now.split(":")[:2] == [device, inode] and int(now.split(":")[2]) > int(size)


class _Stored(msgspec.Struct, frozen=True):
    identity: Identity
    stamps: Stamps
    digest: str = ""

    def sealed(self) -> "_Stored":
        content = msgspec.json.encode((self.identity, self.stamps))
        return msgspec.structs.replace(self, digest=xxhash.xxh3_128_hexdigest(content))


class CheckedFiles:
    """The files of one run that were found right, each with its state at that time."""

    def __init__(self, run: str, uid: str) -> None:
        self._identity = identify("checks", run, uid)
        self._path = None if self._identity is None else entry_path("checks", f"{self._identity.name}.json")
        self.stamps = self._load()

    def remember(self, stamps: Stamps) -> None:
        """For the next reader too. Failing to write costs that one the check, nothing else."""
        if stamps == self.stamps:
            return
        self.stamps = dict(stamps)
        if self._path is None or self._identity is None:
            return
        with contextlib.suppress(OSError):
            replace_file(self._path, msgspec.json.encode(_Stored(self._identity, self.stamps).sealed()))

    def _load(self) -> Stamps:
        if self._path is None:
            return {}
        try:
            stored = msgspec.json.decode(read_own_file(self._path), type=_Stored)
        except (OSError, ValueError, msgspec.MsgspecError):
            return {}
        return stored.stamps if stored == stored.sealed() and stored.identity == self._identity else {}
