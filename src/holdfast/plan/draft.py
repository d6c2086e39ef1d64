"""A plan that is made while the spec is surveyed, so that the data is read once.

A survey must read everything before it can accept a spec, and nothing may exist on disk for a spec that cannot run. So
rows and keys go to temporary files without names, beside the future run. `write` copies them into the run's folder. A
crash at any point leaves nothing behind.

The ordinals of a model's keys are known only when all rows were read: its keys follow those of the model before it. So
each model has a file of its keys without ordinals, and `write` adds them.
"""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

import msgspec

from holdfast.datasets import Columns, resolve_columns
from holdfast.journal import OS_DISK
from holdfast.plan.files import LineFile, data_path, plan_path, write_durably
from holdfast.plan.planner import (
    CellKeys,
    DataPart,
    PreparedTask,
    WrittenPlan,
    data_line,
    models_of,
    survey,
    surveyed,
    write_from_source,
)
from holdfast.plan.stamps import ComparedRows, cells_to_compare, stamp_of_data
from holdfast.records import Cell, StoredFile
from holdfast.spec import Spec

_MODELS_MAX = 64
"""Each model takes an open file."""
_CHUNK = 1 << 20


class PlanDraft:
    """The rows and keys of a surveyed spec."""

    def __init__(self, spec: Spec, works: Mapping[str, PreparedTask], near: str) -> None:
        """`near`: an existing folder, for the temporary files. OSError if it cannot be written."""
        self._spec = spec
        self._works = works
        self._files: list[IO[bytes]] = []
        self._parts: dict[str, DataPart] = {}
        self._stored: StoredFile | None = None
        self._stamps = {name: stamp_of_data(spec, work) for name, work in works.items()}
        try:
            for _ in range(1 + len(spec.models)):
                self._files.append(tempfile.TemporaryFile(dir=near))  # noqa: SIM115 - closed by close()
        except BaseException:
            self.close()
            raise
        self._data, *self._keys = self._files

    def survey(self) -> None:
        """Read all data. SpecError for anything that cannot run."""
        rows = LineFile("")
        self._stored = rows.pack_into(self._data.write, self._lines(rows))

    def write(self, folder: str) -> WrittenPlan:
        """Write data and plan into a run's folder, synced. This closes the draft."""
        assert self._stored is not None  # the spec was surveyed
        self._data.seek(0)
        write_durably(OS_DISK, data_path(folder), iter(lambda: self._data.read(_CHUNK), b""))
        for file in self._keys:
            file.seek(0)
        plan_file = LineFile(plan_path(folder))
        cells: list[Cell] = []
        plan = plan_file.write(self._plan_lines(plan_file, cells))
        self.close()
        return WrittenPlan(plan, self._stored, tuple(cells))

    def remember_rows(self, compared: ComparedRows, cells: Sequence[Cell]) -> None:
        """Spare the first resume the comparison: these cells were planned from the rows of the data."""
        models = {model.name: model for model in self._spec.models}
        for name, mine in cells_to_compare(cells).items():
            compared.remember(self._stamps[name], self._spec, self._works[name], models[mine[0].model], mine)

    def close(self) -> None:
        """Drop the temporary files."""
        for file in self._files:
            file.close()

    def _lines(self, file: LineFile) -> Iterator[bytes]:
        """Yield the lines of the data file, and write the keys of each row on the way."""
        for work, samples in surveyed(self._spec, self._works):
            at, before = file.bytes, file.count
            every = [CellKeys(self._spec, work, model) for model in models_of(self._spec, work.task)]
            writers = [(cell, keys.write) for cell, keys in zip(every, self._keys, strict=False)]
            columns: Columns | None = None
            for sample in samples:
                columns = columns or resolve_columns(sample.row, work.columns)
                number = file.count + 1
                content = CellKeys.content(sample)
                for cell, write in writers:
                    for line in cell.lines(sample, content, number):
                        encoded = msgspec.json.encode(line)
                        write(encoded[encoded.index(b",") :] + b"\n")  # without `{"o":0`
                yield data_line(number, sample, columns, self._spec)
            self._parts[work.task.name] = DataPart(at, before, file.count - before)

    def _plan_lines(self, file: LineFile, cells: list[Cell]) -> Iterator[bytes]:
        for name, work in self._works.items():
            part = self._parts[name]
            for model, keys in zip(models_of(self._spec, work.task), self._keys, strict=False):
                first, at = file.count, file.bytes
                for line in itertools.islice(keys, part.count * work.task.repeats):
                    yield b'{"o":%d%b' % (file.count, line[:-1])
                cells.append(Cell(name, model.name, first, file.count - first, at, part.at))


def draft_plan(folder: str, spec: Spec, works: Mapping[str, PreparedTask]) -> PlanDraft | None:
    """Survey a spec for the run in `folder`, which need not exist. SpecError for anything that cannot run.

    None if the data must be read again to write the plan: rows name files, which are stored only in a run's folder;
    there are too many models; or there is no room for the draft.
    """
    has_files = any(work.task.dataset.files for work in works.values())
    if not has_files and len(spec.models) <= _MODELS_MAX:
        with contextlib.suppress(OSError):  # of the draft: an unreadable source is a DataError
            draft = PlanDraft(spec, works, _existing_above(folder))
            try:
                draft.survey()
            except BaseException:
                draft.close()
                raise
            return draft
    survey(spec, works)
    return None


def write_plan(
    folder: str, spec: Spec, works: Mapping[str, PreparedTask], parent: str = "", draft: PlanDraft | None = None
) -> WrittenPlan:
    """Write files, data and plan of a surveyed spec into a run's folder, synced. File content that only the run
    `parent` stores is copied from there. With a `draft`, the data is not read again.
    """
    return write_from_source(folder, spec, works, parent) if draft is None else draft.write(folder)


def _existing_above(folder: str) -> str:
    """The nearest folder that exists: the draft belongs on the same disk as the run."""
    above = os.path.abspath(folder)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    return above
