"""Errors as messages on standard error and exit codes. Drift also lists every field with both values.

The commands that a refusal suggests: complete, with the options that were typed, so that they can be copied.
"""

import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from holdfast.cli.output import hanging, terminal_width, write_message
from holdfast.cli.streams import discard_output
from holdfast.errors import DiskError, DriftError, FencedError, HeldError, HoldfastError, JournalError, error_of_path
from holdfast.printable import one_line
from holdfast.records import Change, redact_credential_shapes
from holdfast.report import shortened
from holdfast.runs import Given, RunLocation, read_story, stored_spec
from holdfast.spec import Selection, changes_beyond_extension, find_differences, spec_mapping

_INDENT = len("  stored: ")
_VALUE_MIN = 40
_LEAD = 12
"""How many equal characters are shown before the place where two long values differ."""


def explain(error: HoldfastError) -> int:
    """Print the error; return its exit code."""
    if isinstance(error, DriftError):
        _print_drift(error)
        return 3
    write_message(f"holdfast: {hanging(str(error))}")
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
        write_message(f"holdfast: {hanging(str(error))}")
        return
    width = max(terminal_width() - _INDENT, _VALUE_MIN)
    lines = ["holdfast: resume refused: it would mix two experiments.", "Nothing was changed. These differ:"]
    changes = [change for change in error.changes if isinstance(change, Change)]
    for change in changes:
        lines += map(one_line, _format_change(change, width))
    lines += [f"A model can be corrected only before its first answer: {reason}." for reason in error.reasons]
    lines += ["To continue with the stored values:", f"  {error.commands['resume']}"]
    if not changes_beyond_extension(changes):
        lines += ["To add samples, repeats, models or tasks:", f"  {error.commands['extend']}"]
    lines += ["To start a new run that reuses every unchanged step:", f"  {error.commands['fork']}"]
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
    stored, given = redact_credential_shapes(repr(change.old)), redact_credential_shapes(repr(change.new))
    start = 0
    if max(len(stored), len(given)) > width:  # show where they differ, not their equal beginning
        same = takewhile(lambda pair: pair[0] == pair[1], zip(stored, given, strict=False))
        start = max(sum(1 for _ in same) - _LEAD, 0)
    yield f"{change.field} ({change.kind})"
    yield f"  stored: {_cut(stored, start, width)}"
    yield f"  given:  {_cut(given, start, width)}"


def _cut(value: str, start: int, width: int) -> str:
    return shortened(f"…{value[start:]}" if start else value, width)


_LISTS = ("tasks", "models", "roles")


@contextlib.contextmanager
def suggesting_commands(place: RunLocation, given: Given, sets: Sequence[str], part: Selection) -> Iterator[None]:
    """Give a DriftError commands with the same spec, assignments (`sets`) and selection (`part`) as the one refused."""
    try:
        yield
    except DriftError as error:
        options = _options(place, given, sets, part)
        error.commands = {
            "resume": place.command("resume"),
            "extend": place.command("extend", *options),
            "fork": place.fork_command(*options),
        }
        raise


def set_options(assignments: Iterable[str]) -> list[str]:
    """`--set` before each assignment."""
    return list(itertools.chain.from_iterable(("--set", each) for each in assignments))


def _options(place: RunLocation, given: Given, sets: Sequence[str], part: Selection) -> list[str]:
    """The spec file and the assignments; without a file that has the whole spec, an assignment for every field that
    differs from the run's own spec.
    """
    if not given.from_run and (not given.where or part.tasks or part.models):
        stored = stored_spec(read_story(place)[0])
        before, after = spec_mapping(stored), spec_mapping(given.spec)
        found: dict[str, Any] = {}
        for change in find_differences(stored, given.spec):
            # If tasks, models or roles are added, removed or reordered, the whole list is one value.
            name = change.field.split(".")[0].removesuffix(" (order)")
            whole = name in _LISTS and _names(before[name]) != _names(after[name])
            found |= {name: after[name]} if whole else {change.field: change.new}
        return set_options(_format_assignments(found))
    chosen = {"limit": part.limit, "samples": list(part.samples) or None}
    selected = _format_assignments({name: value for name, value in chosen.items() if value is not None})
    return [*([given.where] if given.where else ()), *set_options([*sets, *selected])]


def _names(parts: Any) -> list[str]:
    return list(parts) if isinstance(parts, dict) else [part["name"] for part in parts]


def _format_assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{field}={msgspec.json.encode(value).decode()}" for field, value in values.items()]
