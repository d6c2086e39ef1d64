"""The run that a command which only reads is about: here, or in a mirror, from which it is fetched."""

import sys

from holdfast.api import Run, default_store
from holdfast.cli.waiting import patience
from holdfast.journal.objects import is_url


def run_to_read(name: str, store: str | None) -> Run:
    """The run, opened. Empty tables of a run that was killed before it began are explained on standard error."""
    run = run_to_show(name, store)
    if not run.has_begun:
        status, reason = run.status()
        sys.stderr.write(f"{run.run_id}: {status}{f', {reason}' if reason else ', it has just been started'}\n")
    return run


def run_to_show(name: str, store: str | None) -> Run:
    """For commands that print the run's status themselves."""
    where = store or default_store()
    if not is_url(name) and not is_url(where):
        return Run.find(where, name)
    with patience("fetching from the mirror") as wait:
        return Run.find(where, name, wait.tell)
