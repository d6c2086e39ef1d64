"""`run`, `resume`, `retry`, `extend` and `fork`: resolve the spec, execute it, print the report.

Owns no state: whatever a crash interrupts here is continued from the journal by the same command.

`run` executes several specs one after the other, in this process. All are checked before the first request. A run that
fails does not keep the others from being started, as a cell that fails does not stop the other cells of a run. Only an
interrupt and failed storage end the list. With `--id`, the name of its spec's file is part of each run's id, so that
the same command continues all of them after a crash.
"""

import asyncio
import itertools
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from holdfast.cli.adhoc import AdHoc, benchmarks_of, build_given, naming_options
from holdfast.cli.errors import explain, explain_os_error, set_options, suggesting_commands
from holdfast.cli.output import hanging, jobs_line, print_line, print_table, warn, write_message
from holdfast.cli.progress import report_to, spinner, watch
from holdfast.cli.signals import Stopper, StuckLoops, exit_if_stuck, release_signals, run_stoppable
from holdfast.cli.targets import find_doubts, load_named
from holdfast.engine import Engine
from holdfast.errors import DamagedError, DamageWarning, HoldfastError, UsageError
from holdfast.journal import is_url
from holdfast.plan import is_benchmark_name
from holdfast.records import SHARDS_MAX, Shard, parse_shard
from holdfast.report import RunReport, counted, money, report_table, short
from holdfast.runs import (
    Forecast,
    Fork,
    Given,
    Observe,
    Overrides,
    Retry,
    Run,
    RunLocation,
    RunOutcome,
    ShardChoice,
    Supervisor,
    check_mirror,
    check_startable,
    default_store,
    execute,
    extend,
    find_supervisor,
    is_made_fork,
    is_too_many,
    left_without_failures,
    make_fork,
    new_run_location,
    newest_runs,
    read_story,
    resolve_run,
    restore_into,
    stored_spec,
    suggest_resume_command,
    wrong_names,
)
from holdfast.spec import Spec, find_differences, refused_changes

_RUNS_LOOKED_AT = 20
_REPORTED_ELSEWHERE = (
    "sample.failed",
    "cell.stopped",
    "run.interrupted",
    "run.cancelled",
    "run.failed",
    "run.shutdown",
    "journal.stopped",
)
"""Events of the log that progress, report or the last message of a command show anyway."""
_WITHOUT_DATA = "the run can continue only while its data files exist unchanged, and cannot be audited without them"


Work = Callable[[Given, Observe], Awaitable[RunOutcome]]
"""Starts, resumes or extends a run."""


def parse_part(shard: str, shards: int | None, this_host: bool, run_id: str | None, specs: int) -> ShardChoice | None:
    """What --shard and --shards say; None if neither is given. UsageError if they do not fit."""
    if not shard and shards is None:
        if this_host:
            raise UsageError("--this-host goes with --shards")
        return None
    option = "--shard" if shard else "--shards"
    if shard and shards is not None:
        raise UsageError("--shard and --shards cannot be combined: one part, or all that are free")
    if run_id is None:
        raise UsageError(f"{option} needs --id: all workers of a run have the same id")
    if specs > 1:
        raise UsageError(f"{option} needs a single spec; put the benchmarks or specs into `tasks` of one")
    try:
        found = parse_shard(shard) if shard else Shard(0, shards or 1)
    except ValueError as error:
        raise UsageError(f"--shard {error}") from error
    if found.count > SHARDS_MAX:
        raise UsageError(f"--shards {found.count}: at most {SHARDS_MAX:,} are possible")
    return ShardChoice(found.count, found.number, this_host)


def run_spec(
    given: Given,
    run_id: str | None,
    store: str | None,
    overrides: Overrides,
    stuck: StuckLoops | None = None,
    part: ShardChoice | None = None,
) -> int:
    """Start a run, or continue the one with this id; then suggest the next command. `stuck`: as in `run_stoppable`."""
    where = store or default_store()
    if run_id is None:
        _suggest_resume(given.spec, where)
    place = new_run_location(given, where, run_id)
    with naming_options(given.where, benchmarks_of(given)):
        code = _execute(given, place, overrides, stuck=stuck, part=part)
    if code in (0, 1):
        suggest_extend(given, place, overrides)
    return code


def suggest_extend(given: Given, place: RunLocation, overrides: Overrides) -> None:
    """Print the command that adds the rest of the spec to a run of a part. Not for a run that was stopped: its next
    command is `resume`, which was printed already.
    """
    part, limit = overrides.selection, given.spec.limit
    is_part = bool(part.samples) or bool(given.where and (part.tasks or part.models))
    if not is_part and (part.limit is None or limit is None):
        return
    with Run(place) as run:
        if run.status()[0] != "completed":
            return
        if not is_part and limit is not None:
            # A cell with fewer samples than the limit has all rows.
            repeats = {task.name: task.repeats for task in given.spec.tasks}
            is_part = any(cell.planned >= limit * repeats[cell.task] for cell in run.cells())
    if not is_part:
        return
    if given.where:
        options = [given.where, *set_options(overrides.sets)]
    else:
        fields = [name for name in ("limit", "samples") if getattr(given.spec, name) is not None]
        options = set_options(f"{name}=null" for name in fields)
    print_line(
        f"This run has a part of the samples. Add the rest, keeping these answers: {place.command('extend', *options)}"
    )


def resume_run(name: str, path: str | None, store: str | None, overrides: Overrides, retry: Retry) -> int:
    """Copy a run that is named by its URL in a mirror into the store first."""
    if is_url(name):
        with spinner("copying the run from its mirror") as spin:
            home = restore_into(store or default_store(), name, warn, spin.update)
        place, given = resolve_run(home.folder, path, store, overrides)
        check_mirror(given.spec.mirror, home, name)
    else:
        place, given = resolve_run(name, path, store, overrides)
    return _execute(given, place, overrides, retry)


def retry_run(name: str, store: str | None, overrides: Overrides, retry: Retry) -> int:
    """Give failed samples, all or some, new attempts; unfinished samples are answered as well."""
    place, given = resolve_run(name, None, store, overrides)
    if retry == Retry() and (unfinished := left_without_failures(place)) is not None:
        left = counted(unfinished, "unfinished sample")
        rest = f" To answer the {left}: {place.command('resume')}" if unfinished else ""
        print_line(f"{place.run_id} has no failed samples: nothing was retried.{rest}")
        return 0
    return _execute(given, place, overrides, retry)


def extend_run(name: str, path: str | None, store: str | None, overrides: Overrides) -> int:
    place, given = resolve_run(name, path, store, overrides)
    with suggesting_commands(place, given, overrides.sets, overrides.selection):
        return _run(given, lambda given, observe: extend(given, place, observe))


def fork_run(
    name: str, path: str | None, store: str | None, overrides: Overrides, run_id: str | None, dry: bool
) -> int:
    """Fork a run and execute the fork. With the --id of a fork that exists, resume it; without --id, make a new one."""
    parent, given = resolve_run(name, path, store, overrides, forked=run_id)
    place = new_run_location(given, parent.store, run_id)
    if run_id is not None and not dry and is_made_fork(parent, place, given, warn):
        write_message(f"{place.run_id} is a fork of {parent.run_id} already; resuming it")
        return _execute(given, place, overrides)
    with Run(parent) as run:
        jobs = run.jobs()
    if jobs:
        warn(f"{jobs_line(jobs)}; a fork would pay for them again; to collect them first: {parent.command('resume')}")
    asyncio.run(_fork(Fork(parent, place, given), parent.run_id, dry))
    if dry:
        return 0
    write_message(f"made the fork {place.run_id}; if it is interrupted, continue with: {place.command('resume')}")
    return _execute(given, place, overrides)


async def _fork(fork: Fork, parent: str, dry: bool) -> None:
    """Print what the fork will reuse and cost before the run exists, so that the user can still stop it."""

    def announce(forecast: Forecast) -> None:
        sent = f"sends about {counted(forecast.requests, 'request')}"
        parts = [f"reuses {counted(forecast.reused, 'step')}", sent, f"about {short(forecast.tokens)} tokens"]
        if forecast.dollars is not None:
            unpriced = counted(forecast.unpriced, "answer")
            without = f" without {unpriced} of models that have no price" if forecast.unpriced else ""
            parts.append(f"{money(forecast.dollars)}{without}")
        answered = f"{counted(forecast.complete, 'answer')} of {forecast.keys} without a new request"
        write_message(f"the fork of {parent} {', '.join(parts)}; {answered}")
        if fork.doubt:
            warn(fork.doubt)

    await make_fork(fork, announce, dry=dry)


def resolve_specs(paths: Sequence[str], options: AdHoc, overrides: Overrides) -> list[Given]:
    """Load the specs that `run` executes, from files or from the options, and print their warnings. Benchmarks are
    tasks of one run.
    """
    benchmarks = [path for path in paths if is_benchmark_name(path)]
    paths = [path for path in paths if path not in benchmarks]
    if benchmarks and paths:
        raise UsageError(
            f"{benchmarks[0]} is a benchmark, {paths[0]} a spec: run them one by one, or add the benchmark to `tasks`"
        )
    for path in paths:
        options.refuse_beside_spec(path)
    specs = [load_named(path, overrides, is_only=len(paths) == 1) for path in paths]
    if benchmarks:  # --model defines the models
        overrides = msgspec.structs.replace(
            overrides, selection=msgspec.structs.replace(overrides.selection, models=())
        )
    specs = specs or [build_given(options, overrides.sets, overrides.selection, benchmarks)]
    for given in specs:
        for doubt in find_doubts(given.spec):
            warn(given.explain(doubt))
    return specs


def _execute(
    given: Given,
    place: RunLocation,
    overrides: Overrides,
    retry: Retry | None = None,
    stuck: StuckLoops | None = None,
    part: ShardChoice | None = None,
) -> int:
    if not given.spec.record_data:
        write_message(f"record_data is off: {_WITHOUT_DATA}")
    with suggesting_commands(place, given, overrides.sets, overrides.selection):
        return _run(given, lambda given, observe: execute(given, place, observe, retry or Retry(), part), stuck)


def _run(given: Given, work: Work, stuck: StuckLoops | None = None) -> int:
    logger, handler = logging.getLogger("holdfast"), _WarningHandler(logging.WARNING)
    logger.addHandler(handler)
    supervisor = find_supervisor(given.spec.grace_seconds)
    finish = print_outcome if supervisor is None else _finish_worker
    try:
        too_early = "interrupted before any request was sent"
        return run_stoppable(partial(_execute_watched, given, work, supervisor), finish, too_early, stuck)
    finally:
        logger.removeHandler(handler)


async def _execute_watched(given: Given, work: Work, supervisor: Supervisor | None, stopper: Stopper) -> RunOutcome:
    """Show how many rows were read until the engine starts. Planning reads them several times, so there is no total."""
    rows = itertools.count(1)

    async def observe(engine: Engine, place: RunLocation) -> None:
        stopper.watch(engine, place)
        planning.end()
        # Until the engine ends and cancels it.
        await (watch(engine, place) if supervisor is None else report_to(supervisor, engine, place))

    with spinner("reading the data and planning, rows read:") as planning:
        counted = msgspec.structs.replace(given, counted=lambda: planning.update(next(rows)))
        return await work(counted, observe)


class _WarningHandler(logging.Handler):
    """Prints warnings of a run on standard error, except those that the progress line and the report have anyway."""

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", "")
        if not event.startswith(_REPORTED_ELSEWHERE):
            lead = "" if event else "warning: "
            write_message(f"{lead}{hanging(record.getMessage().removeprefix(f'{event}: '))}")


def _finish_worker(ended: RunOutcome) -> int:
    """Print only why a worker of a driver stopped: the driver reads all shards once and prints the report."""
    if ended.budget:
        write_message(f"stopped at a budget: {ended.budget}")
    for reason in ended.stopped:
        write_message(reason)
    return ended.exit_code()


def print_outcome(ended: RunOutcome) -> int:
    """Print the report, or why the run stopped and how to continue it; return the exit code."""
    if ended.interrupted:
        kept = f"answers kept: {ended.finished} of {ended.finished + ended.failed + ended.unfinished}"
        with Run(ended.place) as run:
            status, _ = run.status()
            jobs = run.jobs()
        how = status if status == "cancelled" else "interrupted"
        text = f"{how}; {kept}. Continue with: {ended.place.command('resume')}"
        if ended.budget:
            raised = suggest_resume_command(ended.place, f"budget: {ended.budget}", ended.spec.limits.run)
            text = f"stopped at a budget: {ended.budget}; {kept}. Raise it to continue: {raised}"
        # Batch jobs continue, and cost money, at the server.
        waiting = f"\n{jobs_line(jobs)}; they continue there, and the next start collects them" if jobs else ""
        sys.stderr.write(f"{text}{waiting}\n")
    else:
        if ended.complete:
            write_message(f"{ended.place.run_id} is complete: no request was sent")
        with Run(ended.place) as run:
            report = run.report()
        print_table(report_table(report, ended.place.command))
        if ended.stopped:
            write_message(f"{counted(ended.unfinished, 'sample')} left unfinished. {_next_step(ended)}")
        # `RunOutcome.exit_code` counts failed samples of the whole run. Cells and scorers have limits of their own.
        in_cell = ended.spec.fail_on_error_in_cell
        if in_cell is not None and any(is_too_many(cell.failed, cell.planned, in_cell) for cell in report.cells):
            return 1
        if have_scorers_failed(report, ended.spec):
            return 1
    return ended.exit_code()


def _next_step(ended: RunOutcome) -> str:
    """How to continue a run whose models cannot be used."""
    reason = "; ".join(ended.stopped)
    again = suggest_resume_command(ended.place, reason, ended.spec.limits.run)
    if not wrong_names(reason):
        return f"When the cause is fixed, continue with: {again}"
    return f"Continue with the right name: {again}, or with a corrected spec: {ended.place.command('resume', 'SPEC')}"


def have_scorers_failed(report: RunReport, spec: Spec) -> bool:
    """Whether scorers failed on more answers than `fail_on_error` allows."""
    broken = sum(each.failures for cell in report.cells for each in cell.scorers)
    answered = sum(cell.finished for cell in report.cells for _ in cell.scorers)
    return is_too_many(broken, answered, spec.fail_on_error)


def _suggest_resume(spec: Spec, store: str) -> None:
    """Point to an interrupted run of the same spec: the user probably wants to continue it."""
    for place in reversed(newest_runs(store, spec.experiment, _RUNS_LOOKED_AT)):
        try:
            with Run(place) as run:
                status, reason = run.status()
                is_same = status == "interrupted" and not refused_changes(
                    find_differences(stored_spec(read_story(place)[0]), spec)
                )
                again = run.suggest_resume_command(reason)
        except (HoldfastError, msgspec.ValidationError):
            continue  # a run that cannot be read is not worth suggesting
        if is_same:
            write_message(f"there is an interrupted run of this spec; to continue it: {again}")


_SUFFIXES = (".yaml", ".yml", ".json")
_INTERRUPTED = 130
_STORAGE_FAILED = 8
_DAMAGED = 5


class RunChoice(msgspec.Struct, frozen=True):
    """What the options of `run` say about each of several runs."""

    run_id: str | None
    store: str | None
    overrides: Overrides

    def id_of(self, given: Given) -> str | None:
        """The id of one of the runs: that of the command, and the name of the spec's file."""
        if self.run_id is None:
            return None
        stem, suffix = os.path.splitext(os.path.basename(given.where))
        return f"{self.run_id}-{stem if suffix in _SUFFIXES else stem + suffix}"


def run_specs(specs: Sequence[Given], choice: RunChoice) -> int:
    """Execute the runs of several specs, one after the other. Returns the exit code."""
    _check_specs(specs, choice)
    stuck: StuckLoops = []
    codes: list[int] = []
    stopped = 0
    for number, given in enumerate(specs, 1):
        if codes:
            print_line("")  # between two reports
        sys.stderr.write(f"spec {number} of {len(specs)}: {given.where}\n")
        try:
            codes.append(_run_one(given, choice, stuck))
        except KeyboardInterrupt:  # before the run could handle signals itself
            codes.append(_INTERRUPTED)
            stopped = _INTERRUPTED
        if release_signals():
            stopped = _INTERRUPTED
        elif codes[-1] == _STORAGE_FAILED:  # the next run needs the same storage
            stopped = _STORAGE_FAILED
        if stopped:
            break
    _print_summary(specs, codes, choice)
    code = next(filter(None, codes), stopped if len(codes) < len(specs) else 0)
    exit_if_stuck(stuck, code)
    return code


def _check_specs(specs: Sequence[Given], choice: RunChoice) -> None:
    """SpecError or UsageError if one of the runs could not be started, before anything is paid for."""
    names: dict[str, str] = {}
    for given in specs:
        place = new_run_location(given, choice.store or default_store(), choice.id_of(given))
        other = names.get(place.folder)
        if other is not None:
            both = f"{other} and {given.where} would both be the run {place.experiment}/{place.run_id}"
            raise UsageError(f"--id {choice.run_id}: {both}; rename a file, or run them one by one")
        names[place.folder] = given.where
        # A run that has begun, here or in its mirror, has its own copy of the data.
        may_be_in_mirror = choice.run_id is not None and given.spec.mirror is not None
        if not place.began and not may_be_in_mirror:
            with spinner(f"checking {given.where}"):
                check_startable(given)


def _run_one(given: Given, choice: RunChoice, stuck: StuckLoops) -> int:
    """Execute one run. An error is printed, and its exit code returned, so that the next run can be started."""
    try:
        return run_spec(given, choice.id_of(given), choice.store, choice.overrides, stuck)
    except DamagedError as error:
        warnings.warn(str(error), DamageWarning, stacklevel=2)
        return _DAMAGED
    except HoldfastError as error:
        return explain(error)
    except OSError as error:
        return explain_os_error(error)
    except SystemExit as error:  # interrupted before there was a run
        return error.code if isinstance(error.code, int) else 1


def _print_summary(specs: Sequence[Given], codes: Sequence[int], choice: RunChoice) -> None:
    """Print how the runs ended, and how to start those that were not."""
    failed = [f"{given.where} (exit code {code})" for given, code in zip(specs, codes, strict=False) if code]
    parts = [f"{len(codes) - len(failed)} of {len(specs)} specs done"]
    parts += [f"not done: {', '.join(failed)}"] if failed else []
    left = [given.where for given in specs[len(codes) :]]
    if left:
        again = "run the same command again"
        if choice.run_id is None:  # the same command would also start new runs of the others
            again = f"start with: {shlex.join(['holdfast', 'run', *left, *_options(choice)])}"
        parts.append(f"not started: {', '.join(left)}; {again}")
    sys.stderr.write(f"{'; '.join(parts)}\n")


def _options(choice: RunChoice) -> list[str]:
    """The options of `run` as they were typed."""
    part = choice.overrides.selection
    named = (("--sample", part.samples), ("--task", part.tasks), ("--model", part.models))
    options = itertools.chain.from_iterable((option, value) for option, values in named for value in values)
    limit = [] if part.limit is None else ["--limit", str(part.limit)]
    store = [] if choice.store is None else ["--store", choice.store]
    return [*set_options(choice.overrides.sets), *limit, *options, *store]
