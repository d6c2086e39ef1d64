"""A run's status, derived from its last `run.*` record and whether a live process holds its lock. Never stored."""

import fcntl
import os

from holdfast.state.story import Story


def is_held(run: str) -> bool:
    """Whether a live process on this host is writing the run."""
    try:
        handle = os.open(os.path.join(run, "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go at once: a writer that starts tries for longer
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def status_of(story: Story, unfinished: int, held: bool, damaged: bool = False) -> tuple[str, str]:
    """The status and, where one is known, the reason."""
    if held:
        return "running", ""
    if story.end is None and damaged:
        return "interrupted", "records were lost to damage; `verify` tells which, a resume asks for them again"
    if story.end is None:
        return "interrupted", "the process ended without a word (killed, out of memory, or power loss)"
    if story.end.kind == "run.completed" and unfinished > 0:
        return "interrupted", f"{unfinished} answers were lost to damage after the run had completed"
    return story.end.kind.removeprefix("run."), story.end.data.reason
