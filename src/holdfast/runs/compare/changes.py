"""The keys behind every number of a comparison, in a few bytes each, so that a viewer can page through millions.

A `KeyTable` holds, for each key with a value on both sides, the ordinals of both keys, what changed, and both values.
It works on any buffer, also on a mapped file. Keys are in plan order, and a page begins behind an ordinal.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from holdfast.report import CommonKeys, ComparisonResult, Side
from holdfast.runs.compare.comparison import ShownQuestions, comparison_of
from holdfast.runs.run import Run
from holdfast.score import as_number

Change = Literal["higher", "lower", "other", "equal"]
CHANGES: tuple[Change, ...] = ("higher", "lower", "other", "equal")
"""`higher`: on the second side. `other`: labels that differ."""
_MATRIX_MAX = 8
_CODES_MAX = 1000
_COARSE = _MATRIX_MAX * _MATRIX_MAX
"""Kinds below are cells of a matrix of values; from here on they are numbers of CHANGES."""
_UNKNOWN = (1 << 32) - 1
_CHUNK = 1 << 16


class KeyTableHead(msgspec.Struct, frozen=True):
    """Everything about a table but its keys."""

    first: Side
    second: Side
    scorer: str
    count: int
    kinds: dict[int, int]
    """How many keys have each kind."""
    values: list[Any] = []
    """The different values, if there are few; a key then has the numbers of its two."""
    is_coded: bool = False
    is_reduced: bool = False
    """Whether a value is of all repeats of a sample; the ordinals are then those of the first."""


class ChangedValues(msgspec.Struct, frozen=True):
    """One cell of a matrix: how many keys had one value before and another after."""

    before: Any
    after: Any
    change: Change
    count: int


class TableRow(msgspec.Struct, frozen=True):
    """One key. The ordinals are -1 if they are not known."""

    first: int
    second: int
    before: Any
    after: Any
    change: Change


class KeyTable:
    """The common keys of one comparison."""

    def __init__(self, head: KeyTableHead, content: Any) -> None:
        """`content`: the bytes that `make_table` made, or a mapping of them."""
        self.head = head
        size, view = head.count, memoryview(content)
        self._kinds = view[:size]
        at = size + (-size) % 8
        self._first = view[at : at + 4 * size].cast("I")
        at += 4 * size + (-4 * size) % 8
        self._second = view[at : at + 4 * size].cast("I")
        at += 4 * size + (-4 * size) % 8
        self._values = view[at:].cast("H" if head.is_coded else "d") if at < len(view) else None

    @property
    def bytes(self) -> int:
        """How much memory it takes if it is not mapped."""
        return 9 * self.head.count + (self._values.nbytes if self._values is not None else 0)

    def matrix(self) -> list[ChangedValues]:
        """The counts by pair of values; empty if there are too many values."""
        values = self.head.values
        if len(values) > _MATRIX_MAX or not self.head.is_coded:
            return []
        return [
            ChangedValues(one, other, _change(one, other), self.head.kinds.get(_MATRIX_MAX * i + j, 0))
            for i, one in enumerate(values)
            for j, other in enumerate(values)
        ]

    def counts(self) -> dict[Change, int]:
        """How many keys changed in each way."""
        found: dict[Change, int] = dict.fromkeys(CHANGES, 0)
        for kind, count in self.head.kinds.items():
            found[self._change_of(kind)] += count
        return found

    def kinds(self, changes: Sequence[str], values: tuple[Any, Any] | None = None) -> frozenset[int]:
        """The kinds of these changes; with `values`, only that cell of the matrix."""
        found = {kind for kind in self.head.kinds if self._change_of(kind) in changes}
        if values is not None:
            found &= {kind for kind in found if kind < _COARSE and self._pair_of(kind) == values}
        return frozenset(found)

    def rows(self, kinds: frozenset[int], *, after: int | None = None, before: int | None = None) -> Iterator[TableRow]:
        """Keys of these kinds in plan order: from the one behind an ordinal of the first side on; or, with `before`,
        backwards from the one in front of it.
        """
        if before is not None:
            places = self._backwards(kinds, bisect_left(self._first, before))
        else:
            places = self._forwards(kinds, 0 if after is None else bisect_right(self._first, after))
        return map(self._row, places)

    def _forwards(self, kinds: frozenset[int], start: int) -> Iterator[int]:
        for at in range(start, self.head.count, _CHUNK):
            yield from (at + each for each in _places(kinds, self._kinds[at : at + _CHUNK]))

    def _backwards(self, kinds: frozenset[int], end: int) -> Iterator[int]:
        while end > 0:
            at = max(end - _CHUNK, 0)
            yield from (at + each for each in reversed(list(_places(kinds, self._kinds[at:end]))))
            end = at

    def _row(self, place: int) -> TableRow:
        kind = self._kinds[place]
        first, second = (-1 if each == _UNKNOWN else each for each in (self._first[place], self._second[place]))
        before, after = None, None
        if kind < _COARSE:
            before, after = self._pair_of(kind)
        elif self._values is not None:
            before, after = self._values[2 * place], self._values[2 * place + 1]
            if self.head.is_coded:
                before, after = self.head.values[int(before)], self.head.values[int(after)]
        return TableRow(first, second, before, after, self._change_of(kind))

    def _pair_of(self, kind: int) -> tuple[Any, Any]:
        return self.head.values[kind // _MATRIX_MAX], self.head.values[kind % _MATRIX_MAX]

    def _change_of(self, kind: int) -> Change:
        return _change(*self._pair_of(kind)) if kind < _COARSE else CHANGES[kind - _COARSE]


def _places(kinds: frozenset[int], part: memoryview) -> Iterator[int]:
    if not kinds:
        return iter(())
    pattern = re.compile(b"[%s]" % b"".join(re.escape(bytes([kind])) for kind in sorted(kinds)))
    return (found.start() for found in pattern.finditer(part))


def _change(before: Any, after: Any) -> Change:
    one, other = as_number(before), as_number(after)
    if one is None or other is None:
        return "equal" if before == after else "other"
    return "equal" if one == other else "higher" if other > one else "lower"


def make_table(keys: CommonKeys) -> tuple[KeyTableHead, bytes]:
    """Make the head and the content of a table."""
    before, after = list(map(_hashable, keys.before)), list(map(_hashable, keys.after))
    different = _in_order({*before, *after}) if len({*before, *after}) <= _CODES_MAX else []
    codes = {value: number for number, value in enumerate(different)}
    values: array[Any] | None = None
    if different and len(different) <= _MATRIX_MAX:
        cells = {(one, other): _MATRIX_MAX * i + j for one, i in codes.items() for other, j in codes.items()}
        kinds = bytes(map(cells.__getitem__, zip(before, after, strict=True)))
    else:
        pairs = list(zip(before, after, strict=True))
        changes = {pair: _COARSE + CHANGES.index(_change(*pair)) for pair in set(pairs)}
        kinds = bytes(map(changes.__getitem__, pairs))
        if different:
            values = array("H", (codes[each] for pair in pairs for each in pair))
        else:
            values = array("d", (_float(each) for pair in pairs for each in pair))
    parts = [kinds]
    for side in (keys.first, keys.second):
        found = (side.ordinal(pair) for pair in keys.pairs)
        parts.append(array("I", (_UNKNOWN if o is None or o >= _UNKNOWN else o for o in found)).tobytes())
    head = KeyTableHead(
        keys.first.side, keys.second.side, keys.scorer, len(kinds), dict(Counter(kinds)), different, bool(different)
    )
    if keys.pairs and not keys.pairs[0][1]:
        head = msgspec.structs.replace(head, is_reduced=True)
    aligned = [part + bytes(-len(part) % 8) for part in parts]
    return head, b"".join([*aligned, values.tobytes() if values is not None else b""])


def _float(value: Any) -> float:
    number = as_number(value)
    return float("nan") if number is None else number


def _hashable(value: Any) -> Hashable:
    """A score is a bool, a number or a text; anything else is shown as JSON."""
    return value if isinstance(value, bool | int | float | str) else msgspec.json.encode(value).decode()


def _in_order(values: set[Hashable]) -> list[Any]:
    """Numbers from the highest to the lowest, so that right comes before wrong; then labels."""
    numbers = {value: as_number(value) for value in values}
    return sorted(values, key=lambda value: (numbers[value] is None, -(numbers[value] or 0.0), str(value)))


def changes_of(
    runs: Sequence[Run], evaluation: str = "", adjust: str = "holm"
) -> tuple[ComparisonResult, list[tuple[KeyTableHead, bytes]]]:
    """Compare runs as `comparison_of` does, with a table of keys for each comparison instead of changed keys."""
    tables: dict[tuple[Side, Side, str], tuple[KeyTableHead, bytes]] = {}

    def observe(keys: CommonKeys) -> None:
        tables[keys.first.side, keys.second.side, keys.scorer] = make_table(keys)

    result = comparison_of(runs, None, evaluation, adjust, ShownQuestions(0), observe)
    return result, [tables[each.first, each.second, each.scorer] for each in result.comparisons]
