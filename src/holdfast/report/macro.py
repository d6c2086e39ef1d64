"""Macro means: the values of one column of the rows (subjects, languages) weigh equally.

The strata of a cell are those of its plan, so a stratum without any score is noticed: there is no macro mean then, and
a sentence says why. Strata are read like groups (`reduction.column_names`).
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import JournalError
from holdfast.records import Cell
from holdfast.report.reduction import column_names, summarise_values, with_counts
from holdfast.report.text import counted, shortened
from holdfast.stats import Scale, Summary, macro_mean

_NAMED_MAX = 3
_NAME_WIDTH = 40


class Stratum(msgspec.Struct, frozen=True):
    """The samples with one value in the column."""

    name: str
    summary: Summary


class Macro(msgspec.Struct, frozen=True):
    """The mean of the means of strata."""

    column: str
    """Of the rows: its values are the strata."""
    summary: Summary
    """`n` counts samples. The mean is None if `unknown` says why."""
    strata: tuple[Stratum, ...] = ()
    reducer: str = ""
    """The reducer whose values are averaged; empty: the mean over repeats."""
    unknown: str = ""
    """Why there is no macro mean, as a sentence."""

    @property
    def title(self) -> str:
        """Of its row in a table."""
        strata = counted(len(self.strata), self.column, plural(self.column))
        return f"{self.reducer} macro mean over {strata}".lstrip()


class Strata(msgspec.Struct, frozen=True):
    """The strata of the planned keys of a cell."""

    column: str
    by_ordinal: dict[int, str]
    unknown: str = ""


def plural(noun: str) -> str:
    """`subjects`, `categories`."""
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return noun if noun.endswith("s") else f"{noun}s"


def read_strata(run: str, spec: Mapping[str, Any], cells: Sequence[Cell], column: str) -> Strata:
    """The value of each planned key in the column."""
    if not spec.get("record_data", True):
        return Strata(column, {}, f"which samples share a {column} is not known: record_data is off")
    found: dict[int, str] = {}
    known: dict[str, str] = {}  # each name once
    try:
        for cell in cells:
            names = (known.setdefault(name, name) for name in column_names(run, cell, column))
            found |= dict(enumerate(names, cell.first))
    except (OSError, JournalError):
        return Strata(column, {}, f"the rows with the column {column} cannot be read: see `holdfast verify`")
    return Strata(column, found)


def macro_of(
    values: Mapping[str, float],
    samples: Mapping[int, str],
    strata: Strata,
    members: Mapping[str, Hashable],
    scale: Scale,
    reducer: str = "",
) -> Macro:
    """`values`: one per sample. `samples`: of all answers, by ordinal. `members`: the group of each sample that shares
    one.
    """
    of_sample = {sample: strata.by_ordinal.get(o, "") for o, sample in samples.items()}
    names = sorted(set(strata.by_ordinal.values()))
    parts: dict[str, dict[str, float]] = {name: {} for name in names}
    for sample, value in values.items():
        parts.setdefault(of_sample[sample], {})[sample] = value
    made = tuple(Stratum(name, _summary(part, members, scale)) for name, part in parts.items())
    why = strata.unknown or _why_unknown(strata, parts)
    if why:
        return Macro(strata.column, Summary(0), made if not strata.unknown else (), reducer, why)
    groups = [members.get(sample, sample) for sample in values]
    found = macro_mean(list(values.values()), [of_sample[sample] for sample in values], groups, scale=scale)
    return Macro(strata.column, with_counts(found, found.n, len(set(groups))), made, reducer)


def _summary(values: Mapping[str, float], members: Mapping[str, Hashable], scale: Scale) -> Summary:
    found = summarise_values(values, members, scale, len(values))
    return with_counts(found, len(values), len({members.get(sample, sample) for sample in values}))


def _why_unknown(strata: Strata, parts: Mapping[str, Collection[str]]) -> str:
    column = strata.column
    without = sum(not name for name in strata.by_ordinal.values())
    if without:
        have = "has" if without == 1 else "have"
        return f"{counted(without, 'answer')} of {len(strata.by_ordinal)} {have} no value in the column {column}"
    empty = [name for name, part in parts.items() if not part]
    if not empty:
        return ""
    named = ", ".join(shortened(name, _NAME_WIDTH) for name in empty[:_NAMED_MAX])
    more = f" and {len(empty) - _NAMED_MAX} more" if len(empty) > _NAMED_MAX else ""
    have = "has" if len(empty) == 1 else "have"
    return f"{len(empty)} of {counted(len(parts), column, plural(column))} {have} no score: {named}{more}"
