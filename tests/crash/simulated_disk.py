"""A disk that remembers every operation, and can say what a power loss may leave of them.

The model is weaker than any real file system: data is durable only after a sync of its file, a name only after a sync
of its folder, and whatever is not yet durable may survive in any combination, torn at 512-byte sectors, or as zeros.
After a failed sync the pages count as clean: a later sync does not save them.
"""

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

SECTOR = 512
TEARS = 6  # random cuts, and random losses of sectors, for each write that is not synced
ROOT = "/disk"


@dataclass(frozen=True)
class Write:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    inode: int
    size: int


@dataclass(frozen=True)
class Sync:
    inode: int
    failed: bool = False


@dataclass(frozen=True)
class Link:
    folder: str
    name: str
    inode: int


@dataclass(frozen=True)
class Unlink:
    folder: str
    name: str


@dataclass(frozen=True)
class Rename:
    folder: str
    old: str
    new: str
    inode: int


@dataclass(frozen=True)
class MakeFolder:
    folder: str
    name: str


@dataclass(frozen=True)
class SyncFolder:
    folder: str


Operation = Write | Truncate | Sync | Link | Unlink | Rename | MakeFolder | SyncFolder
_Data = Write | Truncate
_Entry = Link | Unlink | Rename | MakeFolder


@dataclass
class State:
    """What is on the disk: folders with their entries, files with their bytes."""

    folders: dict[str, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytearray] = field(default_factory=dict)

    def copy(self) -> "State":
        return State(
            {path: dict(names) for path, names in self.folders.items()},
            {i: bytearray(b) for i, b in self.files.items()},
        )

    def apply(self, operation: Operation) -> None:
        match operation:
            case Write(inode, offset, data):
                content = self.files.setdefault(inode, bytearray())
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data
            case Truncate(inode, size):
                content = self.files.setdefault(inode, bytearray())
                del content[size:]
            case Link(folder, name, inode):
                self.files.setdefault(inode, bytearray())
                self.folders.setdefault(folder, {})[name] = inode
            case Unlink(folder, name):
                self.folders.setdefault(folder, {}).pop(name, None)
            case Rename(folder, old, new, inode):
                self.files.setdefault(inode, bytearray())
                names = self.folders.setdefault(folder, {})
                names.pop(old, None)
                names[new] = inode
            case MakeFolder(folder, name):
                self.folders.setdefault(folder, {})[name] = -1
                self.folders.setdefault(os.path.join(folder, name), {})
            case Sync() | SyncFolder():
                pass

    def reachable(self) -> "State":
        """Without what lies below a folder whose own name was lost."""
        folders = {ROOT: self.folders[ROOT]}
        for path in sorted(self.folders):
            above, name = os.path.split(path)
            if above in folders and folders[above].get(name) == -1:
                folders[path] = self.folders[path]
        return State(folders, self.files).copy()

    def fingerprint(self) -> int:
        contents = sorted(
            (folder, name, bytes(self.files.get(inode, b"")))
            for folder, names in self.folders.items()
            for name, inode in names.items()
        )
        return hash(tuple(contents))


class SimulatedDisk:
    """Implements `holdfast.journal.disk.Disk` in memory."""

    def __init__(self, state: State | None = None) -> None:
        self.log: list[Operation] = []
        self.before = (state or State()).copy()
        self.now = self.before.copy()
        self.fail: Callable[[str, int], int] = lambda call, count: 0  # the errno to fail a call with, or 0
        self._counts: dict[str, int] = {}
        self._handles: dict[int, int] = {}
        self._next_handle = 100
        self._next_inode = max(self.now.files, default=0) + 1

    def names(self, folder: str) -> list[str]:
        return sorted(self._folder(folder))

    def make_folder(self, path: str, *, private: bool = False) -> None:
        folder, name = os.path.split(path)
        if name not in self._folder(folder):
            self._do(MakeFolder(folder, name))

    def create(self, path: str) -> int:
        self._may_fail("create")
        folder, name = os.path.split(path)
        if name in self._folder(folder):
            raise FileExistsError(errno.EEXIST, "exists", path)
        inode = self._next_inode
        self._next_inode += 1
        self._do(Link(folder, name, inode))
        return self._handle(inode)

    def open(self, path: str, *, write: bool = False) -> int:
        return self._handle(self._inode(path))

    def read(self, handle: int, offset: int, size: int) -> bytes:
        return bytes(self.now.files[self._handles[handle]][offset : offset + size])

    def size(self, handle: int) -> int:
        return len(self.now.files[self._handles[handle]])

    def write(self, handle: int, buffers: Sequence[bytes | memoryview]) -> int:
        inode = self._handles[handle]
        data = b"".join(buffers)
        try:
            self._may_fail("write")
        except OSError:
            self._do(Write(inode, len(self.now.files[inode]), data[: len(data) // 2]))  # some of it may have arrived
            raise
        self._do(Write(inode, len(self.now.files[inode]), data))
        return len(data)

    def truncate(self, handle: int, size: int) -> None:
        self._do(Truncate(self._handles[handle], size))

    def sync(self, handle: int) -> None:
        try:
            self._may_fail("sync")
        except OSError:
            self._do(Sync(self._handles[handle], failed=True))
            raise
        self._do(Sync(self._handles[handle]))

    def close(self, handle: int) -> None:
        del self._handles[handle]

    def publish(self, temporary: str, path: str) -> None:
        self._may_fail("publish")
        folder, name = os.path.split(path)
        if name in self._folder(folder):
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._do(Link(folder, name, self._inode(temporary)))
        self._do(Unlink(folder, os.path.basename(temporary)))

    def replace(self, temporary: str, path: str) -> None:
        folder, name = os.path.split(path)
        self._do(Rename(folder, os.path.basename(temporary), name, self._inode(temporary)))

    def remove(self, path: str) -> None:
        self._inode(path)
        folder, name = os.path.split(path)
        self._do(Unlink(folder, name))

    def sync_folder(self, path: str) -> None:
        self._may_fail("sync_folder")
        self._folder(path)
        self._do(SyncFolder(path))

    def _do(self, operation: Operation) -> None:
        self.log.append(operation)
        self.now.apply(operation)

    def _may_fail(self, call: str) -> None:
        count = self._counts[call] = self._counts.get(call, 0) + 1
        number = self.fail(call, count)
        if number:
            raise OSError(number, os.strerror(number))

    def _folder(self, path: str) -> dict[str, int]:
        if path not in self.now.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return self.now.folders[path]

    def _inode(self, path: str) -> int:
        folder, name = os.path.split(path)
        if name not in self._folder(folder):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.now.folders[folder][name]

    def _handle(self, inode: int) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = inode
        return self._next_handle


def states_after(disk: SimulatedDisk, point: int, chance: random.Random) -> Iterator[State]:
    """What a power loss after `point` operations may leave: prefixes, small subsets, random ones, torn ones."""
    pending = _pending(disk.log[:point])
    for kept in _choices(pending, chance):
        yield _build(disk, point, pending, {index: disk.log[index] for index in kept})
    for index in pending:
        operation = disk.log[index]
        if isinstance(operation, Write):
            others = {other: disk.log[other] for other in pending if other < index}
            for torn in _tear(operation, chance):
                yield _build(disk, point, pending, {**others, index: torn})


def _pending(log: Sequence[Operation]) -> list[int]:
    """The operations that no later sync has made durable."""
    pending = []
    safe: set[int | str] = set()  # inodes and folders with a successful sync further on
    for index in range(len(log) - 1, -1, -1):
        operation = log[index]
        match operation:
            case Sync(inode, failed):
                safe.discard(inode) if failed else safe.add(inode)
            case SyncFolder(folder):
                safe.add(folder)
            case Write(inode) | Truncate(inode):
                if inode not in safe:
                    pending.append(index)
            case Link(folder) | Unlink(folder) | Rename(folder) | MakeFolder(folder):
                if folder not in safe:
                    pending.append(index)
    return pending[::-1]


def _choices(pending: Sequence[int], chance: random.Random) -> Iterator[tuple[int, ...]]:
    for length in range(len(pending) + 1):
        yield tuple(pending[:length])
    for size in range(1, min(4, len(pending)) + 1):
        subsets = list(itertools.islice(itertools.combinations(pending, size), 2000))
        yield from subsets if len(subsets) <= 40 else chance.sample(subsets, 40)
    for _ in range(4 if len(pending) > 4 else 0):
        yield tuple(index for index in pending if chance.random() < 0.7)


def _tear(operation: Write, chance: random.Random) -> Iterator[Write]:
    """The write as zeros only, cut anywhere, cut at each sector, and with sectors lost."""
    data = operation.data
    if not data:
        return
    pieces = [bytes(len(data))]
    pieces += [data[: chance.randrange(len(data))] for _ in range(TEARS)]
    first = -operation.offset % SECTOR
    edges = [0, *range(first or SECTOR, len(data), SECTOR), len(data)]
    pieces += [data[:edge] for edge in edges[1:-1]]
    for _ in range(TEARS if len(edges) > 2 else 0):
        holed = bytearray(data)
        for start, end in itertools.pairwise(edges):
            if chance.random() < 0.4:
                holed[start:end] = bytes(end - start)
        pieces.append(bytes(holed))
    for piece in pieces:
        yield Write(operation.inode, operation.offset, piece)


def _build(disk: SimulatedDisk, point: int, pending: Sequence[int], kept: dict[int, Operation]) -> State:
    state = disk.before.copy()
    lost = set(pending) - set(kept)
    for index in range(point):
        if index not in lost:
            state.apply(kept.get(index, disk.log[index]))
    return state.reachable()
