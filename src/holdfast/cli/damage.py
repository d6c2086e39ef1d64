"""Damage that a command meets: one sentence each on standard error, and exit code 5.

Readers report damage as `DamageWarning`, wherever they are called from. Here those warnings become messages, so no
command has to ask for them.
"""

import contextlib
import sys
import warnings
from collections.abc import Iterator

from holdfast.errors import DamageWarning
from holdfast.printable import one_line

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
