"""The run that a command which only reads is about: here, or in a mirror, from which it is fetched."""

from holdfast.api import Run, default_store
from holdfast.cli.waiting import patience
from holdfast.journal.objects import is_url


def run_to_read(name: str, store: str | None) -> Run:
    where = store or default_store()
    if not is_url(name) and not is_url(where):
        return Run.find(where, name)
    with patience("fetching from the mirror") as wait:
        return Run.find(where, name, wait.tell)
