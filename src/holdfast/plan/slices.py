"""Cuts the part of one shard out of the plan of a run.

A block of a shard's plan has the keys of the run's block that belong to the shard, in the same order, with ordinals and
row numbers of its own, and the rows that these keys need. So together the shards have every key of the plan exactly
once, whatever the order of rows or the kind of extension. The files are synced before the record that names them.

A worker cuts out many slices: it decodes the plan once, and keeps the shard of each key (`PlanDivision`).
"""

import array
import itertools
import os
from collections.abc import Iterator, Mapping

import msgspec

from holdfast.datasets import ReferenceCache
from holdfast.journal import BlobStore
from holdfast.plan.files import (
    DataLine,
    LineFile,
    PlanLine,
    chosen_lines,
    data_lines,
    data_path,
    plan_path,
    planned_lines,
)
from holdfast.plan.planner import PreparedTask, WrittenPlan, keep_shots
from holdfast.records import Block, Cell, Shard, parse_reference, references_in, shard_index


class PlanDivision:
    """The shard of every key of a plan, in one byte a key; more than 256 shards need two or four."""

    def __init__(self, root: str, count: int) -> None:
        """`root`: the folder of the run."""
        self.root = root
        self.planned = [0] * count
        """The number of keys of each shard."""
        self._indices: dict[Cell, array.array[int]] = {}
        self.blocks = 0
        """How many blocks of the plan were added."""

    def add(self, block: Block) -> None:
        count = len(self.planned)
        code = "B" if count <= 1 << 8 else "H" if count <= 1 << 16 else "I"
        for cell in block.cells:
            lines = planned_lines(self.root, cell)
            indices = array.array(code, (shard_index(line.k.rpartition("/")[0], count) for line in lines))
            self._indices[cell] = indices
            for index in indices:
                self.planned[index] += 1
        self.blocks += 1

    def lines_of(self, cell: Cell, shard: Shard) -> list[PlanLine]:
        """The keys of a cell that belong to a shard."""
        index, indices = shard.number - 1, self._indices[cell]
        return chosen_lines(self.root, cell, map(index.__eq__, indices), indices.count(index))


class PlanSlice:
    """The part of one block that belongs to a shard."""

    def __init__(self, division: PlanDivision, folder: str, block: Block, shard: Shard, first: int) -> None:
        """`folder`: that of the shard. `first`: how many keys the shard has already."""
        root = division.root
        self._division = division
        self._root = root
        self._folder = folder
        self._block = block
        self._shard = shard
        self._first = first
        self._keys: dict[Cell, list[PlanLine]] = {}
        self._numbers: dict[str, dict[int, int]] = {}
        """By task: the number in the slice of each row of the block that a key of the shard needs."""
        self._starts: dict[str, int] = {}
        self._store = BlobStore(folder, root)
        self._digests = ReferenceCache()

    def write(self, works: Mapping[str, PreparedTask]) -> WrittenPlan:
        """Write the data and plan files of the slice, synced."""
        self._store.remove_leftovers()
        data_file = LineFile(data_path(self._folder, self._block.number))
        data = data_file.write(self._data(data_file))
        keep_shots(works, self._store)
        plan_file = LineFile(plan_path(self._folder, self._block.number))
        cells: list[Cell] = []
        plan = plan_file.write(self._plan(plan_file, cells))
        return WrittenPlan(plan, data, tuple(cells))

    def _data(self, file: LineFile) -> Iterator[bytes]:
        for task, cells in itertools.groupby(self._block.cells, key=lambda cell: cell.task):
            every = list(cells)
            for cell in every:
                self._keys[cell] = self._division.lines_of(cell, self._shard)
            needed = {line.r for cell in every for line in self._keys[cell]}
            numbers = self._numbers[task] = {}
            self._starts[task] = file.bytes
            last = max(needed, default=0)
            for row in data_lines(self._root, every[0]):
                if row.r > last:
                    break
                if row.r in needed:
                    numbers[row.r] = file.count + 1
                    self._keep_files(row)
                    yield msgspec.json.encode(msgspec.structs.replace(row, r=file.count + 1))

    def _keep_files(self, row: DataLine) -> None:
        """Copy the files that a row names. A reference is only a text, so rows without one are not decoded."""
        if b"blob:sha256-" not in bytes(row.row):
            return
        for text in references_in(msgspec.json.decode(row.row)):
            reference = parse_reference(text)
            if reference is not None and os.path.exists(os.path.join(self._root, "blobs", reference.digest)):
                self._store.keep(reference, self._digests)

    def _plan(self, file: LineFile, cells: list[Cell]) -> Iterator[bytes]:
        for cell in self._block.cells:
            first, at = file.count, file.bytes
            numbers = self._numbers[cell.task]
            for line in self._keys[cell]:
                own = PlanLine(self._first + file.count, line.k, numbers[line.r], line.x)
                yield msgspec.json.encode(own)
            cells.append(
                Cell(
                    cell.task,
                    cell.model,
                    self._first + first,
                    file.count - first,
                    at,
                    self._starts[cell.task],
                    self._block.number,
                )
            )
