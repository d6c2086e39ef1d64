"""Starts or resumes the run of a spec. Every command and API call that runs something goes through `execute`.

Order of a first start, and what a crash leaves behind at each step:

1. Check everything that can be refused. Nothing exists yet, except temporary files without names.
2. Write and sync the folder, the data and the plan. A crash leaves a folder without a run; the same command restarts.
3. Append `run.started`. From here on the run exists.
4. Write started.jsonl and spec.yaml, which are copies. The next start writes them if they are missing.

A later start with the same id reads the journal, refuses drift, and continues (`resume.py`).

Callers without an event loop get one here (`run_in_loop`), and so does synchronous code (`run_blocking`).
"""

import asyncio
import contextvars
import functools
import importlib
import logging
import os
import shlex
import threading
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from holdfast.datasets import ending_downloads
from holdfast.errors import DamagedError, DriftError, error_of_path, storage_errors
from holdfast.journal import OS_DISK, Writer, make_run_folder
from holdfast.plan import ComparedRows, PlanDraft, WrittenPlan, draft_plan, inputs_of, write_plan
from holdfast.records import FORMAT, FORMAT_MAX, Parent, RunStarted, draft
from holdfast.runs.estimate import estimate
from holdfast.runs.execution.drift import Retry
from holdfast.runs.execution.log import EventLog
from holdfast.runs.execution.preparation import Given, Prepared, check_experiment, prefix_errors, refuse_missing_keys
from holdfast.runs.execution.resume import Reading, Resumption, read_and_prepare
from holdfast.runs.execution.session import Observe, RunOutcome, RunSession, close_quietly, open_journal, run_session
from holdfast.runs.mirror.claim import claim_run, restore_from_mirror
from holdfast.runs.store.damage import find_missing_start, require_started
from holdfast.runs.store.lookup import RunLocation, make_run_id, run_location
from holdfast.runs.store.provenance import collect_versions, describe_host, write_spec_file
from holdfast.runs.store.trust import executed_by, remember
from holdfast.spec import spec_mapping
from holdfast.version import __version__

_ALL = Retry()
_POLL_SECONDS = 0.25


async def execute(
    given: Given,
    place: RunLocation,
    observe: Observe | None = None,
    retry: Retry = _ALL,
) -> RunOutcome:
    """Start or resume the run of a spec. A run that is only in the mirror is restored first."""
    with storage_errors(place.folder), ending_downloads():
        warn = logging.getLogger("holdfast").warning
        await asyncio.to_thread(restore_from_mirror, given.spec.mirror, place, warn)
        prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
        if reading.fold.story.started is not None:
            await asyncio.to_thread(trust_run, reading, prepared)
            return await Resumption(prepared, reading, given, retry).resume(observe)
        with prefix_errors(given):
            refuse_missing_keys(prepared.spec)
            drafted = await asyncio.to_thread(draft_plan, place.folder, prepared.spec, prepared.works)
        try:
            with prefix_errors(given):
                warnings = await asyncio.to_thread(_find_low_limits, prepared)
            for line in warnings:  # before anything is paid
                warn(line)
            return await _begin(prepared, place, observe, given, drafted)
        finally:
            if drafted is not None:
                drafted.close()


def _find_low_limits(prepared: Prepared) -> list[str]:
    """A sentence for each limit of the run that it may reach."""
    limits = prepared.spec.limits.run
    if limits.cost_usd is None and limits.tokens is None and limits.requests is None:
        return []
    return list(estimate(prepared.spec, prepared.works, {}).over())


async def extend(given: Given, place: RunLocation, observe: Observe | None = None) -> RunOutcome:
    """Add keys to the plan of a run, and resume it."""
    with storage_errors(place.folder), ending_downloads():
        prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
        require_started(place, reading.fold)
        await asyncio.to_thread(trust_run, reading, prepared)
        return await Resumption(prepared, reading, given, _ALL).extend(observe)


def trust_run(reading: Reading, prepared: Prepared) -> None:
    """Trust the run: a spec that the user gives is trusted, so later commands on the run need no `--trust`."""
    started = reading.fold.story.started
    sources = (started.source, started.included) if started is not None else ("",)
    remember(reading.uid, executed_by(prepared.spec, *sources))


def new_run_location(given: Given, store: str, run_id: str | None = None) -> RunLocation:
    """The location of the run with this id; without an id, of a new run. DriftError if the user did not name the
    experiment, and the id is that of a run in another one: continuing it with something else would mix the two.
    """
    with prefix_errors(given):
        check_experiment(given.spec)
    place = run_location(store, given.spec.experiment, make_run_id() if run_id is None else run_id)
    others = [] if given.names_experiment or run_id is None or place.began else place.experiments_with_id()
    if others:
        other, own = f"{others[0]}/{run_id}", f"{place.experiment}/{run_id}"
        raise DriftError(
            f"the id {run_id} is that of the run {other}, and this would be another run, {own}; choose another --id, "
            f"or name the experiment to keep both: --set experiment={shlex.quote(place.experiment)}",
            run_id=place.run_id,
        )
    return place


async def _begin(
    prepared: Prepared, place: RunLocation, observe: Observe | None, given: Given, drafted: PlanDraft | None
) -> RunOutcome:
    """Start a run: claim, plan, `run.started`, then the session. See the module docstring for the order."""
    begun = await begin_journal(prepared, place, given, drafted)
    if isinstance(begun, Reading):  # another process started it while this one was preparing
        return await Resumption(prepared, begun, given, _ALL).resume(observe)
    session = RunSession(prepared, place, begun.reading.uid, observe, begun.writer, begun.logbook)
    return await run_session(session, begun.reading.fold)


class BegunRun(msgspec.Struct, frozen=True):
    """A run whose `run.started` was just recorded, and its open journal."""

    reading: Reading
    writer: Writer
    logbook: EventLog


class JournalStart(msgspec.Struct, frozen=True):
    """How the root journal of a sharded run, or the journal of a shard, begins differently."""

    uid: str = ""
    """By default a new one."""
    shards: int = 0
    versions: Callable[[], dict[str, str]] = collect_versions
    """Returns those of the code that answers."""


_ORDINARY = JournalStart()


async def begin_journal(
    prepared: Prepared,
    place: RunLocation,
    given: Given,
    plan: PlanDraft | Callable[[], WrittenPlan] | None,
    start: JournalStart = _ORDINARY,
) -> BegunRun | Reading:
    """Claim a new run, write its plan, and record `run.started`. If another process has just done so: what it recorded.
    `plan`: a draft, a function that writes the plan, or None to plan the spec.
    """
    drafted = plan if isinstance(plan, PlanDraft) else None
    try:
        await asyncio.to_thread(make_run_folder, OS_DISK, place.folder)
        claimed = await asyncio.to_thread(claim_run, prepared.spec.mirror, place)
    except OSError as error:
        problem = f"{place.folder} cannot be written: {error.strerror}; choose another store"
        raise error_of_path(error, problem) from error
    try:
        reading = await asyncio.to_thread(Reading, place, prepared.evaluation, prepared.scorer_identities())
        if reading.fold.story.started is not None:
            await asyncio.to_thread(claimed.release)
            return reading
        # A new start would mix or repeat the answers of a journal that lost its `run.started`.
        fold = reading.fold
        problem = find_missing_start(place, fold.story, fold.damage, fold.finished.count + fold.failed.count)
        if problem:
            raise DamagedError(f"{problem}, or start a run with another id")
        uid = reading.uid or start.uid or uuid.uuid4().hex
        planning = functools.partial(write_plan, place.folder, prepared.spec, prepared.works, draft=drafted)
        planned = await asyncio.to_thread(planning if plan is None or isinstance(plan, PlanDraft) else plan)
    except BaseException:
        claimed.release()
        raise
    writer, logbook = await open_journal(place, uid, claimed, FORMAT_MAX if start.shards else FORMAT)
    try:
        code = await asyncio.to_thread(start.versions)  # runs git
        record = await asyncio.to_thread(make_started_record, prepared, place, planned, given, code)
        if start.shards:
            record = msgspec.structs.replace(record, shards=start.shards)
        # trusted first: a crash before the record leaves an entry for a run that never was, which harms nothing
        await asyncio.to_thread(remember, uid, executed_by(prepared.spec, record.source, record.included))
        await writer.append(draft("run.started", record))
        await asyncio.to_thread(reading.catch_up)
        await asyncio.to_thread(reading.write_start)
        await asyncio.to_thread(write_spec_file, place, reading.fold.story)
        if drafted is not None:
            compared = ComparedRows(place.folder, uid, reading.fold.story.blocks)
            await asyncio.to_thread(drafted.remember_rows, compared, planned.cells)
    except BaseException:
        await close_quietly(writer, logbook)
        raise
    return BegunRun(reading, writer, logbook)


def make_started_record(
    prepared: Prepared,
    place: RunLocation,
    planned: WrittenPlan,
    given: Given,
    code: dict[str, str],
    parent: Parent | None = None,
) -> RunStarted:
    return RunStarted(
        run_id=place.run_id,
        spec=spec_mapping(prepared.spec),
        plan=planned.plan,
        data=planned.data,
        cells=planned.cells,
        code=code,
        host=describe_host(),
        version=__version__,
        source=os.path.abspath(given.where) if given.where else "",
        included=tuple(given.included),
        inputs=inputs_of(prepared.works),
        parent=parent,
    )


T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The event loop of a run: uvloop, if it is installed (the extra `fast`), else asyncio's own.

    Over HTTP a run on uvloop takes about a fifth less CPU. Nothing else depends on the loop.
    """
    try:
        fast = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = fast.new_event_loop()
    return loop


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in a `new_event_loop`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run async work for synchronous code; also inside a running event loop, such as a notebook's."""
    return _run_in_thread(work) if _is_inside_loop() else run_in_loop(work())


def _is_inside_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_in_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run in an event loop of its own in another thread, while the caller's loop is blocked.

    Ctrl-C arrives in this thread. The run is cancelled and saves its state before the interrupt reaches the caller.
    """
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []
    result: list[T] = []
    errors: list[BaseException] = []

    async def register_and_work() -> T:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work()

    def call() -> None:
        try:
            result.append(run_in_loop(register_and_work()))
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller's thread
            errors.append(error)

    context = contextvars.copy_context()  # a notebook's display finds its cell through context variables
    thread = threading.Thread(target=context.run, args=(call,), name="holdfast-run")
    thread.start()
    task_here = asyncio.current_task()
    try:
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            # `asyncio.run` turns Ctrl-C into a cancellation of the caller's task. It cannot be delivered while this
            # function blocks the event loop, so it is polled for.
            if task_here is not None and task_here.cancelling():
                raise asyncio.CancelledError
    except BaseException:
        for loop, task in running:
            if task is not None and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if errors:
        raise errors[0]
    return result[0]
