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

import msgspec

from holdfast.errors import FormatError
from holdfast.journal import (
    LEASE,
    OS_DISK,
    SEGMENT_BYTES,
    START_FILE,
    Entry,
    Reader,
    copy_start,
    journal_folder,
    make_folders,
    remove_if_there,
    seal,
    segment_path,
    write_all,
)
from holdfast.records import (
    FORMAT,
    Anomaly,
    BatchJob,
    Draft,
    FactDecoder,
    Fence,
    Line,
    ScoreGiven,
    Segment,
    Step,
    decode,
    draft,
    draft_fact,
    frame,
    seed_of,
)
from holdfast.runs.store.trust import copy_trust, executed_by
from holdfast.spec import read_stored_spec
from holdfast.state import Fold, Profile, looked_data, step_gist

_score = FactDecoder(ScoreGiven)
_job = FactDecoder(BatchJob)
_step = FactDecoder(Step)


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
    copy = _Copy(new, fold)
    reader = Reader(journal_folder(run))
    copy.write(reader, msgspec.json.encode(profile))
    started = fold.story.started
    if started is not None:
        with contextlib.suppress(FormatError):  # a spec that cannot be read cannot be executed either
            copy_trust(reader.uid, copy.uid, executed_by(read_stored_spec(fold.story.spec), started.source))
    shutil.rmtree(journal_folder(run))
    for name in (START_FILE, LEASE):  # both describe the old journal
        remove_if_there(OS_DISK, os.path.join(run, name))
    OS_DISK.replace(new, journal_folder(run))
    OS_DISK.sync_folder(run)
    copy_start(run, copy.uid, Reader(journal_folder(run)).read())


class _Copy:
    """Writes the new journal from its first segment, and seals each segment that is full."""

    def __init__(self, folder: str, fold: Fold) -> None:
        self._folder = folder
        self._fold = fold
        self._judges = {position.n for judged in fold.judged.values() for position in judged.steps}
        """Numbers of judge steps of answers that are not fully scored: the next resume replays them."""
        self.uid = uuid.uuid4().hex
        self._seed = seed_of(self.uid)
        self._tip: Fence | None = None
        self._number = 0
        self._handle = -1
        self._numbers: dict[int, int] = {}
        """Old number to new number of the records that later ones may refer to: answers, and the steps that are kept.
        """

    def write(self, reader: Reader, profile: bytes) -> None:
        for found in reader.read():
            if isinstance(found, Entry) and found.line.t != "segment":
                record = self._convert(found.line)
                if record is not None:
                    self._append(record, found.line)
        if (
            self._tip is not None
        ):  # with the time of the last record, even if that one was removed: `updated` stays the same
            self._write(draft("totals", self._fold.story.totals(profile)), self._fold.story.updated.encode())
        self._close()

    def _convert(self, line: Line) -> Draft | None:
        """The record with adjusted references; None if it is removed."""
        if line.t in ("step", "step.started") and self._is_removed(line):
            return None
        if line.t == "step":
            return draft_fact(line.t, self._renumber(_step.decode(line)), line.k)
        if line.t == "batch" and _job.decode(line).token not in self._fold.story.jobs:
            return None
        if line.t == "totals":
            return None
        if line.t == "score":
            score = _score.decode(line)
            return draft(line.t, msgspec.structs.replace(score, of=self._numbers.get(score.of, 0)), line.k)
        if line.t == "anomaly":
            return _anomaly(line, self._numbers)
        return draft(line.t, line.d, line.k)

    def _is_removed(self, line: Line) -> bool:
        return step_gist.decode(line).o in self._fold.finished and line.n not in self._judges

    def _renumber(self, step: Step) -> Step:
        if step.asked is None:
            return step
        numbers = {n: self._numbers.get(n, 0) for n in step.asked.needs}
        return msgspec.structs.replace(step, asked=step.asked.renumbered(numbers))

    def _append(self, record: Draft, line: Line) -> None:
        if self._tip is None or self._tip.bytes > SEGMENT_BYTES:
            self._begin(line.at.encode())
        number = self._write(record, line.at.encode())
        if line.t in ("step", "sample.finished"):
            self._numbers[line.n] = number

    def _begin(self, at: bytes) -> None:
        number = self._tip.segment + 1 if self._tip else 1
        first = self._tip.n + 1 if self._tip else 1
        header = Segment(FORMAT, self.uid, number, 1, first, self._tip)
        self._close()
        self._number = number
        self._handle = OS_DISK.create(segment_path(self._folder, number))
        self._tip = Fence(number, 0, first - 1, "")
        self._write(draft("segment", header), at)

    def _write(self, record: Draft, at: bytes) -> int:
        assert self._tip is not None
        n = self._tip.n + 1
        head, tail, check = frame(record, n, at, self._seed)
        size = write_all(OS_DISK, self._handle, [head + record.d + tail])
        self._tip = Fence(self._tip.segment, self._tip.bytes + size, n, check)
        return n

    def _close(self) -> None:
        if self._handle >= 0 and self._tip is not None:
            OS_DISK.sync(self._handle)
            OS_DISK.close(self._handle)
            self._handle = -1
            seal(OS_DISK, self._folder, self._number)


def _anomaly(line: Line, numbers: dict[int, int]) -> Draft:
    """Adjust an anomaly of an answer, or a loss in the original journal. Record numbers and byte ranges of a loss move
    into its text: a reader would take them for positions in the new journal.
    """
    if line.k is not None:
        looked = looked_data.decode(line)
        return draft(line.t, msgspec.structs.replace(looked, of=numbers.get(looked.of, 0)), line.k)
    try:
        loss = decode(line, Anomaly)
    except msgspec.ValidationError:
        return draft(line.t, line.d)
    detail = loss.detail
    if loss.n_first <= loss.n_last:
        detail = f"{detail} (records {loss.n_first} to {loss.n_last} of the journal before steps were removed)".strip()
    return draft(line.t, msgspec.structs.replace(loss, first=0, last=0, n_first=0, n_last=-1, detail=detail))
