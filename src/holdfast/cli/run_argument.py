"""The run that a command which only reads is about: here, or in a mirror, from which it is fetched."""

import contextlib
import sys
import warnings
from collections.abc import Iterator

from holdfast.cli.progress import patience
from holdfast.errors import DamageWarning
from holdfast.journal.object_store import is_url
from holdfast.printable import one_line
from holdfast.runs import Run, default_store


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


DAMAGED = 5
_OUTRANKED = (0, 1, 7)
"""Done, failed samples, gate not passed: none of these can be trusted with damaged data."""


class DamageNotices:
    """The damage that one command has met."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        with warnings.catch_warnings():
            others = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], *rest: object) -> None:
                if issubclass(category, DamageWarning):
                    self.add(str(message))
                else:
                    others(message, category, *rest)  # type: ignore[arg-type] # passed on as it came

            warnings.showwarning = show  # type: ignore[assignment] # the same parameters
            warnings.simplefilter("always", DamageWarning)
            yield

    def add(self, sentence: str) -> None:
        if sentence not in self._seen:
            self._seen.add(sentence)
            sys.stderr.write(f"holdfast: damaged: {one_line(sentence)}\n")

    def exit_code(self, code: int) -> int:
        return DAMAGED if self._seen and code in _OUTRANKED else code
