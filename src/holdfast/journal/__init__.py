"""The journal: one append-only log of facts per run. It is the original; everything else is computed from it.

`open_writer` appends, `Reader` reads, `verify` checks, `seal` compresses. Where to look:

- Save path: `writer` (queue and thread) -> `appender` (write, sync, rotate) -> `disk` (system calls).
- Opening and torn-tail repair: `opening`. One writer only: `ownership`.
- Read path: `reader` -> `scan` (bytes and lines) -> `frames` (compressed files); `segments` lists the files.
- Second copies: `start_copy` (started.jsonl), `mirror` (an object store).

docs/format.md describes the bytes, docs/reliability.md the promises and their tests.
"""

from holdfast.journal.appender import SEGMENT_BYTES
from holdfast.journal.disk import OS_DISK, Disk, make_folders, make_run_folder, write_file
from holdfast.journal.opening import OpenRequest
from holdfast.journal.ownership.lock import Lock
from holdfast.journal.paths import folder_name, journal_folder, run_folder
from holdfast.journal.positions import START, Cursor, Damage, Entry, Position
from holdfast.journal.reader import Reader
from holdfast.journal.sealing import seal
from holdfast.journal.verification import Verification, describe, verify
from holdfast.journal.writer import Writer, WriterOptions, open_writer

__all__ = [
    "OS_DISK",
    "SEGMENT_BYTES",
    "START",
    "Cursor",
    "Damage",
    "Disk",
    "Entry",
    "Lock",
    "OpenRequest",
    "Position",
    "Reader",
    "Verification",
    "Writer",
    "WriterOptions",
    "describe",
    "folder_name",
    "journal_folder",
    "make_folders",
    "make_run_folder",
    "open_writer",
    "run_folder",
    "seal",
    "verify",
    "write_file",
]
