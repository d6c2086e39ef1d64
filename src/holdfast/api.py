"""The public Python API: `Task` and `run`, and what reads, compares and restores runs. Each call has an async twin.

The work of `run` is async. The sync functions also work inside a running event loop (notebooks). This module stores
nothing itself: after a crash, the same call with the same `id` resumes the run. Comparisons and lists are those of the
commands; what can be done with one run is in `runs.actions`.
"""

import asyncio
import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from holdfast.datasets import rows_of_object
from holdfast.errors import DamageWarning, SpecError, UsageError
from holdfast.plan import experiment_of, is_benchmark_name, resolve_benchmarks
from holdfast.report import ComparisonResult, GateResult, LeaderboardResult, Table, field_table, parse_columns
from holdfast.runs import (
    GateOptions,
    Given,
    Overrides,
    Recoverable,
    Recovered,
    Run,
    RunFilter,
    RunSummary,
    ShownQuestions,
    assignments,
    comparison_of,
    damage_of,
    default_store,
    execute,
    gate_result_of,
    leaderboard_of,
    list_recoverable,
    naming_parameters,
    new_run_location,
    observer,
    open_run,
    resolve_spec_file,
    run_blocking,
    select_runs,
)
from holdfast.runs.maintenance import recovery
from holdfast.score import Scorer
from holdfast.solve import Solve
from holdfast.spec import Selection, SpecFile, base_of, read_spec, select

__all__ = [
    "Run",
    "Task",
    "benchmark",
    "compare",
    "compare_async",
    "gate",
    "gate_async",
    "leaderboard",
    "leaderboard_async",
    "list_runs",
    "list_runs_async",
    "open_run",
    "recover",
    "recover_async",
    "recoverable",
    "recoverable_async",
    "run",
    "run_async",
]

_LISTED = ("run_id", "experiment", "status", "planned", "finished", "failed", "bytes", "created", "tags", "folder")
ScorerEntry = str | dict[str, Any] | Scorer | Callable[..., Any]
"""A name, a mapping of a name to arguments, a `@scorer`, or a plain function."""


class Task:
    """A data set, the prompt or solver that answers it, and the scorers.

    `data` is the path of a file (or a pattern), a list of rows, a pandas or polars data frame, an Arrow table, or any
    iterable of dicts; None if `dataset` names the data. `solver` and `scorers` are names or functions. Several prompts
    make variants of the task. `fields` are the other fields of a task in a spec: system, repeats, dataset, fewshot, …
    """

    def __init__(
        self,
        name: str,
        data: "str | os.PathLike[str] | Iterable[Any] | None" = None,
        prompt: str | Sequence[str] | Mapping[str, str] = "",
        *,
        solver: str | dict[str, Any] | Solve = "chat",
        scorers: Sequence[ScorerEntry] | ScorerEntry = (),
        **fields: Any,
    ) -> None:
        path = os.fspath(data) if isinstance(data, str | os.PathLike) else ""
        self.name = name
        self.rows = None if data is None or path else rows_of_object(data)
        self.solver = solver if callable(solver) else None
        self.scorers = [scorers] if callable(scorers) or isinstance(scorers, str | dict) else list(scorers)
        self.fields = {**fields, "name": name}
        is_benchmark = "benchmark" in fields  # it provides what is not given here
        if prompt or not is_benchmark:
            self.fields["prompt"] = prompt
        if path:
            self.fields["dataset"] = {**fields.get("dataset", {}), "path": path}
        if not callable(solver) and (solver != "chat" or not is_benchmark):
            self.fields["solver"] = solver
        if (self.scorers or not is_benchmark) and all(_is_storable(scorer) for scorer in self.scorers):
            self.fields["scorers"] = self.scorers


def benchmark(name: str, /, *, subset: str | Sequence[str] = (), **changes: Any) -> Task:
    """A benchmark as a task, to run it: `holdfast.run(holdfast.benchmark("mmlu", subset="anatomy"), models=[…])`.

    `changes` are fields of a task in a spec, such as `fewshot={"n": 5}`; reports show what was changed.
    `holdfast benchmarks` lists the names.
    """
    named = {"subset": [subset] if isinstance(subset, str) else list(subset)} if subset else {}
    return Task(changes.pop("name", name), **{"benchmark": name, **named, **changes})


async def run_async(
    what: Task | Sequence[Task | str] | str | None = None,
    models: Sequence[str | dict[str, Any]] = (),
    *,
    tasks: "Sequence[str | Task] | Task" = (),
    id: str | None = None,
    store: str | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Run:
    """Run tasks on models, a benchmark by its name, or the spec in a file, and return the run. With the `id` of an
    earlier run, resume it.

    To run a part: `limit=5` (the first samples of each task), `samples=["s1"]`, `tasks=["sums"]`, and, with a spec
    file, `models=["local"]` (names from the spec). `fields` are further fields of a spec. Shows progress unless
    `quiet=True`: a bar on a terminal and in a notebook, plain lines elsewhere.
    """
    given = _resolve_arguments(what, models, tasks, fields)
    ended = await execute(given, new_run_location(given, store or default_store(), id), observer(quiet))
    run = Run(ended.place)
    if not given.where:
        run.given = given
    return await run._warn_unless_complete(ended, quiet)  # noqa: SLF001 - users do not call it


def run(
    what: Task | Sequence[Task | str] | str | None = None,
    models: Sequence[str | dict[str, Any]] = (),
    *,
    tasks: "Sequence[str | Task] | Task" = (),
    id: str | None = None,
    store: str | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Run:
    """`run_async` for synchronous code; it also works inside a running event loop, such as a notebook's."""

    async def work() -> Run:
        return await run_async(what, models, tasks=tasks, id=id, store=store, quiet=quiet, **fields)

    return run_blocking(work)


async def recover_async(
    where: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] = "",
    events: bool = True,
    overwrite: bool = False,
    cleanup: bool = True,
) -> Recovered:
    """`recover` without blocking the event loop."""
    return await recovery.recover_async(
        os.fspath(where), recovery.RecoveryOptions(os.fspath(output), events, overwrite, cleanup)
    )


def recover(
    where: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] = "",
    events: bool = True,
    overwrite: bool = False,
    cleanup: bool = True,
) -> Recovered:
    """Restore a run whose machine or folder is lost. `where`: its URL in a mirror, or a copy of its folder.

    `output` is the store to restore into. `events=False` leaves out the steps of finished keys. `overwrite=True` merges
    into an existing run, which loses nothing. `cleanup=False` keeps a source folder that is no longer needed. Returns
    what was restored and what was lost; open the run with `holdfast.open_run(recovered.folder)`.
    """
    return recovery.recover(os.fspath(where), recovery.RecoveryOptions(os.fspath(output), events, overwrite, cleanup))


RunLike = Run | str | os.PathLike[str]
"""A run: opened, or its id, a prefix of it, `latest`, its folder, or its URL in a mirror."""


class GateSettings(TypedDict, total=False):
    """The other settings of a gate, as the options of the command."""

    confidence: float
    if_unsure: Literal["fail", "pass"]
    missing_max: int
    identical_passes: bool
    task: str
    model: str
    scorer: str
    evaluation: str


def compare(
    *runs: RunLike,
    scorer: str | None = None,
    evaluation: str = "",
    adjust: Literal["holm", "bh"] = "holm",
    columns: Sequence[str] = (),
    store: str | None = None,
) -> ComparisonResult:
    """Compare the first run with each other one; if there is one run, its models and variants. Prints as a table.

    `adjust`: Holm's method or Benjamini and Hochberg's. `columns` of the data rows are in the `row` of each of
    `comparisons[…].changed`; `["*"]` means all. `comparable` is False, and `warnings` says why, if data or
    scorers differ. Raises UsageError if there is nothing to compare, and DamagedError for a damaged run.
    """
    with _opened(runs, store) as opened, naming_parameters():
        questions = ShownQuestions(columns=parse_columns(columns))
        return comparison_of(opened, scorer, evaluation, adjust, questions)


async def compare_async(
    *runs: RunLike,
    scorer: str | None = None,
    evaluation: str = "",
    adjust: Literal["holm", "bh"] = "holm",
    columns: Sequence[str] = (),
    store: str | None = None,
) -> ComparisonResult:
    """`compare` without blocking the event loop."""
    options: dict[str, Any] = {"scorer": scorer, "evaluation": evaluation, "adjust": adjust, "columns": columns}
    work = partial(compare, *runs, **options, store=store)
    return await asyncio.to_thread(work)


def leaderboard(
    *runs: RunLike,
    task: str | None = None,
    scorer: str | None = None,
    evaluation: str = "",
    store: str | None = None,
) -> LeaderboardResult:
    """Rank the models of one or several runs, task by task. Prints as a table.

    Models that do not differ significantly share a rank. Raises UsageError if there is nothing to rank, and
    DamagedError for a damaged run.
    """
    with _opened(runs, store) as opened, naming_parameters():
        return leaderboard_of(opened, task, scorer, evaluation)


async def leaderboard_async(
    *runs: RunLike,
    task: str | None = None,
    scorer: str | None = None,
    evaluation: str = "",
    store: str | None = None,
) -> LeaderboardResult:
    """`leaderboard` without blocking the event loop."""
    work = partial(leaderboard, *runs, task=task, scorer=scorer, evaluation=evaluation, store=store)
    return await asyncio.to_thread(work)


def gate(
    run: RunLike,
    baseline: RunLike | None = None,
    *,
    margin: float | None = None,
    at_least: float | None = None,
    store: str | None = None,
    **settings: Unpack[GateSettings],
) -> GateResult:
    """Whether a run is as good as a `baseline`, less a `margin`, or reaches the mean `at_least`: `gate(…).passed`.

    Every task, model and scorer must pass, unless `task`, `model` or `scorer` chooses some. The other settings are
    `confidence`, `if_unsure`, `missing_max`, `identical_passes` and `evaluation`, as for the command. Raises UsageError
    if the runs cannot be judged, and DamagedError for a damaged run.
    """
    names = [run] if baseline is None else [run, baseline]
    with _opened(names, store) as opened, naming_parameters():
        name = None if baseline is None else opened[1].run_id
        return gate_result_of(opened, GateOptions(name, at_least, margin, **settings))


async def gate_async(
    run: RunLike,
    baseline: RunLike | None = None,
    *,
    margin: float | None = None,
    at_least: float | None = None,
    store: str | None = None,
    **settings: Unpack[GateSettings],
) -> GateResult:
    """`gate` without blocking the event loop."""
    work = partial(gate, run, baseline, margin=margin, at_least=at_least, store=store, **settings)
    return await asyncio.to_thread(work)


def list_runs(
    store: str | os.PathLike[str] | None = None,
    *,
    experiment: str | None = None,
    status: str | None = None,
    tag: str | None = None,
    limit: int | None = None,
) -> Table[RunSummary]:
    """The runs of a store (a folder or the URL of a mirror), the newest last. Prints as a table; `.to_pandas()`
    converts it. Open one with `holdfast.open_run(line.folder)`.
    """
    with naming_parameters():
        found = select_runs(os.fspath(store or default_store()), RunFilter(experiment, status, tag, limit)).runs
    for sentence in itertools.chain.from_iterable(each.damage for each in found):
        warnings.warn(sentence, DamageWarning, stacklevel=2)
    return field_table(found, _LISTED)


async def list_runs_async(
    store: str | os.PathLike[str] | None = None,
    *,
    experiment: str | None = None,
    status: str | None = None,
    tag: str | None = None,
    limit: int | None = None,
) -> Table[RunSummary]:
    """`list_runs` without blocking the event loop."""
    work = partial(list_runs, store, experiment=experiment, status=status, tag=tag, limit=limit)
    return await asyncio.to_thread(work)


def recoverable(where: str | os.PathLike[str] = "") -> Table[Recoverable]:
    """What `recover` can restore: every run of the mirror at a URL, or the unfinished runs of a store. Prints as a
    table; restore one with `holdfast.recover(line.place)`.
    """
    found = list(list_recoverable(os.fspath(where)))
    for sentence in itertools.chain.from_iterable(map(damage_of, found)):
        warnings.warn(sentence, DamageWarning, stacklevel=2)
    return field_table(found, Recoverable.__struct_fields__)


async def recoverable_async(where: str | os.PathLike[str] = "") -> Table[Recoverable]:
    """`recoverable` without blocking the event loop."""
    return await asyncio.to_thread(recoverable, where)


@contextlib.contextmanager
def _opened(runs: Sequence[RunLike], store: str | None) -> Iterator[list[Run]]:
    """Open the runs that are named, for a `with` block. Runs that the caller has opened stay open."""
    if not runs:
        raise UsageError("name a run: its id, 'latest', its folder, or an opened run")
    for each in runs:
        if not isinstance(each, Run | str | os.PathLike):
            raise UsageError(f"a run is its id, 'latest', its folder, or an opened run; found {type(each).__name__}")
    with contextlib.ExitStack() as stack:
        yield [
            each if isinstance(each, Run) else stack.enter_context(open_run(os.fspath(each), store=store))
            for each in runs
        ]


def _is_storable(entry: ScorerEntry) -> bool:
    """Whether a spec can store it: it contains no function, and no scorer made from one."""
    if not isinstance(entry, str | dict):
        return False
    try:
        msgspec.json.encode(entry)
    except TypeError:
        return False
    return True


def _resolve_arguments(
    what: Task | Sequence[Task | str] | str | None,
    models: Sequence[str | dict[str, Any]],
    tasks: Sequence[str | Task] | Task,
    fields: dict[str, Any],
) -> Given:
    if isinstance(models, str | dict):
        raise SpecError("models is a list: models=['mock'], or a list of mappings as in a spec")
    found, names = _split_tasks(what, tasks)
    if isinstance(found, str):
        chosen = [model for model in models if isinstance(model, str)]
        if len(chosen) < len(models):
            raise SpecError(
                "a spec file has its own models: name those that you want, models=['local'], or leave it out"
            )
        return _load_file(found, Selection(tasks=names, models=chosen), fields)
    benchmarks = [task.fields["benchmark"] for task in found if isinstance(task.fields.get("benchmark"), str)]
    defaults = {"experiment": experiment_of(benchmarks)} if benchmarks and len(benchmarks) == len(found) else {}
    raw = {**defaults, **fields, "tasks": [task.fields for task in found], "models": list(models)}
    spec = select(resolve_benchmarks(SpecFile("run()", raw)).spec, Selection(tasks=names))
    named = {task.name: task for task in found}
    # a task with several prompts becomes one task per variant in the spec; all of them share one `Task` object
    origins = {task.name: named[base_of(task.name, named)] for task in spec.tasks}
    return Given(
        spec=spec,
        rows={name: task.rows for name, task in origins.items() if task.rows is not None},
        solvers={name: task.solver for name, task in origins.items() if task.solver is not None},
        scorers={name: task.scorers for name, task in origins.items()},
        names_experiment=not defaults or "experiment" in fields,
    )


def _split_tasks(
    what: Task | Sequence[Task | str] | str | None, tasks: Sequence[str | Task] | Task
) -> tuple[str | list[Task], list[str]]:
    """Return what to run and the names of the tasks to select. `Task` objects may also be passed as `tasks=[task]`."""
    entries = [tasks] if isinstance(tasks, str | Task) else list(tasks)
    names = [entry for entry in entries if isinstance(entry, str)]
    objects = [entry for entry in entries if isinstance(entry, Task)]
    if what is None and not objects:
        raise SpecError("nothing to run: pass a task, a list of tasks, or the path of a spec")
    if what is not None and objects:
        raise SpecError("tasks=… takes names where a spec or tasks are given first; pass tasks in one place")
    if what is None:
        return objects, names
    if isinstance(what, str) and not is_benchmark_name(what):
        return what, names
    what = [what] if isinstance(what, str | Task) else what
    if any(isinstance(each, str) and not is_benchmark_name(each) for each in what):
        raise SpecError("run one spec at a time: runs = [holdfast.run(path) for path in paths]")
    return [benchmark(each) if isinstance(each, str) else each for each in what], names


def _load_file(path: str, selection: Selection, fields: dict[str, Any]) -> Given:
    return resolve_spec_file(read_spec(path), Overrides(assignments(fields), selection))
