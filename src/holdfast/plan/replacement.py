"""New plan lines for cells whose model was corrected before it gave an answer.

A replacement block has the same ordinals and rows as the cells that it replaces. The digests of what the keys will ask
are new, and so are the keys themselves if the model has a new name. It has a plan file and no data file: its cells
refer to the data of the block that they replace. The file is synced before the record that names it; a crash in between
leaves a file that the next block replaces.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.plan.files import LineFile, PlanLine, data_lines, plan_path, planned_lines
from holdfast.plan.planning import Work, cell_digest, key_digest
from holdfast.records.exchange import Sample
from holdfast.records.facts import Cell, Stored
from holdfast.records.keys import parse_key
from holdfast.spec import Spec


class Replacement:
    """The plan lines that a spec means for cells that a run has."""

    def __init__(
        self,
        run: str,
        spec: Spec,
        works: Mapping[str, Work],
        cells: Sequence[Cell],
        renamed: Mapping[str, str],
        number: int,
    ) -> None:
        """`cells`: those to replace; `renamed`: stored names of models, with their new ones; `number`: of the new
        block.
        """
        self._run = run
        self._spec = spec
        self._works = works
        self._cells = cells
        self._renamed = renamed
        self._number = number

    def write(self) -> tuple[Stored, tuple[Cell, ...]]:
        """Write the plan file; returns what it holds, and the cells in it."""
        file = LineFile(plan_path(self._run, self._number))
        made: list[Cell] = []
        stored = file.write(self._lines(file, made))
        return stored, tuple(made)

    def _lines(self, file: LineFile, made: list[Cell]) -> Iterator[bytes]:
        for cell in self._cells:
            at = file.bytes
            model = self._renamed.get(cell.model, cell.model)
            yield from map(msgspec.json.encode, self._cell_lines(cell, model))
            made.append(
                msgspec.structs.replace(cell, model=model, plan_at=at, block=self._number, data_block=cell.rows_block)
            )

    def _cell_lines(self, cell: Cell, name: str) -> Iterator[PlanLine]:
        work = self._works[cell.task]
        model = next(model for model in self._spec.models if model.name == name)
        digest = cell_digest(self._spec, work, model)
        rows = self._rows(cell, work)
        row, sample = next(rows, (0, Sample("", None, None, {})))
        for line in planned_lines(self._run, cell):
            while row < line.r:
                row, sample = next(rows)
            key = parse_key(line.k)._replace(model=name)
            yield msgspec.structs.replace(line, k=str(key), x=key_digest(digest, sample, key.repeat))

    def _rows(self, cell: Cell, work: Work) -> Iterator[tuple[int, Sample]]:
        """The samples with the numbers of their rows, as the run holds them, or from the data if it holds none. Both
        have the same order.
        """
        if self._spec.record_data:
            yield from ((line.r, line.sample()) for line in data_lines(self._run, cell))
            return
        samples = work.samples(self._spec, surveyed=True)
        for line in data_lines(self._run, cell):
            sample = next((each for each in samples if each.id == line.id), None)
            if sample is None:  # from here on these are rows of the next task
                return
            yield line.r, sample
