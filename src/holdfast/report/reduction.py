"""Summaries of one value per sample, what is missing in them, and the groups of samples.

A sample without a value is left out of the summary and counted. If the scale has ends, the bounds say what the mean
would be if all missing values were the lowest, or the highest.

Which samples share a group: several questions about one passage, translations of one question.

Samples in one group are not independent, so every interval and test takes its groups from here. A sample's group is the
value of its row in the column `dataset.group`; without a value (null, blank, missing column) the sample is its own
group. Plan and rows are read side by side, and each name is kept once. If rows are not recorded or cannot be read,
every sample of the task is its own group, and reports say so: losing the rows must not lose the results.

Macro means: the values of one column of the rows (subjects, languages) weigh equally. These strata are those of the
plan, so a stratum without any score is noticed: there is no macro mean then, and a sentence says why.

Weights: a scorer that gives the share of several parts of a sample (instructions of a prompt) weighs samples by the
number of these parts, which a column of the rows lists.
"""

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import xxhash

from holdfast import stats
from holdfast.errors import JournalError
from holdfast.plan import data_lines, planned_lines
from holdfast.records import Cell, Row
from holdfast.report.text import counted, shortened
from holdfast.spec import Reduction
from holdfast.stats import BOOL, NUMBER, Scale, Summary, macro_mean

_NAME_MAX = 80
"""Longer values are replaced by a digest: a column may hold the passage itself."""
_row = msgspec.json.Decoder(Row)
T = TypeVar("T")
_NAMED_MAX = 3
_NAME_WIDTH = 40


class SampleGroups:
    """The groups of the keys of some cells. Query them in plan order: it reads forward only."""

    def __init__(self, run: str, spec: Mapping[str, Any], cells: Sequence[Cell]) -> None:
        self.unknown: dict[str, str] = {}
        """A sentence for each task whose groups are unknown."""
        columns = group_columns(spec)
        known: dict[str, str] = {}
        found: list[tuple[Cell, list[str]]] = []
        for cell in cells:
            column = columns.get(cell.task)
            if column and not spec.get("record_data", True):
                self.unknown[cell.task] = _explain_unknown(column, "record_data is off")
            elif column and cell.task not in self.unknown:
                try:
                    found.append((cell, [known.setdefault(name, name) for name in column_names(run, cell, column)]))
                except (OSError, JournalError):
                    self.unknown[cell.task] = _explain_unknown(column, "the rows cannot be read: see `holdfast verify`")
        self.any = any(name for cell, names in found if cell.task not in self.unknown for name in names)
        """Whether a sample has a group."""
        pairs = (zip(itertools.count(cell.first), names) for cell, names in found if cell.task not in self.unknown)
        self._left = itertools.chain.from_iterable(pairs)
        self._next = next(self._left, None)

    def at(self, o: int) -> str:
        """The group of a key; empty if its sample is its own group."""
        while self._next is not None and self._next[0] < o:
            self._next = next(self._left, None)
        return self._next[1] if self._next is not None and self._next[0] == o else ""


def group_columns(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The group column of each task of a stored spec; None without one."""
    return {str(task.get("name")): task.get("dataset", {}).get("group") for task in spec.get("tasks", ())}


def member_of(sample_id: str, group: str) -> Hashable:
    """The independent unit: a group as a tuple, else the sample id, so that the two never collide."""
    return (group,) if group else sample_id


def with_counts(summary: Summary, answers: int, groups: int) -> Summary:
    """A summary of one value per sample, with the number of answers, and of groups if samples share groups."""
    samples = summary.n
    return msgspec.structs.replace(
        summary,
        n=answers,
        samples=samples if samples != answers else None,
        groups=groups if groups < samples else None,
    )


def _explain_unknown(column: str, why: str) -> str:
    return f"which samples share a {column} is not known ({why}): each counts as a group of its own"


def column_names(run: str, cell: Cell, column: str) -> Iterator[str]:
    """The value of each key of a cell in a column of the rows, in plan order; empty without one."""
    return (name for _, name in _column_values(run, cell, column, _name))


def _column_values(run: str, cell: Cell, column: str, read: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """Each key of a cell, in plan order, with what `read` returns for its value in the column."""
    rows = data_lines(run, cell)
    number, value = 0, read(None)
    for line in planned_lines(run, cell):
        while number < line.r:
            row = next(rows, None)
            if row is None:
                raise JournalError(f"{line.k} has no row")
            number, value = row.r, read(None)
            if number == line.r:
                value = read(_row.decode(row.row).get(column))
        yield line.k, value


def _name(value: Any) -> str:
    """A group's name. 1 and "1" are one group, because CSV does not distinguish them."""
    text = "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) > _NAME_MAX:
        return xxhash.xxh3_128_hexdigest(text.encode())
    return text if text.strip() else ""


_CHANCES = ("pass_at_k", "pass_power_k", "cons_at_k", "at_least")
"""Their values are chances, whatever the scale of the scores."""


class Reduced(msgspec.Struct, frozen=True):
    """One reducer on one scorer over one cell: one value per sample, summarised over samples."""

    reducer: str
    summary: stats.Summary
    no_value: int
    """Planned samples without a reduced value: a repeat or a score is missing, or a tie between labels."""
    labels: dict[str, int] = msgspec.field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    """The mean if all samples without a value had the lowest, or the highest; None if none is missing, or unknown."""
    scale: Scale = NUMBER


def reduced_scale(how: Reduction, scale: Scale) -> Scale:
    """The scale of reduced scores. A chance is treated as right or wrong: it never varies more."""
    return BOOL if how.name in _CHANCES else scale


def bounds_of(total: float, known: float, missing: float, scale: Scale) -> tuple[float, float] | None:
    """The mean if all missing values were the lowest of the scale, and the highest. None if none is missing, none is
    known, or the scale has no ends. `known`, `missing`: how many values there are, or their weights.
    """
    if not missing or not known or scale.lowest is None or scale.highest is None:
        return None
    low, high = ((total + missing * end) / (known + missing) for end in (scale.lowest, scale.highest))
    return low, high


class Weights(msgspec.Struct, frozen=True):
    """How much each planned sample of a cell weighs."""

    column: str
    """Of the rows: a list, whose length is the weight, or a number."""
    by_key: dict[str, float] = {}
    """By planned key, in plan order; empty if they are unknown."""
    unknown: str = ""
    """Why they are unknown, as a sentence: then samples weigh equally."""

    def by_sample(self) -> dict[str, float]:
        """By the key without its repeat, as in `AnswerRow.sample`."""
        return {key.rpartition("/")[0]: weight for key, weight in self.by_key.items()}

    def by_ordinal(self, cells: Sequence[Cell]) -> dict[int, float]:
        """`cells`: those that it was read from."""
        ordinals = itertools.chain.from_iterable(range(cell.first, cell.first + cell.count) for cell in cells)
        return dict(zip(ordinals, self.by_key.values(), strict=True))


def read_weights(run: str, spec: Mapping[str, Any], cells: Sequence[Cell], column: str) -> Weights:
    """From the rows of these cells."""
    equally = "so samples weigh equally"
    if not spec.get("record_data", True):
        return Weights(column, unknown=f"{column} is not known because record_data is off, {equally}")
    try:
        found = {key: weight for cell in cells for key, weight in _column_values(run, cell, column, _weight)}
    except (OSError, JournalError):
        return Weights(column, unknown=f"the rows with {column} cannot be read (see `holdfast verify`), {equally}")
    if not all(found.values()):
        return Weights(column, unknown=f"some samples have no {column}, {equally}")
    return Weights(column, found)


def _weight(value: Any) -> float:
    """0 if it is none."""
    size = len(value) if isinstance(value, list) else value
    return float(size) if isinstance(size, int | float) and size > 0 else 0.0


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
    sums = stats.sum_groups(list(values.values()), [members.get(sample, sample) for sample in values])
    found = stats.summarise_sums([sums], scale=scale, answers=len(values))
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
