"""The same wish in another command's words: what a refusal offers can be copied, and asks for what was refused."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import DriftError
from holdfast.runs import Given, RunPlace
from holdfast.runs.execution.resume import read_fold, stored_spec
from holdfast.spec import Spec, spec_mapping
from holdfast.spec.drift import differences
from holdfast.spec.selection import Selection

_LISTS = ("tasks", "models", "roles")


@contextlib.contextmanager
def offering(place: RunPlace, given: Given, sets: Sequence[str], part: Selection) -> Iterator[None]:
    """`sets` and `part`: what the command line changes or selects in the spec."""
    try:
        yield
    except DriftError as error:
        options = _options(place, given, sets, part)
        error.commands = {verb: place.command(verb, *options) for verb in error.commands}
        raise


def assigning(assignments: Iterable[str]) -> list[str]:
    """`--set` for each of them."""
    return list(itertools.chain.from_iterable(("--set", each) for each in assignments))


def _options(place: RunPlace, given: Given, sets: Sequence[str], part: Selection) -> list[str]:
    """The spec's file and what changes in it; where no file says it all, every field in which it differs from the
    run's own spec.
    """
    if not given.from_run and (not given.where or part.tasks or part.models):
        return assigning(_told(_values(stored_spec(read_fold(place)), given.spec)))
    chosen = {"limit": part.limit, "samples": list(part.samples) or None}
    selected = _told({name: value for name, value in chosen.items() if value is not None})
    return [*([given.where] if given.where else ()), *assigning([*sets, *selected])]


def _values(stored: Spec, given: Spec) -> dict[str, Any]:
    """By field. Where tasks, models or roles come, go or change places, all of them are told."""
    before, after = spec_mapping(stored), spec_mapping(given)
    found: dict[str, Any] = {}
    for change in differences(stored, given):
        part = change.field.split(".")[0].removesuffix(" (order)")
        whole = part in _LISTS and _names(before[part]) != _names(after[part])
        found |= {part: after[part]} if whole else {change.field: change.new}
    return found


def _names(parts: Any) -> list[str]:
    return list(parts) if isinstance(parts, dict) else [part["name"] for part in parts]


def _told(values: Mapping[str, Any]) -> list[str]:
    return [f"{field}={msgspec.json.encode(value).decode()}" for field, value in values.items()]
