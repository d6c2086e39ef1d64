"""The lease: what the process that writes a run says of itself, for others to judge. Derived; never the truth.

`lease.json` is replaced atomically and not synced: after a power loss nobody holds the run anyway. Its beat comes from
the event loop, so a loop that is blocked, or a process that is stopped, shows by its silence. Who may write is decided
by the lock, never by this file.
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
from holdfast.records.durations import Durations

LEASE = "lease.json"
_CHECKSUM = re.compile(rb',"x":"([0-9a-f]{16})"\}\s*\Z')
OWNER = "owner.json"
"""In a folder that belongs to one process: which one."""
FRESH_SECONDS = 20.0
"""A heartbeat of another machine that is older says nothing of a live process."""
_BOOT = "/proc/sys/kernel/random/boot_id"
_SPACE = "/proc/self/ns/pid"
_OOM = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process, so that it is not taken for another one that got its number later."""

    pid: int
    host: str
    boot: str = ""
    started: str = ""
    """When the process began, as the kernel counts it."""
    space: str = ""
    """The name space that its number belongs to: containers of one machine number their processes each for itself."""


class InFlight(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sample that is being answered, and what it is doing since when."""

    key: str
    doing: str
    since: float
    overdue: bool = False
    stack: list[str] = []


class Stall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Nothing moves: since when, why, and which samples hold it up."""

    since: float
    why: str
    samples: list[InFlight] = []


class Lease(msgspec.Struct, frozen=True, omit_defaults=True):
    """One beat."""

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
    """The last record that is durable in the mirror; None without one."""
    mirror_behind: float = 0.0
    """For how many seconds there has been something that is not there yet."""
    progress_at: float = 0.0
    held: str = ""
    """What the run waits for, if not for an answer: a rate limit, a server that is down, free disk space."""
    oldest: list[InFlight] = []
    stall: Stall | None = None
    oom_kills: int = 0
    """How many processes of this control group had been killed for memory when the run began."""
    released: bool = False
    scoring: bool = False
    """It scores the answers of a run that has ended, and answers nothing."""
    commits: Durations | None = None
    """How long its records took to be durable."""
    lock: int = 0
    """The inode of the lock file that the holder has locked; 0 if it is not known. Another one at its path means that
    the lock protects nothing (`lock`).
    """
    end: str = ""
    """The kind of the record that ended the run, for whoever sees its heartbeat and not its journal."""


def write_lease(run: str, lease: Lease) -> None:
    """A lease that cannot be written does not stop the run. On a full disk it is written over the last one, which needs
    no new space on most file systems: readers then learn that the run is alive and waits.
    """
    path, data = os.path.join(run, LEASE), _with_checksum(msgspec.json.encode(lease))
    try:
        files.replace_file(path, data)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with contextlib.suppress(OSError):
                _overwrite(path, data)


def _overwrite(path: str, data: bytes) -> None:
    """In one call, and never shorter than before: spaces after JSON mean nothing. A reader that still sees a mixture
    cannot decode it and takes it for no lease, until the next beat.
    """
    handle = files.open_to_overwrite(path)
    try:
        os.pwrite(handle, data.ljust(os.fstat(handle).st_size), 0)
    finally:
        os.close(handle)


def read_lease(run: str) -> Lease | None:
    """The last beat; None if there is none, or none that can be read."""
    try:
        return _read_lease(run)
    except OSError:
        return None


def is_held_by_lease(run: str) -> bool:
    """Whether a live process writes the run, as far as its lease tells: for a lock that cannot be opened. A lease that
    may not be read either counts as held: nothing proves that the run is free.
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
    if not _is_intact(data):
        return None
    try:
        return msgspec.json.decode(data, type=Lease)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _with_checksum(encoded: bytes) -> bytes:
    """The same JSON object with its checksum as the last field: a flipped digit of a count must not be believed."""
    return b'%s,"x":"%s"}' % (encoded[:-1], xxhash.xxh3_64_hexdigest(encoded).encode())


def _is_intact(data: bytes) -> bool:
    """Leases of older versions have no checksum."""
    mark = _CHECKSUM.search(data)
    return mark is None or xxhash.xxh3_64_hexdigest(data[: mark.start()] + b"}") == mark[1].decode()


def this_process() -> Holder:
    return Holder(os.getpid(), socket.gethostname(), boot_id(), _started(os.getpid()), _space())


def own(folder: str) -> None:
    """Say in a folder that it belongs to this process."""
    files.replace_file(os.path.join(folder, OWNER), msgspec.json.encode(this_process()))


def owner_of(folder: str) -> Holder | None:
    """The process that a folder belongs to; None if it does not say, because it is being made, or removed."""
    try:
        return msgspec.json.decode(files.read_file(os.path.join(folder, OWNER)), type=Holder)
    except (OSError, msgspec.DecodeError):
        return None


def is_alive(holder: Holder) -> bool | None:
    """Whether that very process still runs; None if it cannot be known from here."""
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
    """Whether that very process is dead for certain, for whoever would take what it holds. Machines and containers may
    share a name, so it must be one of this boot, and of those that are numbered as ours are.
    """
    return holder.boot == boot_id() and holder.space == _space() and is_alive(holder) is False


def how_it_died(lease: Lease) -> str:
    """What can be known of the end of a process that said nothing: a reboot, too little memory, or a kill."""
    when = clock_time(lease.at)
    if lease.holder.host != socket.gethostname():
        return f"its process on {lease.holder.host} was last seen at {when}"
    if lease.holder.boot and boot_id() and lease.holder.boot != boot_id():
        return f"the machine was restarted after {when}"
    if oom_kills() > lease.oom_kills:
        return f"killed at about {when}, probably because memory ran out (see `dmesg`)"
    return f"killed at about {when}"


def clock_time(at: float) -> str:
    """As people say it; whatever a damaged lease may hold."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, OSError, ValueError):
        return "an unknown time"


def boot_id() -> str:
    return _line_of(_BOOT)


def oom_kills() -> int:
    """How often the kernel has killed for memory in this control group; 0 where it does not tell."""
    for path in _OOM:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            counts = dict(line.split() for line in file if len(line.split()) == 2)
            return int(counts.get("oom_kill", 0))
    return 0


def _started(pid: int) -> str:
    """Field 22 of the process's line, counted behind its name, which may hold anything."""
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
