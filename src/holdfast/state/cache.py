"""The user's cache folder: where every derived file lives, how large it may grow, and which entries are stale.

The folder is `HOLDFAST_CACHE`, else `XDG_CACHE_HOME/holdfast`, else `~/.cache/holdfast`. If it cannot be written, or is
on a network file system, a private temporary folder of this machine is used instead; if that fails too, there is no
cache, and callers work in memory. Everything in it is derived: it may be deleted at any time.

Layout: `runs/<name>.db` and `stores/<name>.db` are snapshots (see `snapshot`), `copies/<name>/` are copies of mirrored
runs, `checks/<name>.json` lists the files of a run that were verified (see `snapshot.CheckedFiles`),
`results/<name>.json` has what reports have computed from the rows of a run (see `Index.keep_results`),
`folds/<name>.fold` is what a resume has computed from the journal (see `fold_snapshot`), `tables/<name>/` is the list
of samples of a run that the viewer shows (see `view.table`), and `downloads/<name>` are data files (see `datasets`).
The modification time of an entry is its time of last use. All folders are private to their owner.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from urllib.parse import quote, unquote_to_bytes

import msgspec

from holdfast.files import open_or_create

FOLDER_VARIABLE = "HOLDFAST_CACHE"
BYTES_VARIABLE = "HOLDFAST_CACHE_BYTES"
BYTES_MAX = 10 << 30
"""The default limit for all entries together."""
UNUSED_SECONDS_MAX = 30 * 86400.0
IN_USE = "in-use"
"""A file inside a copy or a table. Its readers hold a shared lock on it, so that it is not evicted meanwhile."""
IDENTITY = "identity.json"
"""A file inside a table: the `Identity` of what it is derived from."""
TEMPORARY_SUFFIX = ".tmp"
_ABANDONED_SECONDS = 86400.0
DOWNLOADS = "downloads"
_KINDS = ("runs", "stores", "copies", "checks", "folds", "results", "differing", "tables", DOWNLOADS)
"""No version that can read `differing` is left: its entries are only removed."""
_NETWORKED = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.blobfuse2",
        "fuse.ceph",
        "fuse.davfs",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.juicefs",
        "fuse.mount-s3",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "smb3",
        "smbfs",
        "wekafs",
    }
)
_MOUNTS = "/proc/self/mountinfo"


class Identity(msgspec.Struct, frozen=True):
    """The folder that an entry is derived from. A copied, replaced or forged folder has another identity."""

    kind: str
    path: str
    """Absolute, without symbolic links, percent-escaped: file names need not be Unicode."""
    device: int
    inode: int
    uid: str = ""
    """Of the run; empty for a store."""

    @property
    def folder(self) -> str:
        return os.fsdecode(unquote_to_bytes(self.path))

    @property
    def name(self) -> str:
        """The entry's name inside the folder of its kind."""
        content = msgspec.json.encode((self.path, self.device, self.inode, self.uid))
        return hashlib.blake2b(content, digest_size=16).hexdigest()


class CacheEntry(msgspec.Struct, frozen=True):
    """A file or folder of the cache."""

    path: str
    bytes: int
    used: float
    is_folder: bool
    kind: str


def identify(kind: str, folder: str, uid: str = "") -> Identity | None:
    """None if the folder does not exist."""
    try:
        path = os.path.realpath(folder)
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return Identity(kind, quote(os.fsencode(path)), found.st_dev, found.st_ino, uid)


def kind_folder(kind: str) -> str | None:
    """The folder for one kind of entry, ready to be written to; None if there is no usable cache."""
    for root, is_private in _roots():
        with contextlib.suppress(OSError, ValueError):
            folder = os.path.join(root, kind)
            if _is_usable_root(root, is_private=is_private) and _make_private(folder):
                return folder
    return None


def entry_path(kind: str, name: str) -> str | None:
    folder = kind_folder(kind)
    return None if folder is None else os.path.join(folder, name)


def mark_used(path: str) -> None:
    """Access times are unreliable (noatime), so the modification time records the last use."""
    with contextlib.suppress(OSError):
        os.utime(path)


def make_room(root: str, keep: str = "", bytes_max: int | None = None, now: float | None = None) -> None:
    """Remove what was unused for a month, then the least recently used entries until the rest fits the limit.

    Open files are safe: SQLite keeps reading a file without a name, and copies that are being read are skipped.
    `keep`: the entry that is in use right now.
    """
    limit = _bytes_max() if bytes_max is None else bytes_max
    now = time.time() if now is None else now
    every = sorted(_entries(root), key=lambda entry: entry.used)
    total = sum(entry.bytes for entry in every)
    for entry in every:
        is_abandoned = entry.path.endswith(TEMPORARY_SUFFIX) and now - entry.used > _ABANDONED_SECONDS
        if total <= limit and now - entry.used <= UNUSED_SECONDS_MAX and not is_abandoned:
            continue
        if entry.path != keep and remove_entry(entry.path):
            total -= entry.bytes


def remove_entry(path: str) -> bool:
    """False if it is in use, or cannot be removed."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            return _remove_copy(path)
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_stale(is_stale: Callable[[str], bool]) -> tuple[int, int]:
    """Remove snapshots and tables whose run or store is gone, from every folder that this user's cache may be in.
    Return how many were removed, and their bytes.
    """
    count = size = 0
    for root, _ in _roots():
        for entry in list(_entries(root)):
            is_derived = not entry.is_folder or os.path.isfile(os.path.join(entry.path, IDENTITY))
            if not is_derived or entry.path.endswith(TEMPORARY_SUFFIX) or entry.kind == DOWNLOADS:
                continue
            if is_stale(entry.path) and remove_entry(entry.path):
                count, size = count + 1, size + entry.bytes
        make_room(root)
    return count, size


def is_networked(path: str) -> bool:
    """Whether a folder is on another machine's disk; False where the kernel does not say."""
    try:
        return _kind_of(os.stat(path).st_dev) in _NETWORKED
    except OSError:
        return False


def cache_folder() -> str:
    """The folder that the user's cache is in, unless it cannot be used."""
    return next(_roots())[0]


def _roots() -> Iterator[tuple[str, bool]]:
    """Candidates for the cache folder; True for one in a shared place, which must be private to be trusted."""
    configured = os.environ.get(FOLDER_VARIABLE)
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield os.path.abspath(configured or os.path.join(above, "holdfast")), False
    temporary = os.environ.get("TMPDIR") or "/tmp"
    yield os.path.join(os.path.abspath(temporary), f"holdfast-{os.geteuid()}"), True


def _is_usable_root(root: str, *, is_private: bool) -> bool:
    if is_private:
        return _make_private(root, tighten=False) and not is_networked(root)
    os.makedirs(root, mode=0o700, exist_ok=True)
    if not os.environ.get(FOLDER_VARIABLE):
        _make_private(root)  # older versions used the umask's mode; a folder that the user configured keeps its mode
    return not is_networked(root) and os.access(root, os.W_OK | os.X_OK)


def _make_private(folder: str, *, tighten: bool = True) -> bool:
    """Create a folder that only its owner can enter. False if the path is a link or belongs to another user.
    `tighten`: change the mode of one that others can enter, instead of refusing it.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    if stat.S_IMODE(found.st_mode) & 0o077:
        if not tighten:
            return False
        os.chmod(folder, 0o700)
    return os.access(folder, os.W_OK | os.X_OK)


def _bytes_max() -> int:
    try:
        return int(os.environ.get(BYTES_VARIABLE, "")) or BYTES_MAX
    except ValueError:
        return BYTES_MAX


def _entries(root: str) -> Iterator[CacheEntry]:
    for kind in _KINDS:
        try:
            found = list(os.scandir(os.path.join(root, kind)))
        except OSError:
            continue
        for each in found:
            with contextlib.suppress(OSError):  # another process may remove it meanwhile
                about = each.stat(follow_symlinks=False)
                is_folder = each.is_dir(follow_symlinks=False)
                size = _size_of(each.path) if is_folder else about.st_size
                yield CacheEntry(each.path, size, about.st_mtime, is_folder, kind)


def _size_of(folder: str) -> int:
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(above, name)).st_size
    return total


def _remove_copy(folder: str) -> bool:
    """Remove a copy unless a reader holds its lock: readers open its files one by one, and must find all of them."""
    try:
        handle = open_or_create(os.path.join(folder, IN_USE))
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden = f"{folder}-{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"  # renamed first: nobody sees half of it
        os.rename(folder, hidden)
        shutil.rmtree(hidden, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


@functools.cache
def _kind_of(device: int) -> str:
    """The type of a mounted file system, as the kernel names it; empty if unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="replace") as file:
        for line in file:
            mount, _, kind = line.partition(" - ")
            if mount.split()[2:3] == [number]:
                return kind.split()[0]
    return ""


_held: dict[str, int] = {}
"""Open lock files of the copies that this process reads, by the copy's folder."""


def hold_copy(above: str) -> None:
    """Create the folder of a copy, and protect it from eviction until this process ends: reports open files lazily."""
    path = os.path.join(above, IN_USE)
    while True:
        with contextlib.suppress(OSError):
            if above in _held and os.path.samestat(os.fstat(_held[above]), os.lstat(path)):
                return
        if above in _held:
            os.close(_held.pop(above))  # deleted, or evicted before we had the lock
        os.makedirs(above, mode=0o700, exist_ok=True)
        handle = open_or_create(path)
        _held[above] = handle
        fcntl.flock(handle, fcntl.LOCK_SH)
