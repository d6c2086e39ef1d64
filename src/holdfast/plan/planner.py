"""From a spec to the exact list of keys.

A cell is one task with one model. Within a cell, keys follow the rows of the data set, and a row's repeats follow
each other; cells follow the order of the spec. Everything is streamed: a million rows do not sit in memory. `survey`
reads all data first and refuses what is wrong with it, so that nothing is created for a spec that cannot run.
"""

import difflib
import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.datasets import (
    BadFileError,
    Columns,
    Content,
    Digests,
    FileColumns,
    Keep,
    open_rows,
    resolved,
    rows_in_memory,
    samples,
)
from holdfast.errors import DataError, SpecError
from holdfast.journal.blobs import BlobStore
from holdfast.plan.files import DataLine, LineFile, PlanLine, StoredRows, data_lines_in, data_path, plan_path
from holdfast.records.facts import Cell, Stored, TaskInputs
from holdfast.records.keys import escape
from holdfast.records.references import Reference, parse_reference, references_in
from holdfast.records.samples import Row, Sample
from holdfast.sandbox.box import check_paths
from holdfast.solve import Prompt, Renderer, Solver, columns_of, is_in_text, resolve_solver
from holdfast.spec import Model, Spec, Task, check_prices

_canonical = msgspec.json.Encoder(order="deterministic").encode
_IDS_COMPARED = 10_000
"""A hint must not take minutes."""

Rows = Sequence[Row]
"""Rows that are in memory, for a task written in Python."""


class Work(msgspec.Struct, frozen=True):
    """A task, ready to be asked."""

    task: Task
    solver: Solver
    prompt: Prompt
    renderer: Renderer
    rows: Rows | None = None
    digests: Digests = msgspec.field(default_factory=Digests)
    """What is known of the files that its rows name."""
    shot_files: Mapping[Reference, Content] = msgspec.field(default_factory=dict)
    """Where the content that the examples name comes from; empty if the run holds it already."""
    counted: Callable[[], None] | None = None
    """Called for each row that is read."""

    @property
    def columns(self) -> Columns:
        return Columns(self.task.dataset.id, self.task.dataset.input, self.task.dataset.target)

    def samples(self, spec: Spec, *, surveyed: bool = False, store: BlobStore | None = None) -> Iterator[Sample]:
        """The task's samples, as the spec selects them, files as references; with a `store`, their content is put
        there.
        """
        dataset = self.task.dataset
        where = dataset.path or f"the rows of task {self.task.name}"
        if self.rows is None:
            source, folder = open_rows(dataset.path, dataset.format), os.path.dirname(dataset.path)
        else:
            source, folder = rows_in_memory(self.rows, files=dataset.files), ""
        if dataset.files:
            stored = isinstance(self.rows, StoredRows)
            columns = FileColumns(dataset.files, folder, self._keep(store), where, dataset.files_root, stored)
            source = columns.applied(source)
        every = samples(source, self.columns, where, unique=not surveyed)
        if self.counted is not None:
            every = _counting(every, self.counted)
        if spec.samples is not None:
            wanted = set(spec.samples)
            every = (sample for sample in every if sample.id in wanted)
        return itertools.islice(every, spec.limit)

    def file_size(self, text: str) -> int | None:
        """Bytes of what a reference stands for, if this task's data led to it."""
        reference = parse_reference(text)
        return None if reference is None else self.digests.size(reference)

    def keep_shots(self, store: BlobStore) -> None:
        """Put what the examples name into the store."""
        for shot in self.prompt.shots if self.task.dataset.files else ():
            for text in references_in([shot.row.get(column) for column in self.task.dataset.files]):
                reference = parse_reference(text)
                assert reference is not None
                store.keep(self.shot_files.get(reference, reference), self.digests)

    def _keep(self, store: BlobStore | None) -> Keep:
        digests = self.digests
        return digests.reference if store is None else lambda content: store.keep(content, digests)


def _counting(samples: Iterator[Sample], counted: Callable[[], None]) -> Iterator[Sample]:
    for sample in samples:
        counted()
        yield sample


class _Part(msgspec.Struct, frozen=True):
    """Where the rows of one task are in the data file: from which byte on, behind how many rows, and how many."""

    at: int
    before: int
    count: int


class Planned(msgspec.Struct, frozen=True):
    """What was written, and where each cell is in it."""

    plan: Stored
    data: Stored
    cells: tuple[Cell, ...]


def prepare(
    spec: Spec,
    rows: Mapping[str, Rows],
    solvers: Mapping[str, Any],
    stored: Mapping[str, TaskInputs] | None = None,
    counted: Callable[[], None] | None = None,
) -> dict[str, Work]:
    """Resolve every task's solver and prompt. `rows` and `solvers` hold what a script passed as objects; `stored`, what
    the run holds, for examples whose file is gone. `counted` is called for each row that is read later.
    """
    works = {}
    digests = Digests()
    for index, task in enumerate(spec.tasks):
        place = f"tasks[{index}]"
        if not task.dataset.path and task.name not in rows:
            raise SpecError(
                f"{place}.dataset.path: the task {task.name!r} has no data; name a .jsonl, .json or .csv file"
            )
        if task.sandbox is not None:
            check_paths(task.sandbox, place)
        solver = resolve_solver(solvers.get(task.name, task.solver), f"{place}.solver")
        _check_roles(solver, spec, f"{place}.solver")
        if solver.counts_cost:
            check_prices(models_of(spec, task), f"{place}.solver: cost_usd")  # an agent asks no role
        found: dict[Reference, Content] = {}
        shots = _shots(task, place, (stored or {}).get(task.name, TaskInputs()).shots, _noting(digests, found))
        prompt = Prompt(task.system, task.prompt, task.messages, task.template, shots, tuple(task.dataset.files))
        try:
            renderer = Renderer(prompt)
        except SpecError as error:
            raise SpecError(f"{place}.prompt: {error}") from error
        works[task.name] = Work(task, solver, prompt, renderer, rows.get(task.name), digests, found, counted)
    return works


def judges_of(spec: Spec, works: Mapping[str, Work]) -> frozenset[str]:
    """The roles that no solver can ask, so that only scores depend on them: code that is not ours, and programs, may
    ask any.
    """
    solvers = [part for work in works.values() for part in work.solver.every()]
    if any(not each.is_built_in or each.name == "command" for each in solvers):
        return frozenset()
    return frozenset(spec.roles) - {role for each in solvers for role in each.roles()}


def _check_roles(solver: Solver, spec: Spec, place: str) -> None:
    for role in solver.roles():
        if role not in spec.roles:
            known = ", ".join(sorted(spec.roles)) or "none"
            raise SpecError(f"{place}: there is no role {role!r}; there are: {known}; add it to `roles`")


def survey(spec: Spec, works: Mapping[str, Work]) -> int:
    """Read all data and fill in every prompt; returns how many keys there will be. Refuses what cannot be asked."""
    planned = 0
    sought = set(spec.samples or ())
    for index, (name, work) in enumerate(works.items()):
        count = 0
        if work.task.dataset.files and not spec.record_data:
            what = "files are stored with the run, and record_data is off; leave out one of the two"
            raise SpecError(f"tasks[{index}].dataset.files: {what}")
        if work.task.sandbox is not None and work.task.sandbox.files and not spec.record_data:
            what = "a sandbox's files are stored with the run, and record_data is off; leave out one of the two"
            raise SpecError(f"tasks[{index}].sandbox.files: {what}")
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
    if sought:
        _refuse_unknown(sought, spec, works)
    check_groups(spec, works)
    return planned


def check_groups(spec: Spec, works: Mapping[str, Work]) -> None:
    """That a column of groups is in the data. A row may go without: its sample shares no group."""
    for index, (name, work) in enumerate(works.items()):
        column, place = work.task.dataset.group, f"tasks[{index}].dataset"
        if not column:
            continue
        others: dict[str, None] = {}
        try:
            for sample in work.samples(spec, surveyed=True):
                if column in sample.row:
                    break
                others |= dict.fromkeys(sample.row)
            else:
                near = difflib.get_close_matches(column, others, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"the rows have: {', '.join(others)}"
                raise SpecError(f"{place}.group: no row of {name!r} has a column {column!r}; {hint}")
        except DataError as error:
            raise SpecError(f"{place}: {error}") from error


def _refuse_unknown(sought: set[str], spec: Spec, works: Mapping[str, Work]) -> None:
    """Samples that were asked for and not found. A `limit` may have ended the search before it came to them."""
    whole = msgspec.structs.replace(spec, samples=None, limit=None)
    ids: dict[str, None] = {}
    for sample in itertools.chain.from_iterable(work.samples(whole, surveyed=True) for work in works.values()):
        sought = sought - {sample.id}
        if len(ids) < _IDS_COMPARED:
            ids[sample.id] = None
    for name in sorted(sought):
        close = difflib.get_close_matches(name, ids, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"ids look like {next(iter(ids))!r}"
        raise SpecError(f"samples: there is no sample {name!r} in any task; {hint}")


def models_of(spec: Spec, task: Task) -> list[Model]:
    return [model for model in spec.models if task.models is None or model.name in task.models]


def inputs_of(works: Mapping[str, Work]) -> dict[str, TaskInputs]:
    """What the tasks are asked with that no field of the spec shows."""
    return {
        name: TaskInputs(work.solver.digest(), [shot.row for shot in work.prompt.shots]) for name, work in works.items()
    }


def write_plan(folder: str, spec: Spec, works: Mapping[str, Work], parent: str = "") -> Planned:
    """Write files, data and plan of a spec that was surveyed into a run's folder, synced. Content that only the run
    `parent` has is taken over from there.
    """
    data_file = LineFile(data_path(folder))
    parts: dict[str, _Part] = {}
    store = BlobStore(folder, parent)
    store.remove_leftovers()
    data = data_file.write(_data_lines(data_file, spec, works, parts, store))
    keep_shots(works, store)
    plan_file = LineFile(plan_path(folder))
    cells: list[Cell] = []
    plan = plan_file.write(_plan_lines(folder, plan_file, spec, works, parts, cells))
    return Planned(plan, data, tuple(cells))


def keep_shots(works: Mapping[str, Work], store: BlobStore) -> None:
    """The examples' files beside those of the rows; after this line all of them are durable."""
    for work in works.values():
        work.keep_shots(store)
    store.sync()


def _data_lines(
    file: LineFile, spec: Spec, works: Mapping[str, Work], parts: dict[str, _Part], store: BlobStore
) -> Iterator[bytes]:
    for name, work in works.items():
        at, before = file.bytes, file.count
        columns: Columns | None = None
        for sample in work.samples(spec, surveyed=True, store=store):
            columns = columns or resolved(sample.row, work.columns)
            yield data_line(file.count + 1, sample, columns, spec)
        parts[name] = _Part(at, before, file.count - before)


def _plan_lines(
    folder: str,
    file: LineFile,
    spec: Spec,
    works: Mapping[str, Work],
    parts: Mapping[str, _Part],
    cells: list[Cell],
) -> Iterator[bytes]:
    for name, work in works.items():
        part = parts[name]
        for model in models_of(spec, work.task):
            first, at = file.count, file.bytes
            for line in cell_lines(spec, work, model, _stored(folder, spec, work, part), first, part.before):
                yield msgspec.json.encode(line)
            cells.append(Cell(name, model.name, first, file.count - first, at, part.at))


def _stored(folder: str, spec: Spec, work: Work, part: _Part) -> Iterator[Sample]:
    """The task's samples as the run holds them: that takes half of the time, and cannot differ from what it holds."""
    if not spec.record_data:
        return work.samples(spec, surveyed=True)
    lines = itertools.islice(data_lines_in(data_path(folder), part.at), part.count)
    every = (line.sample() for line in lines)
    return every if work.counted is None else _counting(every, work.counted)


def data_line(number: int, sample: Sample, columns: Columns, spec: Spec) -> bytes:
    row = msgspec.json.encode(sample.row) if spec.record_data else b"null"
    return msgspec.json.encode(DataLine(number, sample.id, msgspec.Raw(row), columns.input, columns.target))


def cell_lines(
    spec: Spec, work: Work, model: Model, samples: Iterable[Sample], first: int = 0, first_row: int = 0
) -> Iterator[PlanLine]:
    """The plan of one cell, whose first key has the ordinal `first` and whose rows follow row `first_row`."""
    digest = cell_digest(spec, work, model)
    cell = f"{escape(work.task.name)}/{escape(model.name)}"
    ordinals = itertools.count(first)
    for row, sample in enumerate(samples, first_row + 1):
        asked = _asked_digest(digest, sample)
        for repeat in range(1, work.task.repeats + 1):
            key = f"{cell}/{escape(sample.id)}/{repeat}"
            yield PlanLine(next(ordinals), key, row, _repeated(asked, repeat))


def key_digest(cell: bytes, sample: Sample, repeat: int) -> str:
    """Of everything that one key asks; `cell` is the digest of its cell."""
    return _repeated(_asked_digest(cell, sample), repeat)


def _asked_digest(cell: bytes, sample: Sample) -> "xxhash.xxh3_128":
    return xxhash.xxh3_128(cell + _canonical([sample.id, sample.row]))


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
        "solver": [work.solver.name, work.solver.arguments, work.solver.digest()],
        "model": [model.provider, model.model, model.params, model.options],
        "seed": spec.seed,
    }
    if task.dataset.files:
        asked["files"] = task.dataset.files
    return xxhash.xxh3_128_digest(_canonical(asked))


def _noting(digests: Digests, found: dict[Reference, Content]) -> Keep:
    """Only look, and remember where content comes from."""

    def keep(content: Content | Reference) -> Reference:
        reference = digests.reference(content)
        if isinstance(content, Content):
            found[reference] = content
        return reference

    return keep


def _shots(task: Task, place: str, stored: Rows, keep: Keep) -> tuple[Sample, ...]:
    """The examples, chosen from their file; if that, or a file that it names, is gone, those that the run holds."""
    if task.fewshot is None:
        return ()
    columns = Columns(input=task.dataset.input, target=task.dataset.target)  # examples need no ids
    if stored and not os.path.exists(task.fewshot.path):
        return _stored_shots(task, stored, columns)
    path = task.fewshot.path
    root = task.dataset.files_root
    files = FileColumns(task.dataset.files, os.path.dirname(path), keep, path, root, optional=True)
    try:
        every = list(samples(files.applied(open_rows(path)), columns, path))
    except DataError as error:
        if stored and isinstance(error.__cause__, BadFileError):
            return _stored_shots(task, stored, columns)
        raise SpecError(f"{place}.fewshot: {error}") from error
    if len(every) < task.fewshot.n:
        raise SpecError(f"{place}.fewshot.n: {task.fewshot.path} has {len(every)} rows; {task.fewshot.n} are asked for")
    return tuple(random.Random(task.fewshot.seed).sample(every, task.fewshot.n))


def _stored_shots(task: Task, stored: Rows, columns: Columns) -> tuple[Sample, ...]:
    return tuple(samples(rows_in_memory(stored), columns, f"the stored examples of {task.name}"))


def _check_prompt(work: Work, sample: Sample, place: str) -> None:
    try:
        messages = work.renderer.messages(sample)
    except SpecError as error:
        raise SpecError(f"{place}: row {sample.id!r}: {error}") from error
    except KeyError as error:
        named = str(error.args[0])
        columns = ", ".join(sample.row)
        near = difflib.get_close_matches(named, sample.row, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"the row has: {columns}"
        where = f"{place}.{_template_naming(work.task, named)}"
        raise SpecError(f"{where}: there is no column {named!r} in row {sample.id!r}; {hint}") from error
    for path, column in work.task.sandbox.files.items() if work.task.sandbox is not None else ():
        if column not in sample.row:
            hint = f"the row has: {', '.join(sample.row)}"
            raise SpecError(f"{place}.sandbox.files.{path}: no column {column!r} in row {sample.id!r}; {hint}")
    for column in work.task.dataset.files:
        if any(is_in_text(reference, messages) for reference in references_in(sample.row[column])):
            part = f"{{type: image_url, image_url: {{url: '{{{column}}}'}}}}"
            raise SpecError(
                f"{place}.{_template_naming(work.task, column)}: {column!r} is a file and cannot stand in a text; "
                "leave it out, and it is appended to the prompt, or place it with `messages` as a part of its own: "
                f"{part}"
            )


def _template_naming(task: Task, column: str) -> str:
    """Which of a task's templates names a column."""
    templates: dict[str, Any] = {"prompt": task.prompt, "system": task.system}
    templates |= {f"messages[{i}]": message.get("content") for i, message in enumerate(task.messages)}
    return next((name for name, text in templates.items() if column in columns_of(text)), "prompt")
