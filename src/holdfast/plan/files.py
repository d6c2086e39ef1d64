"""The files that pin what a run is about: plan.jsonl.zst and data.jsonl.zst, two more for each extension,
and another plan for each correction of a model.

All are lines of JSON in the sealed format of journal segments, so they can be read from any offset. They are written
whole and synced before the record that names their digests; nothing ever changes them afterwards.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.errors import DamagedError
from holdfast.journal.content import open_content
from holdfast.journal.disk import OS_DISK, Disk, remove_if_there, write_all
from holdfast.journal.seekable import pack
from holdfast.records import LINE_BYTES_MAX
from holdfast.records.exchange import Row, Sample
from holdfast.records.facts import Block, Cell, Stored

RESTORE = "restore it from a copy of the run, or from its mirror with: holdfast recover"
PLAN = "plan.jsonl.zst"
DATA = "data.jsonl.zst"


class LineFile:
    """Counts and digests lines on their way into a file."""

    def __init__(self, path: str, disk: Disk = OS_DISK) -> None:
        self._path = path
        self._disk = disk
        self._digest = xxhash.xxh3_128()
        self.count = 0
        self.bytes = 0

    def write(self, lines: Iterable[bytes]) -> Stored:
        """Write all lines. Dying before the end leaves a temporary file and no plan: the run has not begun."""
        temporary = f"{self._path}.tmp"
        remove_if_there(self._disk, temporary)
        size = 0
        handle = self._disk.create(temporary)
        try:
            for packed in pack(self._counted(lines)):
                size += write_all(self._disk, handle, [packed])
            self._disk.sync(handle)
        finally:
            self._disk.close(handle)
        self._disk.replace(temporary, self._path)
        self._disk.sync_folder(os.path.dirname(self._path))
        return Stored(self.count, self._digest.hexdigest(), size)

    def _counted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        buffer = bytearray()
        for line in lines:
            self.count += 1
            self.bytes += len(line) + 1
            buffer += line
            buffer += b"\n"
            if len(buffer) >= 1 << 16:
                self._digest.update(bytes(buffer))
                yield bytes(buffer)
                buffer.clear()
        self._digest.update(bytes(buffer))
        yield bytes(buffer)


def read_lines(path: str, offset: int = 0, disk: Disk = OS_DISK) -> Iterator[bytes]:
    """The lines from an offset on. DamagedError if a part of the file cannot be read."""
    try:
        content = open_content(disk, path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise DamagedError(f"{path} is missing; {RESTORE}") from error
    rest = bytearray()
    try:
        if content.cut:
            raise DamagedError(f"{path} is damaged: its end is missing; {RESTORE}")
        for piece in content.pieces(offset):
            if piece.gap or piece.broken:
                raise DamagedError(f"{path} is damaged at byte {piece.offset}; {RESTORE}")
            first, *others = piece.data.split(b"\n")
            rest += first  # a line over many small frames is not copied again for each
            if len(rest) > LINE_BYTES_MAX:
                raise DamagedError(f"{path} is damaged: a line is longer than any that is written; {RESTORE}")
            if others:
                yield bytes(rest)
                *lines, last = others
                yield from lines
                rest = bytearray(last)
    finally:
        content.close()
    if rest:
        raise DamagedError(f"{path} ends in the middle of a line; {RESTORE}")


def digest_file(path: str) -> Stored:
    """What a plan or data file holds now, to compare with what the journal says it held."""
    digest = xxhash.xxh3_128()
    count = 0
    for line in read_lines(path):
        digest.update(line + b"\n")
        count += 1
    return Stored(count, digest.hexdigest())


def plan_path(run: str, block: int = 1) -> str:
    """Where a block's keys are. Each block is a file of its own, which never changes once it is written."""
    return os.path.join(run, PLAN if block == 1 else f"plan-{block}.jsonl.zst")


def data_path(run: str, block: int = 1) -> str:
    return os.path.join(run, DATA if block == 1 else f"data-{block}.jsonl.zst")


def originals(run: str, blocks: Iterable[Block]) -> "Iterator[tuple[str, Stored]]":
    """Every plan and data file of a run, and what the journal says it holds."""
    for block in blocks:
        yield plan_path(run, block.number), block.plan
        if block.data is not None:
            yield data_path(run, block.number), block.data


def planned_lines(run: str, cell: Cell) -> "Iterator[PlanLine]":
    """The keys of one cell of one block. DamagedError if there are fewer than the journal says."""
    path = plan_path(run, cell.block)
    found = 0
    for line in itertools.islice(read_lines(path, cell.plan_at), cell.count):
        found += 1
        yield _plan_line.decode(line)
    if found < cell.count:
        raise DamagedError(f"{path} is damaged: {found} of {cell.count} keys of {cell.task} are left; {RESTORE}")


def data_lines(run: str, cell: Cell) -> "Iterator[DataLine]":
    """The rows from those of a cell on, to the end of their block."""
    return data_lines_in(data_path(run, cell.rows_block), cell.data_at)


def data_lines_in(path: str, offset: int) -> "Iterator[DataLine]":
    """The rows of one data file, from an offset on."""
    return map(_data_line.decode, read_lines(path, offset))


def rows_of(run: str, cell: Cell) -> "Iterator[DataLine]":
    """The rows of one cell of one block, and no other task's."""
    last = max((line.r for line in planned_lines(run, cell)), default=0)
    return itertools.takewhile(lambda line: line.r <= last, data_lines(run, cell))


class StoredRows(Sequence[Row]):
    """The rows of a task as its run holds them, in the order of the data set; read when they are asked for."""

    def __init__(self, run: str, cells: Sequence[Cell]) -> None:
        self._run = run
        self._cells = {cell.rows_block: cell for cell in cells}

    def __iter__(self) -> "Iterator[Row]":
        seen: set[str] = set()
        for cell in self._cells.values():
            for line in rows_of(self._run, cell):
                if line.id not in seen:
                    seen.add(line.id)
                    yield _row.decode(line.row)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class PlanLine(msgspec.Struct, frozen=True, gc=False):
    """One key: its ordinal, its row, its repeat, and a digest of what it will ask."""

    o: int
    k: str
    r: int
    x: str


class DataLine(msgspec.Struct, frozen=True):
    """One row of one task, with the names of its input and target columns, so that it can be read without the spec."""

    r: int
    id: str
    row: msgspec.Raw
    i: str = ""
    t: str = ""

    def sample(self) -> Sample:
        row = _row.decode(self.row)
        return Sample(self.id, row.get(self.i) if self.i else None, row.get(self.t) if self.t else None, row)


_row = msgspec.json.Decoder(Row)
_plan_line = msgspec.json.Decoder(PlanLine)
_data_line = msgspec.json.Decoder(DataLine)
