"""The lease: `lease.json`, the heartbeat and progress of the process that writes a run, for readers of the run.

It is derived data. The lock decides who may write, never this file. It is replaced atomically and not synced, because
after a power loss no process holds the run. The beat comes from the event loop, so a blocked loop or a paused process
shows as a beat that does not change. A crash leaves the last lease; readers find from it that the process is dead.
"""

import contextlib
import errno
import os
import re
import socket
import sys
import time

import msgspec
import xxhash

from holdfast import files
from holdfast.records import Durations

LEASE = "lease.json"
_CHECKSUM = re.compile(rb',"x":"([0-9a-f]{16})"\}\s*\Z')
OWNER = "owner.json"
"""The file in a private folder of one process that names this process."""
FRESH_SECONDS = 20.0
"""An older heartbeat from another machine is no evidence of a live process."""
_BOOT = "/proc/sys/kernel/random/boot_id"
_SPACE = "/proc/self/ns/pid"
_OOM = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The identity of a process. The boot id and start time separate it from a later process with the same pid."""

    pid: int
    host: str
    boot: str = ""
    started: str = ""
    """The start time of the process, in the kernel's clock ticks since boot."""
    space: str = ""
    """The pid namespace: each container of a machine has its own pids."""


class InFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sample in progress, its current activity, and when this activity began."""

    key: str
    doing: str
    since: float
    overdue: bool = False
    stack: list[str] = []


class Stall(msgspec.Struct, frozen=True, omit_defaults=True):
    """No progress: since when, why, and which samples block it."""

    since: float
    why: str
    samples: list[InFlight] = []


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """One heartbeat."""

    holder: Holder
    epoch: int
    beat: int
    at: float
    began: float
    stall_seconds: float
    planned: int = 0
    finished: int = 0
    failed: int = 0
    in_flight: int = 0
    acknowledged: int = 0
    mirrored: int | None = None
    """The number of the last record that is durable in the mirror; None without a mirror."""
    mirror_behind: float = 0.0
    """For how many seconds the mirror has been incomplete."""
    progress_at: float = 0.0
    held: str = ""
    """What the run waits for other than a response: a rate limit, a server that is down, free disk space."""
    oldest: list[InFlight] = []
    stall: Stall | None = None
    oom_kills: int = 0
    """The number of out-of-memory kills in this control group when the run began."""
    released: bool = False
    scoring: bool = False
    """The process only scores the answers of a run that has ended."""
    commits: Durations | None = None
    """How long records took to become durable."""
    lock: int = 0
    """The inode of the lock file that the holder has locked; 0 if unknown. If the path has another inode, the lock
    protects nothing (`lock`).
    """
    end: str = ""
    """The type of the record that ended the run, for readers that see the heartbeat but not the journal."""
    last_n: int = 0
    """The number of that record: the process wrote none after it. 0 if unknown."""

    @property
    def durable_n(self) -> int:
        """The last record that the lease knows to be durable."""
        return max(self.acknowledged, self.last_n)


def write_lease(run: str, lease: Lease) -> None:
    """Replace the lease. A failure does not stop the run and is ignored.

    On a full disk the old lease is overwritten where it is, which needs no new space on most file systems. So readers
    still see that the run is alive and waits for space.
    """
    path, encoded = os.path.join(run, LEASE), msgspec.json.encode(lease)
    # A checksum as the last field, so that a flipped digit in a count is detected.
    data = b'%s,"x":"%s"}' % (encoded[:-1], xxhash.xxh3_64_hexdigest(encoded).encode())
    try:
        files.replace_file(path, data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with contextlib.suppress(OSError):
                _overwrite(path, data)


def _overwrite(path: str, data: bytes) -> None:
    """Overwrite a file with one write, padded with spaces to its old length: JSON ignores trailing spaces.

    A reader that sees a mixture of old and new cannot decode it, and treats it as no lease until the next beat.
    """
    handle = files.open_to_overwrite(path)
    try:
        os.pwrite(handle, data.ljust(os.fstat(handle).st_size), 0)
    finally:
        os.close(handle)


def read_lease(run: str) -> Lease | None:
    """The last heartbeat; None if it is missing or unreadable."""
    try:
        return _read_lease(run)
    except OSError:
        return None


def is_held_by_lease(run: str) -> bool:
    """Whether a live process writes the run according to its lease. For runs whose lock file cannot be opened.

    True also if there is no permission to read the lease: then nothing proves that the run is free.
    """
    try:
        lease = _read_lease(run)
    except PermissionError:
        return True
    except OSError:
        return False
    if lease is None or lease.released:
        return False
    alive = is_alive(lease.holder)
    return time.time() - lease.at < FRESH_SECONDS if alive is None else alive


def _read_lease(run: str) -> Lease | None:
    data = files.read_file(os.path.join(run, LEASE))
    mark = _CHECKSUM.search(data)  # leases of older versions have none and are accepted
    if mark is not None and xxhash.xxh3_64_hexdigest(data[: mark.start()] + b"}") != mark[1].decode():
        return None
    try:
        return msgspec.json.decode(data, type=Lease)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def this_process() -> Holder:
    return Holder(os.getpid(), socket.gethostname(), boot_id(), _started(os.getpid()), _space())


def own(folder: str) -> None:
    """Record that a folder belongs to this process."""
    files.replace_file(os.path.join(folder, OWNER), msgspec.json.encode(this_process()))


def owner_of(folder: str) -> Holder | None:
    """The process that a folder belongs to; None if that is not recorded (the folder is being created or removed)."""
    try:
        return msgspec.json.decode(files.read_file(os.path.join(folder, OWNER)), type=Holder)
    except (OSError, msgspec.DecodeError):
        return None


def is_alive(holder: Holder) -> bool | None:
    """Whether exactly this process still runs; None if it is on another host, where this cannot be checked."""
    if holder.host != socket.gethostname():
        return None
    if holder.pid <= 0 or holder.pid >= 1 << 31 or (holder.boot and boot_id() and holder.boot != boot_id()):
        return False
    if holder.started and sys.platform == "linux":
        return _started(holder.pid) == holder.started
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_gone(holder: Holder) -> bool:
    """Whether exactly this process is certainly dead, so that its run may be taken over.

    Machines and containers may share a host name, so boot id and pid namespace must be ours too.
    """
    return holder.boot == boot_id() and holder.space == _space() and is_alive(holder) is False


def describe_death(lease: Lease) -> str:
    """Why a process ended without recording its end: a reboot, an out-of-memory kill, or another kill."""
    when = clock_time(lease.at)
    if lease.holder.host != socket.gethostname():
        return f"its process on {lease.holder.host} was last seen at {when}"
    if lease.holder.boot and boot_id() and lease.holder.boot != boot_id():
        return f"the machine was restarted after {when}"
    if oom_kills() > lease.oom_kills:
        return f"killed at about {when}, probably because memory ran out (see `dmesg`)"
    return f"killed at about {when}"


def clock_time(at: float) -> str:
    """Date and time for people. Never raises: a damaged lease may hold any number."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, OSError, ValueError):
        return "an unknown time"


def boot_id() -> str:
    return _line_of(_BOOT)


def oom_kills() -> int:
    """The number of out-of-memory kills in this control group; 0 if the kernel does not report it."""
    for path in _OOM:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            counts = dict(line.split() for line in file if len(line.split()) == 2)
            return int(counts.get("oom_kill", 0))
    return 0


def _started(pid: int) -> str:
    """The start time of a process (field 22 of /proc/<pid>/stat); empty if it is unknown or the process is a zombie.

    Fields are counted after the last `)`, because the process name before it may contain anything.
    """
    line = _line_of(f"/proc/{pid}/stat")
    fields = line.rpartition(")")[2].split()
    return "" if not fields or fields[0] == "Z" else fields[19]


def _space() -> str:
    try:
        return os.readlink(_SPACE)
    except OSError:
        return ""


def _line_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""
