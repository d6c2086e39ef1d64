"""Remembers that the rows of a data file were compared with the plan, so that a resume need not read them again.

A comparison is remembered in the user's cache, beside the other verified files of the run, with the file's stamp
(device, inode, size, mtime, ctime) and a digest of everything else that it depends on: the version of Holdfast, the
task with its code and examples, the selection, and the digests of the plan. It is used only if all of these are equal.
Code and spec are compared by every resume, whatever is remembered.

The stamp says nothing about some data, which is always compared: rows made by Python code, rows that name files, and
data on another machine's disk, whose times may be cached. It also says nothing about a file that was changed moments
ago: a second change within one tick of the clock may leave the same times. Without an entry rows are compared.
"""

import os
import time
from collections.abc import Sequence

import msgspec
import xxhash

from holdfast.files import SETTLED_SECONDS
from holdfast.plan.planner import PreparedTask, cell_digest
from holdfast.records import Block, Cell
from holdfast.spec import Model, Spec
from holdfast.state import CheckedFiles, is_networked, stamp_of_file
from holdfast.version import __version__


def stamp_of_data(spec: Spec, work: PreparedTask) -> str:
    """The stamp of a task's data; empty if it does not show whether the rows have changed. Take it before reading."""
    if work.rows is not None or work.source is None or work.task.dataset.files or not spec.record_data:
        return ""
    stamps = [_stamp_of(path) for path in work.source.stamped_files()]
    return " ".join(stamps) if all(stamps) else ""


def _stamp_of(path: str) -> str:
    path = os.path.realpath(path)  # a stamp of a link does not change with its target
    stamp = stamp_of_file(path)
    if not stamp or not os.path.isfile(path) or is_networked(path):
        return ""
    changed = max(int(each) for each in stamp.split(":")[-2:]) / 1e9
    return stamp if 0 <= changed < time.time() - SETTLED_SECONDS else ""


class ComparedRows:
    """The remembered comparisons of one run."""

    def __init__(self, run: str, uid: str, blocks: Sequence[Block]) -> None:
        self._checked = CheckedFiles(run, uid)
        self._plans = [block.plan for block in blocks]

    def has(self, spec: Spec, work: PreparedTask, model: Model, cells: Sequence[Cell]) -> bool:
        """Whether the rows of these cells, all of one task and model, are those of the plan."""
        stamp = stamp_of_data(spec, work)
        return bool(stamp) and self._checked.stamps.get(_name(work)) == self._entry(stamp, spec, work, model, cells)

    def remember(self, stamp: str, spec: Spec, work: PreparedTask, model: Model, cells: Sequence[Cell]) -> None:
        """The rows of a file with this stamp are those of the plan. `stamp`: taken before they were read."""
        if stamp and stamp_of_data(spec, work) == stamp:
            entry = self._entry(stamp, spec, work, model, cells)
            self._checked.remember({**self._checked.stamps, _name(work): entry})

    def _entry(self, stamp: str, spec: Spec, work: PreparedTask, model: Model, cells: Sequence[Cell]) -> str:
        rows = [work.task.dataset, work.task.repeats, spec.samples, spec.limit]
        given = [__version__, cell_digest(spec, work, model).hex(), rows, self._plans, cells]
        return f"{stamp} {xxhash.xxh3_128_hexdigest(msgspec.json.encode(given))}"


def cells_to_compare(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """By task: the cells of its first model. All models of a task have the same rows."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        mine = found.setdefault(cell.task, [])
        if not mine or mine[0].model == cell.model:
            mine.append(cell)
    return found


def _name(work: PreparedTask) -> str:
    return f"rows/{work.task.name}"  # no file name has a slash
