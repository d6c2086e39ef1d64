"""Errors as messages on standard error and exit codes. Drift also lists every field with both values."""

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
from holdfast.spec.drift import changes_beyond_extension

_INDENT = len("  stored: ")
_VALUE_MIN = 40
_LEAD = 12
"""How many equal characters are shown before the place where two long values differ."""


def explain(error: HoldfastError) -> int:
    """Print the error; return its exit code."""
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
    """Print an OSError that no command expected; return 8 if storage failed, else 2."""
    path = error.filename or "output"
    if not error.filename:  # standard output failed: its buffer must not be flushed again at exit
        discard_output(sys.stdout)
    return explain(error_of_path(error, f"{path}: {error.strerror or error}"))


def _print_drift(error: DriftError) -> None:
    """Print each value on its own line, so that both are readable on a narrow terminal. Field names are never cut."""
    if not error.changes:
        sys.stderr.write(f"holdfast: {hanging(str(error))}\n")
        return
    width = max(terminal_width() - _INDENT, _VALUE_MIN)
    lines = ["holdfast: resume refused: it would mix two experiments.", "Nothing was changed. These differ:"]
    changes = [change for change in error.changes if isinstance(change, Change)]
    for change in changes:
        lines += map(one_line, _format_change(change, width))
    lines += [f"A model can be corrected only before its first answer: {reason}." for reason in error.reasons]
    lines.append("Use the stored values, or:")
    if not changes_beyond_extension(changes):
        lines += ["to add samples, repeats, models or tasks:", f"  {error.commands['extend']}"]
    lines += ["to start a new run that reuses every unchanged step:", f"  {error.commands['fork']}"]
    sys.stderr.write("\n".join(lines) + "\n")


def _format_change(change: Change, width: int) -> Iterator[str]:
    if isinstance(change.old, dict) and isinstance(change.new, dict):
        for name in {**change.old, **change.new}:
            before, after = change.old.get(name), change.new.get(name)
            if before != after:
                yield from _format_change(
                    msgspec.structs.replace(change, field=f"{change.field}.{name}", old=before, new=after), width
                )
        return
    stored, given = without_shapes(repr(change.old)), without_shapes(repr(change.new))
    start = 0
    if max(len(stored), len(given)) > width:  # show where they differ, not their equal beginning
        same = takewhile(lambda pair: pair[0] == pair[1], zip(stored, given, strict=False))
        start = max(sum(1 for _ in same) - _LEAD, 0)
    yield f"{change.field} ({change.kind})"
    yield f"  stored: {_cut(stored, start, width)}"
    yield f"  given:  {_cut(given, start, width)}"


def _cut(value: str, start: int, width: int) -> str:
    return shortened(f"…{value[start:]}" if start else value, width)
