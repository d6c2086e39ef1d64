"""Drift: how the spec of a resume differs from the stored one, and what each difference means. Pure comparison.

Two effective specs are compared field by field, each field with the class that its type declares. The formatting of the
file, the order of its keys and the use of `defaults` make no difference, because both sides are effective.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from holdfast.records import Change
from holdfast.spec.types import Spec, field_classes

_SEVERITIES = ("place", "throughput", "evaluation", "result")
_OWN = ("place", "throughput")
T = TypeVar("T", bound=msgspec.Struct)
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
    else:  # a whole part is added or removed
        kind = _most_severe(type(now if was is None else was))
        yield Change(where, msgspec.to_builtins(was), msgspec.to_builtins(now), kind)


def _most_severe(part: type[msgspec.Struct]) -> str:
    """The most severe class among the fields of a part."""
    declared = {"result" if kind == "nested" else str(kind) for _, kind in field_classes(part)}
    return max(declared, key=_SEVERITIES.index)


def with_own_places(stored: T, own: T) -> T:
    """The stored spec with the speed and the places of another one: of a worker that has its own, and for which all
    else is decided by the run.
    """
    changed: dict[str, Any] = {}
    for name, kind in field_classes(type(stored)):
        was, mine = getattr(stored, name), getattr(own, name)
        if kind == "nested":
            changed[name] = _with_own_parts(was, mine)
        elif kind in _OWN:
            changed[name] = mine
    return msgspec.structs.replace(stored, **changed)


def _with_own_parts(was: Any, mine: Any) -> Any:
    if isinstance(was, list | dict):
        parts = {name: with_own_places(part, _by_name(mine).get(name, part)) for name, part in _by_name(was).items()}
        return parts if isinstance(was, dict) else list(parts.values())
    if was is not None and mine is not None:
        return with_own_places(was, mine)
    part = was if was is not None else mine
    return mine if part is not None and _most_severe(type(part)) in _OWN else was


def _by_name(parts: Any) -> dict[str, Any]:
    return dict(parts) if isinstance(parts, dict) else {part.name: part for part in parts}
