"""Which entries of a run folder are Holdfast's own, and that none of them is a link, a pipe or a device.

Holdfast never creates such entries. Opening one is refused anyway (`holdfast.files`); a writer looks for all of them
before its first write, so that it refuses the run as a whole, with one sentence, instead of continuing without a log or
a lease.
"""

import os
import re
import stat
from collections.abc import Iterator

from holdfast.files import INNER_FOLDERS, NotAFileError, NotAFolderError

_FILES = re.compile(
    r"lock|lease\.json|log\.jsonl(\.\d+)?|spec\.yaml|started\.jsonl|(plan|data)(-\d+)?\.jsonl\.zst", re.ASCII
)


def find_links(run: str) -> Iterator[NotAFileError | NotAFolderError]:
    """An error for each own entry that is neither a file nor a folder."""
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
    """DamagedError that names the first one."""
    for error in find_links(run):
        raise error
