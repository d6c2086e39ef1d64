"""A run's status, derived from its last `run.*` record, its lock and its lease. Never stored.

The lock decides whether a live process writes the run; the lease says whether that process is getting on. So a dead
process is never `running`, and one that is stopped or blocked is `stalled`.
"""

import fcntl
import os
import time

import msgspec

from holdfast import files
from holdfast.journal.ownership.claims import Beat
from holdfast.journal.ownership.lease import Lease, clock_time, how_it_died, is_alive, is_held_by_lease, read_lease
from holdfast.journal.ownership.lock import NO_FLOCK, owner_of
from holdfast.journal.ownership.terms import is_term_held
from holdfast.state.story import Story

COPIED = "beat.json"
"""In a folder that is a copy of a mirror: what the mirror last said of the run. It has no lock of any writer."""
NOT_BEGUN = "killed before it began: nothing was asked and nothing is lost; run the same command again"
"""The reason of a journal that has a header and no `run.started`."""
_SLACK_SECONDS = 2.0


class Standing(msgspec.Struct, frozen=True):
    """What lock and lease say of a run at one moment."""

    held: bool
    lease: Lease | None = None
    now: float = 0.0
    copied: bool = False
    """It is what a mirror tells: the process may be on any machine."""
    mirrored: int | None = None
    """The last record that is durable in the mirror, as far as is known; None without one."""


def standing_of(run: str) -> Standing:
    """The lock first: a lease that is read afterwards is not older than what it says."""
    beat = _copied_beat(run)
    if beat is not None:
        return standing_by(beat)
    held = is_held(run)
    lease = read_lease(run)
    return Standing(held, lease, time.time(), mirrored=lease.mirrored if lease else None)


def standing_by(beat: Beat) -> Standing:
    """What a heartbeat in a mirror says. Two clocks are compared, which is good enough to look and not to take over."""
    lease = beat.lease
    fresh = lease is not None and not beat.ended and time.time() - lease.at < beat.expiry_seconds
    held = lease is not None and fresh and is_alive(lease.holder) is not False
    return Standing(held, lease, lease.at if held and lease else time.time(), True, beat.mirrored)


def keep_beat(run: str, beat: Beat) -> None:
    """Beside a copy, for `standing_of`."""
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
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go at once: a writer that starts tries for longer
    except BlockingIOError:
        owner = owner_of(handle)  # a lock that outlives its process was inherited by a child, which does not write
        return not owner or os.path.exists(f"/proc/{owner}")
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        return is_term_held(run)
    finally:
        os.close(handle)
    return False


def status_of(story: Story, unfinished: int, standing: Standing, damaged: bool = False) -> tuple[str, str]:
    """The status and, where one is known, the reason."""
    if standing.held and not _is_scored(standing):
        return _of_live(standing)
    if story.end is None and damaged:
        return "interrupted", "records were lost to damage; `verify` tells which, a resume asks for them again"
    if story.end is None:
        return "interrupted", _how_it_ended(standing, story.updated) if story.started else NOT_BEGUN
    if story.end.kind == "run.completed" and unfinished > 0:
        lost = "1 answer was" if unfinished == 1 else f"{unfinished} answers were"
        return "interrupted", f"{lost} lost to damage after the run had completed"
    return story.end.kind.removeprefix("run."), story.end.data.reason


def status_by(standing: Standing) -> tuple[str, str]:
    """The same without a journal, as far as a heartbeat tells."""
    if standing.held and not _is_scored(standing):
        return _of_live(standing)
    if standing.lease is None or not standing.lease.end:
        return "interrupted", _how_it_ended(standing)
    return standing.lease.end.removeprefix("run."), ""


def _how_it_ended(standing: Standing, updated: str = "") -> str:
    lease = standing.lease
    if standing.copied and lease is None:
        return f"its last record is of {updated[:19]}Z" if updated else "nothing was heard of it"
    if standing.copied and lease is not None:
        return f"last heartbeat at {clock_time(lease.at)}, from process {lease.holder.pid} on {lease.holder.host}"
    if lease is None or lease.released:
        return "the process ended without a word (killed, out of memory, or power loss)"
    return how_it_died(lease)


def _is_scored(standing: Standing) -> bool:
    """Whether the process that holds the run only scores its answers: that is no running."""
    lease = standing.lease
    return lease is not None and lease.scoring and not lease.released and is_alive(lease.holder) is not False


def _of_live(standing: Standing) -> tuple[str, str]:
    lease = standing.lease
    if lease is None or lease.released:  # of the process before: this one has not come to its first beat
        return "running", ""
    if is_alive(lease.holder) is False:
        return "running", ""  # of a process that died: another one has just taken the run over
    silent = standing.now - lease.at
    if lease.stall is not None:
        return "stalled", f"since {clock_time(lease.stall.since)}: {lease.stall.why}"
    if silent > lease.stall_seconds + _SLACK_SECONDS:
        return "stalled", f"no sign of life since {clock_time(lease.at)}: stopped, swapped out, or blocked"
    return "running", lease.held
