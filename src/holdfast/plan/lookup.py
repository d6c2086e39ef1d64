"""Finds single lines of plan and data files by number, without reading the lines before them.

Each line of these files begins with a number that grows from line to line: `{"o":` in a plan, `{"r":` in data. A binary
search unpacks only the frames on its way: a few milliseconds in files of millions of lines.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from holdfast.errors import DamagedError
from holdfast.journal import SegmentContent
from holdfast.plan.files import RESTORE, DataLine, PlanLine, data_path, find_line, open_lines, plan_path
from holdfast.records import Cell

_NEAR_BYTES = 4096
_plan_line = msgspec.json.Decoder(PlanLine)
_data_line = msgspec.json.Decoder(DataLine)


class NumberedLines:
    """The lines of one file from an offset on. `name`: of the number, `o` or `r`. Close it after use."""

    def __init__(self, path: str, name: str, offset: int = 0) -> None:
        self._path = path
        self._begin = b'{"%b":' % name.encode()
        self._number = re.compile(re.escape(self._begin) + rb"(\d{1,18}),")
        self._offset = offset
        self._content: SegmentContent = open_lines(path)

    def close(self) -> None:
        self._content.close()

    def find(self, number: int) -> bytes | None:
        """The line with this number; None if there is none. DamagedError if it cannot be read. A file whose lines are
        not in order, which Holdfast does not write, is read from the beginning.
        """
        found = self._search(number)
        if found is None:
            found = find_line(self._path, self._offset, b"\n%b%d," % (self._begin, number))
        return found

    def _search(self, number: int) -> bytes | None:
        low, high = self._offset, self._content.size()
        while high - low > _NEAR_BYTES:
            middle = (low + high) // 2
            start, line = next(self._lines(middle, high, is_start=False), (high, b""))
            if start >= high:
                high = middle + 1  # only the end of a line is behind the middle
            elif self._number_of(line) <= number:
                low = start
            else:
                high = middle + 1  # what is wanted begins before this line
        for start, line in self._lines(low, None, is_start=True):
            found = self._number_of(line)
            if found >= number or start >= high:
                return line if found == number else None
        return None

    def _lines(self, offset: int, end: int | None, *, is_start: bool) -> Iterator[tuple[int, bytes]]:
        """Whole lines with their offsets; without `is_start` those after the next newline. `end`: none begin after."""
        rest, at = b"", offset
        for piece in self._content.pieces(offset):
            if piece.gap or piece.broken:
                raise DamagedError(f"{self._path} is damaged at byte {piece.offset}; {RESTORE}")
            rest += piece.data
            while (stop := rest.find(b"\n")) >= 0:
                if is_start:
                    yield at, rest[:stop]
                is_start = True
                rest, at = rest[stop + 1 :], at + stop + 1
                if end is not None and at >= end:
                    return

    def _number_of(self, line: bytes) -> int:
        found = self._number.match(line)
        if found is None:
            raise DamagedError(f"{self._path} is damaged: a line does not begin with its number; {RESTORE}")
        return int(found[1])


def planned_line_at(run: str, cell: Cell, o: int) -> PlanLine | None:
    """The line of an ordinal in the plan of a cell's block; None if it has none."""
    with contextlib.closing(NumberedLines(plan_path(run, cell.block), "o", cell.plan_at)) as lines:
        line = lines.find(o)
    return None if line is None else _plan_line.decode(line)


def find_data_line(run: str, cell: Cell, number: int) -> DataLine | None:
    """The row with this number among the rows of a cell."""
    with contextlib.closing(NumberedLines(data_path(run, cell.rows_block), "r", cell.data_at)) as lines:
        line = lines.find(number)
    return None if line is None else _data_line.decode(line)


def data_lines_at(run: str, cells: Sequence[Cell], ordinals: Collection[int]) -> Iterator[tuple[int, Cell, DataLine]]:
    """The rows of some keys, by ordinal. DamagedError if one cannot be read."""
    for cell in cells:
        wanted = [o for o in ordinals if cell.first <= o < cell.first + cell.count]
        if not wanted:
            continue
        with contextlib.ExitStack() as stack:
            plan = NumberedLines(plan_path(run, cell.block), "o", cell.plan_at)
            stack.callback(plan.close)
            data = NumberedLines(data_path(run, cell.rows_block), "r", cell.data_at)
            stack.callback(data.close)
            for o in sorted(wanted):
                planned = plan.find(o)
                line = None if planned is None else data.find(_plan_line.decode(planned).r)
                if line is not None:
                    yield o, cell, _data_line.decode(line)
