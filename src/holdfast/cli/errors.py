"""From an error to one sentence on standard error and an exit code."""

import sys

from rich.console import Console
from rich.table import Table

from holdfast.errors import DriftError, HeldError, HoldfastError, JournalError
from holdfast.records.facts import Change

_NEXT = {"result": "give the stored value, or start a run with another id"}


def explain(error: HoldfastError) -> int:
    """Print what happened; return the exit code of the contract."""
    if isinstance(error, DriftError):
        _print_drift(error)
        return 3
    sys.stderr.write(f"holdfast: {error}\n")
    if isinstance(error, HeldError):
        return 4
    return 5 if isinstance(error, JournalError) else 2


def _print_drift(error: DriftError) -> None:
    console = Console(stderr=True, highlight=False, markup=False)
    sys.stderr.write(
        "holdfast: the run cannot go on: what it is given would mix two experiments. Nothing was changed.\n"
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("field", "stored", "given", "class", "next step"):
        table.add_column(name, overflow="fold")
    for change in error.changes:
        if isinstance(change, Change):
            table.add_row(change.field, repr(change.old), repr(change.new), change.kind, _NEXT.get(change.kind, ""))
    console.print(table)
