"""The folder of a static copy: written beside its place, then moved there in one step, with a manifest of its files.

A crash leaves the copy that was there before, or none, and a hidden folder beside it, which the next copy to the same
place removes.
"""

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from holdfast.errors import UsageError, error_of_path, storage_errors
from holdfast.version import __version__

MANIFEST = "manifest.json"
FORMAT = "holdfast-bundle"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class BundledFile(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class BundledRun(msgspec.Struct, frozen=True):
    """Which state of which run a copy shows."""

    experiment: str
    run_id: str
    uid: str
    status: str
    last_record: int
    last_checksum: str
    """Of the last record: two copies with the same one show the same run."""
    samples: int
    folder: str


class Manifest(msgspec.Struct, frozen=True):
    """`manifest.json`. A contract: fields are only ever added."""

    format: str
    version: int
    holdfast: str
    runs: list[BundledRun]
    files: dict[str, BundledFile]
    """All other files, by path."""


class BundleFolder:
    """The files of a copy that is being written."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files: dict[str, BundledFile] = {}

    def write(self, path: str, content: bytes) -> None:
        """`path`: with slashes, relative to the copy."""
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        self.files[path] = BundledFile(len(content), sha256(content).hexdigest())

    def write_manifest(self, runs: list[BundledRun]) -> None:
        made = Manifest(FORMAT, 1, __version__, runs, dict(sorted(self.files.items())))
        (self._root / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")


@contextlib.contextmanager
def new_bundle(folder: str) -> Iterator[BundleFolder]:
    """A copy that appears under its name when the block ends without an error. UsageError if the folder is in use for
    something else.
    """
    place = Path(os.path.abspath(folder))
    _check_place(place)
    with storage_errors(folder):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(place)
            made = place.parent / f"{_prefix(place)}{secrets.token_hex(4)}"
            made.mkdir()
        except OSError as error:
            raise error_of_path(error, f"{folder} cannot be written: {error.strerror}") from error
        handle = os.open(made, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # as long as it is being written: see _remove_abandoned
            yield BundleFolder(made)
            _move(made, place)
        finally:
            shutil.rmtree(made, ignore_errors=True)
            os.close(handle)


def _check_place(place: Path) -> None:
    if not place.exists() and not place.is_symlink():
        return
    if not place.is_dir() or place.is_symlink():
        raise UsageError(f"{place} is not a folder; name one that does not exist yet, for --bundle")
    try:
        if any(place.iterdir()) and read_manifest(place) is None:
            raise UsageError(
                f"{place} is not empty and is not a copy that --bundle has written; name another folder, or remove it"
            )
    except OSError as error:
        raise error_of_path(error, f"{place} cannot be read: {error.strerror}") from error


def read_manifest(place: Path) -> Manifest | None:
    """None if the folder is not a copy."""
    try:
        found = msgspec.json.decode((place / MANIFEST).read_bytes(), type=Manifest)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.format == FORMAT else None


def _prefix(place: Path) -> str:
    return f".{place.name}.holdfast-"


def _remove_abandoned(place: Path) -> None:
    """Folders of copies that were never finished. One that is being written is locked by its process."""
    for left in place.parent.glob(f"{_escaped(_prefix(place))}*"):
        with contextlib.suppress(OSError):
            handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(handle)


def _escaped(name: str) -> str:
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)


def _move(made: Path, place: Path) -> None:
    """Put the new copy under its name. Afterwards `made` is what was there before, or gone."""
    try:
        os.rename(made, place)  # replaces nothing, or an empty folder
        return
    except OSError:
        if not place.is_dir():
            raise
    _check_place(place)  # it may have changed while the copy was written
    if not _exchange(made, place):
        before = made.with_name(f"{made.name}-before")
        os.rename(place, before)
        os.rename(made, place)
        os.rename(before, made)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step. False where the system cannot."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    return bool(function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
