"""The plan and data files of a run: plan.jsonl.zst and data.jsonl.zst, two more for each extension, and another plan
for each correction of a model.

They hold lines of JSON in the sealed format of journal segments, so they can be read from any offset. Invariant: a file
is complete and synced before the record with its digest is written, and never changes afterwards. A crash while writing
leaves a temporary file or a file that no record names; both are overwritten later.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.errors import DamagedError, JournalError
from holdfast.files import status_of
from holdfast.journal import (
    OS_DISK,
    Disk,
    SealedContent,
    SegmentContent,
    check_blob_files,
    line_at,
    open_content,
    pack,
    remove_if_there,
    write_all,
)
from holdfast.records import (
    LINE_BYTES_MAX,
    Block,
    Cell,
    Row,
    Sample,
    StoredFile,
    TaskInputs,
    parse_reference,
    references_in,
)
from holdfast.spec import Spec
from holdfast.state import Stamps, stamp_of_file

RESTORE = "restore it from a copy of the run, or from its mirror with: holdfast recover"
PLAN = "plan.jsonl.zst"
DATA = "data.jsonl.zst"


class LineFile:
    """Writes one plan or data file, and computes its line count and digest on the way."""

    def __init__(self, path: str, disk: Disk = OS_DISK) -> None:
        self._path = path
        self._disk = disk
        self._digest = xxhash.xxh3_128()
        self.count = 0
        self.bytes = 0

    def write(self, lines: Iterable[bytes]) -> StoredFile:
        """Write all lines, synced, and rename the file into place. A crash before that leaves only a temporary file."""
        size = write_durably(self._disk, self._path, pack(self._counted(lines)))
        return StoredFile(self.count, self._digest.hexdigest(), size)

    def pack_into(self, write: Callable[[bytes], int], lines: Iterable[bytes]) -> StoredFile:
        """Give the bytes of the file to `write` instead, which writes all of them: for a file without a name."""
        size = sum(map(write, pack(self._counted(lines))))
        return StoredFile(self.count, self._digest.hexdigest(), size)

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


def write_durably(disk: Disk, path: str, chunks: Iterable[bytes]) -> int:
    """Write a file, synced, and rename it into place. Returns its size in bytes."""
    temporary = f"{path}.tmp"
    remove_if_there(disk, temporary)
    size = 0
    handle = disk.create(temporary)
    try:
        for chunk in chunks:
            size += write_all(disk, handle, [chunk])
        # Sync before the rename: after a power loss the final name must never show an incomplete file.
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.replace(temporary, path)
    disk.sync_folder(os.path.dirname(path))
    return size


def read_lines(path: str, offset: int = 0, disk: Disk = OS_DISK) -> Iterator[bytes]:
    """Yield the lines from an offset on. DamagedError if the file is missing or a part of it is unreadable."""
    content = open_lines(path, disk)
    rest = bytearray()
    try:
        for piece in content.pieces(offset):
            if piece.gap or piece.broken:
                raise DamagedError(f"{path} is damaged at byte {piece.offset}; {RESTORE}")
            first, *others = piece.data.split(b"\n")
            rest += first  # in place: a long line over many frames would be copied quadratically
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


def find_line(path: str, offset: int, wanted: bytes) -> bytes | None:
    """The first line from an offset on that contains these bytes; each line counts with the newline before it, so they
    can name its beginning. Much faster than decoding every line. DamagedError as in `read_lines`.
    """
    with contextlib.closing(open_lines(path)) as content:
        rest = b"\n"
        for piece in content.pieces(offset):
            if piece.gap or piece.broken:
                raise DamagedError(f"{path} is damaged at byte {piece.offset}; {RESTORE}")
            text = rest + piece.data
            end = text.rfind(b"\n")
            found = text.find(wanted, 0, end + 1)
            if found >= 0:
                start = text.rfind(b"\n", 0, found + 1) + 1
                return text[start : text.index(b"\n", start)]
            rest = text[end:]
            if len(rest) > LINE_BYTES_MAX:
                raise DamagedError(f"{path} is damaged: a line is longer than any that is written; {RESTORE}")
    return None


def open_lines(path: str, disk: Disk = OS_DISK) -> SegmentContent:
    """DamagedError if the file is missing, or its end is."""
    try:
        content = open_content(disk, path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise DamagedError(f"{path} is missing; {RESTORE}") from error
    if content.cut:
        content.close()
        raise DamagedError(f"{path} is damaged: its end is missing; {RESTORE}")
    return content


def digest_file(path: str) -> StoredFile:
    """Return the line count and digest of a file, to compare with its record."""
    digest = xxhash.xxh3_128()
    count, last = 0, b"\n"
    with contextlib.closing(open_lines(path)) as content:
        for piece in content.pieces(0):
            if piece.gap or piece.broken:
                raise DamagedError(f"{path} is damaged at byte {piece.offset}; {RESTORE}")
            digest.update(piece.data)
            count += piece.data.count(b"\n")
            last = piece.data[-1:]
    if last != b"\n":
        raise DamagedError(f"{path} ends in the middle of a line; {RESTORE}")
    return StoredFile(count, digest.hexdigest())


def plan_path(run: str, block: int = 1) -> str:
    """Return the path of a block's keys. Each block is a file of its own, so that written files never change."""
    return os.path.join(run, PLAN if block == 1 else f"plan-{block}.jsonl.zst")


def data_path(run: str, block: int = 1) -> str:
    return os.path.join(run, DATA if block == 1 else f"data-{block}.jsonl.zst")


def originals(run: str, blocks: Iterable[Block]) -> "Iterator[tuple[str, StoredFile]]":
    """Yield every plan and data file of a run, with the count and digest that the journal records."""
    for block in blocks:
        yield plan_path(run, block.number), block.plan
        if block.data is not None:
            yield data_path(run, block.number), block.data


def planned_lines(run: str, cell: Cell) -> "Iterator[PlanLine]":
    """Yield the keys of one cell of one block. DamagedError if there are fewer than the journal records."""
    path = plan_path(run, cell.block)
    found = 0
    for line in itertools.islice(read_lines(path, cell.plan_at), cell.count):
        found += 1
        yield _plan_line.decode(line)
    if found < cell.count:
        raise DamagedError(f"{path} is damaged: {found} of {cell.count} keys of {cell.task} are left; {RESTORE}")


def chosen_lines(run: str, cell: Cell, is_chosen: "Iterable[bool]", count: int) -> "list[PlanLine]":
    """The `count` keys of a cell that are chosen: `is_chosen` has a value for each key. The others are not decoded."""
    path = plan_path(run, cell.block)
    found = [_plan_line.decode(line) for line in itertools.compress(read_lines(path, cell.plan_at), is_chosen)]
    if len(found) < count:
        raise DamagedError(f"{path} is damaged: {count - len(found)} keys of {cell.task} are lost; {RESTORE}")
    return found


def find_planned_line(run: str, cell: Cell, key: str) -> "PlanLine | None":
    """The line of a key in the plan of a cell's block; None if it has none."""
    line = find_line(plan_path(run, cell.block), cell.plan_at, b'"k":' + msgspec.json.encode(key) + b",")
    return None if line is None else _plan_line.decode(line)


def find_sample_line(run: str, cell: Cell, sample: str) -> "PlanLine | None":
    """The line of the first repeat of a sample in a cell. `sample`: the key without its repeat."""
    wanted = b'"k":' + msgspec.json.encode(f"{sample}/").removesuffix(b'"')
    line = find_line(plan_path(run, cell.block), cell.plan_at, wanted)
    return None if line is None else _plan_line.decode(line)


def data_lines(run: str, cell: Cell) -> "Iterator[DataLine]":
    """Yield the rows from the first of a cell to the end of their block."""
    return data_lines_in(data_path(run, cell.rows_block), cell.data_at)


def data_lines_in(path: str, offset: int) -> "Iterator[DataLine]":
    """Yield the rows of one data file, from an offset on."""
    return map(_data_line.decode, read_lines(path, offset))


def data_rows(run: str, cell: Cell) -> "Iterator[DataRow]":
    """The same rows as `data_lines`, decoded in one go: much faster if every row is needed."""
    return map(_data_row.decode, read_lines(data_path(run, cell.rows_block), cell.data_at))


def rows_of(run: str, cell: Cell) -> "Iterator[DataLine]":
    """Yield the rows of one cell of one block."""
    last = max((line.r for line in planned_lines(run, cell)), default=0)
    return itertools.takewhile(lambda line: line.r <= last, data_lines(run, cell))


class RowLookup:
    """Reads single rows of a run by the offset of their line. Its files stay open: lookups are often near others."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._open: dict[int, SegmentContent] = {}

    def row_at(self, block: int, offset: int) -> "DataRow":
        """The row whose line begins at an offset of a block's data file. DamagedError if there is none."""
        content = self._open.get(block)
        if content is None:
            content = self._open[block] = open_lines(data_path(self._run, block))
        try:
            return _data_row.decode(line_at(content, offset, LINE_BYTES_MAX + 1))
        except msgspec.MsgspecError as error:
            raise DamagedError(f"{data_path(self._run, block)} has no row at byte {offset}; {RESTORE}") from error

    def close(self) -> None:
        for content in self._open.values():
            content.close()
        self._open.clear()


class StoredRows(Sequence[Row]):
    """The stored rows of a task, in the order of the data set. Each iteration reads them from disk."""

    def __init__(self, run: str, cells: Sequence[Cell]) -> None:
        self._run = run
        self._cells = {cell.rows_block: cell for cell in cells}

    def __iter__(self) -> "Iterator[Row]":
        return (_row.decode(line.row) for line in self._lines())

    def ids(self) -> Iterator[str]:
        """The ids of the rows. Without an id column they are the numbers that the rows had in the data set."""
        return (line.id for line in self._lines())

    def _lines(self) -> "Iterator[DataLine]":
        seen: set[str] = set()
        for cell in self._cells.values():
            for line in rows_of(self._run, cell):
                if line.id not in seen:
                    seen.add(line.id)
                    yield line

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class PlanLine(msgspec.Struct, frozen=True, gc=False):
    """One key: ordinal, key, row number, and a digest of everything that determines its requests."""

    o: int
    k: str
    r: int
    x: str


class DataLine(msgspec.Struct, frozen=True):
    """One row of one task, with the names of its input and target columns, so that readers do not need the spec."""

    r: int
    id: str
    row: msgspec.Raw
    i: str = ""
    t: str = ""

    def sample(self) -> Sample:
        row = _row.decode(self.row)
        return Sample(self.id, row.get(self.i) if self.i else None, row.get(self.t) if self.t else None, row)


class DataRow(msgspec.Struct, frozen=True, gc=False):
    """A `DataLine` with its row; None if the run does not record its data."""

    r: int
    id: str
    row: Row | None
    i: str = ""
    t: str = ""


_row = msgspec.json.Decoder(Row)
_data_row = msgspec.json.Decoder(DataRow)
_plan_line = msgspec.json.Decoder(PlanLine)
_data_line = msgspec.json.Decoder(DataLine)


class Flaw(msgspec.Struct, frozen=True):
    """A plan or data file that is missing, or whose content differs from its record."""

    path: str
    problem: str

    @property
    def is_plan(self) -> bool:
        return os.path.basename(self.path).startswith("plan")

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


def check_originals(run: str, blocks: Iterable[Block], stamps: Stamps) -> list[Flaw]:
    """Return the plan and data files that differ from their records. `stamps` caches which files were found correct, so
    that unchanged files are not digested again.
    """
    flaws = []
    for path, stored in originals(run, blocks):
        name = os.path.basename(path)
        stamp = stamp_of_file(path)
        if stamp and stamps.get(name) == stamp:
            continue
        problem = find_problem(path, stored)
        if problem:
            flaws.append(Flaw(path, problem))
            stamps.pop(name, None)
        else:
            stamps[name] = stamp
    return flaws


def check_sizes(run: str, blocks: Iterable[Block]) -> list[Flaw]:
    """Check only existence and sizes, without reading content, for listings of many runs."""
    found = ((path, _find_size_problem(path, stored)) for path, stored in originals(run, blocks))
    return [Flaw(path, problem) for path, problem in found if problem]


def find_problem(path: str, stored: StoredFile) -> str:
    """Describe what is wrong with one file; empty if it matches its record."""
    problem = _find_size_problem(path, stored)
    if problem:
        return problem
    try:
        found = digest_file(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except JournalError:
        return "is damaged"
    if found.count != stored.count:
        return f"is damaged: it has {found.count} of {stored.count} lines"
    return "" if found.digest == stored.digest else "is damaged: its content is not what was written"


def _find_size_problem(path: str, stored: StoredFile) -> str:
    try:
        found = status_of(path)
        if found is None:
            return "is missing"
        if not stat.S_ISREG(found.st_mode):
            return "is not a regular file"
        size = found.st_size
        if stored.size and size != stored.size:
            return f"is damaged: it has {size} of {stored.size} bytes"
        if not stored.size:  # runs of earlier versions recorded no size; a truncated file has no frame index
            content = SealedContent(OS_DISK, OS_DISK.open(path))
            try:
                return "is damaged: its end is missing" if content.cut else ""
            finally:
                content.close()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def check_blobs(run: str, spec: Spec, cells: Sequence[Cell], inputs: Mapping[str, TaskInputs]) -> Iterator[str]:
    """Yield what is wrong with the stored files that rows and examples refer to. Each file is checked once."""
    seen: set[bytes] = set()
    for task in (task for task in spec.tasks if task.dataset.files):
        stored = StoredRows(run, [cell for cell in cells if cell.task == task.name])
        rows = itertools.chain(stored, inputs.get(task.name, TaskInputs()).shots)
        values = (row.get(column) for row in rows for column in task.dataset.files)
        texts = itertools.chain.from_iterable(map(references_in, values))
        for reference in filter(None, map(parse_reference, texts)):
            key = bytes.fromhex(reference.digest)  # half the memory of the text: a data set may name millions
            if key not in seen:
                seen.add(key)
                yield from check_blob_files(run, [reference.digest])
