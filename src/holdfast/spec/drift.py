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
    if change.field == "limit" or (part == "tasks" and rest.endswith(".repeats")):
        return new is None or (old is not None and new > old)
    if change.field == "samples" or (part == "tasks" and rest.endswith(".models")):
        return new is None or (old is not None and set(new) > set(old))
    if change.field in {"tasks (order)", "models (order)"}:
        return True
    return part in {"tasks", "models"} and old is None and isinstance(new, dict)


def _compare(old: msgspec.Struct, new: msgspec.Struct, place: str) -> Iterator[Change]:
    for name, kind in field_classes(type(old)):
        was, now = getattr(old, name), getattr(new, name)
        if _canonical(was) == _canonical(
            now
        ):  # compared as JSON: in Python 1 equals True, but a server distinguishes them
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
        yield from _compare_named(_by_name(was), _by_name(now), where)
    else:
        kind = _most_severe(type(now if was is None else was))
        yield Change(where, msgspec.to_builtins(was), msgspec.to_builtins(now), kind)


def _most_severe(part: type[msgspec.Struct]) -> str:
    """Return the class of adding or removing a whole part: the most severe class among its fields."""
    declared = {"result" if kind == "nested" else str(kind) for _, kind in field_classes(part)}
    return max(declared, key=_SEVERITIES.index)


def _compare_named(was: dict[str, Any], now: dict[str, Any], where: str) -> Iterator[Change]:
    for name in [*was, *(name for name in now if name not in was)]:
        if name in was and name in now:
            yield from _compare(was[name], now[name], f"{where}.{name}")
        else:
            yield Change(
                f"{where}.{name}", msgspec.to_builtins(was.get(name)), msgspec.to_builtins(now.get(name)), "result"
            )
    if list(was) != list(now) and set(was) == set(now):
        yield Change(f"{where} (order)", list(was), list(now), "result")


def _by_name(parts: Any) -> dict[str, Any]:
    return dict(parts) if isinstance(parts, dict) else {part.name: part for part in parts}
