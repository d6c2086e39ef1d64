"""Where derived files live: beside what they are made of, or in the user's cache folder.

The cache is for stores that cannot be written, and for networked ones, where SQLite's locks are not to be trusted.
Nothing in it is an original: it can be deleted at any time, and whoever cannot use it does without.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import time

_NETWORKED = frozenset(
    {
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.juicefs",
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
_KEPT_SECONDS = 30 * 86400.0
_MOUNTS = "/proc/self/mountinfo"


def cached_path(kind: str, *identity: str) -> str:
    """A file in the user's cache for one thing of a kind; other identity, other file."""
    return f"{cached_folder(kind, *identity)}.db"


def cached_folder(kind: str, *identity: str) -> str:
    """The same for what takes more than one file."""
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    told = "\0".join(identity).encode("utf-8", "surrogateescape")
    return os.path.join(above, "holdfast", kind, hashlib.blake2b(told, digest_size=16).hexdigest())


def make_room(path: str) -> None:
    """The folder for something cached, without what is beside it that nobody has brought up to date for a month."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    oldest = time.time() - _KEPT_SECONDS
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # another process removes it
            if entry.stat().st_mtime < oldest:
                shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)


def is_networked(path: str) -> bool:
    """Whether a folder is on another machine's disk; False where that cannot be known."""
    try:
        return _kind_of(os.stat(path).st_dev) in _NETWORKED
    except OSError:
        return False


@functools.cache
def _kind_of(device: int) -> str:
    """The type of a mounted file system, as the kernel names it; empty if it does not tell."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="replace") as file:
        for line in file:
            mount, _, kind = line.partition(" - ")
            if mount.split()[2:3] == [wanted]:
                return kind.split()[0]
    return ""
