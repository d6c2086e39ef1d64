"""Reads recorded steps back from the journal, for code that runs again: in a resume, a fork, a replay.

Only positions are kept in memory; the steps are read when a key is processed. A step that is no longer at its position
(its segment was voided meanwhile) is skipped: the request is then sent again, which is better than a wrong response.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from holdfast.engine.sample import KeyHistory
from holdfast.engine.scoring import JudgeHistory
from holdfast.journal import Entry, Position, Reader
from holdfast.models.batch.jobs import ServerJob
from holdfast.records import BatchJob, FactDecoder, SampleFailed, SampleFinished, Step, StepStarted
from holdfast.solve import RecordedStep, UnconfirmedCall, is_kept
from holdfast.state import Judged, OpenJob, Trail

_step = FactDecoder(Step)
_started = FactDecoder(StepStarted)
_failed = FactDecoder(SampleFailed)
_announced = FactDecoder(BatchJob)
_finished = FactDecoder(SampleFinished)


class Trace(Trail):
    """The positions of a key's steps, and how its attempts ended."""

    finished: int = 0
    """The attempt that gave the answer; 0 if there is none."""


class LastAttempt(msgspec.Struct, frozen=True):
    """The attempt that gave a key's answer, or else its last attempt."""

    attempt: int
    steps: list[RecordedStep]
    """Its steps, with those that it replayed from earlier attempts."""
    unsure: list[UnconfirmedCall]
    """Calls that must not be repeated and may have been made, in any attempt."""


class KeyTraces:
    """The keys of a journal, or one of them, as of when this is created."""

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
        """Return the attempt that gave the answer; 0 if the key has none."""
        return self._traces[key].finished if key in self._traces else 0

    def history(self, key: str) -> KeyHistory:
        return read_history(self._traces.get(key, Trace()), self._record_at)

    def last_attempt(self, key: str) -> LastAttempt:
        """Return the attempt, finished, cut off or failed. Corrected code can reuse the steps of a failed one."""
        history = self.history(key)
        attempt = self.finished(key) or history.last_attempt()
        earlier = {number: kind for number, kind in history.failures.items() if number < attempt}
        return LastAttempt(attempt, KeyHistory(history.steps, earlier).recorded(attempt), history.unsure())

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


def read_history(trail: Trail, record_at: Callable[[Position], Entry | None]) -> KeyHistory:
    """Read the steps of a key. Those of judges are left out: scoring reads them with `read_judged`."""
    found = ((position, record_at(position)) for position in trail.steps)
    steps: list[RecordedStep] = []
    begun: list[UnconfirmedCall] = []
    for position, entry in found:
        if entry is None or entry.line.n != position.n:
            continue
        if entry.line.t == "step":
            steps.append(_recorded(entry))
        else:
            begun.append(UnconfirmedCall(entry.line.n, _started.decode(entry.line)))
    return KeyHistory(
        tuple(each for each in steps if not each.step.scope.startswith("score/")), dict(trail.failures), tuple(begun)
    )


def read_judged(judged: Judged, record_at: Callable[[Position], Entry | None]) -> JudgeHistory:
    """Read the replies of judges about an answer whose scoring was cut off or failed."""
    entries = (record_at(position) for position in judged.steps)
    steps = [_recorded(entry) for entry in entries if entry is not None and entry.line.t == "step"]
    return JudgeHistory(judged.failed + 1, tuple(each for each in steps if is_kept(each.step)))


def _recorded(entry: Entry) -> RecordedStep:
    ended = datetime.fromisoformat(entry.line.at).timestamp()
    return RecordedStep(entry.line.n, _step.decode(entry.line), ended)


def read_jobs(left: Iterable[OpenJob], record_at: Callable[[Position], Entry | None]) -> list[ServerJob]:
    """Read the open batch jobs of earlier processes, with their requests. A job whose record is gone is skipped: its
    requests are sent again.
    """
    jobs: list[ServerJob] = []
    for each in left:
        entry = record_at(each.position)
        if entry is not None:
            announced = _announced.decode(entry.line)
            at = datetime.fromisoformat(each.at).timestamp()
            jobs.append(ServerJob(each.token, announced.requests, at, each.id, collected=each.answered >= 0))
    return jobs
