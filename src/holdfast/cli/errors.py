"""From an error to one sentence on standard error and an exit code. Drift has a line for each value as well."""

import sys
from collections.abc import Iterator
from itertools import takewhile

import msgspec

from holdfast.cli.output import hanging, terminal_width
from holdfast.cli.streams import discard_output
from holdfast.errors import DiskError, DriftError, FencedError, HeldError, HoldfastError, JournalError, error_of_path
from holdfast.printable import one_line
from holdfast.records.facts import Change
from holdfast.records.redaction import without_shapes
from holdfast.report.text import shortened
from holdfast.spec.drift import extending

_INDENT = len("  stored: ")
_VALUE_MIN = 40
_LEAD = 12


def explain(error: HoldfastError) -> int:
    """Print what happened; return the exit code of the contract."""
    if isinstance(error, DriftError):
        _print_drift(error)
        return 3
    sys.stderr.write(f"holdfast: {hanging(str(error))}\n")
    if isinstance(error, HeldError | FencedError):
        return 4
    if isinstance(error, DiskError):
        return 8
    return 5 if isinstance(error, JournalError) else 2


def explain_os_error(error: OSError) -> int:
    """For an error that no command expected: failed storage has its own exit code."""
    path = error.filename or "output"
    if not error.filename:  # standard output may hold bytes that cannot be written: do not try again at the exit
        discard_output(sys.stdout)
    return explain(error_of_path(error, f"{path}: {error.strerror or error}"))


def _print_drift(error: DriftError) -> None:
    """Stacked, because both values have to be readable in a narrow terminal; a field's name is never cut."""
    if not error.changes:
        sys.stderr.write(f"holdfast: {hanging(str(error))}\n")
        return
    width = max(terminal_width() - _INDENT, _VALUE_MIN)
    lines = ["holdfast: the run cannot go on: it would mix two experiments.", "Nothing was changed. These differ:"]
    changes = [change for change in error.changes if isinstance(change, Change)]
    for change in changes:
        lines += map(one_line, _told(change, width))
    lines += [f"A model can be corrected only before its first answer: {reason}." for reason in error.reasons]
    lines.append("Give the stored values, or:")
    if not extending(changes):
        lines += ["if this only asks for more of the same:", f"  {error.commands['extend']}"]
    lines += ["for a new run that reuses every unchanged step:", f"  {error.commands['fork']}"]
    sys.stderr.write("\n".join(lines) + "\n")


def _told(change: Change, width: int) -> Iterator[str]:
    if isinstance(change.old, dict) and isinstance(change.new, dict):
        for name in {**change.old, **change.new}:
            before, after = change.old.get(name), change.new.get(name)
            if before != after:
                yield from _told(
                    msgspec.structs.replace(change, field=f"{change.field}.{name}", old=before, new=after), width
                )
        return
    stored, given = without_shapes(repr(change.old)), without_shapes(repr(change.new))
    start = 0
    if max(len(stored), len(given)) > width:  # then show where they differ, not that they begin alike
        same = takewhile(lambda pair: pair[0] == pair[1], zip(stored, given, strict=False))
        start = max(sum(1 for _ in same) - _LEAD, 0)
    yield f"{change.field} ({change.kind})"
    yield f"  stored: {_from(stored, start, width)}"
    yield f"  given:  {_from(given, start, width)}"


def _from(value: str, start: int, width: int) -> str:
    return shortened(f"…{value[start:]}" if start else value, width)
