"""The derived index of one run: the status and scores of each key, where its records are, and totals for reports.

Rows are kept in pages of up to 1,000 neighbouring keys of one cell (`pages`). Each page has its totals (`totals`). They
are computed again whenever one of its rows changes. A report adds up the totals and reads no rows, so looking at a run
costs about the same for a thousand and for a million samples.

The index is a snapshot in the user's cache (see `snapshot`) and can be deleted at any time. It is bound to the run, to
the end of the journal that it was made from, and to the state of each segment. Every part is verified when it is read.
If reading fails in any way, the command that notices rebuilds the index from the journal and logs one warning; if no
file can be written, the index is kept in memory. A crash leaves the previous snapshot and at most a temporary file.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import xxhash

from holdfast.errors import StaleCursorError
from holdfast.garbage import fewer_collections, return_memory
from holdfast.journal import START, Cursor, Damage, Position, Reader, journal_folder, unrecorded
from holdfast.records import START_RECORDS, Cell
from holdfast.state.cache import identify
from holdfast.state.index_pages import Directory, IndexPages, Life, RunTotals
from holdfast.state.pages import (
    ANSWERS,
    RECORDS,
    SCORES,
    EvaluationRows,
    PageEntry,
    decode_answer_gists,
    decode_answers,
    decode_made_gists,
    decode_records,
)
from holdfast.state.profile import Profile
from holdfast.state.rows import AnswerGist, AnswerRow, EditRow, EvaluationCounts, MadeRow, ScoreRow, decode_value
from holdfast.state.snapshot import (
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
from holdfast.state.totals import PageTotals

_VERSION = 25
"""Of rows, totals and directory. Raise it with every change: snapshots of other versions are rebuilt."""
_SMALL_RECORDS = 50_000
_PUBLISH_RECORDS = 5_000
_RECENT = 12
"""Decoded parts of pages that are kept: readers go through answers and scores side by side."""
_REBUILDS_MAX = 3
_COLLECT_AFTER = 500_000
"""Objects: new rows are kept until they are applied, and none is part of a cycle."""
_FAILURES = (UnusableError, msgspec.MsgspecError, ValueError, TypeError, KeyError, OSError)
"""What reading a damaged index can raise."""
ScoredPage = tuple[list[AnswerGist], list[tuple[int, str, Any, str]]]
"""The answers of a page, and the scores that count: ordinal, scorer, value, and the message of a failure."""
T = TypeVar("T")


class PlannedPage(NamedTuple):
    """The keys [first, end) of a cell. `checksums`: of their answers and of their scores; None without records."""

    cell: Cell
    first: int
    end: int
    checksums: tuple[int | None, int | None] | None


_decoder = msgspec.json.Decoder(Directory)


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
        self._results = CheckedFiles(run, uid, "results") if kept else None
        self._snapshot = Snapshot(identify("runs", run, uid), _VERSION)
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
    def cursor(self) -> Cursor:
        """Behind the last record."""
        return self._directory.cursor

    @property
    def story(self) -> Story:
        return self._directory.story

    @property
    def profile(self) -> Profile:
        return self._directory.profile

    @property
    def lives(self) -> list[Life]:
        """Every process that worked on the run, in order."""
        return self._directory.lives

    def run_totals(self) -> RunTotals:
        """Of the whole run, to compare with the totals at the beginning of a life."""
        return self._pages.totals()

    @property
    def damage(self) -> list[Damage]:
        return self._directory.damage

    @property
    def lost(self) -> list[Damage]:
        """Losses in the journal that no `anomaly` record mentions, without foreign bytes that cost no record."""
        found = unrecorded(self.damage, self.story.anomalies)
        return [each for each in found if each.records_lost or each.kind == "fence"]

    @property
    def finished(self) -> int:
        return self._pages.finished.count

    @property
    def failed(self) -> int:
        return sum(entry.totals.answers.failed for entry in self._directory.pages.values())

    @property
    def unfinished(self) -> int:
        return self.story.planned - self.finished - self.failed

    def totals(self, cells: Sequence[Cell]) -> list[PageTotals]:
        """Of the pages of these cells, in plan order."""
        return [
            self._directory.pages[first].totals
            for cell in cells
            for first in self._pages.pages_of(cell.first, cell.count)
        ]

    def answers(self, status: str = "", first: int = 0, count: int = -1) -> Iterator[AnswerRow]:
        """Keys that have a record, in plan order; limited to `count` ordinals from `first` on."""
        for page in self._pages.pages_of(first, count):
            for row in self._answers(page).values():
                if row.o >= first and (count < 0 or row.o < first + count) and status in ("", row.status):
                    yield row

    def row(self, o: int) -> AnswerRow | None:
        """The answer or failure of a key."""
        return self.rows_around(o).get(o)

    def answer(self, key: str) -> AnswerRow | None:
        """By key. Searches the bytes of all pages, and decodes only those that contain the key."""
        text = key.encode()
        for first in self._pages.starts:
            if text in self._load(first, ANSWERS, bytes, keep=False):
                found = next((row for row in self._answers(first).values() if row.key == key), None)
                if found is not None:
                    return found
        return None

    def positions(self, o: int) -> list[Position]:
        """Where all records of a key are, and those of resumes between them, in the order of the journal."""
        page = self._pages.page_at(o)
        own = self._load(page, RECORDS, decode_records).get(o, []) if page in self._directory.pages else []
        return sorted([*own, *self._directory.resumed], key=lambda each: each.n)

    def scores(self, evaluation: str, first: int = 0, count: int = -1) -> Iterator[ScoreRow]:
        """The scores of one evaluation, of answers that count, in plan order."""
        for page in self._pages.pages_of(first, count):
            for row in self._evaluation(page, evaluation).counting(self._answers(page)):
                if row.o >= first and (count < 0 or row.o < first + count):
                    yield row

    def scored_pages(self, evaluation: str, cell: Cell) -> Iterator[ScoredPage]:
        """The answers and scores of a cell, page by page: a comparison needs few fields of millions of rows."""
        for page in self._pages.pages_of(cell.first, cell.count):
            answers = self._load(page, ANSWERS, decode_answer_gists, keep=False)
            entry, name = self._directory.pages[page], f"{SCORES}{evaluation}"
            if any(scorer.edited for scorer in entry.totals.evaluations.get(evaluation, {}).values()):
                rows = self._evaluation(page, evaluation).counting(self._answers(page))
                yield answers, [(row.o, row.scorer, row.value, row.failure) for row in rows]
                continue
            made = self._load(page, name, decode_made_gists, keep=False) if name in entry.blobs else []
            counting = {row.o: row.n for row in answers if row.status == "finished"}
            yield (
                answers,
                [
                    (row.o, row.scorer, decode_value(row.encoded), row.failure)
                    for row in made
                    if counting.get(row.o) == row.of
                ],
            )

    def rows_around(self, o: int) -> Mapping[int, AnswerRow]:
        """The answers and failures on the page of a key, by ordinal. All repeats of a sample are on one page."""
        page = self._pages.page_at(o)
        return self._answers(page) if page in self._directory.pages else {}

    def made(self, evaluation: str, pages: Sequence[int] | None = None) -> Iterator[tuple[AnswerRow, MadeRow]]:
        """Every answer that counts (only on these pages) with each score that the scorers of an evaluation gave it."""
        for page in self._pages.starts if pages is None else pages:
            answers = self._answers(page)
            for o, rows in self._evaluation(page, evaluation).made.items():
                answer = answers.get(o)
                if answer is not None and answer.status == "finished":
                    yield from ((answer, row) for row in rows.values() if row.of == answer.n)

    def related_pages(self) -> list[list[int]]:
        """All pages, those with answers to the same samples together: the pages at the same place of a task's cells,
        or all pages of the task if its cells were planned at different times.
        """
        tasks: dict[str, list[Cell]] = {}
        for cell in self.story.cells:
            tasks.setdefault(cell.task, []).append(cell)
        groups: dict[tuple[str, int], list[int]] = {}
        for task, cells in tasks.items():
            shapes = {(cell.count, cell.rows_block, self._directory.sizes.get(cell.first)) for cell in cells}
            is_aligned = len(shapes) == 1 and len({cell.model for cell in cells}) == len(cells)
            for cell in cells:
                for page in self._pages.pages_of(cell.first, cell.count):
                    groups.setdefault((task, page - cell.first if is_aligned else 0), []).append(page)
        outside = [page for page in self._pages.starts if page < 0]  # of a damaged plan
        return [*groups.values(), outside] if outside else [*groups.values()]

    def fingerprint(self, pages: Sequence[int], evaluation: str) -> str:
        """Of the answers on these pages and their scores in an evaluation."""
        entries = [self._directory.pages[page] for page in pages]
        parts = [(_checksum(entry, ANSWERS), _checksum(entry, f"{SCORES}{evaluation}")) for entry in entries]
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode((evaluation, pages, parts)))

    def fingerprint_of(self, cells: Sequence[Cell], evaluation: str) -> str:
        """The `fingerprint` of all pages of these cells."""
        pages = [page for cell in cells for page in self._pages.pages_of(cell.first, cell.count)]
        return self.fingerprint(pages, evaluation)

    def kept_results(self, name: str) -> dict[str, str]:
        """What an earlier reader computed from rows and kept under this name. The keys are of its choice: they must
        contain the fingerprint of everything that the result depends on.
        """
        stored, prefix = self._results.stamps if self._results is not None else {}, f"{name} "
        return {key.removeprefix(prefix): content for key, content in stored.items() if key.startswith(prefix)}

    def keep_results(self, name: str, results: Mapping[str, str]) -> None:
        """Keep these results in the cache, in place of all others of this name."""
        if self._results is not None:
            others = {key: value for key, value in self._results.stamps.items() if not key.startswith(f"{name} ")}
            self._results.remember({**others, **{f"{name} {key}": value for key, value in results.items()}})

    def planned_pages(self, evaluation: str) -> Iterator[PlannedPage]:
        """All pages of keys in plan order, also those without records."""
        name = f"{SCORES}{evaluation}"
        for cell, first, end in self._pages.planned():
            entry = self._directory.pages.get(first)
            found = None if entry is None else (_checksum(entry, ANSWERS), _checksum(entry, name))
            yield PlannedPage(cell, first, end, found)

    def edits_of(self, o: int, of: int, evaluation: str) -> list[EditRow]:
        """Scores of one answer that were set by hand, oldest first."""
        rows = self._evaluation(self._pages.page_at(o), evaluation)
        return sorted((row for row in rows.edits.get(o, ()) if row.of == of), key=lambda row: row.n)

    def made_of(self, o: int, of: int, evaluation: str) -> list[MadeRow]:
        """Scores that the scorers of an evaluation gave one answer, without scores set by hand."""
        rows = self._evaluation(self._pages.page_at(o), evaluation)
        return [row for row in rows.made.get(o, {}).values() if row.of == of]

    def example_of(self, evaluation: str, scorer: str) -> Position | None:
        """The position of a record in which a scorer gave a value; None if it never did.

        Prefers values other than true and false: malformed answers are scored false without calling the scorer.
        """
        example: Position | None = None
        for first in self._pages.starts:
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
            for entry in self._directory.pages.values()
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
        looked = sum(entry.totals.answers.looked.get(version, 0) for entry in self._directory.pages.values())
        return sum(entry.totals.answers.finished for entry in self._directory.pages.values()) - looked

    def differences(self, other: "Index") -> list[str]:
        """How this index differs from another one of the same records. Compares all rows, by checksum."""
        mine, theirs = self._directory, other._directory  # noqa: SLF001 - the same class
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
        for first in [*self._pages.starts]:
            for name in [*self._directory.pages[first].blobs]:
                self._load(first, name, bytes, keep=False)

    def remove(self) -> None:
        """Remove the cached snapshot because it is wrong: the next reader rebuilds it."""
        self._snapshot.discard()

    def close(self) -> None:
        self._pages.close()
        self._recent.clear()
        self._is_open = False

    # Reading pages.

    def _answers(self, page: int) -> dict[int, AnswerRow]:
        return self._load(page, ANSWERS, decode_answers)

    def _evaluation(self, page: int, evaluation: str) -> EvaluationRows:
        entry, name = self._directory.pages.get(page), f"{SCORES}{evaluation}"
        if entry is None or name not in entry.blobs:
            return EvaluationRows()
        return self._load(page, name, EvaluationRows.decode)

    def _load(self, page: int, name: str, decode: Callable[[bytes], T], *, keep: bool = True) -> T:
        """Read and decode a part of a page. If that fails, rebuild the index from the same records and try again.
        `keep`: for the next call, which must use the same decoder.
        """
        while True:
            if not self._is_open:
                raise RuntimeError("the index is closed")
            place = (page, name)
            if keep and place in self._recent:
                found: T = self._recent[place]
                return found
            try:
                found = decode(self._pages.read(self._directory.pages[page].blobs[name]))
            except _FAILURES as error:
                if self._rebuilds == _REBUILDS_MAX:
                    raise  # a fault that rebuilding does not cure
                self._last = self.last_n  # the same records, so that rows returned so far stay valid
                self._rebuild(error)
                continue
            if keep:
                while len(self._recent) >= _RECENT:
                    del self._recent[next(iter(self._recent))]
                self._recent[place] = found
            return found

    # Bringing the index up to date.

    def _reset(self, file: SnapshotReader | None = None, directory: Directory | None = None) -> None:
        path = self._snapshot.path
        self._pages = IndexPages(Spill(None if path is None else os.path.dirname(path)), file, directory)
        self._recent: dict[tuple[int, str], Any] = {}
        self._is_open = True

    @property
    def _directory(self) -> Directory:
        return self._pages.directory

    def _open(self) -> None:
        file = self._snapshot.open() if self._kept else None
        segments = stamp_segments(journal_folder(self._run))
        if file is not None:
            self._restore(file, segments)
        self._catch_up(self._directory.cursor, segments)

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

    def _restore(self, file: SnapshotReader, segments: Stamps) -> None:
        """Continue with the pages of a snapshot. StaleCursorError if a segment that it was made from has changed."""
        try:
            self._reset(file, _decoder.decode(file.directory))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            file.close()
            raise UnusableError(f"cannot be decoded ({error})") from error
        if have_changed(journal_folder(self._run), self._directory.segments, segments, self.checked):
            raise StaleCursorError(f"{self._run}: a segment has changed since the index was made")

    def _catch_up(self, cursor: Cursor, segments: Stamps) -> None:
        """Apply the records after `cursor`. `segments`: the states of the files, taken before reading."""
        reader = Reader(journal_folder(self._run), cursor=cursor)
        changes, last, apply, has_start = 0, self._last, self._pages.apply, self.story.has_start
        with fewer_collections(_COLLECT_AFTER):
            for each in reader.read(live=True):
                changes += 1
                if isinstance(each, Damage):
                    if each not in self.damage:  # a stray file is reported by every reader
                        self.damage.append(each)
                    continue
                if last is not None and each.line.n > last:
                    self.last_n = last
                    self._pages.flush()
                    return  # not published: its cursor would not match the records that were applied
                if each.line.t in START_RECORDS and has_start(each.line):
                    continue  # the copy of a lost start record is read every time
                apply(each)
            self.last_n, self.start_n = reader.cursor.n, reader.start_n
            if not changes:
                return
            self._pages.flush()
        self._directory.cursor, self._directory.segments = reader.cursor, segments
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
            for first in self._pages.starts:
                entry = self._directory.pages[first]
                blobs = {name: writer.add(self._pages.read(blob), blob.digest) for name, blob in entry.blobs.items()}
                pages[first] = PageEntry(blobs, entry.totals)
            saved = msgspec.structs.replace(self._directory, pages=pages, finished=self._pages.finished.encoded())
            writer.publish(msgspec.json.encode(saved))
        except (OSError, UnusableError):
            writer.drop()
            return
        if self.last_n >= _SMALL_RECORDS:
            self._continue_from_file()

    def _continue_from_file(self) -> None:
        """Read pages from the snapshot that was just published, instead of keeping new ones in memory: a server keeps
        an index open for days.
        """
        with contextlib.suppress(UnusableError, msgspec.MsgspecError, ValueError, TypeError):
            file = self._snapshot.open()
            if file is not None:
                directory, pages = _decoder.decode(file.directory), self._pages
                if directory.cursor != self._directory.cursor:
                    file.close()  # another process has published a newer one
                    return
                self._reset(file, directory)
                pages.close()
                return_memory()


def _checksum(entry: PageEntry, name: str) -> int | None:
    blob = entry.blobs.get(name)
    return None if blob is None else blob.digest
