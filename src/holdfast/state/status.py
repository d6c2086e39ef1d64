"""A run's status, derived from its last `run.*` record, its lock and its lease. Never stored.

The lock decides whether a live process holds the run; the lease shows whether that process makes progress. So a run
whose process is dead is never `running`, and one whose process is stopped or blocked is `stalled`. A crash needs no
cleanup: the kernel releases the lock.
"""

import fcntl
import os
import time

import msgspec

from holdfast import files
from holdfast.journal import (
    NO_FLOCK,
    Beat,
    Lease,
    clock_time,
    describe_death,
    is_alive,
    is_held_by_lease,
    is_shard_folder,
    is_term_held,
    lock_owner,
    read_lease,
)
from holdfast.state.story import Story

COPIED = "beat.json"
"""In a local copy of a mirrored run: the writer's last heartbeat in the mirror. A copy has no lock."""
NOT_BEGUN = "killed before it began: no request was sent and nothing is lost; run the same command again"
"""The reason shown for a journal that has a header and no `run.started`."""
_SLACK_SECONDS = 2.0


class Standing(msgspec.Struct, frozen=True):
    """Whether a live process holds a run: its lock and its lease at one moment."""

    held: bool
    lease: Lease | None = None
    now: float = 0.0
    copied: bool = False
    """Read from a mirror's heartbeat: the process may be on any machine."""
    mirrored: int | None = None
    """The last record known to be durable in the mirror; None without a mirror."""


def standing_of(run: str) -> Standing:
    """Read the lock, then the lease: in this order the lease cannot be older than the lock's state."""
    beat = _copied_beat(run)
    if beat is not None:
        return standing_by(beat)
    held = is_term_held(run) if is_shard_folder(run) else is_held(run)
    lease = read_lease(run)
    return Standing(held, lease, time.time(), mirrored=lease.mirrored if lease else None)


def standing_by(beat: Beat) -> Standing:
    """The same from a heartbeat in a mirror. It compares two clocks: good enough to show, not to take over."""
    lease = beat.lease
    fresh = lease is not None and not beat.ended and time.time() - lease.at < beat.expiry_seconds
    held = lease is not None and fresh and is_alive(lease.holder) is not False
    return Standing(held, lease, lease.at if held and lease else time.time(), True, beat.mirrored)


def keep_beat(run: str, beat: Beat) -> None:
    """Save a heartbeat beside a copy, for `standing_of`."""
    files.replace_file(os.path.join(run, COPIED), msgspec.json.encode(beat))


def _copied_beat(run: str) -> Beat | None:
    try:
        return msgspec.json.decode(files.read_file(os.path.join(run, COPIED)), type=Beat)
    except (FileNotFoundError, files.NotAFileError):
        return None


def is_held(run: str) -> bool:
    """Whether a live process is writing the run. If its lock cannot be opened, the lease decides."""
    try:
        handle = files.open_file(os.path.join(run, "lock"))
    except FileNotFoundError:
        return False
    except (PermissionError, files.NotAFileError):
        return is_held_by_lease(run)
    try:
        # Released at once below: a starting writer retries for longer than this takes.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = lock_owner(handle)  # a child may inherit the lock of a dead process; it does not write
        return not owner or os.path.exists(f"/proc/{owner}")
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        return is_term_held(run)
    finally:
        os.close(handle)
    return False


def status_of(story: Story, unfinished: int, standing: Standing, damaged: bool = False) -> tuple[str, str]:
    """The status, and the reason where one is known."""
    if standing.held and not _is_scored(standing):
        return _of_live(standing)
    if story.end is None and damaged:
        return "interrupted", "records were lost to damage; `verify` lists them, a resume requests them again"
    if story.end is None:
        return "interrupted", _how_it_ended(standing, story.updated) if story.started else NOT_BEGUN
    if story.end.kind == "run.completed" and unfinished > 0:
        lost = "1 answer was" if unfinished == 1 else f"{unfinished} answers were"
        return "interrupted", f"{lost} lost to damage after the run had completed"
    return story.end.kind.removeprefix("run."), story.end.data.reason


def status_by(standing: Standing) -> tuple[str, str]:
    """The same without a journal, from a heartbeat alone."""
    if standing.held and not _is_scored(standing):
        return _of_live(standing)
    if standing.lease is None or not standing.lease.end:
        return "interrupted", _how_it_ended(standing)
    return standing.lease.end.removeprefix("run."), ""


def _how_it_ended(standing: Standing, updated: str = "") -> str:
    lease = standing.lease
    if standing.copied and lease is None:
        return f"its last record is of {updated[:19]}Z" if updated else "no heartbeat was found"
    if standing.copied and lease is not None:
        return f"last heartbeat at {clock_time(lease.at)}, from process {lease.holder.pid} on {lease.holder.host}"
    if lease is None or lease.released:
        return "the process ended without recording why (killed, out of memory, or power loss)"
    return describe_death(lease)


def _is_scored(standing: Standing) -> bool:
    """Whether the process that holds the run only scores its answers: that does not count as running."""
    lease = standing.lease
    return lease is not None and lease.scoring and not lease.released and is_alive(lease.holder) is not False


def _of_live(standing: Standing) -> tuple[str, str]:
    lease = standing.lease
    if lease is None or lease.released:  # the previous process's lease: the new one has not written its first beat
        return "running", ""
    if is_alive(lease.holder) is False:
        return "running", ""  # a dead process's lease: another process has just taken the run over
    silent = standing.now - lease.at
    if lease.stall is not None:
        return "stalled", f"since {clock_time(lease.stall.since)}: {lease.stall.why}"
    if silent > lease.stall_seconds + _SLACK_SECONDS:
        return "stalled", f"no sign of life since {clock_time(lease.at)}: stopped, swapped out, or blocked"
    return "running", lease.held
