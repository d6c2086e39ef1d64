"""Damage that a command meets in the data it reads: printed once, with exit code 5.

Imported by every command and by `--help`, so it imports nothing but errors.
"""

import contextlib
import sys
import warnings
from collections.abc import Iterator

from holdfast.errors import DamageWarning
from holdfast.printable import one_line

DAMAGED = 5
_OUTRANKED = (0, 1, 7)
"""Exit codes for done, failed samples, and gate not passed: with damaged data none of these can be trusted."""


class DamageNotices:
    """Prints each DamageWarning of a command once, and turns its exit code into 5."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        with warnings.catch_warnings():
            show_other = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], *rest: object) -> None:
                if issubclass(category, DamageWarning):
                    self.add(str(message))
                else:
                    show_other(message, category, *rest)  # type: ignore[arg-type] # passed on as it came

            warnings.showwarning = show  # type: ignore[assignment] # the same parameters
            warnings.simplefilter("always", DamageWarning)
            yield

    def add(self, sentence: str) -> None:
        if sentence not in self._seen:
            self._seen.add(sentence)
            sys.stderr.write(f"holdfast: damaged: {one_line(sentence)}\n")

    def exit_code(self, code: int) -> int:
        return DAMAGED if self._seen and code in _OUTRANKED else code
