"""Drift: how the spec of a resume differs from the stored one, and what each difference means. Pure comparison.

Two effective specs are compared field by field, each field with the class that its type declares. The formatting of the
file, the order of its keys and the use of `defaults` make no difference, because both sides are effective.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.records import Change
from holdfast.spec.types import Spec, field_classes

_SEVERITIES = ("place", "throughput", "evaluation", "result")
_canonical = msgspec.json.Encoder(order="deterministic").encode


def find_differences(stored: Spec, given: Spec) -> list[Change]:
    """Return every field that differs, with both values and its class."""
    return list(_compare(stored, given, ""))


def refused_changes(changes: list[Change]) -> list[Change]:
    """Return the changes that a resume refuses, because they would mix two experiments."""
    return [change for change in changes if change.kind == "result"]


def changes_beyond_extension(changes: list[Change]) -> list[Change]:
    """Return the changes that `extend` refuses too: an extension only adds samples, repeats, tasks or models."""
    return [change for change in refused_changes(changes) if not _only_adds(change)]


def _only_adds(change: Change) -> bool:
    """Whether a change may only add keys. If it removes or changes keys after all, comparing the plans finds that."""
    old, new = change.old, change.new
    part, _, rest = change.field.partition(".")
    if change.field == "limit" or (part == "tasks" and rest.endswith((".repeats", ".dataset.limit"))):
        return new is None or (old is not None and new > old)
    if change.field == "samples" or (part == "tasks" and rest.endswith(".models")):
        return new is None or (old is not None and set(new) > set(old))
    if change.field in {"tasks (order)", "models (order)"}:
        return True
    return part in {"tasks", "models"} and old is None and isinstance(new, dict)


def _compare(old: msgspec.Struct, new: msgspec.Struct, place: str) -> Iterator[Change]:
    for name, kind in field_classes(type(old)):
        was, now = getattr(old, name), getattr(new, name)
        # Compared as JSON: in Python 1 equals True, but a server distinguishes them.
        if _canonical(was) == _canonical(now):
            continue
        where = f"{place}.{name}" if place else name
        if kind == "nested":
            yield from _compare_nested(was, now, where)
        else:
            yield Change(where, msgspec.to_builtins(was), msgspec.to_builtins(now), str(kind))


def _compare_nested(was: Any, now: Any, where: str) -> Iterator[Change]:
    if isinstance(was, msgspec.Struct) and isinstance(now, msgspec.Struct):
        yield from _compare(was, now, where)
    elif isinstance(was, list | dict) and isinstance(now, list | dict):
        before, after = _by_name(was), _by_name(now)
        for name in [*before, *(name for name in after if name not in before)]:
            if name in before and name in after:
                yield from _compare(before[name], after[name], f"{where}.{name}")
            else:
                old, new = msgspec.to_builtins(before.get(name)), msgspec.to_builtins(after.get(name))
                yield Change(f"{where}.{name}", old, new, "result")
        if list(before) != list(after) and set(before) == set(after):
            yield Change(f"{where} (order)", list(before), list(after), "result")
    else:  # a whole part is added or removed: the most severe class among its fields
        part = type(now if was is None else was)
        declared = {"result" if kind == "nested" else str(kind) for _, kind in field_classes(part)}
        kind = max(declared, key=_SEVERITIES.index)
        yield Change(where, msgspec.to_builtins(was), msgspec.to_builtins(now), kind)


def _by_name(parts: Any) -> dict[str, Any]:
    return dict(parts) if isinstance(parts, dict) else {part.name: part for part in parts}
