"""The commands that a refusal suggests: complete, with the options that were typed, so that they can be copied."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import DriftError
from holdfast.runs import Given, RunLocation
from holdfast.runs.execution.resume import read_fold, stored_spec
from holdfast.spec import Spec, spec_mapping
from holdfast.spec.drift import find_differences
from holdfast.spec.selection import Selection

_LISTS = ("tasks", "models", "roles")


@contextlib.contextmanager
def suggesting_commands(place: RunLocation, given: Given, sets: Sequence[str], part: Selection) -> Iterator[None]:
    """Give a DriftError commands with the same spec, assignments (`sets`) and selection (`part`) as the one refused."""
    try:
        yield
    except DriftError as error:
        options = _options(place, given, sets, part)
        error.commands = {verb: place.command(verb, *options) for verb in error.commands}
        raise


def set_options(assignments: Iterable[str]) -> list[str]:
    """`--set` before each assignment."""
    return list(itertools.chain.from_iterable(("--set", each) for each in assignments))


def _options(place: RunLocation, given: Given, sets: Sequence[str], part: Selection) -> list[str]:
    """The spec file and the assignments; without a file that has the whole spec, an assignment for every field that
    differs from the run's own spec.
    """
    if not given.from_run and (not given.where or part.tasks or part.models):
        return set_options(_format_assignments(_changed_values(stored_spec(read_fold(place)), given.spec)))
    chosen = {"limit": part.limit, "samples": list(part.samples) or None}
    selected = _format_assignments({name: value for name, value in chosen.items() if value is not None})
    return [*([given.where] if given.where else ()), *set_options([*sets, *selected])]


def _changed_values(stored: Spec, given: Spec) -> dict[str, Any]:
    """New values by field. If tasks, models or roles are added, removed or reordered, the whole list is one value."""
    before, after = spec_mapping(stored), spec_mapping(given)
    found: dict[str, Any] = {}
    for change in find_differences(stored, given):
        part = change.field.split(".")[0].removesuffix(" (order)")
        whole = part in _LISTS and _names(before[part]) != _names(after[part])
        found |= {part: after[part]} if whole else {change.field: change.new}
    return found


def _names(parts: Any) -> list[str]:
    return list(parts) if isinstance(parts, dict) else [part["name"] for part in parts]


def _format_assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{field}={msgspec.json.encode(value).decode()}" for field, value in values.items()]
