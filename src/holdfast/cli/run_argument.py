"""Opening the run that a reading command names, here or in a mirror."""

import sys

from holdfast.cli.progress import spinner
from holdfast.journal import is_url
from holdfast.runs import Run, default_store


def run_to_read(name: str, store: str | None) -> Run:
    """Open a run. If it has not begun, say so on standard error, because its tables are empty."""
    run = run_to_show(name, store)
    if not run.has_begun:
        status, reason = run.status()
        sys.stderr.write(f"{run.run_id}: {status}{f', {reason}' if reason else ', it has just been started'}\n")
    return run


def run_to_show(name: str, store: str | None) -> Run:
    """Open a run, for commands that print its status themselves."""
    where = store or default_store()
    if not is_url(name) and not is_url(where):
        return Run.find(where, name)
    with spinner("fetching from the mirror") as spin:
        return Run.find(where, name, spin.update)
