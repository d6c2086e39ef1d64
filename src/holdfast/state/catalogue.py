"""The derived catalogue of a store: summaries of its runs, so that `ls` reads only runs that have changed.

It is a snapshot in the user's cache (see `snapshot`), so readers never wait for each other. It can be deleted at any
time. If it fails in any way, the listing that notices replaces it and logs one warning. Of two listings that write at
the same time the last one wins; the next listing adds what was lost.
"""

import hashlib
import logging
import os

import msgspec

from holdfast.files import is_folder
from holdfast.journal import SHARDS, journal_folder
from holdfast.state.cache import identify
from holdfast.state.snapshot import Snapshot, UnusableError

_FORMAT = 2
"""Of the catalogue's file. Raise it with every change."""
_entries = msgspec.msgpack.Decoder(dict[str, tuple[str, bytes]])


class Catalogue:
    """Each run's summary, with the state of its files at that time. `close` saves what was added."""

    def __init__(self, store: str, form: str) -> None:
        """`form`: a description of the summaries' fields; a catalogue with another form is replaced."""
        version = int.from_bytes(hashlib.blake2b(f"{_FORMAT} {form}".encode(), digest_size=6).digest())
        self._snapshot = Snapshot(identify("stores", store), version)
        self._entries: dict[str, tuple[str, bytes]] = {}
        """By folder: the state of the run's files, and the encoded summary."""
        self._changed = False
        try:
            file = self._snapshot.open()
            if file is not None:
                file.close()
                self._entries = _entries.decode(file.directory)
        except (UnusableError, msgspec.MsgspecError) as error:
            logging.getLogger("holdfast").warning("the list of the runs in %s %s; rebuilt", store, error)
            self._snapshot.discard()

    def find(self, folder: str, stamp: str) -> bytes | None:
        """The summary of a run whose files are in exactly this state; None if there is none."""
        found = self._entries.get(_text(folder))
        return found[1] if found is not None and found[0] == stamp else None

    def put(self, folder: str, stamp: str, summary: bytes) -> None:
        self._entries[_text(folder)] = (stamp, summary)
        self._changed = True

    def keep_only(self, folders: set[str]) -> None:
        """Forget runs that no longer exist."""
        for gone in self._entries.keys() - set(map(_text, folders)):
            del self._entries[gone]
            self._changed = True

    def close(self) -> None:
        writer = self._snapshot.begin() if self._changed else None
        if writer is None:
            return
        try:
            writer.publish(msgspec.msgpack.encode(self._entries))
        except OSError:
            writer.drop()
        self._changed = False


def stamp_of(run: str) -> str:
    """The state of the files that a run's summary is made of. It changes with every record, also of a shard, and if a
    file or the folder is replaced: change times (ctime) and inodes cannot be copied.
    """
    parts = []
    for folder in (run, journal_folder(run), *_shard_journals(run)):
        if not is_folder(folder):
            continue
        try:
            above = os.stat(folder)
            parts.append(f"{above.st_dev}:{above.st_ino}")
            for entry in sorted(os.scandir(folder), key=lambda each: each.name):
                if entry.name.startswith(("log.jsonl", "lease.json", "lock", "control")):
                    continue
                found = entry.stat(follow_symlinks=False)
                parts.append(f"{entry.name}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}")
        except OSError:
            continue
    return hashlib.blake2b("|".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _shard_journals(run: str) -> list[str]:
    """Workers of a sharded run write records below it that change nothing in the folder of the run."""
    shards = os.path.join(run, SHARDS)
    if not is_folder(shards):
        return []
    try:
        return [journal_folder(os.path.join(shards, name)) for name in sorted(os.listdir(shards))]
    except OSError:
        return []


def _text(path: str) -> str:
    """File names need not be Unicode; the keys of the catalogue must be."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
