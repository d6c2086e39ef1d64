"""`run`, `resume`, `retry`, `extend` and `fork`."""

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import msgspec

from holdfast.cli.adhoc import AdHoc, given_of, naming_options, suggest_spec
from holdfast.cli.hints import assigning, offering
from holdfast.cli.output import hanging, jobs_line, print_table, resume_command, say, warn
from holdfast.cli.progress import patience, watch
from holdfast.cli.signals import Stopper, run_stoppable
from holdfast.engine import Engine
from holdfast.errors import HoldfastError, SpecError
from holdfast.journal.object_store import is_url
from holdfast.report import CellReport, RunReport
from holdfast.report.tables import report_table, short
from holdfast.report.text import counted, money
from holdfast.runs import (
    Ended,
    Given,
    Observe,
    Retry,
    Run,
    RunPlace,
    default_store,
    execute,
    extend,
    find_run,
    place_for,
)
from holdfast.runs.execution.resume import Reading, read_fold, stored_rows, stored_spec
from holdfast.runs.execution.session import is_too_many
from holdfast.runs.execution.user_modules import find_modules_beside
from holdfast.runs.fork import Fork, is_fork_of
from holdfast.runs.fork_forecast import Forecast
from holdfast.runs.mirror.claim import bring_home
from holdfast.runs.mirror.recovery import bring_to, check_mirror
from holdfast.runs.store.damage import require_started
from holdfast.runs.store.lookup import command_to_go_on, newest_runs, runs_in
from holdfast.runs.store.trust import executed_by, require_trust
from holdfast.sandbox.box import sandbox_doubts
from holdfast.solve import sandboxes_of
from holdfast.spec import Spec, build_spec, change_spec, read_spec
from holdfast.spec.drift import differences, refused
from holdfast.spec.selection import Selection, select
from holdfast.spec.source.env_file import fill_environment
from holdfast.spec.warnings import doubts

_RUNS_LOOKED_AT = 20
_TOLD_ELSEWHERE = (
    "sample.failed",
    "cell.stopped",
    "run.interrupted",
    "run.cancelled",
    "run.failed",
    "run.shutdown",
    "journal.stopped",
)
_WITHOUT_DATA = "the run can go on only while its data files are there, unchanged, and cannot be audited without them"


Work = Callable[[Given, Observe], Awaitable[Ended]]
"""What a command does with a run."""


class Choice(msgspec.Struct, frozen=True):
    """What the command line changes or selects in a spec."""

    sets: Sequence[str] = ()
    part: Selection = Selection()
    trust: bool = False
    """Whether the user trusts the author of the spec that a run holds."""


def run_spec(given: Given, run_id: str | None, store: str | None, choice: Choice) -> int:
    where = store or default_store()
    if run_id is None:
        _point_to_interrupted(given.spec, where)
    place = place_for(given, where, run_id)
    with naming_options(given.where):
        code = _execute(given, place, choice)
    if code in (0, 1):
        _tell_the_whole(given, place, choice)
    return code


def _tell_the_whole(given: Given, place: RunPlace, choice: Choice) -> None:
    """A run of a part is a trial: the command that makes it the whole, keeping what it has. One that was stopped has
    to go on first, as it was told.
    """
    with Run(place) as run:
        if run.status()[0] != "completed" or not _is_part(given, run, choice.part):
            return
    if given.where:
        options = [given.where, *assigning(choice.sets)]
    else:
        fields = [name for name in ("limit", "samples") if getattr(given.spec, name) is not None]
        options = assigning(f"{name}=null" for name in fields)
    say(f"This was a part. The whole of it, keeping these answers: {place.command('extend', *options)}")


def _is_part(given: Given, run: Run, part: Selection) -> bool:
    """Reads the cells of the run only if nothing else tells."""
    if part.samples or (given.where and (part.tasks or part.models)):
        return True
    if part.limit is None:
        return False
    return any(_is_cut(given.spec, cell) for cell in run.cells())


def _is_cut(spec: Spec, cell: CellReport) -> bool:
    """Whether a limit may have left samples out: a cell with fewer has all that there are."""
    repeats = next(task.repeats for task in spec.tasks if task.name == cell.task)
    return spec.limit is not None and cell.planned >= spec.limit * repeats


def resume_run(name: str, path: str | None, store: str | None, choice: Choice, retry: Retry) -> int:
    """A run of a mirror is brought home first."""
    if is_url(name):
        with patience("bringing the run home") as wait:
            home = bring_to(store or default_store(), name, warn, wait.tell)
        place, given = given_of_run(home.folder, path, store, choice)
        check_mirror(given.spec.mirror, home, name)
    else:
        place, given = given_of_run(name, path, store, choice)
    return _execute(given, place, choice, retry)


def retry_run(name: str, store: str | None, choice: Choice, retry: Retry) -> int:
    """Failed samples, all or some, get new attempts; unfinished ones are answered as well."""
    place, given = given_of_run(name, None, store, choice)
    return _execute(given, place, choice, retry)


def extend_run(name: str, path: str | None, store: str | None, choice: Choice) -> int:
    place, given = given_of_run(name, path, store, choice)
    with offering(place, given, choice.sets, choice.part):
        return _run(given, lambda given, observe: extend(given, place, observe))


def fork_run(name: str, path: str | None, store: str | None, choice: Choice, run_id: str | None, dry: bool) -> int:
    """Repeated with the same --id after a crash, resume the fork that exists. Without --id every call makes a fork."""
    parent, given = given_of_run(name, path, store, choice, forked=run_id)
    place = place_for(given, parent.store, run_id)
    if run_id is not None and not dry:
        bring_home(given.spec.mirror, place, warn)
        if is_fork_of(parent, place):
            sys.stderr.write(f"{place.run_id} is a fork of {parent.run_id} already; resuming it\n")
            return _execute(given, place, choice)
    with Run(parent) as run:
        jobs = run.jobs()
    if jobs:
        warn(f"{jobs_line(jobs)}; in a fork they would be bought again: {resume_command(parent)} collects them first")
    asyncio.run(_fork(Fork(parent, place, given), parent.run_id, dry))
    if dry:
        return 0
    sys.stderr.write(f"made the fork {place.run_id}; if it is interrupted, continue with: {resume_command(place)}\n")
    return _execute(given, place, choice)


async def _fork(fork: Fork, parent: str, dry: bool) -> None:
    """Print what the fork will reuse and cost before the run exists, so that the user can still stop it."""
    try:
        sys.stderr.write(f"the fork of {parent} {_forecast(await fork.forecast())}\n")
        if fork.doubt:
            warn(fork.doubt)
        if not dry:
            await fork.make()
    finally:
        await fork.drop()  # whole, it has another name by now


def _forecast(told: Forecast) -> str:
    parts = [f"reuses {told.reused}", f"asks about {told.asks}", f"about {short(told.tokens)} tokens"]
    if told.dollars is not None:
        without = f" without {counted(told.unpriced, 'answer')} of models that have no price" if told.unpriced else ""
        parts.append(f"{money(told.dollars)}{without}")
    answered = f"{counted(told.complete, 'answer')} of {told.keys} without a new request"
    return f"{', '.join(parts)}; {answered}"


def given_of_run(
    name: str, path: str | None, store: str | None, choice: Choice, forked: str | None = None
) -> tuple[RunPlace, Given]:
    """A run, and the spec to continue it with: the one in a file, or its own if this user trusts it.

    `forked`: the id of the run's fork. `latest` and prefixes do not match it: they mean the same run before and after
    the fork is made.
    """

    def search(store: str) -> Iterator[RunPlace]:
        return (place for place in runs_in(store) if place.run_id != forked or name == forked)

    place = find_run(store or default_store(), name, search)
    reading = Reading(place)
    fold = reading.fold
    require_started(place, fold)
    if path is not None:
        spec = load(path, choice)
        return place, Given(spec, rows=stored_rows(place, fold, spec), where=path)
    source = fold.story.started.source if fold.story.started else ""
    require_trust(place, reading.uid, executed_by(stored_spec(fold), source), given=choice.trust)
    _refuse_defaults(choice.sets)
    fill_environment(fold.story.spec, choice.sets)
    spec = change_spec(fold.story.spec, choice.sets) if choice.sets else stored_spec(fold)
    find_modules_beside(source, spec)
    return place, Given(select(spec, choice.part), rows=stored_rows(place, fold, spec), from_run=True)


def _refuse_defaults(sets: Sequence[str]) -> None:
    for assignment in sets:
        if assignment.startswith("defaults."):
            raise SpecError(
                f"--set {assignment}: a run's own spec has no defaults any more; set the field of a task or a model"
            )


def given_to_run(path: str | None, options: AdHoc, choice: Choice) -> Given:
    """What `run` is about: a spec in a file, or one that the options mean. Its doubts are told."""
    if path is not None:
        options.refuse_beside_spec(path)
        return load_given(path, choice)
    given = given_of(options, choice.sets, choice.part)
    for doubt in (*doubts(given.spec, os.environ), *sandbox_doubts(sandboxes_of(given.spec))):
        warn(doubt)
    return given


def load_given(path: str, choice: Choice) -> Given:
    """A spec with what the command line changes in it, and its doubts told."""
    suggest_spec(path)
    spec = load(path, choice)
    for doubt in (*doubts(spec, os.environ), *sandbox_doubts(sandboxes_of(spec))):
        warn(f"{path}: {doubt}")
    return Given(spec, where=path)


def load(path: str, choice: Choice) -> Spec:
    raw = read_spec(path)
    fill_environment(raw, choice.sets)
    spec = select(build_spec(raw, path, choice.sets), choice.part)
    find_modules_beside(path, spec)
    return spec


def _execute(given: Given, place: RunPlace, choice: Choice, retry: Retry | None = None) -> int:
    if not given.spec.record_data:
        sys.stderr.write(f"record_data is off: {_WITHOUT_DATA}\n")
    with offering(place, given, choice.sets, choice.part):
        return _run(given, lambda given, observe: execute(given, place, observe, retry or Retry()))


def _run(given: Given, work: Work) -> int:
    logging.getLogger("holdfast").addHandler(_Troubles(logging.WARNING))
    return run_stoppable(partial(_watched, given, work), _told, "interrupted before anything was asked")


async def _watched(given: Given, work: Work, stopper: Stopper) -> Ended:
    """Rows that are read are counted until the engine begins; several passes are made over them."""
    rows = itertools.count(1)

    async def observe(engine: Engine, place: RunPlace) -> None:
        stopper.watch(engine, place)
        planning.end()
        await watch(engine, place)

    with patience("reading the data and planning, rows read:") as planning:
        counted = msgspec.structs.replace(given, counted=lambda: planning.tell(next(rows)))
        return await work(counted, observe)


class _Troubles(logging.Handler):
    """Warnings of a run on standard error; samples that fail are counted in its progress and told in its report."""

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", "")
        if not event.startswith(_TOLD_ELSEWHERE):
            lead = "" if event else "warning: "
            sys.stderr.write(f"{lead}{hanging(record.getMessage().removeprefix(f'{event}: '))}\n")


def _told(ended: Ended) -> int:
    if ended.interrupted:
        kept = f"answers kept: {ended.finished} of {ended.finished + ended.failed + ended.unfinished}"
        sys.stderr.write(f"{_how_stopped(ended, kept)}\n")
        _tell_jobs(ended)
    else:
        if ended.complete:
            sys.stderr.write(f"{ended.place.run_id} is complete: nothing was asked\n")
        with Run(ended.place) as run:
            report = run.report()
        print_table(report_table(report, ended.place.command))
        if ended.stopped:
            left = f"{counted(ended.unfinished, 'sample')} left unfinished"
            sys.stderr.write(f"{left}. When that is put right, go on with: {resume_command(ended.place)}\n")
        if _has_failed(report, ended.spec):
            return 1
    return ended.exit_code()


def _how_stopped(ended: Ended, kept: str) -> str:
    if not ended.budget:
        return f"interrupted; {kept}. Go on with: {resume_command(ended.place)}"
    raised = command_to_go_on(ended.place, f"budget: {ended.budget}", ended.spec.limits.run)
    return f"stopped at a budget: {ended.budget}; {kept}. Raise it to go on: {raised}"


def _tell_jobs(ended: Ended) -> None:
    """What is with a batch API goes on there, and costs what it costs."""
    with Run(ended.place) as run:
        jobs = run.jobs()
    if jobs:
        sys.stderr.write(f"{jobs_line(jobs)}; they go on there, and the next start collects them\n")


def _has_failed(report: RunReport, spec: Spec) -> bool:
    """Beyond the failed samples of the run: too many in one cell, or a scorer that broke on too many answers."""
    in_cell = spec.fail_on_error_in_cell
    if in_cell is not None and any(is_too_many(cell.failed, cell.planned, in_cell) for cell in report.cells):
        return True
    return scorers_broke(report, spec)


def scorers_broke(report: RunReport, spec: Spec) -> bool:
    """On more answers than `fail_on_error` allows: for `run`, and for `score` afterwards."""
    broken = sum(each.failures for cell in report.cells for each in cell.scorers)
    answered = sum(cell.finished for cell in report.cells for _ in cell.scorers)
    return is_too_many(broken, answered, spec.fail_on_error)


def _point_to_interrupted(spec: Spec, store: str) -> None:
    """An interrupted run of the same spec is probably what the user wants to go on with."""
    for place in reversed(newest_runs(store, spec.experiment, _RUNS_LOOKED_AT)):
        try:
            with Run(place) as run:
                status, reason = run.status()
                mine = status == "interrupted" and not refused(differences(stored_spec(read_fold(place)), spec))
                again = run.command_to_go_on(reason)
        except (HoldfastError, msgspec.ValidationError):
            continue  # a run that cannot be read is not the one to point to
        if mine:
            sys.stderr.write(f"there is an interrupted run of this spec; to go on with it: {again}\n")
