"""`when` of a task or model: which combinations of a sweep are run. Pure.

A condition is a mapping from swept fields to values: `{temperature: 0, seed: [1, 2]}`. A combination satisfies it if
each field that it sweeps has one of the values. Of a list of conditions, one must be satisfied.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import SpecError
from holdfast.spec.messages import kind_of, nearest

WHEN = "when"
_EXPECTED = "expected a mapping of swept fields to values, or a list of such mappings"


class Choice(msgspec.Struct, frozen=True):
    """One value of a swept field, and the label that it adds to the variant's name."""

    label: str
    value: Any

    @property
    def words(self) -> str:
        """How a condition names it: a text may be a long prompt, so it is named by its label."""
        return self.label if isinstance(self.value, str) else str(self.value)

    def is_meant_by(self, given: Any) -> bool:
        """Whether a condition names this value, or its label."""
        if isinstance(given, bool) or isinstance(self.value, bool):  # in Python, 1 equals True
            return given is self.value
        return bool(given == self.value) or str(given) == self.label


class KeptCombinations(msgspec.Struct, frozen=True):
    """How many combinations a `when` keeps, for `check`."""

    place: str
    kept: int
    total: int


class Conditions:
    """The `when` of one task or model. SpecError if it is no condition. `where`: the file, for errors."""

    def __init__(self, raw: Any, where: str, place: str) -> None:
        self._place = place
        self._where = f"{where}: {place}"
        given = [raw] if isinstance(raw, dict) else raw
        if not isinstance(given, list):
            raise SpecError(f"{self._where}: {_EXPECTED}, got {kind_of(raw)}")
        if not given:
            raise SpecError(f"{self._where}: an empty list keeps no combination; leave it out to keep all")
        for index, each in enumerate(given):
            at = f"{self._where}[{index}]" if isinstance(raw, list) else self._where
            if not isinstance(each, dict):
                raise SpecError(f"{at}: {_EXPECTED}, got {kind_of(each)}")
            if not each:
                raise SpecError(f"{at}: an empty condition keeps every combination; name a swept field")
        self._conditions = [
            {name: value if isinstance(value, list) else [value] for name, value in each.items()} for each in given
        ]

    def check(self, swept: Mapping[str, Sequence[Choice]]) -> None:
        """SpecError if a condition names a field that is not swept, or a value that the field does not have."""
        if not swept:
            raise SpecError(f"{self._where}: nothing is swept here; give a field several values, or leave this out")
        for condition in self._conditions:
            for name, values in condition.items():
                if name not in swept:
                    raise SpecError(f"{self._where}: {name!r} is not swept here{nearest(name, set(swept))}")
                for value in values or [None]:
                    if not any(choice.is_meant_by(value) for choice in swept[name]):
                        known = ", ".join(dict.fromkeys(each.words for each in swept[name]))
                        got = f"no value {value!r}" if values else "an empty list keeps no combination"
                        raise SpecError(f"{self._where}.{name}: {got}; there are: {known}")

    def count(self, kept: int, total: int) -> KeptCombinations:
        """SpecError if no combination is kept."""
        if not kept:
            raise SpecError(f"{self._where}: none of {total} combinations is kept; loosen a condition")
        return KeptCombinations(self._place, kept, total)

    def keeps(self, chosen: Mapping[str, Sequence[Choice]]) -> bool:
        """Whether a combination is kept. A field that it does not sweep satisfies every condition."""
        return any(
            all(
                name not in chosen or any(choice.is_meant_by(value) for choice in chosen[name] for value in values)
                for name, values in condition.items()
            )
            for condition in self._conditions
        )
