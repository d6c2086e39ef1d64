"""A run without the steps of its finished keys: what a 40 GB agent run leaves for those who want only answers.

The records keep their times and get new numbers; what refers to a number follows. It is a run of its own, with a uid of
its own: nobody can take its bytes for those of the run that it was made from.
"""

import os
import shutil
import uuid

import msgspec

from holdfast.journal import OS_DISK, SEGMENT_BYTES, Entry, Reader, journal_folder, make_folders, seal
from holdfast.journal.disk import write_all
from holdfast.journal.places import segment_path
from holdfast.records import FORMAT, Draft, Fence, Line, Segment, draft, frame, seed_of
from holdfast.records.facts import BatchJob, ScoreGiven, Step
from holdfast.state import Fold
from holdfast.state.folding import step_gist

_score = msgspec.json.Decoder(ScoreGiven)
_job = msgspec.json.Decoder(BatchJob)
_step = msgspec.json.Decoder(Step)


def condense(run: str) -> None:
    """Leave the steps of finished keys out of a run's journal. Nobody else may know of the folder: dying between the
    last two lines leaves it without a journal.
    """
    fold = Fold().read(Reader(journal_folder(run)).read())
    new = os.path.join(run, "journal.condensed")
    shutil.rmtree(new, ignore_errors=True)
    make_folders(OS_DISK, new)
    _Copy(new).write(Reader(journal_folder(run)), fold)
    shutil.rmtree(journal_folder(run))
    OS_DISK.replace(new, journal_folder(run))
    OS_DISK.sync_folder(run)


class _Copy:
    """Writes segments from the first, and seals each that is full."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._uid = uuid.uuid4().hex
        self._seed = seed_of(self._uid)
        self._tip: Fence | None = None
        self._number = 0
        self._handle = -1
        self._numbers: dict[int, int] = {}
        """Of what later records may refer to: the answers that wait for scores, and the steps of keys that go on."""

    def write(self, reader: Reader, fold: Fold) -> None:
        for found in reader.read():
            if isinstance(found, Entry) and found.line.t != "segment":
                record = self._kept(found.line, fold)
                if record is not None:
                    self._append(record, found.line)
        self._close()

    def _kept(self, line: Line, fold: Fold) -> Draft | None:
        """The record with its references as they are now; None if it is left out."""
        if line.t in ("step", "step.started") and step_gist.decode(line.d).o in fold.finished:
            return None
        if line.t == "step":
            return draft(line.t, self._renumbered(_step.decode(line.d)), line.k)
        if line.t == "batch" and _job.decode(line.d).token not in fold.story.jobs:
            return None
        if line.t == "score":
            score = _score.decode(line.d)
            return draft(line.t, msgspec.structs.replace(score, of=self._numbers.get(score.of, 0)), line.k)
        return draft(line.t, line.d, line.k)

    def _renumbered(self, step: Step) -> Step:
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
        header = Segment(FORMAT, self._uid, number, 1, first, self._tip)
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
