"""What a running command uses: processes, memory and files, counted while it runs. Imports nothing of Holdfast: the
launcher uses it.

The kernel's own limits hold for one process or one file. These are for all of them together. Counting happens between
two looks at the clock, so a command may exceed a limit for a moment before it is killed; only a control group is exact.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPEST = 200
"""Folders inside one another. What is deeper cannot be looked into with a bounded number of open folders."""
FILE_COST_FACTOR = 20
"""Counting files takes at most a 20th of the time of one processor, unless the disk fills up meanwhile."""


class UsageWatch:
    """One command's use, against its limits. A limit of 0 is none."""

    def __init__(self, limits: dict[str, int], folder: str, groups: list[str]) -> None:
        self._limits = limits
        self._events = groups
        """Files of control groups that count how often the kernel killed for memory: then it need not be counted."""
        self._files = FolderUsage(folder, limits["bytes"], limits["files"], bool(limits["over_full"]))

    def excess(self) -> str:
        """Which limit is exceeded; nothing, if none is."""
        if self.is_out_of_memory():
            return "memory"
        pids = descendants() if self._limits["processes"] else []
        if len(pids) > self._limits["processes"] + 1:  # the first of a namespace is not the command's
            return "processes"
        deleted = dict(deleted_files(pids))
        if self._limits["memory"] and not self._events and self._counted_memory(pids, deleted) > self._limits["memory"]:
            return "memory"
        try:
            return "files" if self._files.is_exceeded(deleted) else ""
        except OSError:  # without namespaces a command can remove the folder itself
            return ""

    def is_out_of_memory(self) -> bool:
        """Also true after the command has ended, if that was why."""
        return any(
            int(line.split()[1]) for path in self._events for line in lines(path) if line.startswith("oom_kill ")
        )

    def _counted_memory(self, pids: list[int], deleted: dict[tuple[int, int], int]) -> int:
        """Private pages, and shared memory: what is mapped, or what is in files in memory, whichever is more. Much of
        both is the same, and pages that several processes map would count for each, so that sums are too high.
        """
        private, mapped = 0, 0
        for pid in pids:
            private += field_kb(f"/proc/{pid}/status", "RssAnon:")
            mapped += field_kb(f"/proc/{pid}/status", "RssShmem:")
        if (private + mapped) * 1024 > self._limits["memory"]:  # only now: it is the kernel that has to add up pages
            mapped = sum(field_kb(f"/proc/{pid}/smaps_rollup", "Pss_Shmem:") for pid in pids)
        device = memory_device()
        in_files = sum(size for (where, _), size in deleted.items() if where == device) + shared_files(pids)
        return private * 1024 + max(mapped * 1024, in_files)


class FolderUsage:
    """How much is in a folder. `over_full`: an earlier command left more than it may have. This one is killed only if
    it makes that more, so that it can remove something.
    """

    def __init__(self, folder: str, bytes_max: int, count_max: int, over_full: bool) -> None:
        self._folder = folder
        self._device = os.stat(folder).st_dev
        self._bytes_max, self._count_max = bytes_max, count_max
        if over_full:
            self._bytes_max = self._count_max = 1 << 62
            size, count = self._count({})
            self._bytes_max, self._count_max = max(bytes_max, size), max(count_max, count)
        self._next_at = 0.0
        self._soon_at = 0.0
        self._free = (0, 0)

    def is_exceeded(self, deleted: dict[tuple[int, int], int]) -> bool:
        """Counts only now and then, if there is much to count; but soon, if the disk has less space than it had."""
        now = time.monotonic()
        free = free_space(self._folder)
        if now < self._soon_at or (now < self._next_at and free[0] >= self._free[0] and free[1] >= self._free[1]):
            return False
        size, count = self._count(deleted)
        cost = time.monotonic() - now
        self._soon_at, self._next_at = now + 3 * cost, now + FILE_COST_FACTOR * cost
        self._free = free[0] - (self._bytes_max - size) // 2, free[1] - (self._count_max - count) // 2
        return size > self._bytes_max or count > self._count_max

    def _count(self, deleted: dict[tuple[int, int], int]) -> tuple[int, int]:
        """Bytes and files, also those that are deleted but still open. Ends when it is too much."""
        mine = [size for (device, _), size in deleted.items() if device == self._device]
        size, count = sum(mine), len(mine)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for each in sizes_in(folder):
                size, count = size + each, count + 1
                if size > self._bytes_max or count > self._count_max:
                    break
        finally:
            os.close(folder)
        return size, count


def sizes_in(folder: int, depth: int = 0) -> Iterator[int]:
    """The size of each thing below an open folder: no more than its bytes, and no more than its place on the disk. By
    descriptors: a command cannot lead this out of its folder by replacing one by a link.
    """
    if depth > DEEPEST:
        yield 1 << 62
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # it is gone by now
                continue
            yield min(status.st_size, status.st_blocks * 512) if stat.S_ISREG(status.st_mode) else 0
            if stat.S_ISDIR(status.st_mode):
                yield from sizes_in_folder(entry.name, folder, depth + 1)


def sizes_in_folder(name: str, above: int, depth: int) -> Iterator[int]:
    """Also in one that the command has closed to its own user: it is opened while it is looked at."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    closed = None
    try:
        try:
            folder = os.open(name, os.O_RDONLY | flags, dir_fd=above)
            mode = stat.S_IMODE(os.fstat(folder).st_mode)
        except PermissionError:
            folder = os.open(name, os.O_PATH | flags, dir_fd=above)
            mode = 0
        if os.geteuid() and mode & 0o500 != 0o500:
            itself = f"/proc/self/fd/{folder}"  # not by name: that could lead elsewhere by now
            closed = stat.S_IMODE(os.fstat(folder).st_mode)
            os.chmod(itself, closed | 0o500)
            path_only, folder = folder, os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(path_only)
    except OSError:  # it is gone by now
        return
    try:
        yield from sizes_in(folder, depth)
    finally:
        if closed is not None:
            os.fchmod(folder, closed)
        os.close(folder)


def descendants() -> list[int]:
    """Of this process, to which all orphans among them fall."""
    found: list[int] = []
    above = [os.getpid()]
    while above:
        pid = above.pop()
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for thread in threads:
            for line in lines(f"/proc/{pid}/task/{thread}/children"):
                children = [int(each) for each in line.split()]
                found += children
                above += children
    return found


def deleted_files(pids: list[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Open files that are in no folder any more, or never were (memfd): device and number, and the space they take."""
    for pid in pids:
        try:
            handles = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for handle in handles:
            try:
                status = os.stat(f"/proc/{pid}/fd/{handle}")
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                yield (status.st_dev, status.st_ino), status.st_blocks * 512


def memory_device() -> int:
    """Of all files that are made by memfd_create."""
    try:
        handle = os.memfd_create("device")
    except OSError:
        return -1
    try:
        return os.fstat(handle).st_dev
    finally:
        os.close(handle)


def shared_files(pids: list[int]) -> int:
    """Bytes in the /dev/shm of a command that has its own."""
    for pid in pids:
        try:
            path = os.path.join("/proc", str(pid), "root", "dev", "shm")
            if os.stat(path).st_dev != os.stat("/dev/shm").st_dev:
                used = os.statvfs(path)
                return (used.f_blocks - used.f_bfree) * used.f_frsize
        except OSError:
            continue
    return 0


def free_space(folder: str) -> tuple[int, int]:
    status = os.statvfs(folder)
    return status.f_bfree * status.f_frsize, status.f_ffree


def field_kb(path: str, name: str) -> int:
    """A figure from a file of /proc, 0 if it is not there: the process has ended, or is only a thread of the kernel."""
    return next((int(line.split()[1]) for line in lines(path) if line.startswith(name)), 0)


def lines(path: str) -> list[str]:
    """No lines, if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
