"""The derived index of one run: the status and scores of each key, where its records are, and totals for reports.

Rows are kept in pages of up to 1,000 neighbouring keys of one cell (`pages`). Each page has its totals (`totals`). They
are computed again whenever one of its rows changes. A report adds up the totals and reads no rows, so looking at a run
costs about the same for a thousand and for a million samples.

The index is a snapshot in the user's cache (see `snapshot`) and can be deleted at any time. It is bound to the run, to
the end of the journal that it was made from, and to the state of each segment. Every part is verified when it is read.
If reading fails in any way, the command that notices rebuilds the index from the journal and logs one warning; if no
file can be written, the index is kept in memory. A crash leaves the previous snapshot and at most a temporary file.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import xxhash

from holdfast.errors import HoldfastError, StaleCursorError
from holdfast.journal import START, Cursor, Damage, Entry, Position, Reader, journal_folder, unrecorded
from holdfast.records import Answer, Cell, FactDecoder, SampleFailed, SampleFinished
from holdfast.state.cache import identify
from holdfast.state.dispatch import RecordHandlers
from holdfast.state.fold import Bits, failed_data, finished_data, looked_data, score_data, step_gist
from holdfast.state.pages import (
    ANSWERS,
    PAGE_KEYS,
    RECORDS,
    SCORES,
    EvaluationRows,
    Page,
    PageEntry,
    decode_answers,
    decode_records,
)
from holdfast.state.profile import Profile, TimedGist
from holdfast.state.rows import AnswerRow, EditRow, EvaluationCounts, MadeRow, ScoreRow
from holdfast.state.snapshot import (
    Blob,
    CheckedFiles,
    Snapshot,
    SnapshotReader,
    Spill,
    Stamps,
    UnusableError,
    have_changed,
    stamp_segments,
)
from holdfast.state.story import Story
from holdfast.state.totals import PageTotals, Reducing, answer_totals, score_totals, stored_reducing

_VERSION = 15
"""Of rows, totals and directory. Raise it with every change: snapshots of other versions are rebuilt."""
_timed_gist = FactDecoder(TimedGist)
_SMALL_RECORDS = 50_000
_PUBLISH_RECORDS = 5_000
_PENDING_MAX = 50_000
"""Changes that are collected before they are applied page by page: loading a page costs as much as 1,000 changes."""
_RECENT = 12
"""Decoded parts of pages that are kept: readers go through answers and scores side by side."""
_REBUILDS_MAX = 3
_FAILURES = (UnusableError, msgspec.MsgspecError, ValueError, TypeError, KeyError, OSError)
"""What reading a damaged index can raise."""
T = TypeVar("T")
_Change = tuple[Callable[..., object], tuple[Any, ...]]
"""A method of `Page`, and its arguments."""
_HANDLERS: RecordHandlers["Index", Entry] = RecordHandlers()


class _Directory(msgspec.Struct):
    """The state of an index without its rows."""

    cursor: Cursor = START
    story: Story = msgspec.field(default_factory=Story)
    profile: Profile = msgspec.field(default_factory=Profile)
    damage: list[Damage] = msgspec.field(default_factory=list)
    segments: Stamps = msgspec.field(default_factory=dict)
    """The states of the segments that it was made from."""
    pages: dict[int, PageEntry] = msgspec.field(default_factory=dict)
    """By the first ordinal of the page. Keys outside all cells (of a damaged plan) have pages with negative numbers."""
    sizes: dict[int, int] = msgspec.field(default_factory=dict)
    """How many keys a page of a cell has, by the cell's first ordinal: a multiple of the repeats of a sample, so that
    no sample crosses pages."""
    finished: bytes = b""
    """The set of finished keys: see `Bits`."""
    resumed: list[Position] = msgspec.field(default_factory=list)
    """Where the `run.resumed` records are."""
    reducing: dict[str, Reducing] = msgspec.field(default_factory=dict)
    """By task: what the totals were computed with."""


_directory = msgspec.json.Decoder(_Directory)


class Index:
    """Up to date when it is created; it does not change after that, whatever is appended to the journal."""

    def __init__(self, run: str, *, kept: bool = True, last: int | None = None) -> None:
        """`kept`: start from the cached snapshot and replace it; otherwise read the whole journal and keep nothing.
        `last`: ignore records with higher numbers.
        """
        self._run = run
        self._kept = kept
        self._last = last
        self._rebuilds = 0
        self.last_n = 0
        """The number of the last record."""
        self.start_n = 0
        """The last record number in started.jsonl, the copy of start records: records up to it were durable."""
        uid = Reader(journal_folder(run)).uid
        self.checked = CheckedFiles(run, uid)
        """Files that were verified before: sealed segments, and originals that other code has checked."""
        self._snapshot = Snapshot(identify("runs", run, uid), _VERSION)
        self._file: SnapshotReader | None = None
        self._spill = Spill(None)
        self._reset()
        try:
            self._open()
        except StaleCursorError:
            self._rebuild()
        except UnusableError as error:
            self._rebuild(error)

    @property
    def folder(self) -> str:
        """Of the run."""
        return self._run

    @property
    def story(self) -> Story:
        return self._state.story

    @property
    def profile(self) -> Profile:
        return self._state.profile

    @property
    def damage(self) -> list[Damage]:
        return self._state.damage

    @property
    def lost(self) -> list[Damage]:
        """Losses in the journal that no `anomaly` record mentions, without foreign bytes that cost no record."""
        found = unrecorded(self.damage, self.story.anomalies)
        return [each for each in found if each.records_lost or each.kind == "fence"]

    @property
    def finished(self) -> int:
        return self._finished.count

    @property
    def failed(self) -> int:
        return sum(entry.totals.answers.failed for entry in self._state.pages.values())

    @property
    def unfinished(self) -> int:
        return self.story.planned - self.finished - self.failed

    def totals(self, cells: Sequence[Cell]) -> list[PageTotals]:
        """Of the pages of these cells, in plan order."""
        return [self._state.pages[first].totals for cell in cells for first in self._pages_of(cell.first, cell.count)]

    def answers(self, status: str = "", first: int = 0, count: int = -1) -> Iterator[AnswerRow]:
        """Keys that have a record, in plan order; limited to `count` ordinals from `first` on."""
        for page in self._pages_of(first, count):
            for row in self._answers(page).values():
                if row.o >= first and (count < 0 or row.o < first + count) and status in ("", row.status):
                    yield row

    def row(self, o: int) -> AnswerRow | None:
        """The answer or failure of a key."""
        return self.rows_around(o).get(o)

    def answer(self, key: str) -> AnswerRow | None:
        """By key. Searches the bytes of all pages of its cell, and decodes only those that contain the key."""
        text = key.encode()
        for first in self._starts:
            if text in self._load(first, ANSWERS, bytes):
                found = next((row for row in self._answers(first).values() if row.key == key), None)
                if found is not None:
                    return found
        return None

    def positions(self, o: int) -> list[Position]:
        """Where all records of a key are, and those of resumes between them, in the order of the journal."""
        page = self._page_at(o)
        own = self._load(page, RECORDS, decode_records).get(o, []) if page in self._state.pages else []
        return sorted([*own, *self._state.resumed], key=lambda each: each.n)

    def scores(self, evaluation: str, first: int = 0, count: int = -1) -> Iterator[ScoreRow]:
        """The scores of one evaluation, of answers that count, in plan order."""
        for page in self._pages_of(first, count):
            for row in self._evaluation(page, evaluation).counting(self._answers(page)):
                if row.o >= first and (count < 0 or row.o < first + count):
                    yield row

    def rows_around(self, o: int) -> Mapping[int, AnswerRow]:
        """The answers and failures on the page of a key, by ordinal. All repeats of a sample are on one page."""
        page = self._page_at(o)
        return self._answers(page) if page in self._state.pages else {}

    def made(self, evaluation: str) -> Iterator[tuple[AnswerRow, MadeRow]]:
        """Every answer that counts with each score that the scorers of an evaluation gave it."""
        for page in self._starts:
            answers = self._answers(page)
            for o, rows in self._evaluation(page, evaluation).made.items():
                answer = answers.get(o)
                if answer is not None and answer.status == "finished":
                    yield from ((answer, row) for row in rows.values() if row.of == answer.n)

    def edits_of(self, o: int, of: int, evaluation: str) -> list[EditRow]:
        """Scores of one answer that were set by hand, oldest first."""
        rows = self._evaluation(self._page_at(o), evaluation)
        return sorted((row for row in rows.edits.get(o, ()) if row.of == of), key=lambda row: row.n)

    def made_of(self, o: int, of: int, evaluation: str) -> list[MadeRow]:
        """Scores that the scorers of an evaluation gave one answer, without scores set by hand."""
        rows = self._evaluation(self._page_at(o), evaluation)
        return [row for row in rows.made.get(o, {}).values() if row.of == of]

    def example_of(self, evaluation: str, scorer: str) -> Position | None:
        """The position of a record in which a scorer gave a value; None if it never did.

        Prefers values other than true and false: malformed answers are scored false without calling the scorer.
        """
        example: Position | None = None
        for first in self._starts:
            for rows in self._evaluation(first, evaluation).made.values():
                row = rows.get(scorer)
                if row is None or row.encoded == b"null":
                    continue
                if row.encoded not in (b"true", b"false"):
                    return row.position
                example = example or row.position
            if example is not None:  # the first page with a value says enough
                return example
        return None

    def counts_of(self, evaluation: str) -> EvaluationCounts:
        found = [
            scorer
            for entry in self._state.pages.values()
            for scorer in entry.totals.evaluations.get(evaluation, {}).values()
        ]
        return EvaluationCounts(
            answers=sum(each.complete for each in found),
            scored=sum(each.scored for each in found),
            no_score=sum(each.no_score for each in found),
            failures=sum(each.failures.count for each in found),
            edited=sum(each.edited for each in found),
            taken=sum(each.taken for each in found),
        )

    def unlooked(self, version: int) -> int:
        """How many finished answers this version of the anomaly checks has not seen."""
        looked = sum(entry.totals.answers.looked.get(version, 0) for entry in self._state.pages.values())
        return sum(entry.totals.answers.finished for entry in self._state.pages.values()) - looked

    def differences(self, other: "Index") -> list[str]:
        """What this index says otherwise than another one of the same records. Compares all rows, by checksum."""
        mine, theirs = self._state, other._state  # noqa: SLF001 - the same class
        found = [
            f"{name}: {one} instead of {another}"
            for name, one, another in (
                ("planned", self.story.planned, other.story.planned),
                ("steps", self.story.steps, other.story.steps),
                ("finished", self.finished, other.finished),
                ("failed", self.failed, other.failed),
            )
            if one != another
        ]
        for first in sorted({*mine.pages, *theirs.pages}):
            one, another = mine.pages.get(first), theirs.pages.get(first)
            if one is None or another is None:
                found.append(f"keys from {first} on: {'missing' if one is None else 'not in the journal'}")
                continue
            names = {**one.blobs, **another.blobs}
            wrong = [name for name in names if _checksum(one, name) != _checksum(another, name)]
            wrong += ["totals"] if not wrong and one.totals != another.totals else []
            found += [f"{name} of keys from {first} on" for name in wrong]
        if not found and (self.story, self.profile) != (other.story, other.profile):
            found.append("the totals of the run")
        return found

    def check(self) -> None:
        """Read every part, so that a damaged one is found and the index rebuilt."""
        for first in [*self._starts]:
            for name in [*self._state.pages[first].blobs]:
                self._load(first, name, bytes)

    def remove(self) -> None:
        """Remove the cached snapshot because it is wrong: the next reader rebuilds it."""
        self._snapshot.discard()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._spill.close()
        self._recent.clear()
        self._is_open = False

    # Reading pages.

    def _pages_of(self, first: int, count: int) -> list[int]:
        """The pages with keys among `count` ordinals from `first` on, in plan order."""
        starts = self._starts
        if count < 0:
            return starts[max(bisect_right(starts, first) - 1, 0) if first else 0 :]
        low = max(bisect_right(starts, first) - 1, 0)
        return [start for start in starts[low : bisect_right(starts, first + count - 1)] if start >= 0]

    def _page_at(self, o: int) -> int:
        """The page of a key, which may not exist yet."""
        at = bisect_right(self._cells, o, key=lambda cell: cell[0]) - 1
        if at >= 0:
            first, count, size = self._cells[at]
            if o < first + count:
                return o - (o - first) % size
        return -1 - o // PAGE_KEYS

    def _answers(self, page: int) -> dict[int, AnswerRow]:
        return self._load(page, ANSWERS, decode_answers)

    def _evaluation(self, page: int, evaluation: str) -> EvaluationRows:
        entry, name = self._state.pages.get(page), f"{SCORES}{evaluation}"
        if entry is None or name not in entry.blobs:
            return EvaluationRows()
        return self._load(page, name, EvaluationRows.decode)

    def _load(self, page: int, name: str, decode: Callable[[bytes], T]) -> T:
        """Read and decode a part of a page. If that fails, rebuild the index from the same records and try again."""
        while True:
            if not self._is_open:
                raise RuntimeError("the index is closed")
            place = (page, name)
            if place in self._recent and decode is not bytes:
                found: T = self._recent[place]
                return found
            try:
                found = decode(self._read(self._state.pages[page].blobs[name]))
            except _FAILURES as error:
                if self._rebuilds == _REBUILDS_MAX:
                    raise  # a fault that rebuilding does not cure
                self._last = self.last_n  # the same records, so that rows returned so far stay valid
                self._rebuild(error)
                continue
            if decode is not bytes:
                while len(self._recent) >= _RECENT:
                    del self._recent[next(iter(self._recent))]
                self._recent[place] = found
            return found

    def _read(self, blob: Blob) -> bytes:
        if blob.spilled:
            return self._spill.read(blob)
        if self._file is None:
            raise UnusableError("is damaged (a part of it is missing)")
        return self._file.read(blob)

    # Bringing the index up to date.

    def _reset(self) -> None:
        self._state = _Directory()
        self._finished = Bits()
        self._pending: dict[int, list[_Change]] = {}
        self._pending_count = 0
        self._recent: dict[tuple[int, str], Any] = {}
        self._restored = False
        """Whether this index continues a snapshot, rather than reading the journal from its beginning."""
        self._is_open = True
        self._lay_out()

    def _lay_out(self) -> None:
        """Compute where pages begin, after the plan or the set of pages has changed."""
        sizes, self._cells = self._state.sizes, list[tuple[int, int, int]]()
        for cell in self.story.cells:
            if cell.count:
                if cell.first not in sizes:
                    repeats = max(self._reducing().get(cell.task, Reducing()).repeats, 1)
                    sizes[cell.first] = max(PAGE_KEYS - PAGE_KEYS % repeats, repeats)
                self._cells.append((cell.first, cell.count, sizes[cell.first]))
        self._cells.sort()
        self._starts = sorted(self._state.pages)

    def _reducing(self) -> dict[str, Reducing]:
        try:
            return stored_reducing(self.story.spec)
        except (HoldfastError, AttributeError, TypeError, ValueError):
            return {}  # not a spec that Holdfast wrote: commands that show the run report that

    def _open(self) -> None:
        self._file = self._snapshot.open() if self._kept else None
        segments = stamp_segments(journal_folder(self._run))
        cursor = START if self._file is None else self._restore(self._file, segments)
        self._catch_up(cursor, segments)

    def _rebuild(self, error: Exception | None = None) -> None:
        """Read the whole journal: the snapshot belongs to other segments or, with an `error`, cannot be used."""
        if error is not None:
            reason = str(error) if isinstance(error, UnusableError) else f"failed ({error})"
            logging.getLogger("holdfast").warning("the index of %s %s; rebuilt from the journal", self._run, reason)
        self._snapshot.discard()
        while True:
            self.close()
            self._rebuilds += 1
            self._reset()
            try:
                self._catch_up(START, stamp_segments(journal_folder(self._run)))
                return
            except StaleCursorError:
                if self._rebuilds >= _REBUILDS_MAX:
                    raise

    def _restore(self, file: SnapshotReader, segments: Stamps) -> Cursor:
        """Load the directory of a snapshot; return where in the journal it ends. StaleCursorError if a segment that it
        was made from has changed.
        """
        try:
            self._state = _directory.decode(file.directory)
            self._finished = Bits.of(self._state.finished)
            self._lay_out()
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise UnusableError(f"cannot be decoded ({error})") from error
        if have_changed(journal_folder(self._run), self._state.segments, segments, self.checked):
            raise StaleCursorError(f"{self._run}: a segment has changed since the index was made")
        self._restored = True
        return self._state.cursor

    def _catch_up(self, cursor: Cursor, segments: Stamps) -> None:
        """Apply the records after `cursor`. `segments`: the states of the files, taken before reading."""
        reader = Reader(journal_folder(self._run), cursor=cursor)
        changes = 0
        for each in reader.read(live=True):
            if self._last is not None and isinstance(each, Entry) and each.line.n > self._last:
                self.last_n = self._last
                self._flush()
                return  # not published: its cursor would not match the records that were applied
            changes += 1
            if isinstance(each, Damage):
                if each not in self.damage:  # a stray file is reported by every reader
                    self.damage.append(each)
            elif not self.story.has_start(each.line):  # the copy of a lost start record is read every time
                _HANDLERS.get(each.line.t, Index._apply_run_record)(self, each)
                self.story.updated = each.line.at
                if self._pending_count > _PENDING_MAX:
                    self._flush()
        self.last_n, self.start_n = reader.cursor.n, reader.start_n
        if not changes:
            return
        self._flush()
        self._state.cursor, self._state.segments = reader.cursor, segments
        # Publishing copies the whole file. For a long run that still grows, do it only after many changes.
        if self._kept and (self.last_n < _SMALL_RECORDS or changes > _PUBLISH_RECORDS):
            self._publish()

    def _publish(self) -> None:
        """Write a new snapshot. If that fails, this index still works, and the next one catches up again."""
        writer = self._snapshot.begin()
        if writer is None:
            return
        try:
            pages = {}
            for first in self._starts:
                entry = self._state.pages[first]
                blobs = {name: writer.add(self._read(blob), blob.digest) for name, blob in entry.blobs.items()}
                pages[first] = PageEntry(blobs, entry.totals)
            saved = msgspec.structs.replace(self._state, pages=pages, finished=self._finished.encode())
            writer.publish(msgspec.json.encode(saved))
        except (OSError, UnusableError):
            writer.drop()

    def _flush(self) -> None:
        """Apply the collected changes to their pages, and compute the totals of these pages."""
        reducing = self._reducing()
        again = set(self._state.pages) if reducing != self._state.reducing else set()
        self._state.reducing = reducing
        pending, self._pending, self._pending_count = self._pending, {}, 0
        for first in sorted({*pending, *again}):
            self._change(first, pending.get(first, ()))
        self._lay_out()

    def _change(self, first: int, changes: Sequence[_Change]) -> list[object]:
        """Load a page, apply changes, and store it. Returns what the changes returned."""
        entry = self._state.pages.get(first)
        page = Page() if entry is None else Page.decode({name: self._read(blob) for name, blob in entry.blobs.items()})
        found = [change(page, *arguments) for change, arguments in changes]
        page.answers = {o: page.answers[o] for o in sorted(page.answers)}
        samples = {o: row.sample for o, row in page.answers.items() if row.status == "finished"}
        reducing = self._state.reducing.get(self._task_at(first), Reducing()).of_pages()
        totals = PageTotals(
            answer_totals(page.answers.values()),
            {
                name: score_totals(rows.counting(page.answers), samples, reducing)
                for name, rows in page.evaluations.items()
            },
        )
        blobs = {name: self._spill.write(content) for name, content in page.encode().items()}
        self._state.pages[first] = PageEntry(blobs, totals)
        return found

    def _task_at(self, first: int) -> str:
        return next((cell.task for cell in self.story.cells if cell.first <= first < cell.first + cell.count), "")

    def _add(self, o: int, change: Callable[..., object], *arguments: object) -> None:
        """Collect a change of the page of a key."""
        self._pending.setdefault(self._page_at(o), []).append((change, arguments))
        self._pending_count += 1

    def _note(self, o: int, entry: Entry) -> None:
        self._add(o, Page.note, o, Position(entry.line.n, entry.segment, entry.offset))

    def _apply_run_record(self, entry: Entry) -> None:
        self.story.apply(entry)
        self.profile.fold(entry.line)

    @_HANDLERS.on("run.started", "run.extended")
    def _apply_plan(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        self._lay_out()

    @_HANDLERS.on("step")
    def _apply_step(self, entry: Entry) -> None:
        step = _timed_gist.decode(entry.line)  # once for both: most of the time of indexing is decoding steps
        self.story.answered(step, entry.line.k)
        self.profile.answered(step, entry.line)
        self._note(step.o, entry)

    @_HANDLERS.on("step.started")
    def _apply_announcement(self, entry: Entry) -> None:
        self._note(step_gist.decode(entry.line).o, entry)

    @_HANDLERS.on("run.resumed")
    def _apply_resumed(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        self._state.resumed.append(Position(entry.line.n, entry.segment, entry.offset))
        self._flush()
        ordinals = self.story.resumes[-1].resumed.retried
        for first in [first for first, page in self._state.pages.items() if page.totals.answers.failed]:
            self._change(first, [(Page.retry, (ordinals,))])

    @_HANDLERS.on("run.replanned")
    def _apply_replanned(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        self._flush()
        for cell in self.story.replans[-1].replanned.cells:
            for first in self._pages_of(cell.first, cell.count):
                self._change(first, [(Page.rename, (cell.model,))])

    @_HANDLERS.on("anomaly")
    def _apply_anomaly(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        if entry.line.k is not None:
            found = looked_data.decode(entry.line)
            self._add(found.o, Page.put_anomalies, found)
        elif self.story.anomalies:
            self._forget_lost()

    def _forget_lost(self) -> None:
        """Remove the rows of records that the last anomaly reports as lost."""
        if self._restored:  # its counters include the lost records, so only a rebuild is right
            raise StaleCursorError(f"records of {self._run} were lost since they were indexed")
        lost = self.story.anomalies[-1]
        if lost.n_last < lost.n_first:
            return
        self._flush()
        for first in [*self._state.pages]:
            (gone,) = self._change(first, [(Page.forget, (lost.n_first, lost.n_last))])
            for o in gone if isinstance(gone, list) else ():
                self._finished.discard(o)

    @_HANDLERS.on("sample.finished")
    def _apply_finished(self, entry: Entry) -> None:
        found = finished_data.decode(entry.line)
        self._note(found.o, entry)
        if self._finished.add(found.o):
            self._put_answer(entry, found, "finished")
            self.story.ended(found, entry.line.k)
        else:
            self.story.twice += 1

    @_HANDLERS.on("sample.failed")
    def _apply_failed(self, entry: Entry) -> None:
        found = failed_data.decode(entry.line)
        self._note(found.o, entry)
        if found.o not in self._finished:  # the first answer stays
            self._put_answer(entry, found, "failed" if found.final else "unfinished")
            self.story.ended(found, entry.line.k)

    def _put_answer(self, entry: Entry, found: SampleFinished | SampleFailed, status: str) -> None:
        spent = found.spent
        used = spent.usage + spent.saved
        row = AnswerRow(
            o=found.o,
            key=str(entry.line.k),
            status=status,
            n=entry.line.n,
            segment=entry.segment,
            at_byte=entry.offset,
            attempt=found.attempt,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            seconds=spent.seconds,
            used=msgspec.json.encode({role: each.usage + each.saved for role, each in spent.by_role().items()}),
        )
        if isinstance(found, SampleFailed):
            row = msgspec.structs.replace(row, kind=found.failure.kind, message=found.failure.message)
        else:
            answer = found.answer
            row = msgspec.structs.replace(
                row,
                marks=" ".join(answer.marks),
                looked=found.looked,
                anomalies=msgspec.json.encode(found.anomalies),
                said=_digest_answer(row.key, answer),
                characters=len(answer.text),
            )
        self._add(found.o, Page.put_answer, row)

    @_HANDLERS.on("score")
    def _apply_score(self, entry: Entry) -> None:
        found = score_data.decode(entry.line)
        self._note(found.o, entry)
        if not found.author:
            self.story.scored(found, entry.line.k)
            self.profile.scored(0.0 if found.taken else found.seconds, entry.line)
        self._add(found.o, Page.put_score, found, Position(entry.line.n, entry.segment, entry.offset))


def _checksum(entry: PageEntry, name: str) -> int | None:
    blob = entry.blobs.get(name)
    return None if blob is None else blob.digest


def _digest_answer(key: str, answer: Answer) -> int:
    """The same for equal answers to a sample, in every repeat and of every model."""
    task, _, sample, _ = key.split("/")
    return xxhash.xxh3_64_intdigest(msgspec.json.encode((task, sample, answer.text, answer.tool_calls)))
