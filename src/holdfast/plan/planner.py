"""Turns a spec into the exact list of keys.

A cell is one task with one model. Cells follow the order of the spec; within a cell, keys follow the rows of the data
set, and the repeats of a row follow each other. Everything is streamed, so memory does not grow with the data. `survey`
reads all data first and raises on any problem, so that nothing is created on disk for a spec that cannot run. A
`PlanDraft` makes the plan during the survey, so that the data is read once.
"""

import difflib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import xxhash

from holdfast.datasets import (
    Columns,
    DataSource,
    FileColumns,
    FileContent,
    IdentifiedRow,
    ReferenceCache,
    RowPosition,
    RowSelection,
    RowStream,
    resolve_columns,
    rows_in_memory,
    samples,
    select_rows,
)
from holdfast.errors import DataError, Problems, SpecError
from holdfast.journal import BlobStore
from holdfast.plan.examples import recording_sources, select_examples
from holdfast.plan.files import DataLine, LineFile, PlanLine, StoredRows, data_lines_in, data_path, plan_path
from holdfast.plan.sources import converted, selection_of, source_of
from holdfast.records import (
    Cell,
    Reference,
    Row,
    Sample,
    StoredFile,
    TaskInputs,
    escape,
    parse_reference,
    references_in,
)
from holdfast.sandbox.box import check_paths
from holdfast.solve import Prompt, Renderer, ShotRule, Solver, columns_of, is_in_text, resolve_solver
from holdfast.spec import Model, Spec, Task, check_prices, why_no_likelihoods

_canonical = msgspec.json.Encoder(order="deterministic").encode
_IDS_COMPARED = 10_000
"""Most ids that did-you-mean compares: a hint must not take minutes."""

Rows = Iterable[Row]
"""Rows made by Python code, or stored in the run. They can be iterated again."""


class PreparedTask(msgspec.Struct, frozen=True):
    """A task with its solver, prompt and data source resolved, ready to be planned and run."""

    task: Task
    solver: Solver
    prompt: Prompt
    renderer: Renderer
    rows: Rows | None = None
    digests: ReferenceCache = msgspec.field(default_factory=ReferenceCache)
    """References to the files that its rows name."""
    shot_files: Mapping[Reference, FileContent] = msgspec.field(default_factory=dict)
    """Source of each file that the examples name; empty if the run already stores them."""
    counted: Callable[[], None] | None = None
    """Called after each row that is read, for progress."""
    source: DataSource | None = None
    """The files of the data set; None if the rows are given."""

    @property
    def columns(self) -> Columns:
        return Columns(self.task.dataset.id, self.task.dataset.input, self.task.dataset.target)

    @property
    def has_other_source(self) -> bool:
        """Whether the rows come from the network and not from the run: the user named another source or revision."""
        return self.task.dataset.is_remote and not isinstance(self.rows, StoredRows)

    def samples(self, spec: Spec, *, surveyed: bool = False, store: BlobStore | None = None) -> Iterator[Sample]:
        """Yield the task's samples, as the spec selects them, with references instead of files. With a `store`, file
        content is stored there. `surveyed`: the data was checked before, so duplicate ids are not searched again.
        """
        where = self.source.where if self.source is not None else f"the rows of task {self.task.name}"
        selection = RowSelection() if isinstance(self.rows, StoredRows) else selection_of(self.task.dataset)
        source = self._open()
        files = self._file_columns(where, store)
        if files is not None and not selection:
            source = files.apply(source)
        ids = self.rows.ids() if isinstance(self.rows, StoredRows) else None
        position = RowPosition() if selection else None
        every = samples(source, self.columns, where, unique=not surveyed, ids=ids, position=position)
        if position is not None:
            rows = (IdentifiedRow(position.number, sample.id, sample.row) for sample in every)
            every = _make_samples(select_rows(rows, selection, where, source.unit), source.unit, self.columns, files)
        if self.counted is not None:
            every = _count_each(every, self.counted)
        if spec.samples is not None:
            selected = set(spec.samples)
            every = (sample for sample in every if sample.id in selected)
        return itertools.islice(every, spec.limit)

    def _open(self) -> RowStream:
        if self.rows is not None:
            return rows_in_memory(self.rows, files=self.task.dataset.files)
        assert self.source is not None  # `prepare` refuses a task without data
        return converted(self.source, self.task.dataset.convert)

    def check_subset(self, place: str) -> None:
        """SpecError for a part of a benchmark that the data does not have. Reads all rows."""
        origin = self.task.benchmark
        if origin is None or not origin.by or isinstance(self.rows, StoredRows):
            return
        known = {str(row.get(origin.by)) for _, row in self._open()}
        for name in origin.subset:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}"
                raise SpecError(f"{place}.subset: no row has the {origin.by} {name!r}; {hint}")

    def _file_columns(self, where: str, store: BlobStore | None) -> FileColumns | None:
        dataset = self.task.dataset
        if not dataset.files:
            return None
        keep = self.digests.reference if store is None else partial(store.keep, digests=self.digests)
        folder = self.source.folder if self.rows is None and self.source is not None else ""
        return FileColumns(dataset.files, folder, keep, where, dataset.files_root, isinstance(self.rows, StoredRows))

    def file_size(self, text: str) -> int | None:
        """Return the size in bytes of a referenced file, or None if this task's data does not name it."""
        reference = parse_reference(text)
        return None if reference is None else self.digests.size(reference)

    def keep_shots(self, store: BlobStore) -> None:
        """Store the files that the examples name."""
        for shot in self.prompt.shots if self.task.dataset.files else ():
            for text in references_in([shot.row.get(column) for column in self.task.dataset.files]):
                reference = parse_reference(text)
                assert reference is not None
                store.keep(self.shot_files.get(reference, reference), self.digests)


def _count_each(samples: Iterator[Sample], counted: Callable[[], None]) -> Iterator[Sample]:
    for sample in samples:
        counted()
        yield sample


def _make_samples(
    rows: Iterator[IdentifiedRow], unit: str, columns: Columns, files: FileColumns | None
) -> Iterator[Sample]:
    """The samples of selected rows. Files are read after the selection: only those of selected rows are needed."""
    found: Columns | None = None
    for each in rows:
        row = each.row if files is None else files.replace(each.row, each.number, unit)
        found = found or resolve_columns(row, columns)
        input = row.get(found.input) if found.input else None
        yield Sample(each.id, input, row.get(found.target) if found.target else None, row)


class DataPart(msgspec.Struct, frozen=True):
    """The rows of one task in the data file: byte offset, number of rows before them, and number of rows."""

    at: int
    before: int
    count: int


class WrittenPlan(msgspec.Struct, frozen=True):
    """The plan and data files as written, and the position of each cell."""

    plan: StoredFile
    data: StoredFile
    cells: tuple[Cell, ...]


def prepare(
    spec: Spec,
    rows: Mapping[str, Rows],
    solvers: Mapping[str, Any],
    stored: Mapping[str, TaskInputs] | None = None,
    counted: Callable[[], None] | None = None,
    problems: Problems | None = None,
) -> dict[str, PreparedTask]:
    """Resolve every task's solver and prompt. `rows` and `solvers` hold objects that a script passed; `stored` holds
    the run's copies, for examples whose file is missing. `counted` is called for each row that is read later.
    `problems`: receives errors, whose tasks are left out; by default the first is raised.
    """
    problems = problems or Problems(stop=True)
    works = {}
    digests = ReferenceCache()
    for index, task in enumerate(spec.tasks):
        place = f"tasks[{index}]"
        solver = None
        with problems.collecting():
            solver = _find_solver(spec, task, solvers.get(task.name, task.solver), f"{place}.solver")
        with problems.collecting():
            if task.sandbox is not None:
                check_paths(task.sandbox, place)
        with problems.collecting():
            source = source_of(task.dataset)
            if source is None and task.name not in rows:
                what = f"the task {task.name!r} has no data; name a .jsonl, .json, .csv or .parquet file"
                raise SpecError(f"{place}.dataset.path: {what}")
            found: dict[Reference, FileContent] = {}
            inputs = (stored or {}).get(task.name, TaskInputs())
            shots, rule = select_examples(task, place, inputs.shots, recording_sources(digests, found))
            files = tuple(task.dataset.files)
            prompt = Prompt(task.system, task.prompt, task.messages, task.template, shots, rule, files)
            renderer = _make_renderer(prompt, place)
            # If the solver was refused, its data is checked nevertheless: any solver will do.
            solver = solver or resolve_solver("chat", place)
            own = rows.get(task.name)
            works[task.name] = PreparedTask(task, solver, prompt, renderer, own, digests, found, counted, source)
    return works


def _find_solver(spec: Spec, task: Task, given: Any, place: str) -> Solver:
    """Resolve the solver of a task. SpecError if it calls a role that does not exist, or needs prices."""
    solver = resolve_solver(given, place)
    for role in solver.roles():
        if role not in spec.roles:
            known = ", ".join(sorted(spec.roles)) or "none"
            raise SpecError(f"{place}: there is no role {role!r}; there are: {known}; add it to `roles`")
    if solver.counts_cost:
        check_prices(models_of(spec, task), f"{place}: cost_usd")  # an agent calls no roles
    for model in models_of(spec, task) if solver.needs_likelihoods else ():
        if why := why_no_likelihoods(model):
            raise SpecError(f"{place}: choice_likelihood cannot use the model {model.name!r}: {why}")
    return solver


def _make_renderer(prompt: Prompt, place: str) -> Renderer:
    try:
        return Renderer(prompt)
    except SpecError as error:
        raise SpecError(f"{place}.prompt: {error}") from error


def scoring_roles(spec: Spec, works: Mapping[str, PreparedTask]) -> frozenset[str]:
    """Return the roles that no solver can call, so that changing them only affects scores. User code and external
    programs may call any role, so with them no role qualifies.
    """
    solvers = [part for work in works.values() for part in work.solver.every()]
    if any(not each.is_built_in or each.name == "command" for each in solvers):
        return frozenset()
    return frozenset(spec.roles) - {role for each in solvers for role in each.roles()}


def survey(spec: Spec, works: Mapping[str, PreparedTask], problems: Problems | None = None) -> int:
    """Read all data, render every prompt, and return the number of keys. SpecError for anything that cannot run.
    `problems`: receives these errors instead.
    """
    if problems is None:
        every = surveyed(spec, works)
        return sum(sum(1 for _ in samples) * _keys_of_sample(spec, work) for work, samples in every)
    planned, missing = 0, set(spec.samples or ())
    for place, work in _placed(spec, works):
        with problems.collecting():
            _check_recorded(spec, work.task, place)
            samples = sum(1 for _ in _checked_samples(spec, work, place, missing))
            planned += samples * _keys_of_sample(spec, work)
            check_groups(spec, {work.task.name: work})
    if missing and not problems.found:  # a task that could not be read may have them
        with problems.collecting():
            _refuse_unknown(missing, spec, works)
    return planned


def _keys_of_sample(spec: Spec, work: PreparedTask) -> int:
    return work.task.repeats * len(models_of(spec, work.task))


def _placed(spec: Spec, works: Mapping[str, PreparedTask]) -> list[tuple[str, PreparedTask]]:
    """The prepared tasks with their places in the spec."""
    named = ((f"tasks[{index}]", task.name) for index, task in enumerate(spec.tasks))
    return [(place, works[name]) for place, name in named if name in works]


def surveyed(spec: Spec, works: Mapping[str, PreparedTask]) -> Iterator[tuple[PreparedTask, Iterator[Sample]]]:
    """Yield each task with its selected samples, which are checked while they are read: read all of them. SpecError for
    anything that cannot run. Only when the iteration has ended is the spec accepted.
    """
    missing = set(spec.samples or ())
    for place, work in _placed(spec, works):
        _check_recorded(spec, work.task, place)
        yield work, _checked_samples(spec, work, place, missing)
    if missing:
        _refuse_unknown(missing, spec, works)
    check_groups(spec, works)


def _checked_samples(spec: Spec, work: PreparedTask, place: str, missing: set[str]) -> Iterator[Sample]:
    """Yield the selected samples of a task, and remove their ids from `missing`."""
    sample = None
    try:
        work.check_subset(place)
        for sample in work.samples(spec):
            _check_prompt(work, sample, place)
            missing.discard(sample.id)
            yield sample
    except DataError as error:
        raise SpecError(f"{place}.dataset: {error}") from error
    if sample is None and not spec.samples:
        raise SpecError(f"{place}: no sample of {work.task.name!r} is selected; check `where` and `limit`")


def _check_recorded(spec: Spec, task: Task, place: str) -> None:
    """SpecError for files that must be stored in a run that stores no data."""
    if task.dataset.files and not spec.record_data:
        what = "files are stored with the run, but record_data is off; remove one of the two"
        raise SpecError(f"{place}.dataset.files: {what}")
    if task.sandbox is not None and task.sandbox.files and not spec.record_data:
        what = "sandbox files are stored with the run, but record_data is off; remove one of the two"
        raise SpecError(f"{place}.sandbox.files: {what}")


def check_groups(spec: Spec, works: Mapping[str, PreparedTask]) -> None:
    """SpecError if no row has the group column. Single rows may lack it: their samples belong to no group."""
    for where, work in _placed(spec, works):
        name, column, place = work.task.name, work.task.dataset.group, f"{where}.dataset"
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


def _refuse_unknown(missing: set[str], spec: Spec, works: Mapping[str, PreparedTask]) -> None:
    """SpecError for selected samples that no task has. Reads everything again, because `limit` may have hidden them."""
    whole = msgspec.structs.replace(spec, samples=None, limit=None)
    ids: dict[str, None] = {}
    for sample in itertools.chain.from_iterable(work.samples(whole, surveyed=True) for work in works.values()):
        missing = missing - {sample.id}
        if len(ids) < _IDS_COMPARED:
            ids[sample.id] = None
    for name in sorted(missing):
        close = difflib.get_close_matches(name, ids, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"ids look like {next(iter(ids))!r}"
        raise SpecError(f"samples: no task has a sample {name!r}; {hint}")


def models_of(spec: Spec, task: Task) -> list[Model]:
    """Return the models that run a task."""
    return [model for model in spec.models if task.models is None or model.name in task.models]


def inputs_of(works: Mapping[str, PreparedTask]) -> dict[str, TaskInputs]:
    """Return the inputs of the tasks that no field of the spec shows: code digests of solvers, and examples."""
    return {
        name: TaskInputs(work.solver.digest(), [shot.row for shot in work.prompt.shots]) for name, work in works.items()
    }


def write_from_source(folder: str, spec: Spec, works: Mapping[str, PreparedTask], parent: str) -> WrittenPlan:
    """Read the data of a surveyed spec again, and write files, data and plan into a run's folder, synced."""
    data_file = LineFile(data_path(folder))
    parts: dict[str, DataPart] = {}
    store = BlobStore(folder, parent)
    store.remove_leftovers()
    data = data_file.write(_data_lines(data_file, spec, works, parts, store))
    keep_shots(works, store)
    # The plan is written last: it reads the stored rows back, so that it cannot differ from them.
    plan_file = LineFile(plan_path(folder))
    cells: list[Cell] = []
    plan = plan_file.write(_plan_lines(folder, plan_file, spec, works, parts, cells))
    return WrittenPlan(plan, data, tuple(cells))


def keep_shots(works: Mapping[str, PreparedTask], store: BlobStore) -> None:
    """Store the files of the examples. When this returns, all stored files are durable."""
    for work in works.values():
        work.keep_shots(store)
    store.sync()


def _data_lines(
    file: LineFile, spec: Spec, works: Mapping[str, PreparedTask], parts: dict[str, DataPart], store: BlobStore
) -> Iterator[bytes]:
    for name, work in works.items():
        at, before = file.bytes, file.count
        columns: Columns | None = None
        for sample in work.samples(spec, surveyed=True, store=store):
            columns = columns or resolve_columns(sample.row, work.columns)
            yield data_line(file.count + 1, sample, columns, spec)
        parts[name] = DataPart(at, before, file.count - before)


def _plan_lines(
    folder: str,
    file: LineFile,
    spec: Spec,
    works: Mapping[str, PreparedTask],
    parts: Mapping[str, DataPart],
    cells: list[Cell],
) -> Iterator[bytes]:
    for name, work in works.items():
        part = parts[name]
        for model in models_of(spec, work.task):
            first, at = file.count, file.bytes
            if spec.record_data:  # the stored rows: faster than reading the source again, and certainly the same
                lines = itertools.islice(data_lines_in(data_path(folder), part.at), part.count)
                every: Iterator[Sample] = (line.sample() for line in lines)
                every = every if work.counted is None else _count_each(every, work.counted)
            else:
                every = work.samples(spec, surveyed=True)
            for planned in cell_lines(spec, work, model, every, first, part.before):
                yield msgspec.json.encode(planned)
            cells.append(Cell(name, model.name, first, file.count - first, at, part.at))


def data_line(number: int, sample: Sample, columns: Columns, spec: Spec) -> bytes:
    """Encode one line of the data file. Without `record_data` the row is null."""
    row = msgspec.json.encode(sample.row) if spec.record_data else b"null"
    return msgspec.json.encode(DataLine(number, sample.id, msgspec.Raw(row), columns.input, columns.target))


def cell_lines(
    spec: Spec, work: PreparedTask, model: Model, samples: Iterable[Sample], first: int = 0, first_row: int = 0
) -> Iterator[PlanLine]:
    """Yield the plan lines of one cell. Its first key has ordinal `first`; its rows follow row `first_row`."""
    keys = CellKeys(spec, work, model)
    for row, sample in enumerate(samples, first_row + 1):
        lines = keys.lines(sample, keys.content(sample), row, first)
        first += len(lines)
        yield from lines


class CellKeys:
    """Makes the keys of one cell."""

    def __init__(self, spec: Spec, work: PreparedTask, model: Model) -> None:
        self._digest = cell_digest(spec, work, model)
        self._name = f"{escape(work.task.name)}/{escape(model.name)}"
        self._repeats = work.task.repeats

    @staticmethod
    def content(sample: Sample) -> bytes:
        """What the digests of all keys of a sample cover. The same for every cell, so it is encoded once."""
        return _canonical([sample.id, sample.row])

    def lines(self, sample: Sample, content: bytes, row: int, first: int = 0) -> list[PlanLine]:
        """The keys of one sample. The first one has ordinal `first`."""
        name = f"{self._name}/{escape(sample.id)}"
        digests = _repeat_digests(self._digest + content, self._repeats)
        return [PlanLine(first + i, f"{name}/{i + 1}", row, digest) for i, digest in enumerate(digests)]


def key_digest(cell: bytes, sample: Sample, repeat: int) -> str:
    """Digest everything that determines the requests of one key; `cell` is the digest of its cell."""
    return xxhash.xxh3_128_hexdigest(cell + CellKeys.content(sample) + str(repeat).encode())


def _repeat_digests(sample: bytes, repeats: int) -> list[str]:
    """The digest of each repeat. The row, which may be long, is hashed once for all of them."""
    if repeats == 1:
        return [xxhash.xxh3_128_hexdigest(sample + b"1")]
    hashed = xxhash.xxh3_128(sample)
    digests = []
    for repeat in range(1, repeats + 1):
        digest = hashed.copy()
        digest.update(str(repeat).encode())
        digests.append(digest.hexdigest())
    return digests


def cell_digest(spec: Spec, work: PreparedTask, model: Model) -> bytes:
    """Digest what all keys of a cell share: everything besides the row that can change an answer."""
    task = work.task
    inputs = {
        "prompt": [task.system, task.prompt, task.messages, task.template, task.dataset.input],
        "shots": [[shot.row for shot in work.prompt.shots]],
        "solver": [work.solver.name, work.solver.arguments, work.solver.digest()],
        "model": [model.provider, model.model, model.params, model.options],
        "seed": spec.seed,
    }
    if task.dataset.files:
        inputs["files"] = task.dataset.files
    rule = work.prompt.shot_rule
    if rule != ShotRule():  # earlier versions had no other
        inputs["shot_rule"] = rule
    return xxhash.xxh3_128_digest(_canonical(inputs))


def _check_prompt(work: PreparedTask, sample: Sample, place: str) -> None:
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
        raise SpecError(f"{where}: no column {named!r} in row {sample.id!r}; {hint}") from error
    for path, column in work.task.sandbox.files.items() if work.task.sandbox is not None else ():
        if column not in sample.row:
            hint = f"the row has: {', '.join(sample.row)}"
            raise SpecError(f"{place}.sandbox.files.{path}: no column {column!r} in row {sample.id!r}; {hint}")
    for column in work.task.dataset.files:
        if any(is_in_text(reference, messages) for reference in references_in(sample.row[column])):
            part = f"{{type: image_url, image_url: {{url: '{{{column}}}'}}}}"
            raise SpecError(
                f"{place}.{_template_naming(work.task, column)}: {column!r} is a file and cannot be part of a text; "
                "remove it, and the file is appended to the prompt, or place it with `messages` as a separate part: "
                f"{part}"
            )


def _template_naming(task: Task, column: str) -> str:
    """Return which of the task's templates names a column."""
    templates: dict[str, Any] = {"prompt": task.prompt, "system": task.system}
    templates |= {f"messages[{i}]": message.get("content") for i, message in enumerate(task.messages)}
    return next((name for name, text in templates.items() if column in columns_of(text)), "prompt")
