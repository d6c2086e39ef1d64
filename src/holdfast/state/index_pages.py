"""The pages of an index while records are applied to them.

Owns the directory (everything but the rows), with the lives of the run, and the rows of changed pages. Changes are
collected and applied page by page, because loading a page costs as much as many changes. Totals are computed again for
every changed page. A life keeps the totals of the run at its beginning: what its process did is a difference of two
totals, so counting it costs nothing while records are read. A crash loses nothing: all of it is derived from the
journal.
"""

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import xxhash

from holdfast.errors import HoldfastError, StaleCursorError
from holdfast.journal import START, Cursor, Damage, Entry, Position
from holdfast.records import (
    Bill,
    Cell,
    Change,
    FactDecoder,
    RunExtended,
    RunResumed,
    RunStarted,
    SampleFailed,
    cell_names,
    marks_of,
)
from holdfast.state.dispatch import RecordHandlers
from holdfast.state.fold import Bits, FinishedGist, failed_data, looked_data, score_data, step_gist
from holdfast.state.pages import PAGE_KEYS, KeyPage, PageChanges, PageEntry
from holdfast.state.profile import Profile, TimedGist
from holdfast.state.rows import AnswerRow
from holdfast.state.snapshot import Blob, SnapshotReader, Spill, Stamps, UnusableError
from holdfast.state.story import BEGINNINGS, ENDS, Story
from holdfast.state.totals import PageTotals, Reducing, answer_totals, score_totals, stored_reducing

_timed_gist = FactDecoder(TimedGist)
_PENDING_MAX = 50_000
"""Changes that are collected at most."""
_LONG_BYTES = 1000
"""A longer score counts as several changes, because it is kept until it is applied."""
T = TypeVar("T")
_SCORING = "score.started"
_LIFE_RECORDS = BEGINNINGS | ENDS | {_SCORING, "segment"}
"""Records that begin or end a life."""


class _Calls(msgspec.Struct, frozen=True, gc=False):
    tool_calls: object = None


class _Said(msgspec.Struct, frozen=True, gc=False):
    """The fields of an `Answer` that the index needs. Decoding skips the rest, such as logprobs."""

    text: str
    message: _Calls = _Calls()
    tool_calls: list[dict[str, Any]] = msgspec.field(default_factory=list)
    finish_reason: str = ""


class _Finished(FinishedGist, frozen=True, gc=False, kw_only=True):
    answer: _Said
    anomalies: dict[str, str] = msgspec.field(default_factory=dict)


_finished = FactDecoder(_Finished)
_HANDLERS: RecordHandlers["IndexPages", Entry] = RecordHandlers()


class RunTotals(msgspec.Struct, frozen=True):
    """The totals of a run after a record."""

    finished: int = 0
    failed: int = 0
    steps: int = 0
    taken: int = 0
    """Steps that a fork copied from its parent."""
    replayed: int = 0
    orphaned: int = 0
    sent_seconds: float = 0.0
    """Time in flight, summed over all requests."""
    bills: dict[str, dict[str, Bill]] = msgspec.field(default_factory=dict)
    """By model and role, over all tasks. The evaluated model has the empty role."""


class Life(msgspec.Struct):
    """One process."""

    kind: str
    """How it began: the type of its first record, or `score.started` for a process that only scored."""
    n: int
    """The record that began it."""
    begun: Cursor
    """Behind that record; the start of the journal if it was lost and only its copy is left."""
    at: str
    epoch: int
    before: RunTotals
    host: str = ""
    pid: int = 0
    version: str = ""
    changes: tuple[Change, ...] = ()
    last_n: int = 0
    """Its last record; 0 while that is not known, because nothing came after it."""
    last_at: str = ""
    end: str = ""
    """The type of the record of its end; empty if it recorded none: killed, or still running."""
    reason: str = ""


class Directory(msgspec.Struct):
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
    lives: list[Life] = msgspec.field(default_factory=list)
    """Every process that worked on the run."""


class IndexPages:
    """Pages with their totals, and the records that change them."""

    def __init__(self, spill: Spill, file: SnapshotReader | None = None, directory: Directory | None = None) -> None:
        """Begin with nothing, or with the pages of a snapshot."""
        self.file = file
        self.directory = Directory() if directory is None else directory
        self.finished = Bits.decoded(self.directory.finished)
        self._spill = spill
        self._story = self.directory.story
        self._pending: dict[int, PageChanges] = {}
        self._pending_count = 0
        self._last_page: tuple[int, int] = (0, 0)
        """The page that `page_at` found last: its first ordinal, and its end."""
        self.lay_out()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        self._spill.close()

    def apply(self, entry: Entry) -> None:
        """Update from one record."""
        _HANDLERS.get(entry.line.t, IndexPages._apply_run_record)(self, entry)
        self._story.updated = entry.line.at
        if self._pending_count > _PENDING_MAX:
            self.flush()

    def pages_of(self, first: int, count: int) -> list[int]:
        """The pages with keys among `count` ordinals from `first` on, in plan order."""
        if count < 0 and not first:
            return self.starts
        low = bisect_left(self.starts, max(self.page_at(first), 0))
        return self.starts[low : None if count < 0 else bisect_left(self.starts, first + count)]

    def page_at(self, o: int) -> int:
        """The page of a key, which may not exist yet."""
        first, last = self._last_page
        if first <= o < last:  # neighbours are mostly looked up one after the other
            return first
        at = bisect_right(self._cells, o, key=lambda cell: cell[0]) - 1
        if at >= 0:
            first, count, size, _ = self._cells[at]
            if o < first + count:
                page = o - (o - first) % size
                self._last_page = (page, min(page + size, first + count))
                return page
        return -1 - o // PAGE_KEYS

    def planned(self) -> Iterator[tuple[Cell, int, int]]:
        """Every page that the plan has, also if it does not exist yet: its cell, its first ordinal and its end."""
        for cell in sorted((each for each in self._story.cells if each.count), key=lambda each: each.first):
            end = cell.first + cell.count
            for first in range(cell.first, end, self.directory.sizes[cell.first]):
                yield cell, first, min(first + self.directory.sizes[cell.first], end)

    def read(self, blob: Blob) -> bytes:
        if blob.spilled:
            return self._spill.read(blob)
        if self.file is None:
            raise UnusableError("is damaged (a part of it is missing)")
        return self.file.read(blob)

    def lay_out(self) -> None:
        """Compute where pages begin, after the plan or the set of pages has changed."""
        sizes, self._cells = self.directory.sizes, list[tuple[int, int, int, str]]()
        for cell in self._story.cells:
            if cell.count:
                if cell.first not in sizes:
                    repeats = max(self._reducing().get(cell.task, Reducing()).repeats, 1)
                    sizes[cell.first] = max(PAGE_KEYS - PAGE_KEYS % repeats, repeats)
                self._cells.append((cell.first, cell.count, sizes[cell.first], cell.task))
        self._cells.sort()
        self._last_page = (0, 0)
        self.starts = sorted(self.directory.pages)

    def _reducing(self) -> dict[str, Reducing]:
        try:
            return stored_reducing(self._story.spec)
        except (HoldfastError, AttributeError, TypeError, ValueError):
            return {}  # not a spec that Holdfast wrote: commands that show the run report that

    def flush(self) -> None:
        """Apply the collected changes to their pages, and compute the totals of these pages."""
        reducing = self._reducing()
        again = set(self.directory.pages) if reducing != self.directory.reducing else set()
        self.directory.reducing = reducing
        pending, self._pending, self._pending_count = self._pending, {}, 0
        for first in sorted({*pending, *again}):
            self.change(first, pending.get(first, PageChanges()).apply)
        self.lay_out()

    def change(self, first: int, change: Callable[[KeyPage], T]) -> T:
        """Load a page, change it, and store it. Returns what `change` returned."""
        entry = self.directory.pages.get(first)
        contents = {} if entry is None else {name: self.read(blob) for name, blob in entry.blobs.items()}
        page = KeyPage.decode(contents) if contents else KeyPage()
        found = change(page)
        page.answers = {o: page.answers[o] for o in sorted(page.answers)}
        samples = {o: row.sample for o, row in page.answers.items() if row.status == "finished"}
        task = next((task for start, count, _, task in self._cells if start <= first < start + count), "")
        reducing = self.directory.reducing.get(task, Reducing()).of_pages()
        totals = PageTotals(
            answer_totals(page.answers.values(), samples),
            {
                name: score_totals(rows.counting(page.answers), samples, reducing)
                for name, rows in page.evaluations.items()
            },
        )
        blobs = {name: self._spill.write(content) for name, content in page.encode().items()}
        self.directory.pages[first] = PageEntry(blobs, totals)
        return found

    def _note(self, o: int, entry: Entry) -> PageChanges:
        """Collect the position of a record of a key. Returns the collected changes of its page."""
        page = self.page_at(o)
        changes = self._pending.get(page)
        if changes is None:
            changes = self._pending[page] = PageChanges()
        places = changes.records.get(o)
        if places is None:
            changes.records[o] = [entry.line.n, entry.segment, entry.offset]
        else:
            places += (entry.line.n, entry.segment, entry.offset)
        self._pending_count += 1
        return changes

    def _apply_run_record(self, entry: Entry) -> None:
        lives, epoch, before = self.directory.lives, self._story.epoch, None
        if _begins_life(lives, epoch, entry.line.t):
            self.flush()
            before = self.totals()
        self._story.apply(entry)
        self.directory.profile.fold(entry.line)
        if entry.line.t in _LIFE_RECORDS:
            _note_life(lives, self._story, entry, epoch, before)

    def totals(self) -> RunTotals:
        """Of the run so far. Collected changes must have been applied."""
        failed = sum(page.totals.answers.failed for page in self.directory.pages.values())
        return _totals_of(self._story, self.directory.profile, self.finished.count, failed)

    @_HANDLERS.on("run.started", "run.extended")
    def _apply_plan(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        self.lay_out()

    @_HANDLERS.on("step")
    def _apply_step(self, entry: Entry) -> None:
        step = _timed_gist.decode(entry.line)  # once for both: most of the time of indexing is decoding steps
        self._story.answered(step, entry.line.k)
        self.directory.profile.answered(step, entry.line)
        self._note(step.o, entry)

    @_HANDLERS.on("step.started")
    def _apply_announcement(self, entry: Entry) -> None:
        self._note(step_gist.decode(entry.line).o, entry)

    @_HANDLERS.on("run.resumed")
    def _apply_resumed(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        self.directory.resumed.append(Position(entry.line.n, entry.segment, entry.offset))
        self.flush()
        ordinals = self._story.resumes[-1].resumed.retried
        for first in [first for first, page in self.directory.pages.items() if page.totals.answers.failed]:
            self.change(first, lambda page: page.retry(ordinals))

    @_HANDLERS.on("run.replanned")
    def _apply_replanned(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        self.flush()
        for cell in self._story.replans[-1].replanned.cells:
            for first in self.pages_of(cell.first, cell.count):
                self.change(first, functools.partial(KeyPage.rename, model=cell.model))

    @_HANDLERS.on("anomaly")
    def _apply_anomaly(self, entry: Entry) -> None:
        self._apply_run_record(entry)
        if entry.line.k is not None:
            found = looked_data.decode(entry.line)
            self._note(found.o, entry).rechecked.append(found)
        elif self._story.anomalies:
            self._forget_lost()

    def _forget_lost(self) -> None:
        """Remove the rows of records that the last anomaly reports as lost."""
        if self.file is not None:  # its counters include the lost records, so only a rebuild is right
            raise StaleCursorError("records were lost since they were indexed")
        lost = self._story.anomalies[-1]
        if lost.n_last < lost.n_first:
            return
        self.flush()
        for first in [*self.directory.pages]:
            for o in self.change(first, lambda page: page.forget(lost.n_first, lost.n_last)):
                self.finished.discard(o)

    @_HANDLERS.on("sample.finished")
    def _apply_finished(self, entry: Entry) -> None:
        found = _finished.decode(entry.line)
        if self.finished.add(found.o):
            self._put_answer(entry, found, "finished")
        else:
            self._story.answered_again(found.spent, entry.line.k)
            self._note(found.o, entry)

    @_HANDLERS.on("sample.failed")
    def _apply_failed(self, entry: Entry) -> None:
        found = failed_data.decode(entry.line)
        if found.o not in self.finished:  # the first answer stays
            self._put_answer(entry, found, "failed" if found.final else "unfinished")
        else:
            self._note(found.o, entry)

    def _put_answer(self, entry: Entry, found: _Finished | SampleFailed, status: str) -> None:
        self._story.ended(found.o, found.attempt, found.spent, entry.line.k)
        key, spent = str(entry.line.k), found.spent
        used = spent.usage + spent.saved
        by_role = (
            {"": used} if not spent.roles else {name: each.usage + each.saved for name, each in spent.by_role().items()}
        )
        kind = message = marks = ""
        looked, anomalies, said, characters = 0, b"{}", 0, 0
        if isinstance(found, SampleFailed):
            kind, message = found.failure.kind, found.failure.message
        else:
            answer, looked = found.answer, found.looked
            calls = answer.tool_calls or answer.message.tool_calls
            marks = " ".join(marks_of(answer.text, answer.finish_reason, calls))
            characters, said = len(answer.text), _digest_answer(key, answer)
            anomalies = msgspec.json.encode(found.anomalies) if found.anomalies else anomalies
        self._note(found.o, entry).answers[found.o] = AnswerRow(
            found.o,
            key,
            status,
            entry.line.n,
            entry.segment,
            entry.offset,
            found.attempt,
            used.input_tokens,
            used.output_tokens,
            spent.seconds,
            kind,
            message,
            msgspec.json.encode(by_role),
            marks,
            looked,
            anomalies,
            said,
            characters,
        )

    @_HANDLERS.on("score")
    def _apply_score(self, entry: Entry) -> None:
        found = score_data.decode(entry.line)
        if not found.author:
            self._story.scored(found.o, found.spent, entry.line.k, found.evaluation, last=found.last)
            self.directory.profile.scored(0.0 if found.taken else found.seconds, entry.line)
        place = (entry.line.n, entry.segment, entry.offset)
        self._note(found.o, entry).scores.append((place, found))
        self._pending_count += (entry.end - entry.offset) // _LONG_BYTES  # a reason or metadata may be long


def _digest_answer(key: str, answer: _Said) -> int:
    """The same for equal answers to a sample, in every repeat and of every model."""
    task, _, sample, _ = key.split("/")
    return xxhash.xxh3_64_intdigest(msgspec.json.encode((task, sample, answer.text, answer.tool_calls)))


def _totals_of(story: Story, profile: Profile, finished: int, failed: int) -> RunTotals:
    bills: dict[str, dict[str, Bill]] = {}
    for cell, roles in story.bills.items():
        of_model = bills.setdefault(cell_names(cell)[1], {})
        for role, bill in roles.items():
            into = of_model.setdefault(role, Bill())
            into.requests += bill.requests
            for name in ("usage", "taken", "saved", "orphaned"):
                setattr(into, name, getattr(into, name) + getattr(bill, name))
    times = (*profile.models.values(), *profile.roles.values())
    return RunTotals(
        finished,
        failed,
        story.steps,
        story.taken,
        story.replayed,
        story.orphaned,
        round(sum(each.sent_seconds for each in times), 3),
        bills,
    )


def _begins_life(lives: list[Life], epoch: int, kind: str) -> bool:
    """Whether a record of this kind begins a life. A process that only scores has no other beginning."""
    if kind != _SCORING:
        return kind in BEGINNINGS
    return not lives or lives[-1].epoch != epoch or bool(lives[-1].end)


def _note_life(lives: list[Life], story: Story, entry: Entry, epoch: int, before: RunTotals | None) -> None:
    """Update from a record that the story has seen. `epoch`: of the story before that. `before`: the totals before the
    record, if it may begin a life.
    """
    line = entry.line
    if line.t == "run.resumed" and story.resumes[-1].resumed.live:
        return  # limits were changed while the process continued
    last = lives[-1] if lives else None
    if last is not None and not last.last_n and (line.t in BEGINNINGS or story.epoch != epoch):
        last.last_n, last.last_at = line.n - 1, story.updated  # the story has not seen the time of this record yet
    if line.t in ENDS and last is not None and story.end is not None:
        last.end, last.reason = line.t, story.end.data.reason
    if before is not None:
        begun = START if entry.is_copy else Cursor(entry.segment, entry.end, line.n, line.x)
        life = Life(line.t, line.n, begun, line.at, story.epoch, before)
        _describe(life, story, since=last.at if last is not None else "")
        lives.append(life)


def _describe(life: Life, story: Story, since: str) -> None:
    """Fill in the process and its changes. `since`: the beginning of the life before."""
    fact: RunStarted | RunResumed | RunExtended | None = None
    if life.kind == "run.started":
        fact = story.started
    elif life.kind == "run.extended":
        fact = story.extensions[-1].extended
        life.changes = fact.changes
    elif life.kind == "run.resumed":
        fact = story.resumes[-1].resumed
        # A corrected model is recorded by `run.replanned`, directly before the resume.
        corrected = [each.replanned.changes for each in story.replans if each.at > since]
        life.changes = (*(change for changes in corrected for change in changes), *fact.changes)
    if fact is not None:
        pid = fact.host.get("pid", 0)
        life.host, life.version = str(fact.host.get("host", "")), fact.version
        life.pid = pid if isinstance(pid, int) else 0
