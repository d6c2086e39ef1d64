"""The journal: one append-only log of facts per run. It is the original; everything else is computed from it.

`open_writer` appends, `Reader` reads, `verify` checks, `seal` compresses. Where to look:

- Save path: `writer` (event loop) -> `appender` (thread: batch, write, sync, rotate) -> `disk` (system calls).
- Opening and torn-tail repair: `opening`. One writer only: `ownership`.
- Read path: `reader` -> `scan` (bytes and lines) -> `frames` (compressed files); `segments` lists the files.
- Second copies: `start_copy` (started.jsonl), `mirror` (an object store).

docs/format.md describes the bytes, docs/reliability.md the promises and their tests.
"""

from holdfast.journal.appender import NO_SPACE, SEGMENT_BYTES, CopyWriter
from holdfast.journal.blobs import BlobError, BlobStore, blob_path, blob_size, check_blob_files, read_blob, read_pieces
from holdfast.journal.disk import OS_DISK, Disk, make_folders, make_run_folder, remove_if_there, write_all, write_file
from holdfast.journal.frames import pack
from holdfast.journal.mirror.heartbeat import BEATS
from holdfast.journal.mirror.pieces import (
    PIECES,
    FolderSource,
    MirrorSource,
    SegmentPiece,
    Source,
    is_copy_of_records,
    is_report_original,
    last_number,
    parse_piece,
)
from holdfast.journal.mirror.removal import (
    newest_epoch,
    refuse_removed,
    refuse_unfinished_removal,
    remove_run,
    removed_run,
)
from holdfast.journal.mirror.requests import CONTROL, REPLY_SUFFIX, REQUEST_SUFFIX, request_name
from holdfast.journal.mirror.restore import Restored, fetch_file, mirror_has_more, restore, uid_of
from holdfast.journal.mirror.tombstones import is_tombstone, read_tombstone
from holdfast.journal.mirror.uploader import MirrorUploader, UploadSettings
from holdfast.journal.object_store import Objects, StoredObjects, create_own, is_url, open_objects, split_url
from holdfast.journal.opening import OpenRequest
from holdfast.journal.ownership.claims import (
    EXPIRY_SECONDS,
    Beat,
    TakeoverTiming,
    epochs_in,
    greatest_epoch,
    list_leases,
    observe_claim,
    read_beat,
    take_epoch,
    write_beat,
)
from holdfast.journal.ownership.claims import FOLDER as LEASES
from holdfast.journal.ownership.lease import (
    LEASE,
    OWNER,
    InFlight,
    Lease,
    Stall,
    clock_time,
    describe_death,
    is_alive,
    is_held_by_lease,
    oom_kills,
    own,
    owner_of,
    read_lease,
    this_process,
    write_lease,
)
from holdfast.journal.ownership.lock import LOCK_NAMES, NO_FLOCK, Lock, lock_owner
from holdfast.journal.ownership.terms import EXPIRY_VARIABLE, expiry_from_environment, is_term_held, observe_term
from holdfast.journal.paths import (
    GRANTS,
    SHARDS,
    find_links,
    folder_name,
    is_shard_folder,
    journal_folder,
    parse_segment_name,
    quarantine_folder,
    run_folder,
    segment_path,
    shard_folder,
)
from holdfast.journal.positions import START, Cursor, Damage, Entry, Journal, Loss, bounded, count_lost, unrecorded
from holdfast.journal.reader import Reader
from holdfast.journal.scan import SealedContent, SegmentContent, cache_frames, line_at, open_content
from holdfast.journal.sealing import seal
from holdfast.journal.segments import is_whole_file, list_chain
from holdfast.journal.start_copy import START_FILE, StartLines, copy_start, is_start_copy_current, write_start
from holdfast.journal.verification import Verification, describe, describe_voids, verify, void_entries
from holdfast.journal.writer import MirrorOptions, Writer, WriterOptions, open_writer
from holdfast.records import Position

__all__ = [
    "BEATS",
    "CONTROL",
    "EXPIRY_SECONDS",
    "EXPIRY_VARIABLE",
    "GRANTS",
    "LEASE",
    "LEASES",
    "LOCK_NAMES",
    "NO_FLOCK",
    "NO_SPACE",
    "OS_DISK",
    "OWNER",
    "PIECES",
    "REPLY_SUFFIX",
    "REQUEST_SUFFIX",
    "SEGMENT_BYTES",
    "SHARDS",
    "START",
    "START_FILE",
    "Beat",
    "BlobError",
    "BlobStore",
    "CopyWriter",
    "Cursor",
    "Damage",
    "Disk",
    "Entry",
    "FolderSource",
    "InFlight",
    "Journal",
    "Lease",
    "Lock",
    "Loss",
    "MirrorOptions",
    "MirrorSource",
    "MirrorUploader",
    "Objects",
    "OpenRequest",
    "Position",
    "Reader",
    "Restored",
    "SealedContent",
    "SegmentContent",
    "SegmentPiece",
    "Source",
    "Stall",
    "StartLines",
    "StoredObjects",
    "TakeoverTiming",
    "UploadSettings",
    "Verification",
    "Writer",
    "WriterOptions",
    "blob_path",
    "blob_size",
    "bounded",
    "cache_frames",
    "check_blob_files",
    "clock_time",
    "copy_start",
    "count_lost",
    "create_own",
    "describe",
    "describe_death",
    "describe_voids",
    "epochs_in",
    "expiry_from_environment",
    "fetch_file",
    "find_links",
    "folder_name",
    "greatest_epoch",
    "is_alive",
    "is_copy_of_records",
    "is_held_by_lease",
    "is_report_original",
    "is_shard_folder",
    "is_start_copy_current",
    "is_term_held",
    "is_tombstone",
    "is_url",
    "is_whole_file",
    "journal_folder",
    "last_number",
    "line_at",
    "list_chain",
    "list_leases",
    "lock_owner",
    "make_folders",
    "make_run_folder",
    "mirror_has_more",
    "newest_epoch",
    "observe_claim",
    "observe_term",
    "oom_kills",
    "open_content",
    "open_objects",
    "open_writer",
    "own",
    "owner_of",
    "pack",
    "parse_piece",
    "parse_segment_name",
    "quarantine_folder",
    "read_beat",
    "read_blob",
    "read_lease",
    "read_pieces",
    "read_tombstone",
    "refuse_removed",
    "refuse_unfinished_removal",
    "remove_if_there",
    "remove_run",
    "removed_run",
    "request_name",
    "restore",
    "run_folder",
    "seal",
    "segment_path",
    "shard_folder",
    "split_url",
    "take_epoch",
    "this_process",
    "uid_of",
    "unrecorded",
    "verify",
    "void_entries",
    "write_all",
    "write_beat",
    "write_file",
    "write_lease",
    "write_start",
]
