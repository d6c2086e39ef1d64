"""What the journal holds of keys, for code that runs again on its recorded steps: in a resume, a fork, a replay.

Only places are kept in memory. The steps themselves are read when a key's turn comes; one that is no longer where it
was (its segment was voided behind us) is passed over, so it is asked again rather than mistaken for another.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from holdfast.engine.sample import Past
from holdfast.engine.scoring import Heard
from holdfast.journal import Entry, Position, Reader
from holdfast.models.batch.jobs import ServerJob
from holdfast.records.decoder import FactDecoder
from holdfast.records.facts import BatchJob, SampleFailed, SampleFinished, Step, StepStarted
from holdfast.solve import Recorded, Unsure
from holdfast.solve.steps import is_kept
from holdfast.state import Judged, OpenJob, Trail

_step = FactDecoder(Step)
_started = FactDecoder(StepStarted)
_failed = FactDecoder(SampleFailed)
_announced = FactDecoder(BatchJob)
_finished = FactDecoder(SampleFinished)


class Trace(Trail):
    """What a key has left, finished or not."""

    finished: int = 0
    """The attempt whose answer counts; 0 if there is none."""


class Last(msgspec.Struct, frozen=True):
    """The attempt at a key that counts, or the last one."""

    attempt: int
    steps: list[Recorded]
    """What it took, with what it had from earlier attempts."""
    unsure: list[Unsure]
    """Calls that must not be made twice, and may have been made in any attempt."""


class Traces:
    """The keys of a journal, or one of them, as far as it is written now."""

    def __init__(self, journal: str, only: str | None = None) -> None:
        self._reader = Reader(journal)
        self._traces: dict[str, Trace] = {}
        for each in self._reader.read(live=True):
            if isinstance(each, Entry) and each.line.k is not None and only in (None, each.line.k):
                self._note(each, self._traces.setdefault(each.line.k, Trace()))

    @property
    def uid(self) -> str:
        return self._reader.uid

    def close(self) -> None:
        self._reader.close()

    def finished(self, key: str) -> int:
        """The attempt whose answer counts; 0 if the key has none."""
        return self._traces[key].finished if key in self._traces else 0

    def past(self, key: str) -> Past:
        return read_past(self._traces.get(key, Trace()), self._record_at)

    def last_attempt(self, key: str) -> Last:
        """Finished, cut off or failed: also where its own code failed in the end, which is mended by the next code that
        gets its steps.
        """
        past = self.past(key)
        attempt = self.finished(key) or past.last()
        earlier = {number: kind for number, kind in past.failures.items() if number < attempt}
        return Last(attempt, Past(past.steps, earlier).recorded(attempt), past.unsure())

    def _record_at(self, position: Position) -> Entry | None:
        return self._reader.record_at(position.segment, position.offset)

    def _note(self, entry: Entry, trace: Trace) -> None:
        if entry.line.t in ("step", "step.started"):
            trace.steps.append(Position(entry.line.n, entry.segment, entry.offset))
        elif entry.line.t == "sample.failed":
            failed = _failed.decode(entry.line)
            trace.failures[failed.attempt] = failed.failure.kind
        elif entry.line.t == "sample.finished" and not trace.finished:
            trace.finished = _finished.decode(entry.line).attempt


def read_past(trail: Trail, record_at: Callable[[Position], Entry | None]) -> Past:
    """A key's old steps, and how its attempts ended."""
    found = ((position, record_at(position)) for position in trail.steps)
    steps: list[Recorded] = []
    begun: list[Unsure] = []
    for position, entry in found:
        if entry is None or entry.line.n != position.n:
            continue
        if entry.line.t == "step":
            steps.append(_recorded(entry))
        else:
            begun.append(Unsure(entry.line.n, _started.decode(entry.line)))
    return Past(
        tuple(each for each in steps if not each.step.scope.startswith("score/")), dict(trail.failures), tuple(begun)
    )


def read_judged(judged: Judged, record_at: Callable[[Position], Entry | None]) -> Heard:
    """What judges said of an answer whose scoring was cut off, or failed because one of them could not be asked."""
    entries = (record_at(position) for position in judged.steps)
    steps = [_recorded(entry) for entry in entries if entry is not None and entry.line.t == "step"]
    return Heard(judged.failed + 1, tuple(each for each in steps if is_kept(each.step)))


def _recorded(entry: Entry) -> Recorded:
    ended = datetime.fromisoformat(entry.line.at).timestamp()
    return Recorded(entry.line.n, _step.decode(entry.line), ended)


def read_jobs(left: Iterable[OpenJob], record_at: Callable[[Position], Entry | None]) -> list[ServerJob]:
    """Jobs of earlier processes, with their requests. One whose announcement is gone is passed over: its answers are
    asked for again.
    """
    jobs: list[ServerJob] = []
    for each in left:
        entry = record_at(each.position)
        if entry is not None:
            announced = _announced.decode(entry.line)
            at = datetime.fromisoformat(each.at).timestamp()
            jobs.append(ServerJob(each.token, announced.requests, at, each.id, collected=each.answered >= 0))
    return jobs
