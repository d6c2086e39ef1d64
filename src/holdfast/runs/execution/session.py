"""The engine at work on an open journal, under watch, and the record of how it ended.

Every end is recorded: completed, interrupted, cancelled, failed. If that record cannot be written, the run counts as
interrupted, standard error says why, and a resume needs nothing else.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.engine import Engine, Job, Orders, Watch
from holdfast.engine.earlier_scores import sources_of
from holdfast.errors import FencedError, HoldfastError, JournalError, told
from holdfast.journal import Options, Reader, Request, Writer, open_writer
from holdfast.journal.ownership.lease import read_lease, write_lease
from holdfast.printable import clean
from holdfast.records import draft
from holdfast.records.facts import RunEnded, ScoringStarted
from holdfast.runs.control import Wish, answer_wish, record_of, tuned, wishes
from holdfast.runs.execution.log import Logbook
from holdfast.runs.execution.preparation import Prepared
from holdfast.runs.execution.provenance import write_spec_file
from holdfast.runs.mirror.claim import Claimed, Known
from holdfast.runs.store.lookup import RunPlace
from holdfast.spec import Spec
from holdfast.state import Fold, Story

_LAST_WORD_SECONDS = 10.0
_REASON_MAX = 2000
Observe = Callable[[Engine, RunPlace], Awaitable[None]]


class Ended(msgspec.Struct, frozen=True):
    """How a run stands after this process's work on it, and the spec that was in force at the end."""

    place: RunPlace
    spec: Spec
    finished: int
    failed: int
    unfinished: int
    interrupted: bool = False
    complete: bool = False
    """There was nothing to do."""
    budget: str = ""
    """Which limit of the run was reached, in a sentence."""
    stopped: tuple[str, ...] = ()
    """Why cells were stopped whose model cannot be asked."""

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
    """`allowed` is a share if it is below 1, else a number."""
    return failed / max(total, 1) > allowed if 0 < allowed < 1 else failed > allowed


class Undertaking(msgspec.Struct, frozen=True):
    """What there is to do, where it is recorded, and who looks on."""

    prepared: Prepared
    place: RunPlace
    uid: str
    observe: Observe | None
    writer: Writer
    logbook: Logbook
    began: float = msgspec.field(default_factory=time.time)
    met: set[str] = msgspec.field(default_factory=set)
    """Wishes that were met."""


async def open_journal(place: RunPlace, uid: str, claimed: Claimed) -> tuple[Writer, Logbook]:
    """The journal, ours, with its troubles told to the run's log."""
    logbook = Logbook(place.folder, place.run_id)
    mirroring = claimed.mirroring
    try:
        for line in claimed.news:
            logbook.tell("mirror.recovered", line)
        request = await asyncio.to_thread(_request, place, uid, claimed.known)
        if mirroring is not None:
            request = msgspec.structs.replace(request, epoch=mirroring.epoch)
        options = Options(tell=logbook.tell, mirror=mirroring)
        return await open_writer(place.folder, request, options, claimed.lock), logbook
    except BaseException:
        logbook.close()
        raise


def _request(place: RunPlace, uid: str, known: Known) -> Request:
    """With what was last known to be durable, by the lease here or the beat there, if it is this journal's: opening
    looks at the epoch.
    """
    lease = read_lease(place.folder)
    if lease is not None and lease.epoch >= known.epoch:
        known = Known(max(lease.acknowledged, known.n if lease.epoch == known.epoch else 0), lease.epoch)
    return Request(uid, acknowledged_n=known.n, acknowledged_epoch=known.epoch) if known.n else Request(uid)


async def work(undertaking: Undertaking, fold: Fold) -> Ended:
    """Let the engine work, and record how it ended."""
    place, writer, logbook = undertaking.place, undertaking.writer, undertaking.logbook
    stand = _standing_of(undertaking, fold)
    try:
        engine = await engine_for(undertaking, fold)
        logbook.tell(_beginning(fold.story), f"{fold.finished.count} of {fold.planned} are finished")
        try:
            await _watched(undertaking, engine, fold)
        finally:
            stand = _ended(place, engine)
        await _record_end(undertaking, engine, stand)
    except Exception as error:
        await _record_failure(undertaking, stand, error)
        await close_quietly(writer)
        raise
    except asyncio.CancelledError:
        await _record_cancellation(undertaking, stand)
        await close_quietly(writer)
        raise
    except BaseException:
        await close_quietly(writer)
        raise
    finally:
        logbook.close()
    if stand.interrupted:
        await close_quietly(writer)  # whoever stops a run that waits for a full disk knows what is not saved
    else:
        await writer.close(seal_last=True)
    return stand


def _beginning(story: Story) -> str:
    """What this process began with."""
    later = {each.at: "run.resumed" for each in story.resumes} | {each.at: "run.extended" for each in story.extensions}
    return later[max(later)] if later else "run.started"


async def close_quietly(writer: Writer, logbook: Logbook | None = None) -> None:
    """After an error, which is the one to report."""
    with contextlib.suppress(JournalError):
        await writer.close()
    if logbook is not None:
        logbook.close()


async def engine_for(undertaking: Undertaking, fold: Fold, name: str = "", *, answers: bool = True) -> Engine:
    """An engine, and the record of the evaluation that its scores belong to, if it is another than before."""
    prepared, place, writer = undertaking.prepared, undertaking.place, undertaking.writer
    scorers, evaluation = prepared.scorer_identities(), fold.evaluation
    if evaluation and (evaluation != fold.story.evaluation or name):
        await writer.append(draft("score.started", ScoringStarted(evaluation, scorers, name=name)))
    job = Job(
        run=place.folder,
        journal_folder=place.journal,
        uid=undertaking.uid,
        spec=prepared.spec,
        works=prepared.works,
        scorers=prepared.scorers,
        evaluation=evaluation,
        cells=fold.story.cells,
        tell=undertaking.logbook.tell,
        answers=answers,
        sources=sources_of(fold.story, evaluation, scorers) if fold.unscored else {},
    )
    return Engine(job, writer, fold)


async def observed(undertaking: Undertaking, engine: Engine) -> None:
    """Let the engine work, and whoever looks on look."""
    watcher = asyncio.ensure_future(undertaking.observe(engine, undertaking.place)) if undertaking.observe else None
    try:
        await engine.run()
    finally:
        if watcher is not None:
            watcher.cancel()
            _tell_failure(*await asyncio.gather(watcher, return_exceptions=True))


async def _watched(undertaking: Undertaking, engine: Engine, fold: Fold) -> None:
    place = undertaking.place
    orders = Orders(
        run=place.folder,
        epoch=undertaking.writer.epoch,
        acknowledged=lambda: undertaking.writer.acknowledged.n,
        mirrored=undertaking.writer.mirrored,
        commits=lambda: undertaking.writer.commits,
        lost=lambda: undertaking.writer.lost,
        lock_inode=undertaking.writer.lock_inode,
        disk_wait=lambda: undertaking.writer.disk_wait,
        tell=undertaking.logbook.tell,
        obey=lambda: _obey(undertaking, engine, fold),
    )
    watch = Watch(engine, orders)
    watch.start()
    try:
        await observed(undertaking, engine)
    finally:
        with contextlib.suppress(JournalError):
            await _obey(undertaking, engine, fold)  # what came too late for the last beat
        await watch.end()


async def _obey(undertaking: Undertaking, engine: Engine, fold: Fold) -> None:
    """What others ask of this run. A wish that cannot be met is answered, and nothing else happens."""
    for path, wish in await asyncio.to_thread(lambda: list(wishes(undertaking.place.folder, undertaking.began))):
        if path in undertaking.met:
            continue  # its answer could not be written
        undertaking.met.add(path)
        try:
            done, sentence = await _meet(wish, undertaking, engine, fold) if wish else (False, "it cannot be read")
        except JournalError:
            raise
        except (HoldfastError, OSError, ValueError) as error:
            done, sentence = False, str(error)
        await asyncio.shield(asyncio.to_thread(answer_wish, path, done, sentence))
        if wish is not None and wish.do == "cancel":
            engine.stop("by `holdfast cancel`", cancelled=True)


async def _meet(wish: Wish, undertaking: Undertaking, engine: Engine, fold: Fold) -> tuple[bool, str]:
    if wish.do == "cancel":
        undertaking.logbook.tell("run.shutdown_requested", "by `holdfast cancel`")
        return True, "the run stops"
    if wish.do == "tune":
        spec, record = await asyncio.to_thread(tuned, fold.story, wish.sets)
        await undertaking.writer.append(record)
        await asyncio.to_thread(_catch_up, undertaking.place, fold)
        await asyncio.to_thread(write_spec_file, undertaking.place, fold.story)
        engine.tune(spec)
        undertaking.logbook.tell("run.tuned", ", ".join(wish.sets))
        return True, "done"
    if wish.do in {"note", "tag", "score"}:
        await undertaking.writer.append(record_of(wish))
        return True, "done"
    return False, f"this version of Holdfast does not know {wish.do!r}"


def _catch_up(place: RunPlace, fold: Fold) -> None:
    """The story of the live run, with the record that was just written."""
    fold.story = Fold().read(Reader(place.journal).read(live=True)).story


async def _record_end(undertaking: Undertaking, engine: Engine, ended: Ended) -> None:
    reason = engine.reason or "; ".join(ended.stopped)
    data = _end_of(undertaking, ended, reason)
    kind = "run.completed"
    if ended.stopped and not ended.interrupted:
        kind = "run.failed"
    elif ended.interrupted or ended.unfinished:
        kind = "run.cancelled" if engine.cancelled else "run.interrupted"
    counts = f"{ended.finished} finished, {ended.failed} failed, {ended.unfinished} unfinished"
    try:
        async with asyncio.timeout(_LAST_WORD_SECONDS if engine.stopped else None):
            await undertaking.writer.append(draft(kind, data))
    except TimeoutError:  # a full disk is waited for, but not by someone who wants to stop
        _tell_unwritten(undertaking, "the disk takes no more", reason)
        return
    _leave_word(undertaking, kind)
    undertaking.logbook.tell(kind, f"{counts}; {reason}" if reason else counts)


def _end_of(undertaking: Undertaking, stand: Ended, reason: str) -> RunEnded:
    return RunEnded(stand.finished, stand.failed, stand.unfinished, reason[:_REASON_MAX], undertaking.writer.commits)


def _leave_word(undertaking: Undertaking, kind: str) -> None:
    """How the run ended, for whoever sees its lease, here or in the mirror, and not its journal."""
    lease, writer = read_lease(undertaking.place.folder), undertaking.writer
    if lease is not None and lease.epoch == writer.epoch and not writer.lost:
        write_lease(undertaking.place.folder, msgspec.structs.replace(lease, end=kind))


async def _record_cancellation(undertaking: Undertaking, stand: Ended) -> None:
    """Whoever called us from Python wants no more of it: Ctrl-C in a script or a notebook, a time limit."""
    why = "cancelled by the program that called it"
    with contextlib.suppress(JournalError):
        data = _end_of(undertaking, stand, why)
        await undertaking.writer.append(draft("run.interrupted", data))
        _leave_word(undertaking, "run.interrupted")
        undertaking.logbook.tell("run.interrupted", why)


async def _record_failure(undertaking: Undertaking, stand: Ended, error: Exception) -> None:
    """The run ends by an error that is no sample's: of the journal, or ours."""
    said = told(error)
    data = _end_of(undertaking, stand, said)
    try:
        await undertaking.writer.append(draft("run.failed", data))
        _leave_word(undertaking, "run.failed")
        undertaking.logbook.tell("run.failed", said)
    except FencedError:
        pass  # it goes on elsewhere, and how it ends is recorded there
    except JournalError as unwritable:
        if "holdfast resume" not in said:  # else the error itself says how to continue
            _tell_unwritten(undertaking, str(unwritable), said)


def _tell_unwritten(undertaking: Undertaking, why: str, said: str) -> None:
    undertaking.logbook.tell("run.status_write_failed", f"{why}; because of {said}")
    sentence = f"how the run ended could not be recorded ({why}); it counts as interrupted"
    sys.stderr.write(clean(f"{sentence}: go on with `{undertaking.place.command('resume')}`\n"))


def _tell_failure(result: object) -> None:
    """Whoever looks on must not be able to end a run."""
    if isinstance(result, Exception):
        logging.getLogger("holdfast").warning("what shows the run has failed: %r; the run is not affected", result)


def _standing_of(undertaking: Undertaking, fold: Fold) -> Ended:
    """Before the engine has done anything."""
    spec = undertaking.prepared.spec
    return Ended(undertaking.place, spec, fold.finished.count, fold.failed.count, fold.unfinished)


def _ended(place: RunPlace, engine: Engine) -> Ended:
    progress = engine.progress
    left = progress.planned - progress.finished - progress.failed
    stopped = tuple(dict.fromkeys(engine.stopped_cells.values())) if left else ()
    counts = (progress.finished, progress.failed, left)
    return Ended(place, engine.spec, *counts, interrupted=engine.stopped, budget=engine.over_budget, stopped=stopped)
