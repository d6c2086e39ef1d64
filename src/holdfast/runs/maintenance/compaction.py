"""Compacts a run: removes the steps of finished keys, which make up most of a large agent run. For `recover
--no-events`.

Records keep their times and get new numbers; references to numbers are adjusted. The last record, `totals`, holds the
usage of the run, because that is otherwise counted from the removed steps. The compacted journal has its own uid, so
its bytes are never mixed with those of the original. Works on a private copy only: see `condense` for crashes.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Collection

import msgspec

from holdfast.errors import FormatError
from holdfast.journal import (
    LEASE,
    OS_DISK,
    START_FILE,
    CopyWriter,
    Entry,
    Reader,
    copy_start,
    journal_folder,
    make_folders,
    remove_if_there,
)
from holdfast.records import (
    Anomaly,
    BatchJob,
    Draft,
    FactDecoder,
    Line,
    ScoreGiven,
    Step,
    decode,
    draft,
    draft_fact,
)
from holdfast.runs.store.trust import copy_trust, executed_by
from holdfast.spec import read_stored_spec
from holdfast.state import Fold, Profile, RecordHandlers, looked_data, step_gist

_score = FactDecoder(ScoreGiven)
_job = FactDecoder(BatchJob)
_step = FactDecoder(Step)
_RECORDS: RecordHandlers["_Copy", Line] = RecordHandlers()
"""Records that a copy changes or leaves out. The others are copied as they are."""


def condense(run: str) -> None:
    """Remove the steps of finished keys from a run's journal. The folder must be private: a crash between removing the
    old journal and renaming the new one leaves it without a journal.
    """
    fold, profile = Fold(), Profile()
    for found in Reader(journal_folder(run)).read():
        if isinstance(found, Entry):
            fold.apply(found)
            profile.fold(found.line)
    new = os.path.join(run, "journal.condensed")
    shutil.rmtree(new, ignore_errors=True)
    make_folders(OS_DISK, new)
    copy = _Copy(new, fold, judge_steps(run, fold))
    reader = Reader(journal_folder(run))
    copy.write(reader, msgspec.json.encode(profile))
    started = fold.story.started
    if started is not None:
        with contextlib.suppress(FormatError):  # a spec that cannot be read cannot be executed either
            spec = read_stored_spec(fold.story.spec)
            copy_trust(reader.uid, copy.uid, executed_by(spec, started.source, started.included))
    shutil.rmtree(journal_folder(run))
    for name in (START_FILE, LEASE):  # both describe the old journal
        remove_if_there(OS_DISK, os.path.join(run, name))
    OS_DISK.replace(new, journal_folder(run))
    OS_DISK.sync_folder(run)
    copy_start(run, copy.uid, Reader(journal_folder(run)).read())


def judge_steps(run: str, fold: Fold) -> set[int]:
    """Numbers of judge steps of answers that are not fully scored, in the current evaluation and in partial ones: the
    next resume, or the next `score`, replays them.
    """
    others = (Fold(each).read(Reader(journal_folder(run)).read()) for each in fold.story.partial)
    every = (judged for each in (fold, *others) for judged in each.judged.values())
    return {position.n for judged in every for position in judged.steps}


class _Copy:
    """Writes the new journal from its first segment, and seals each segment that is full."""

    def __init__(self, folder: str, fold: Fold, judges: Collection[int]) -> None:
        """`judges`: numbers of judge steps that are kept although their keys are finished."""
        self._fold = fold
        self._judges = judges
        self.uid = uuid.uuid4().hex
        self._writer = CopyWriter(folder, self.uid)
        self._numbers: dict[int, int] = {}
        """Old number to new number of the records that later ones may refer to: answers, and the steps that are kept.
        """

    def write(self, reader: Reader, profile: bytes) -> None:
        for found in reader.read():
            if isinstance(found, Entry):
                _RECORDS.get(found.line.t, _Copy._copy)(self, found.line)
        if self._writer.tip is not None:
            # With the time of the last record, even if that one was removed: `updated` stays the same.
            self._writer.append(draft("totals", self._fold.story.totals(profile)), self._fold.story.updated)
        self._writer.close(sealed=True)

    def _copy(self, line: Line) -> None:
        self._append(draft(line.t, line.d, line.k), line)

    @_RECORDS.on("segment", "totals")
    def _leave_out(self, line: Line) -> None:
        """The copy has its own segments, and its own totals at the end."""

    @_RECORDS.on("step")
    def _copy_step(self, line: Line) -> None:
        if self._is_removed(line):
            return
        step = _step.decode(line)
        if step.asked is not None:
            numbers = {n: self._numbers.get(n, 0) for n in step.asked.needs}
            step = msgspec.structs.replace(step, asked=step.asked.renumbered(numbers))
        self._numbers[line.n] = self._append(draft_fact(line.t, step, line.k), line)

    @_RECORDS.on("step.started")
    def _copy_announcement(self, line: Line) -> None:
        if not self._is_removed(line):
            self._copy(line)

    @_RECORDS.on("sample.finished")
    def _copy_answer(self, line: Line) -> None:
        self._numbers[line.n] = self._append(draft(line.t, line.d, line.k), line)

    @_RECORDS.on("batch")
    def _copy_open_job(self, line: Line) -> None:
        if _job.decode(line).token in self._fold.story.jobs:
            self._copy(line)

    @_RECORDS.on("score")
    def _copy_score(self, line: Line) -> None:
        score = _score.decode(line)
        score = msgspec.structs.replace(score, of=self._numbers.get(score.of, 0))
        self._append(draft(line.t, score, line.k), line)

    @_RECORDS.on("anomaly")
    def _copy_anomaly(self, line: Line) -> None:
        """Adjust an anomaly of an answer, or a loss in the original journal. Record numbers and byte ranges of a loss
        move into its text: a reader would take them for positions in the new journal.
        """
        if line.k is not None:
            looked = looked_data.decode(line)
            looked = msgspec.structs.replace(looked, of=self._numbers.get(looked.of, 0))
            self._append(draft(line.t, looked, line.k), line)
            return
        try:
            loss = decode(line, Anomaly)
        except msgspec.ValidationError:
            self._copy(line)
            return
        detail = loss.detail
        if loss.n_first <= loss.n_last:
            numbers = f"records {loss.n_first} to {loss.n_last}"
            detail = f"{detail} ({numbers} of the journal before steps were removed)".strip()
        loss = msgspec.structs.replace(loss, first=0, last=0, n_first=0, n_last=-1, detail=detail)
        self._append(draft(line.t, loss), line)

    def _is_removed(self, line: Line) -> bool:
        """Whether a step belongs to a finished key, and no judge's reply must be kept for the next resume."""
        return step_gist.decode(line).o in self._fold.finished and line.n not in self._judges

    def _append(self, record: Draft, line: Line) -> int:
        return self._writer.append(record, line.at)
