"""The engine at work on an open journal, and the record of how it ended."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.api.places import RunPlace
from holdfast.api.preparing import Prepared
from holdfast.engine import Engine, Job
from holdfast.errors import JournalError
from holdfast.journal import Writer
from holdfast.records import Draft, draft
from holdfast.records.facts import RunEnded, ScoringStarted
from holdfast.score import identity
from holdfast.state import Fold

Observe = Callable[[Engine, RunPlace], Awaitable[None]]


class Ended(msgspec.Struct, frozen=True):
    """How a run stands after this process's work on it."""

    place: RunPlace
    finished: int
    failed: int
    unfinished: int
    interrupted: bool = False

    def exit_code(self, allowed: float) -> int:
        if self.interrupted:
            return 130
        total = self.finished + self.failed + self.unfinished
        limit = allowed * total if 0 < allowed < 1 else allowed
        return 1 if self.failed > limit else 0


class Undertaking(msgspec.Struct, frozen=True):
    """What there is to do, and who watches."""

    prepared: Prepared
    place: RunPlace
    uid: str
    observe: Observe | None


async def work(undertaking: Undertaking, writer: Writer, fold: Fold) -> Ended:
    """Let the engine work, and record how it ended."""
    prepared, place = undertaking.prepared, undertaking.place
    try:
        if prepared.evaluation and prepared.evaluation != fold.story.evaluation:
            told = [{"task": name, **identity(each)} for name, every in prepared.scorers.items() for each in every]
            await writer.append(draft("score.started", ScoringStarted(prepared.evaluation, told)))
        job = Job(
            run=place.folder,
            journal_folder=place.journal,
            uid=undertaking.uid,
            spec=prepared.spec,
            works=prepared.works,
            scorers=prepared.scorers,
            evaluation=prepared.evaluation,
            cells=fold.story.cells,
        )
        engine = Engine(job, writer, fold)
        watcher = asyncio.ensure_future(undertaking.observe(engine, place)) if undertaking.observe else None
        try:
            await engine.run()
        finally:
            if watcher is not None:
                watcher.cancel()
                _tell_failure(*await asyncio.gather(watcher, return_exceptions=True))
        ended = _ended(place, engine)
        await writer.append(_last_word(ended))
    except BaseException:
        await close_quietly(writer)
        raise
    await writer.close(seal_last=not ended.interrupted)
    return ended


def _tell_failure(result: object) -> None:
    """Whoever watches a run must not be able to end it."""
    if isinstance(result, Exception):
        logging.getLogger("holdfast").warning("what shows the run has failed: %r; the run is not affected", result)


def _ended(place: RunPlace, engine: Engine) -> Ended:
    progress = engine.progress
    left = progress.planned - progress.finished - progress.failed
    return Ended(place, progress.finished, progress.failed, left, interrupted=engine.stopped)


def _last_word(ended: Ended) -> Draft:
    reason = "stopped by a signal" if ended.interrupted else ""
    data = RunEnded(ended.finished, ended.failed, ended.unfinished, reason)
    return draft("run.interrupted" if ended.interrupted or ended.unfinished else "run.completed", data)


async def close_quietly(writer: Writer) -> None:
    with contextlib.suppress(JournalError):  # the first error is the one to tell
        await writer.close()
