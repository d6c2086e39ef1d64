"""From a spec to the exact list of keys.

A cell is one task with one model. Within a cell, keys follow the rows of the data set, and a row's repeats follow
each other; cells follow the order of the spec. Everything is streamed: a million rows do not sit in memory. `survey`
reads all data first and refuses what is wrong with it, so that nothing is created for a spec that cannot run.
"""

import difflib
import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.datasets import Columns, DataError, open_rows, resolved, rows_in_memory, samples
from holdfast.errors import SpecError
from holdfast.plan.files import DataLine, LineFile, PlanLine
from holdfast.records.exchange import Row, Sample
from holdfast.records.facts import Cell, Stored
from holdfast.records.keys import Key
from holdfast.score import source_digest
from holdfast.solve import Prompt, Renderer, Solver, columns_of, resolve_solver
from holdfast.spec import Model, Spec, Task

PLAN = "plan.jsonl.zst"
DATA = "data.jsonl.zst"
_canonical = msgspec.json.Encoder(order="deterministic").encode

Rows = Sequence[Row]
"""Rows that are in memory, for a task written in Python."""


class Work(msgspec.Struct, frozen=True):
    """A task, ready to be asked."""

    task: Task
    solver: Solver
    prompt: Prompt
    renderer: Renderer
    rows: Rows | None = None

    @property
    def columns(self) -> Columns:
        return Columns(self.task.dataset.id, self.task.dataset.input, self.task.dataset.target)

    def samples(self, spec: Spec) -> Iterator[Sample]:
        """The task's samples, as the spec selects them."""
        dataset = self.task.dataset
        where = dataset.path or f"the rows of task {self.task.name}"
        source = open_rows(dataset.path, dataset.format) if self.rows is None else rows_in_memory(self.rows)
        every = samples(source, self.columns, where)
        if spec.samples is not None:
            wanted = set(spec.samples)
            every = (sample for sample in every if sample.id in wanted)
        return itertools.islice(every, spec.limit)


class Planned(msgspec.Struct, frozen=True):
    """What was written, and where each cell is in it."""

    plan: Stored
    data: Stored
    cells: tuple[Cell, ...]


def prepare(spec: Spec, rows: Mapping[str, Rows], solvers: Mapping[str, Any]) -> dict[str, Work]:
    """Resolve every task's solver and prompt. `rows` and `solvers` hold what a script passed as objects."""
    works = {}
    for index, task in enumerate(spec.tasks):
        place = f"tasks[{index}]"
        if not task.dataset.path and task.name not in rows:
            raise SpecError(
                f"{place}.dataset.path: the task {task.name!r} has no data; name a .jsonl, .json or .csv file"
            )
        solver = resolve_solver(solvers.get(task.name, task.solver), f"{place}.solver")
        prompt = Prompt(task.system, task.prompt, task.messages, task.template, _shots(task, place))
        try:
            renderer = Renderer(prompt)
        except SpecError as error:
            raise SpecError(f"{place}.prompt: {error}") from error
        works[task.name] = Work(task, solver, prompt, renderer, rows.get(task.name))
    return works


def survey(spec: Spec, works: Mapping[str, Work]) -> int:
    """Read all data and fill in every prompt; returns how many keys there will be. Refuses what cannot be asked."""
    planned = 0
    sought = set(spec.samples or ())
    for index, (name, work) in enumerate(works.items()):
        count = 0
        try:
            for sample in work.samples(spec):
                _check_prompt(work, sample, f"tasks[{index}]")
                sought.discard(sample.id)
                count += 1
        except DataError as error:
            raise SpecError(f"tasks[{index}].dataset: {error}") from error
        if count == 0 and not spec.samples:
            raise SpecError(f"tasks[{index}]: no sample of {name!r} is selected; check `limit`")
        planned += count * work.task.repeats * len(models_of(spec, work.task))
    if (sought and spec.limit is None) or planned == 0:
        raise SpecError(f"samples: there is no sample {', '.join(map(repr, sorted(sought)))} in any task")
    return planned


def models_of(spec: Spec, task: Task) -> list[Model]:
    return [model for model in spec.models if task.models is None or model.name in task.models]


def write_plan(folder: str, spec: Spec, works: Mapping[str, Work]) -> Planned:
    """Write data and plan into a run's folder, synced."""
    data_file = LineFile(os.path.join(folder, DATA))
    starts: dict[str, int] = {}
    data = data_file.write(_data_lines(data_file, spec, works, starts))
    plan_file = LineFile(os.path.join(folder, PLAN))
    cells: list[Cell] = []
    plan = plan_file.write(_plan_lines(plan_file, spec, works, starts, cells))
    return Planned(plan, data, tuple(cells))


def _data_lines(file: LineFile, spec: Spec, works: Mapping[str, Work], starts: dict[str, int]) -> Iterator[bytes]:
    for name, work in works.items():
        starts[name] = file.bytes
        columns: Columns | None = None
        for sample in work.samples(spec):
            columns = columns or resolved(sample.row, work.columns)
            row = msgspec.json.encode(sample.row) if spec.record_data else b"null"
            yield msgspec.json.encode(
                DataLine(file.count + 1, sample.id, msgspec.Raw(row), columns.input, columns.target)
            )


def _plan_lines(
    file: LineFile, spec: Spec, works: Mapping[str, Work], starts: Mapping[str, int], cells: list[Cell]
) -> Iterator[bytes]:
    row = 0
    for name, work in works.items():
        first_row = row
        for model in models_of(spec, work.task):
            digest = cell_digest(spec, work, model)
            first, at, row = file.count, file.bytes, first_row
            for line in cell_lines(spec, work, model, first, first_row):
                row = line.r
                yield msgspec.json.encode(line)
            cells.append(Cell(name, model.name, first, file.count - first, at, starts[name], digest.hex()))


def cell_lines(spec: Spec, work: Work, model: Model, first: int, first_row: int) -> Iterator[PlanLine]:
    """The plan of one cell, whose first key has the ordinal `first` and whose rows follow row `first_row`."""
    digest = cell_digest(spec, work, model)
    ordinals = itertools.count(first)
    for row, sample in enumerate(work.samples(spec), first_row + 1):
        asked = xxhash.xxh3_128(digest + _canonical([sample.id, sample.row]))
        for repeat in range(1, work.task.repeats + 1):
            key = str(Key(work.task.name, model.name, sample.id, repeat))
            yield PlanLine(next(ordinals), key, row, _repeated(asked, repeat))


def _repeated(asked: "xxhash.xxh3_128", repeat: int) -> str:
    digest = asked.copy()
    digest.update(str(repeat).encode())
    return digest.hexdigest()


def cell_digest(spec: Spec, work: Work, model: Model) -> bytes:
    """What every key of a cell has in common: everything but the row that can change an answer."""
    task = work.task
    asked = {
        "prompt": [task.system, task.prompt, task.messages, task.template, task.dataset.input],
        "shots": [[shot.row for shot in work.prompt.shots]],
        "solver": [work.solver.name, work.solver.arguments, source_digest(work.solver.function)],
        "model": [model.provider, model.model, model.params, model.options],
        "seed": spec.seed,
    }
    return xxhash.xxh3_128_digest(_canonical(asked))


def _shots(task: Task, place: str) -> tuple[Sample, ...]:
    if task.fewshot is None:
        return ()
    columns = Columns(input=task.dataset.input, target=task.dataset.target)  # examples need no ids
    try:
        every = list(samples(open_rows(task.fewshot.path), columns, task.fewshot.path))
    except DataError as error:
        raise SpecError(f"{place}.fewshot: {error}") from error
    if len(every) < task.fewshot.n:
        raise SpecError(f"{place}.fewshot.n: {task.fewshot.path} has {len(every)} rows; {task.fewshot.n} are asked for")
    return tuple(random.Random(task.fewshot.seed).sample(every, task.fewshot.n))


def _check_prompt(work: Work, sample: Sample, place: str) -> None:
    try:
        work.renderer.messages(sample)
    except KeyError as error:
        named = str(error.args[0])
        columns = ", ".join(sample.row)
        near = difflib.get_close_matches(named, sample.row, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"the row has: {columns}"
        where = f"{place}.{_template_naming(work.task, named)}"
        raise SpecError(f"{where}: there is no column {named!r} in row {sample.id!r}; {hint}") from error


def _template_naming(task: Task, column: str) -> str:
    """Which of a task's templates names a column."""
    templates = {"prompt": task.prompt, "system": task.system}
    templates |= {f"messages[{i}]": str(message.get("content")) for i, message in enumerate(task.messages)}
    return next((name for name, text in templates.items() if column in columns_of(text)), "prompt")
