"""One session of a run: the engine on an open journal, its watchdog, control requests, and the record of the end.

Every end is recorded: completed, interrupted, cancelled, failed. If that record cannot be written, the run counts as
interrupted, standard error says why, and a resume needs nothing else. A crash leaves no end record: readers derive
`interrupted` from the lock and the lease.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from holdfast.engine import Engine, Progress, RunJob, Watchdog, WatchdogOptions, sources_of
from holdfast.errors import FencedError, HoldfastError, JournalError, describe_error
from holdfast.journal import OpenRequest, Reader, Writer, WriterOptions, open_writer, read_lease, write_lease
from holdfast.printable import clean
from holdfast.records import FORMAT, GivenModel, RunEnded, ScoringStarted, draft
from holdfast.runs.control import ControlRequest, make_control_record, pending_requests, tune_spec, write_control_reply
from holdfast.runs.execution.log import EventLog
from holdfast.runs.execution.preparation import Prepared
from holdfast.runs.mirror.claim import Claimed, Watermark
from holdfast.runs.shards.ledger import open_grants
from holdfast.runs.store.lookup import RunLocation
from holdfast.runs.store.provenance import write_spec_file
from holdfast.spec import Spec
from holdfast.state import Fold

_END_SECONDS = 10.0
"""How long a stopped run waits for a full disk before it gives up recording its end."""
_REASON_MAX = 2000
Observe = Callable[[Engine, RunLocation], Awaitable[None]]


class ObservedWork(Protocol):
    """What a display shows and a signal stops: an engine, or those of several shards as one."""

    @property
    def spec(self) -> Spec: ...

    def progress_by_model(self) -> Progress: ...

    def stop(self, reason: str) -> None: ...

    def leave(self) -> None: ...

    def tell(self, event: str, message: str) -> None: ...


ObserveWork = Callable[[ObservedWork, RunLocation], Awaitable[None]]
"""An observer that only shows the work and stops it."""


class RunOutcome(msgspec.Struct, frozen=True):
    """The state of a run at the end of a session, and the spec in force."""

    place: RunLocation
    spec: Spec
    finished: int
    failed: int
    unfinished: int
    interrupted: bool = False
    complete: bool = False
    """The run was already complete; no session was needed."""
    budget: str = ""
    """A sentence about the run limit that was reached; empty if none was."""
    stopped: tuple[str, ...] = ()
    """Why cells were stopped: their models cannot be used."""

    def exit_code(self) -> int:
        if self.budget:
            return 6
        if self.interrupted:
            return 130
        if self.stopped:
            return 1
        total = self.finished + self.failed + self.unfinished
        return 1 if is_too_many(self.failed, total, self.spec.fail_on_error) else 0


def is_too_many(failed: int, total: int, allowed: float) -> bool:
    """`allowed`: a fraction of `total` if it is below 1, else a count."""
    return failed / max(total, 1) > allowed if 0 < allowed < 1 else failed > allowed


class RunSession(msgspec.Struct, frozen=True):
    """What to run, the open journal and log, and the observer."""

    prepared: Prepared
    place: RunLocation
    uid: str
    observe: Observe | None
    writer: Writer
    logbook: EventLog
    began: float = msgspec.field(default_factory=time.time)
    handled: set[str] = msgspec.field(default_factory=set)
    """Paths of control requests that were executed: one whose reply could not be written is not executed twice."""


async def open_journal(place: RunLocation, uid: str, claimed: Claimed, format: int = FORMAT) -> tuple[Writer, EventLog]:
    """Open the journal of a claimed run. Its problems are written to the run's log."""
    logbook = EventLog(place.folder, place.run_id)
    mirroring = claimed.mirroring
    try:
        for line in claimed.messages:
            logbook.tell("mirror.recovered", line)
        # The newer watermark of the local lease and the mirror's heartbeat. Opening compares the epoch, so a watermark
        # of another journal does no harm.
        watermark, lease = claimed.watermark, await asyncio.to_thread(read_lease, place.folder)
        if lease is not None and lease.epoch >= watermark.epoch:
            mirrored = watermark.n if lease.epoch == watermark.epoch else 0
            watermark = Watermark(max(lease.durable_n, mirrored), lease.epoch)
        request = OpenRequest(uid, format=format)
        if watermark.n:
            request = msgspec.structs.replace(request, acknowledged_n=watermark.n, acknowledged_epoch=watermark.epoch)
        if mirroring is not None:
            request = msgspec.structs.replace(request, epoch=mirroring.epoch)
        options = WriterOptions(tell=logbook.tell, mirror=mirroring)
        return await open_writer(place.folder, request, options, claimed.lock), logbook
    except BaseException:
        logbook.close()
        raise


async def run_session(session: RunSession, fold: Fold) -> RunOutcome:
    """Run the engine, and record how the session ended."""
    place, writer, logbook = session.place, session.writer, session.logbook
    spec = session.prepared.spec
    outcome = RunOutcome(session.place, spec, fold.finished.count, fold.failed.count, fold.unfinished)
    try:
        engine = await engine_for(session, fold)
        later = {each.at: "run.resumed" for each in fold.story.resumes}
        later |= {each.at: "run.extended" for each in fold.story.extensions}
        event = later[max(later)] if later else "run.started"
        logbook.tell(event, f"{fold.finished.count} of {fold.planned} are finished")
        try:
            await _run_watched(session, engine, fold)
        finally:
            progress = engine.progress
            left = progress.planned - progress.finished - progress.failed
            stopped = tuple(dict.fromkeys(engine.stopped_cells.values())) if left else ()
            counts = (progress.finished, progress.failed, left)
            outcome = RunOutcome(
                place, engine.spec, *counts, interrupted=engine.stopped, budget=engine.over_budget, stopped=stopped
            )
        await _record_end(session, engine, outcome)
    except Exception as error:
        await _record_failure(session, outcome, error)
        await close_quietly(writer)
        raise
    except asyncio.CancelledError:
        # Record that the calling program cancelled the run: Ctrl-C in a script or a notebook, or a timeout.
        why = "cancelled by the program that called it"
        with contextlib.suppress(JournalError):
            data = _make_end(session, outcome, why)
            await session.writer.append(draft("run.interrupted", data))
            _note_end_in_lease(session, "run.interrupted")
            session.logbook.tell("run.interrupted", why)
        await close_quietly(writer)
        raise
    except BaseException:
        await close_quietly(writer)
        raise
    finally:
        logbook.close()
    if outcome.interrupted:
        await close_quietly(writer)  # a user who stops a run on a full disk has been informed of what is not saved
    else:
        await writer.close(seal_last=True)
    return outcome


async def close_quietly(writer: Writer, logbook: EventLog | None = None) -> None:
    """Close without raising, after an error that is to be reported instead."""
    with contextlib.suppress(JournalError):
        await writer.close()
    if logbook is not None:
        logbook.close()


class ScoringStart(msgspec.Struct, frozen=True):
    """How `score` starts or continues an evaluation; see `ScoringStarted`."""

    name: str = ""
    part: str = ""
    roles: Mapping[str, GivenModel] = {}


async def engine_for(session: RunSession, fold: Fold, start: ScoringStart | None = None) -> Engine:
    """Make the engine. Records `score.started` if its scores belong to a new evaluation, or to one with a new name, a
    new part or new scales. `start`: only score, send nothing to the evaluated models.
    """
    prepared, place, writer = session.prepared, session.place, session.writer
    story, evaluation, scoring = fold.story, fold.evaluation, start or ScoringStart()
    before = story.evaluations.get(evaluation)
    is_new = evaluation != story.evaluation
    if scoring.part:  # it does not become the current evaluation
        is_new = before is None or scoring.part not in story.partial.get(evaluation, [scoring.part])
    scorers = prepared.scorer_identities()
    started = ScoringStarted(evaluation, scorers, name=scoring.name, part=scoring.part, roles=dict(scoring.roles))
    if evaluation and (is_new or scoring.name or prepared.declares_other_scales(before)):
        await writer.append(draft("score.started", started))
    grants = None
    if place.shard and not prepared.apart:

        def is_owner() -> bool:
            return not writer.lost and (writer.may_send is None or writer.may_send())

        grants = await asyncio.to_thread(open_grants, place, session.uid, prepared.spec, writer.epoch, is_owner)
    given = {**(before.roles if before is not None else {}), **started.roles}
    named = msgspec.structs.replace(started, roles=given)
    job = RunJob(
        run=place.folder,
        journal_folder=place.journal,
        uid=session.uid,
        spec=prepared.spec,
        works=prepared.works,
        scorers=prepared.scorers,
        evaluation=evaluation,
        cells=story.cells,
        tell=session.logbook.tell,
        answers=start is None,
        sources=sources_of(story, evaluation, scorers) if fold.unscored else {},
        given={role: named.bill_name(role) for role in given if role in prepared.spec.roles},
        grants=grants,
    )
    return Engine(job, writer, fold)


async def run_observed(session: RunSession, engine: Engine) -> None:
    """Run the engine and, beside it, the observer."""
    watcher = asyncio.ensure_future(session.observe(engine, session.place)) if session.observe else None
    try:
        await engine.run()
    finally:
        if watcher is not None:
            await end_observer(watcher)


async def end_observer(watcher: "asyncio.Future[None]") -> None:
    watcher.cancel()
    (result,) = await asyncio.gather(watcher, return_exceptions=True)
    if isinstance(result, Exception):  # an error of the observer must not end the run
        warn = logging.getLogger("holdfast").warning
        warn("the progress display failed: %r; the run is not affected", result)


async def _run_watched(session: RunSession, engine: Engine, fold: Fold) -> None:
    """Run the engine under the watchdog, which writes the lease and executes control requests."""
    place = session.place
    orders = WatchdogOptions(
        run=place.folder,
        epoch=session.writer.epoch,
        acknowledged=lambda: session.writer.acknowledged.n,
        mirrored=session.writer.mirrored,
        commits=lambda: session.writer.commits,
        lost=lambda: session.writer.lost,
        lock_inode=session.writer.lock_inode,
        disk_wait=lambda: session.writer.disk_wait,
        tell=session.logbook.tell,
        execute_requests=lambda: _execute_requests(session, engine, fold),
    )
    watch = Watchdog(engine, orders)
    watch.start()
    try:
        await run_observed(session, engine)
    finally:
        with contextlib.suppress(JournalError):
            await _execute_requests(session, engine, fold)  # those that came after the last heartbeat
        await watch.end()


async def _execute_requests(session: RunSession, engine: Engine, fold: Fold) -> None:
    """Execute pending control requests. Invalid ones are rejected with a reply."""
    folder, began = session.place.folder, session.began
    for path, request in await asyncio.to_thread(lambda: list(pending_requests(folder, began))):
        if path in session.handled:
            continue  # executed before, but its reply could not be written
        session.handled.add(path)
        try:
            if request is None:
                done, sentence = False, "it cannot be read"
            else:
                done, sentence = await _execute_request(request, session, engine, fold)
        except JournalError:
            raise
        except (HoldfastError, OSError, ValueError) as error:
            done, sentence = False, str(error)
        # shielded: a request that was executed must get its reply, even if the run is cancelled now
        await asyncio.shield(asyncio.to_thread(write_control_reply, path, done, sentence))
        if request is not None and request.do == "cancel":
            engine.stop("by `holdfast cancel`", cancelled=True)


async def _execute_request(
    request: ControlRequest, session: RunSession, engine: Engine, fold: Fold
) -> tuple[bool, str]:
    if request.do == "cancel":
        session.logbook.tell("run.shutdown_requested", "by `holdfast cancel`")
        return True, "the run stops"
    if request.do == "tune":
        spec, record = await asyncio.to_thread(tune_spec, fold.story, request.sets)
        await session.writer.append(record)
        # Read the story of the live run again, with the record that was just appended.
        records = Reader(session.place.journal).read(live=True)
        fold.story = (await asyncio.to_thread(Fold().read, records)).story
        await asyncio.to_thread(write_spec_file, session.place, fold.story)
        engine.tune(spec)
        session.logbook.tell("run.tuned", ", ".join(request.sets))
        return True, "done"
    if request.do in {"note", "tag", "score"}:
        await session.writer.append(make_control_record(request))
        return True, "done"
    return False, f"this version of Holdfast does not know {request.do!r}"


async def _record_end(session: RunSession, engine: Engine, ended: RunOutcome) -> None:
    """Append the end record. `run.failed` means that the models of the open cells cannot be used."""
    reason = engine.reason or "; ".join(ended.stopped)
    data = _make_end(session, ended, reason)
    kind = "run.completed"
    if ended.stopped and not ended.interrupted:
        kind = "run.failed"
    elif ended.interrupted or ended.unfinished:
        kind = "run.cancelled" if engine.cancelled else "run.interrupted"
    counts = f"{ended.finished} finished, {ended.failed} failed, {ended.unfinished} unfinished"
    try:
        async with asyncio.timeout(_END_SECONDS if engine.stopped else None):
            await session.writer.append(draft(kind, data))
    except TimeoutError:  # the writer waits for space on a full disk; a user who stops the run does not
        _report_unwritten(session, "the disk is full", reason)
        return
    _note_end_in_lease(session, kind)
    session.logbook.tell(kind, f"{counts}; {reason}" if reason else counts)


def _make_end(session: RunSession, outcome: RunOutcome, reason: str) -> RunEnded:
    return RunEnded(outcome.finished, outcome.failed, outcome.unfinished, reason[:_REASON_MAX], session.writer.commits)


def _note_end_in_lease(session: RunSession, kind: str) -> None:
    """Note the end in the lease, for readers that see the lease (here or in the mirror) but not the journal."""
    lease, writer = read_lease(session.place.folder), session.writer
    if lease is not None and lease.epoch == writer.epoch and not writer.lost:
        write_lease(session.place.folder, msgspec.structs.replace(lease, end=kind, last_n=writer.acknowledged.n))


async def _record_failure(session: RunSession, outcome: RunOutcome, error: Exception) -> None:
    """Record an error that is not one of a sample: of the journal, or a bug."""
    message = describe_error(error)
    data = _make_end(session, outcome, message)
    try:
        await session.writer.append(draft("run.failed", data))
        _note_end_in_lease(session, "run.failed")
        session.logbook.tell("run.failed", message)
    except FencedError:
        pass  # another process has taken the run over, and records the end
    except JournalError as unwritable:
        if "holdfast resume" not in message:  # else the error itself has the command to continue
            _report_unwritten(session, str(unwritable), message)


def _report_unwritten(session: RunSession, why: str, reason: str) -> None:
    session.logbook.tell("run.status_write_failed", f"{why}; the run ended because of: {reason}")
    sentence = f"how the run ended could not be recorded ({why}); it counts as interrupted"
    sys.stderr.write(clean(f"{sentence}: continue with `{session.place.command('resume')}`\n"))
