"""Adds plan blocks to a run: new keys of an extension, or replaced keys after a model was corrected.

An extension block holds the keys that no earlier block has, and the rows they need. An extension that would lose or
change a planned key is refused. Everything is streamed. The files are synced before the record that names them, so a
crash leaves files that no record names; the next extension overwrites them.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.datasets import Columns, resolve_columns
from holdfast.journal import BlobStore
from holdfast.plan.differences import MismatchError, changed_rows, is_new
from holdfast.plan.files import (
    DataLine,
    LineFile,
    PlanLine,
    data_lines,
    data_path,
    plan_path,
    planned_lines,
    read_lines,
)
from holdfast.plan.planner import (
    PreparedTask,
    WrittenPlan,
    cell_digest,
    cell_lines,
    data_line,
    keep_shots,
    key_digest,
    models_of,
)
from holdfast.records import Block, Cell, Change, Sample, StoredFile, parse_key
from holdfast.spec import Model, Spec

_data_line = msgspec.json.Decoder(DataLine)


class PlanExtension:
    """The keys of a spec that the blocks of a run do not have yet."""

    def __init__(self, run: str, spec: Spec, works: Mapping[str, PreparedTask], blocks: Sequence[Block]) -> None:
        self._run = run
        self._spec = spec
        self._works = works
        self._cells = [cell for block in blocks for cell in block.cells]
        self._first = sum(block.plan.count for block in blocks if block.data is not None)
        self.number = len(blocks) + 1

    def lost(self) -> list[Change]:
        """Return the planned keys that the spec no longer has or would ask differently; empty for a valid extension."""
        planned = {(cell.task, cell.model) for cell in self._cells}
        changes = [
            Change(f"tasks.{task} with {model}", "planned", "gone", "result")
            for task, model in sorted(planned)
            if task not in self._works or model not in {each.name for each in self._models(task)}
        ]
        for task in () if changes else dict.fromkeys(cell.task for cell in self._cells):
            for model in self._models(task):
                try:
                    for _ in self._lines(task, model):
                        pass
                except MismatchError:
                    mine = [cell for cell in self._cells if cell.task == task]
                    changes += changed_rows(self._run, self._spec, self._works, mine)
                    break
        return changes

    def count(self) -> int:
        """Return the number of new keys."""
        return sum(1 for task in self._works for model in self._models(task) for _ in self._new(task, model))

    def write(self) -> WrittenPlan:
        """Write the data and plan files of the block, synced."""
        data_file = LineFile(data_path(self._run, self.number))
        starts: dict[str, int] = {}
        store = BlobStore(self._run)
        # Data first: writing the plan reads row numbers from the data file, and `starts` is filled on the way.
        data = data_file.write(self._data(data_file, starts, store))
        keep_shots(self._works, store)
        plan_file = LineFile(plan_path(self._run, self.number))
        cells: list[Cell] = []
        plan = plan_file.write(self._plan(plan_file, starts, cells))
        return WrittenPlan(plan, data, tuple(cells))

    def _models(self, task: str) -> list[Model]:
        return models_of(self._spec, self._works[task].task)

    def _lines(self, task: str, model: Model) -> Iterator[tuple[PlanLine, bool]]:
        """Yield every key of a cell, and whether it is new. Its row is the sample's number in the data set."""
        mine = [cell for cell in self._cells if (cell.task, cell.model) == (task, model.name)]
        work = self._works[task]
        given = cell_lines(self._spec, work, model, work.samples(self._spec))
        return is_new([planned_lines(self._run, cell) for cell in mine], given)

    def _new(self, task: str, model: Model) -> Iterator[PlanLine]:
        return (line for line, new in self._lines(task, model) if new)

    def _data(self, file: LineFile, starts: dict[str, int], store: BlobStore) -> Iterator[bytes]:
        """Yield the rows of all samples that have a new key with any model. Rows and keys are in the same order."""
        for task, work in self._works.items():
            starts[task] = file.bytes
            columns: Columns | None = None
            news = [self._new(task, model) for model in self._models(task)]
            # The row numbers of each model's new keys, each once: repeats of a sample follow each other.
            sources = [(row for row, _ in itertools.groupby(new, key=lambda line: line.r)) for new in news]
            heads = [next(rows, 0) for rows in sources]
            for number, sample in enumerate(work.samples(self._spec, surveyed=True, store=store), 1):
                if number not in heads:
                    continue
                heads = [next(rows, 0) if head == number else head for rows, head in zip(sources, heads, strict=True)]
                columns = columns or resolve_columns(sample.row, work.columns)
                yield data_line(file.count + 1, sample, columns, self._spec)

    def _plan(self, file: LineFile, starts: Mapping[str, int], cells: list[Cell]) -> Iterator[bytes]:
        for task, work in self._works.items():
            for model in self._models(task):
                first, at = file.count, file.bytes
                stored = map(_data_line.decode, read_lines(data_path(self._run, self.number), starts[task]))
                samples = enumerate(work.samples(self._spec, surveyed=True), 1)
                row, number, sample = 0, 0, Sample("", None, None, {})
                # New keys, samples and stored rows have the same order, so each is read once, side by side.
                for line in self._new(task, model):
                    while number < line.r:
                        number, sample = next(samples)
                        if number == line.r:
                            row = next(each.r for each in stored if each.id == sample.id)
                    yield msgspec.json.encode(PlanLine(self._first + file.count, line.k, row, line.x))
                if file.count > first:
                    count = file.count - first
                    cells.append(Cell(task, model.name, self._first + first, count, at, starts[task], self.number))


class PlanReplacement:
    """New plan lines for existing cells, after a model without any answer was corrected in the spec."""

    def __init__(
        self,
        run: str,
        spec: Spec,
        works: Mapping[str, PreparedTask],
        cells: Sequence[Cell],
        renamed: Mapping[str, str],
        number: int,
    ) -> None:
        """`cells`: the cells to replace; `renamed`: new names of models by stored name; `number`: the new block."""
        self._run = run
        self._spec = spec
        self._works = works
        self._cells = cells
        self._renamed = renamed
        self._number = number

    def write(self) -> tuple[StoredFile, tuple[Cell, ...]]:
        """Write the plan file. Returns its count, digest and size, and the cells in it."""
        file = LineFile(plan_path(self._run, self._number))
        made: list[Cell] = []
        stored = file.write(self._lines(file, made))
        return stored, tuple(made)

    def _lines(self, file: LineFile, made: list[Cell]) -> Iterator[bytes]:
        for cell in self._cells:
            at = file.bytes
            model = self._renamed.get(cell.model, cell.model)
            work = self._works[cell.task]
            digest = cell_digest(self._spec, work, next(each for each in self._spec.models if each.name == model))
            rows = self._rows(cell, work)
            row, sample = next(rows, (0, Sample("", None, None, {})))
            for line in planned_lines(self._run, cell):
                while row < line.r:
                    row, sample = next(rows)
                key = parse_key(line.k)._replace(model=model)
                replaced = msgspec.structs.replace(line, k=str(key), x=key_digest(digest, sample, key.repeat))
                yield msgspec.json.encode(replaced)
            made.append(
                msgspec.structs.replace(cell, model=model, plan_at=at, block=self._number, data_block=cell.rows_block)
            )

    def _rows(self, cell: Cell, work: PreparedTask) -> Iterator[tuple[int, Sample]]:
        """Yield the samples with their row numbers, from the stored rows, or from the data file if the run stores none.
        Both have the same order.
        """
        if self._spec.record_data:
            yield from ((line.r, line.sample()) for line in data_lines(self._run, cell))
            return
        samples = work.samples(self._spec, surveyed=True)
        for line in data_lines(self._run, cell):
            sample = next((each for each in samples if each.id == line.id), None)
            if sample is None:  # the rows of the next task begin here
                return
            yield line.r, sample
