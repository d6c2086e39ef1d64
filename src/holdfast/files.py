"""Opening, creating, replacing and removing files without following symbolic links, and the modes of new files.

A run folder may come from somebody else, and a link in it can name any file of the user. So every file of a run, a
store or the cache is opened here. Rules:

- The path to a run folder is the user's choice and may contain links. Nothing inside the run folder may be one: neither
  a file nor a folder between the run folder and the file. Those folders are known by name (`INNER_FOLDERS`).
- A named pipe or device with the name of a file is refused without waiting for it.
- Temporary files are always created, never opened: an existing file at their path is removed first.
- Run folders are private (0700), unless `HOLDFAST_SHARED=1` is set or the store is group-writable. Files and inner
  folders in a folder that only its owner can enter are private too (0600, 0700); elsewhere the umask decides. So runs
  of earlier versions keep their modes.
"""

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator

from holdfast.errors import DamagedError

SHARED_VARIABLE = "HOLDFAST_SHARED"
INNER_FOLDERS = frozenset(
    {"journal", "journal.condensed", "quarantine", "incoming", "blobs", "control", "lease", "shards", "grants"}
)
"""Names of the folders inside a run folder. A link of such a name is not followed."""
NO_FOLLOW = os.O_NOFOLLOW
SMALL_BYTES_MAX = 64 * 1024 * 1024
"""The limit for small files (lease, request, spec). Longer files are not read into memory."""
SETTLED_SECONDS = 3.0
"""Older changes have times that differ from those of any later change: some file systems count in steps of 2 s."""
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY)
"""Opens a folder to use files in it by name, which needs only permission to search it."""
_NOT_A_FILE = {errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO}
"""Error numbers for opening a symbolic link, a folder, a socket, a pipe or a device as a file."""
_NOT_A_FOLDER = {errno.ELOOP, errno.EMLINK, errno.ENOTDIR}
_ADVICE = "nothing was read or written through it; put the original back, or remove it"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITABLE_BY_OTHERS = 0o022


class NotAFileError(OSError, DamagedError):
    """A symbolic link, folder, pipe or device has the name of a file of the run."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, "is a link, a folder, a pipe or a device instead of a file", path)

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}; {_ADVICE}"


class NotAFolderError(NotADirectoryError, DamagedError):
    """A symbolic link or a file has the name of a folder of the run."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ENOTDIR, "is a link or a file instead of a folder", path)

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}; {_ADVICE}"


def open_file(path: str, *, write: bool = False) -> int:
    """A handle to an existing regular file; with `write`, to read it and to append to it."""
    return _open(path, os.O_RDWR | os.O_APPEND if write else os.O_RDONLY)


def open_or_create(path: str) -> int:
    """A handle to read a regular file and append to it; the file is created if it is missing."""
    return _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def open_to_overwrite(path: str) -> int:
    """A handle to an existing regular file whose bytes are to be replaced where they are."""
    return _open(path, os.O_WRONLY)


def create_file(path: str) -> int:
    """A handle to a new file, for appending. FileExistsError if the name is taken, by a link too."""
    return _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)


def read_file(path: str) -> bytes:
    """The content of a small file. OSError if it is longer than SMALL_BYTES_MAX."""
    return _read_small(open_file(path), path)


def read_own_file(path: str) -> bytes:
    """The content of a small derived file. PermissionError if it belongs to another user."""
    return _read_small(open_own_file(path), path)


def _read_small(handle: int, path: str) -> bytes:
    with open(handle, "rb") as file:
        if os.fstat(handle).st_size > SMALL_BYTES_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return file.read()


def open_own_file(path: str, *, append: bool = False, alone: bool = False) -> int:
    """A handle to read a file of this user; with `append`, to append to it, and it is created (mode 0600) if it is
    missing. PermissionError if it belongs to another user; with `alone`, also if others can write it.
    """
    handle = _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, private=True) if append else open_file(path)
    found = os.fstat(handle)
    if found.st_uid != os.geteuid() or (alone and found.st_mode & _WRITABLE_BY_OTHERS):
        os.close(handle)
        why = (
            "must be a file that belongs to you and that nobody else can write" if alone else "belongs to another user"
        )
        raise PermissionError(errno.EPERM, why, path)
    return handle


def replace_file(path: str, data: bytes) -> None:
    """Replace a small file: a reader sees the old bytes or the new ones. Not synced: for files that may be lost."""
    temporary = f"{path}.{os.getpid()}.tmp"
    remove_if_present(temporary)
    try:
        with open(create_file(temporary), "wb") as file:
            file.write(data)
        rename(temporary, path)
    except BaseException:  # on a full disk, a leftover file would use the space that the next attempt needs
        with contextlib.suppress(OSError):
            remove(temporary)
        raise


def status_of(path: str) -> os.stat_result | None:
    """The status of a file, folder or link itself (links are not followed); None if nothing has that name."""
    try:
        with _parent(path) as (name, above):
            return os.stat(name, dir_fd=above, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_file(path: str) -> bool:
    found = status_of(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(path: str) -> bool:
    """Whether it is a folder. A link to a folder counts too, unless it has the name of an inner folder of a run."""
    try:
        os.close(_open_folder(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return os.path.isdir(path)
    return True


def open_folder(path: str) -> int:
    """A handle to a folder. NotAFolderError if it is an inner folder of a run, and is a link or a file."""
    return _open_folder(path, os.O_RDONLY)


def list_names(folder: str) -> list[str]:
    with _closing(open_folder(folder)) as handle:
        return os.listdir(handle)


def make_folder(path: str, *, private: bool = False) -> None:
    """Make a folder if it is missing. `private`: only its owner can enter it. NotADirectoryError if something else is
    there.
    """
    try:
        with _parent(path) as (name, above):
            private = private or (os.path.basename(path) in INNER_FOLDERS and _is_private(path, above))
            os.mkdir(name, 0o700 if private else 0o777, dir_fd=above)
    except FileExistsError:
        os.close(_open_folder(path))


def is_private_run(folder: str) -> bool:
    """Whether a new run folder will be private: yes, unless its store is shared."""
    if is_shared():
        return False
    try:
        store = os.stat(os.path.dirname(os.path.dirname(folder)))
    except OSError:
        return True
    return not store.st_mode & stat.S_IWGRP


def is_shared() -> bool:
    """Whether the user has chosen runs that others can read and continue, as far as the umask allows."""
    return os.environ.get(SHARED_VARIABLE, "") not in ("", "0")


def sync_folder(path: str) -> None:
    with _closing(open_folder(path)) as handle:
        os.fsync(handle)


def rename(old: str, new: str) -> None:
    """Rename a file, replacing a file that has the new name. A link with that name is replaced, not followed."""
    with _parent(old) as (source, above_old), _parent(new) as (target, above_new):
        os.replace(source, target, src_dir_fd=above_old, dst_dir_fd=above_new)


def link(old: str, new: str) -> None:
    """Make a hard link. FileExistsError if the new name is taken."""
    with _parent(old) as (source, above_old), _parent(new) as (target, above_new):
        os.link(source, target, src_dir_fd=above_old, dst_dir_fd=above_new, follow_symlinks=False)


def remove(path: str) -> None:
    """Remove a file; if it is a link, the link itself."""
    with _parent(path) as (name, above):
        os.unlink(name, dir_fd=above)


def remove_if_present(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove(path)


def is_own_folder(path: str) -> bool:
    """Whether it is a folder of this user and no link. For places in which other users can create files too."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def remove_own_folder(path: str) -> None:
    """Remove a folder of this user with everything in it, whatever the modes. Links in it are removed, never followed.
    A link or another user's folder at this path is left alone. Entries that cannot be removed stay.
    """
    if not is_own_folder(path):
        return
    place, name = os.path.split(path)
    with contextlib.suppress(OSError), _closing(os.open(place, _SEARCH | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
        with _closing(_open_own_folder(name, above)) as top:
            _empty(top)
        os.rmdir(name, dir_fd=above)


def _empty(top: int) -> None:
    """Remove everything in a folder. Subfolders are moved up before they are emptied, so a very deep tree needs neither
    a deep stack nor many open files.
    """
    prefix, moved, stuck = os.urandom(8).hex(), itertools.count(), set[str]()
    while names := set(os.listdir(top)) - stuck:
        for name in names:
            try:
                if not _is_folder_at(name, top):
                    os.unlink(name, dir_fd=top)
                    continue
                with _closing(_open_own_folder(name, top)) as folder:
                    for inner in os.listdir(folder):
                        if _is_folder_at(inner, folder):
                            os.close(_open_own_folder(inner, folder))
                            os.rename(inner, f"{prefix}-{next(moved)}", src_dir_fd=folder, dst_dir_fd=top)
                        else:
                            os.unlink(inner, dir_fd=folder)
                os.rmdir(name, dir_fd=top)
            except OSError:
                stuck.add(name)


def _is_folder_at(name: str, above: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)


def _open_own_folder(name: str, above: int) -> int:
    """A handle to list a folder and to remove what is in it. Its mode is changed through a handle, never by a path."""
    flags = os.O_DIRECTORY | os.O_CLOEXEC | NO_FOLLOW
    if hasattr(os, "O_PATH"):
        with _closing(os.open(name, os.O_PATH | flags, dir_fd=above)) as found:
            if os.fstat(found).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)
    else:
        os.chmod(name, stat.S_IRWXU, dir_fd=above, follow_symlinks=False)
    return os.open(name, os.O_RDONLY | flags, dir_fd=above)


@contextlib.contextmanager
def _closing(handle: int) -> Iterator[int]:
    try:
        yield handle
    finally:
        os.close(handle)


def _open(path: str, flags: int, *, private: bool = False) -> int:
    """Open a regular file without following links. `private`: a new file gets mode 0600 in every folder."""
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | NO_FOLLOW  # without O_NONBLOCK a named pipe would wait for a writer
    with _parent(path) as (name, above):
        mode = 0o600 if flags & os.O_CREAT and (private or _is_private(path, above)) else 0o666
        try:
            handle = os.open(name, flags, mode, dir_fd=above)
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise NotAFileError(path) from error
            raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotAFileError(path)
    return handle


@contextlib.contextmanager
def _parent(path: str) -> Iterator[tuple[str, int | None]]:
    """The name and folder handle with which to pass a path to the kernel. For a file in an inner folder the handle is
    open, so that nobody can replace the folder with a link between the check and the use.
    """
    folder, name = os.path.split(path)
    if os.path.basename(folder) not in INNER_FOLDERS:
        yield path, None
        return
    handle = _open_folder(folder)
    try:
        yield name, handle
    except OSError as error:
        if error.filename == name:
            error.filename = path  # else the message would name only the last part of the path
        raise
    finally:
        os.close(handle)


def _open_folder(path: str, access: int = _SEARCH) -> int:
    is_inner = os.path.basename(path) in INNER_FOLDERS
    flags = access | os.O_DIRECTORY | os.O_CLOEXEC | (NO_FOLLOW if is_inner else 0)
    with _parent(path) as (name, above):
        try:
            return os.open(name, flags, dir_fd=above)
        except OSError as error:
            if is_inner and error.errno in _NOT_A_FOLDER:
                raise NotAFolderError(path) from error
            raise


def _is_private(path: str, above: int | None) -> bool:
    """Whether only the owner can enter the folder that a new file or folder will be in."""
    if is_shared():
        return False
    found = os.stat(os.path.dirname(path) or os.curdir) if above is None else os.stat(above)
    return not found.st_mode & _OTHERS
