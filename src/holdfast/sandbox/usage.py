"""Counts what a running command uses: processes, memory and files. Imports nothing of Holdfast: the launcher uses it.

The kernel's own limits hold for one process or one file; these hold for all of them together. Counting happens a few
times a second, so a command may exceed a limit for a moment before it is killed; only a control group is exact.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

DEEPEST = 200
"""Depth of nested folders that is counted: each level needs an open descriptor. Deeper counts as over the limit."""
FILE_COST_FACTOR = 20
"""Counting files takes at most a 20th of the time of one processor, unless the disk fills up meanwhile."""


class UsageWatch:
    """Compares a command's use with its limits. A limit of 0 is none."""

    def __init__(self, limits: dict[str, int], folder: str, groups: list[str]) -> None:
        self._limits = limits
        self._events = groups
        """Files in which control groups count out-of-memory kills. With them, memory need not be counted here."""
        self._files = FolderUsage(folder, limits["bytes"], limits["files"], bool(limits["over_full"]))

    def excess(self) -> str:
        """Return the limit that is exceeded; empty if none is."""
        if self.is_out_of_memory():
            return "memory"
        pids = descendants() if self._limits["processes"] else []
        if len(pids) > self._limits["processes"] + 1:  # one more: the namespace's first process is ours
            return "processes"
        deleted = dict(deleted_files(pids))
        if self._limits["memory"] and not self._events and self._counted_memory(pids, deleted) > self._limits["memory"]:
            return "memory"
        try:
            return "files" if self._files.is_exceeded(deleted) else ""
        except OSError:  # without namespaces a command can remove the folder itself
            return ""

    def is_out_of_memory(self) -> bool:
        """Whether the kernel killed for memory. Also true after the command has ended."""
        return any(
            int(line.split()[1]) for path in self._events for line in lines(path) if line.startswith("oom_kill ")
        )

    def _counted_memory(self, pids: list[int], deleted: dict[tuple[int, int], int]) -> int:
        """Return private pages plus shared memory: mapped pages or files in memory, whichever is more. The two overlap,
        and pages that several processes map count for each, so their sum would be too high.
        """
        private, mapped = 0, 0
        for pid in pids:
            private += field_kb(f"/proc/{pid}/status", "RssAnon:")
            mapped += field_kb(f"/proc/{pid}/status", "RssShmem:")
        if (private + mapped) * 1024 > self._limits["memory"]:  # only now: the exact figure is expensive for the kernel
            mapped = sum(field_kb(f"/proc/{pid}/smaps_rollup", "Pss_Shmem:") for pid in pids)
        device = memory_device()
        in_files = sum(size for (where, _), size in deleted.items() if where == device) + shared_files(pids)
        return private * 1024 + max(mapped * 1024, in_files)


class FolderUsage:
    """Counts the files in a folder. `over_full`: an earlier command left more than allowed. Then the limit is what is
    there now, so that this command can remove something.
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
        """Count rarely if there is much to count, but soon if the free space of the disk has shrunk."""
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
        """Return bytes and files, including deleted files that are still open. Stops at the limit."""
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
    """Yield the size of everything below an open folder: the smaller of its length and its disk space. Uses
    descriptors, so that a command cannot lead it out of the folder by replacing a folder with a link.
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
    """Yield the sizes in a subfolder. One without read permission gets it for as long as it is scanned."""
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
            itself = f"/proc/self/fd/{folder}"  # not by name: the command could have replaced it
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
    """Return all descendants of this process, which also adopts their orphans."""
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
    """Yield open files that are in no folder (deleted, memfd): device and inode, and their disk space."""
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
    """Return the device of files created by memfd_create."""
    try:
        handle = os.memfd_create("device")
    except OSError:
        return -1
    try:
        return os.fstat(handle).st_dev
    finally:
        os.close(handle)


def shared_files(pids: list[int]) -> int:
    """Return the bytes in the /dev/shm of a command that has its own."""
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
    """Return a number from a file of /proc; 0 if it is missing: the process has ended, or is a kernel thread."""
    return next((int(line.split()[1]) for line in lines(path) if line.startswith(name)), 0)


def lines(path: str) -> list[str]:
    """Return the lines of a file; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
