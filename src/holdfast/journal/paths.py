"""Where a run lives on disk, and how its files are named.

Owns the translation of names that users choose into folder names. Invariant: the result is one path component, never
hidden, never `..`, and two names never share a folder. Names that are empty, too long or contain control characters are
refused.
"""

import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from holdfast.errors import BadNameError
from holdfast.files import INNER_FOLDERS, NotAFileError, NotAFolderError
from holdfast.records import Shard, parse_shard

_PLAIN = "@+=,~ "  # beside letters, digits and _.-
_COMPONENT_BYTES_MAX = 200  # file systems allow 255; temporary names add to it
_SEGMENT = re.compile(r"(\d{6,12})\.jsonl(\.zst)?")


class SegmentName(NamedTuple):
    number: int
    sealed: bool

    def __str__(self) -> str:
        return f"{self.number:06d}.jsonl{'.zst' if self.sealed else ''}"


def parse_segment_name(name: str) -> SegmentName | None:
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    found = SegmentName(int(match[1]), match[2] is not None)
    return found if str(found) == name and found.number > 0 else None


def folder_name(name: str) -> str:
    """One path component for a run id or experiment. BadNameError if the name cannot be used.

    Letters outside ASCII are percent-escaped, so that names which look alike get different folders.
    """
    if not name.strip():
        raise BadNameError("a run or experiment name is empty; give it at least one letter")
    for character in name:
        if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
            raise BadNameError(
                f"the name {name[:40]!r} contains the character {character!r}; use printable characters only"
            )
    escaped = quote(name, safe=_PLAIN)
    if escaped[0] in ". ":
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    if escaped[-1] in ". ":  # invisible, and dropped by some file systems
        escaped = f"{escaped[:-1]}%{ord(escaped[-1]):02X}"
    if len(escaped) > _COMPONENT_BYTES_MAX:
        raise BadNameError(
            f"the name {name[:40]!r}… takes {len(escaped)} bytes as a folder name; "
            f"at most {_COMPONENT_BYTES_MAX} are possible: shorten it"
        )
    return escaped


def run_folder(store: str, experiment: str, run_id: str) -> str:
    """The folder of a run. It is always exactly two levels below the store."""
    return os.path.join(os.path.abspath(store), folder_name(experiment), folder_name(run_id))


SHARDS = "shards"
GRANTS = "grants"
"""Entries of the ledger of a sharded run."""


def shard_folder(run: str, shard: Shard) -> str:
    return os.path.join(run, SHARDS, shard.folder)


def is_shard_folder(folder: str) -> bool:
    """Whether a folder is one of the shards of a run."""
    above, name = os.path.split(folder)
    if os.path.basename(above) != SHARDS:
        return False
    try:
        parse_shard(name)
    except ValueError:
        return False
    return True


def journal_folder(run: str) -> str:
    return os.path.join(run, "journal")


def quarantine_folder(journal: str) -> str:
    return os.path.join(journal, "quarantine")


def segment_path(journal: str, number: int, *, sealed: bool = False) -> str:
    return os.path.join(journal, str(SegmentName(number, sealed)))


_FILES = re.compile(
    r"lock|lease\.json|log\.jsonl(\.\d+)?|spec\.yaml|started\.jsonl|(plan|data)(-\d+)?\.jsonl\.zst", re.ASCII
)


def find_links(run: str) -> Iterator[NotAFileError | NotAFolderError]:
    """An error for each of Holdfast's entries in a run folder that is a link, pipe or device."""
    with os.scandir(run) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                continue
            if entry.name in INNER_FOLDERS:
                yield NotAFolderError(entry.path)
            elif _FILES.fullmatch(entry.name):
                yield NotAFileError(entry.path)


def refuse_links(run: str) -> None:
    """DamagedError for the first entry that `find_links` finds."""
    for error in find_links(run):
        raise error
