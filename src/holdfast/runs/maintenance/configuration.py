"""The configuration of a store: `store.yaml` in its folder, with the rules by which `gc` removes runs.

A rule has the names and meanings of the options of `gc`. Commands read the file when they need it and never write it.
Nothing here removes anything.
"""

import os
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from holdfast.errors import SpecError, UsageError
from holdfast.runs.maintenance.retention import REMOVABLE, RetentionPolicy
from holdfast.spec import TEXT_BYTES_MAX, nearest, parse_yaml

CONFIGURATION_FILE = "store.yaml"
_SIZE = re.compile(r"^\s*([0-9]{1,15}(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_AGE = re.compile(r"^\s*([0-9]{1,9}(?:\.[0-9]+)?)\s*([hdwmy]?)\s*$", re.IGNORECASE)
_DAYS = {"h": 1 / 24, "d": 1, "": 1, "w": 7, "m": 30, "y": 365}
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_AT = re.compile(r" - at `\$\.?(.*)`$")
NameField = Callable[[str], str]
"""How an error names a field of a rule: as an option, or as a place in the file."""


class RetentionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which runs to remove, as it was written in the file or typed as options of `gc`."""

    older_than: str | int | float | None = None
    keep: Annotated[int, msgspec.Meta(ge=0)] | None = None
    max_size: str | int | None = None
    experiment: str | None = None
    status: str | list[str] = "completed"
    tagged_too: bool = False
    latest_too: bool = False

    @property
    def is_selective(self) -> bool:
        """Whether it says which runs to remove, and not only exceptions."""
        return not (self.older_than is None and self.keep is None and self.max_size is None)

    def policy(self, name: NameField) -> RetentionPolicy:
        """Parse the texts. UsageError if one cannot be read."""
        statuses = [self.status] if isinstance(self.status, str) else self.status
        for each in statuses or [""]:
            if each not in REMOVABLE:
                raise UsageError(f"{name('status')} {each!r}: a rule removes {', '.join(REMOVABLE)} runs")
        return RetentionPolicy(
            None if self.older_than is None else _parse_age(str(self.older_than), name("older_than")),
            self.keep,
            None if self.max_size is None else _parse_size(str(self.max_size), name("max_size")),
            self.experiment,
            not self.tagged_too,
            not (self.latest_too or self.keep == 0),
            frozenset(statuses),
        )


class StoreConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    retention: list[RetentionRule] = []


def name_option(field: str) -> str:
    """A field of a rule as an option of `gc`."""
    return f"--{field.replace('_', '-')}"


def configuration_path(store: str) -> str:
    return os.path.join(store, CONFIGURATION_FILE)


def read_policies(store: str) -> list[RetentionPolicy]:
    """The rules of a store; none if it has no configuration. SpecError or UsageError if the file is not understood."""
    path = configuration_path(store)
    if not os.path.isfile(path):  # a folder of this name is an experiment
        return []
    try:
        with open(path, encoding="utf-8") as file:
            raw = parse_yaml(file.read(TEXT_BYTES_MAX + 1), path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    try:
        rules = msgspec.convert({} if raw is None else raw, StoreConfiguration).retention
    except msgspec.ValidationError as error:
        raise _explain(error, path) from None
    for index, rule in enumerate(rules):
        if not rule.is_selective:
            raise UsageError(f"{path}: retention[{index}]: say what to remove: older_than, keep or max_size")
    return [rule.policy(partial(_name_place, path, index)) for index, rule in enumerate(rules)]


def _name_place(path: str, index: int, field: str) -> str:
    return f"{path}: retention[{index}].{field}"


def _explain(error: msgspec.ValidationError, path: str) -> SpecError:
    """One sentence with the file, the place, the problem and the nearest valid name."""
    found = _AT.search(str(error))
    place, problem = found[1] if found else "", _AT.sub("", str(error))
    unknown = _UNKNOWN.search(problem)
    if unknown:
        kind: Any = RetentionRule if place else StoreConfiguration
        problem = f"unknown field {unknown[1]!r}{nearest(unknown[1], set(kind.__struct_fields__))}"
    return SpecError(": ".join(filter(None, (path, place, f"{problem[:1].lower()}{problem[1:]}"))))


def _parse_size(text: str, name: str) -> int:
    match = _SIZE.match(text)
    if match is None:
        raise UsageError(f"{name} {text}: write a size such as 500MB or 10GB")
    unit = 1024 if match[3] else 1000
    return int(float(match[1]) * unit ** " kmgt".index(match[2].lower() or " "))


def _parse_age(text: str, name: str) -> float:
    match = _AGE.match(text)
    if match is None:
        raise UsageError(f"{name} {text}: write an age such as 12h, 30d or 8w")
    return float(match[1]) * _DAYS[match[2].lower()]
