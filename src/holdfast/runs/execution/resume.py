"""Resumes or extends a run: compares the given spec with the stored one, records the changes, runs what is left.

Order of a resume, and what a crash leaves behind at each step:

1. Refuse what must be refused (drift, damage, missing keys). Nothing has changed yet.
2. Claim the run, read what was recorded in the meantime, and compare again if anything was.
3. Append unrecorded losses, then `run.resumed` with every accepted change. From here on the changes are in force.
4. Write started.jsonl and spec.yaml, which are copies. The next start rewrites them if they are missing.
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import DamagedError, SpecError, StaleCursorError
from holdfast.journal import (
    START,
    Cursor,
    Damage,
    Lock,
    Reader,
    StartLines,
    Writer,
    is_start_copy_current,
    unrecorded,
    write_start,
)
from holdfast.plan import (
    PlanExtension,
    PlanReplacement,
    StoredRows,
    adopt_benchmarks,
    has_same_rows,
    inputs_of,
    is_same_source,
    source_of,
    survey,
)
from holdfast.records import Change, Row, RunExtended, RunReplanned, RunResumed, draft
from holdfast.report import shortened
from holdfast.runs.execution.drift import (
    AcceptedChanges,
    DriftCheck,
    Retry,
    cells_of,
)
from holdfast.runs.execution.log import EventLog
from holdfast.runs.execution.preparation import (
    Given,
    Prepared,
    check,
    evaluation_of,
    find_scorers,
    prefix_errors,
    prepare_given,
    refuse_missing_keys,
    refuse_mixed_scales,
    scorer_identities,
)
from holdfast.runs.execution.session import Observe, RunOutcome, RunSession, close_quietly, open_journal, run_session
from holdfast.runs.mirror.claim import Claimed, claim_run, is_mirrored, is_overtaken, send_rest
from holdfast.runs.store.lookup import RunLocation
from holdfast.runs.store.provenance import (
    collect_versions,
    describe_host,
    is_spec_file_current,
    write_spec_file,
)
from holdfast.spec import (
    Mirror,
    Spec,
    adopt_stored,
    read_stored_spec,
    spec_mapping,
    variables_in,
)
from holdfast.state import Fold, FoldSnapshot, stamp_segments
from holdfast.version import __version__

_NAME_CHARACTERS = 100


class Reading:
    """The folded content of a journal. Read once; `catch_up` adds newer records."""

    def __init__(
        self, place: RunLocation, evaluation: str | None = None, scorers: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """`evaluation` and `scorers`: passed to `Fold`."""
        self.place = place
        self._evaluation = evaluation
        self._scorers = scorers
        try:
            self._read(FoldSnapshot(place.folder, evaluation, scorers) if place.began else None)
        except StaleCursorError:
            self.start_over()

    @property
    def state(self) -> tuple[int, int, int]:
        """The last record number and the numbers of resumes and extensions. If unchanged, nothing was recorded."""
        story = self.fold.story
        return self._reader.cursor.n if self._reader else 0, len(story.resumes), len(story.extensions)

    @property
    def end(self) -> Cursor:
        return self._reader.cursor if self._reader else START

    def start_over(self) -> None:
        """Read the journal from its beginning, because its stored records may have been replaced."""
        self._read(None)

    def _read(self, snapshot: FoldSnapshot | None) -> None:
        """Read the journal, from where a `snapshot` ends if there is one."""
        self.fold = Fold(self._evaluation, self._scorers)
        self._start = StartLines()
        self._reader = None
        if self.place.began:
            segments = stamp_segments(self.place.journal)  # before reading: a later change then shows
            cursor = snapshot.restore(self.fold, self._start, segments) if snapshot is not None else None
            self._reader = Reader(self.place.journal, cursor=cursor or START)
            self.fold.read(self._start.watch(self._reader.read()))
            if snapshot is not None:
                snapshot.save(self.fold, self._start, self._reader, segments)
        self.uid = self._reader.uid if self._reader is not None else ""

    def catch_up(self) -> None:
        if self._reader is None:
            self.start_over()
            return
        try:
            self.fold.read(self._start.watch(self._reader.read()))
            self.uid = self._reader.uid
        except StaleCursorError:
            self.start_over()

    def is_start_new(self) -> bool:
        return is_start_copy_current(self.place.folder, self.uid, self._start)

    def write_start(self) -> None:
        """Write started.jsonl, the copy of the journal's first records, unless it is up to date."""
        write_start(self.place.folder, self.uid, self._start)


def stored_spec(fold: Fold) -> Spec:
    """The stored spec. DamagedError if its tasks and models do not match the cells of the plan."""
    spec = read_stored_spec(fold.story.spec)
    tasks, models = {task.name for task in spec.tasks}, {model.name for model in spec.models}
    for cell in fold.story.cells:
        if cell.task not in tasks or cell.model not in models:
            raise DamagedError(
                f"a cell of the run's plan names the task {shortened(cell.task, _NAME_CHARACTERS)!r} and the model "
                f"{shortened(cell.model, _NAME_CHARACTERS)!r}, and its spec does not: this journal was edited"
            )
    return spec


def stored_rows(place: RunLocation, fold: Fold, spec: Spec) -> dict[str, Iterable[Row]]:
    """The stored rows of tasks whose data files are missing or never existed, and of those whose rows come from the
    same remote source as before. Empty if the run stores no data.
    """
    stored = stored_spec(fold)
    if not stored.record_data:
        return {}
    before = {task.name: task.dataset for task in stored.tasks}
    rows: dict[str, Iterable[Row]] = {}
    for task in spec.tasks:
        cells = [cell for cell in fold.story.cells if cell.task == task.name]
        source = source_of(task.dataset)
        if not cells or not has_same_rows(spec, stored, task.name):
            continue
        if task.dataset.is_remote:
            is_stored = is_same_source(task.dataset, before[task.name])
        else:
            is_stored = source is None or source.is_missing()
        if is_stored:
            rows[task.name] = StoredRows(place.folder, cells)
    return rows


class Resumption:
    """One resume, or extension, of one run by this process."""

    def __init__(self, prepared: Prepared, reading: Reading, given: Given, retry: Retry) -> None:
        self._prepared = prepared
        self._reading = reading
        self._given = given
        self._place = reading.place
        self._retry = retry
        self._drift = DriftCheck(prepared, given, reading.place, retry)

    async def resume(self, observe: Observe | None) -> RunOutcome:
        """Continue the run. A run with nothing left to do is only brought up to date: its copies and its mirror."""
        accepted = await asyncio.to_thread(self._compare)
        mirror = self._prepared.spec.mirror
        done = not accepted.changes and self._has_nothing_to_do(accepted.retried)
        if done and not await asyncio.to_thread(is_overtaken, mirror, self._place):
            await asyncio.to_thread(self._repair_copies)
            end = self._reading.end
            warn = logging.getLogger("holdfast").warning
            if await asyncio.to_thread(send_rest, mirror, self._place, self._reading.uid, end, warn):
                return self._complete()
        if self._count_open(accepted.retried):
            await asyncio.to_thread(self._refuse_missing_keys, accepted.renamed)
        claimed = await claim(self._reading, mirror)
        try:
            if claimed.changed:
                accepted = await asyncio.to_thread(self._compare)
                done = not accepted.changes and self._has_nothing_to_do(accepted.retried)
            if done and (mirror is None or is_mirrored(self._place.folder)):  # another process has finished it
                await asyncio.to_thread(claimed.release)
                return self._complete()
            replanned = await asyncio.to_thread(self._replan, accepted) if accepted.corrected else None
        except BaseException:
            claimed.release()
            raise
        writer, logbook = await open_claimed(self._reading, claimed)
        if done:  # closing the journal sends what the mirror does not have
            await close_quietly(writer, logbook)
            return self._complete()
        try:
            changes = () if replanned is not None else tuple(accepted.changes)
            spec = spec_mapping(self._prepared.spec) if changes else None
            versions = await asyncio.to_thread(collect_versions)  # runs git
            if replanned is not None:  # in force from here on, even if we crash before the next record
                await writer.append(draft("run.replanned", msgspec.structs.replace(replanned, code=versions)))
                logbook.tell("run.replanned", f"corrected models: {', '.join(accepted.corrected)}")
            rounds = len(self._retry.rounds or ())
            resumed = RunResumed(changes, spec, versions, describe_host(), __version__, accepted.retried, round=rounds)
            await writer.append(draft("run.resumed", resumed))
        except BaseException:
            await close_quietly(writer, logbook)
            raise
        return await self._work(writer, logbook, observe)

    async def extend(self, observe: Observe | None) -> RunOutcome:
        """Add a block of new keys to the plan, then answer what is left.

        If an earlier call of the same command already added the block, resume: the command can be repeated after a
        crash at any point.
        """
        opened = await self.add_block()
        return await self.resume(observe) if opened is None else await self._work(*opened, observe)

    async def add_block(self) -> tuple[Writer, EventLog] | None:
        """Add a block of new keys to the plan. Returns the open journal; None if the block was there already."""
        with prefix_errors(self._given):
            await asyncio.to_thread(survey, self._prepared.spec, self._prepared.works)
        changes, extension = await asyncio.to_thread(self._compare_for_extension)
        if extension is None:
            return None
        with prefix_errors(self._given):
            refuse_missing_keys(self._prepared.spec)
        claimed = await claim(self._reading, self._prepared.spec.mirror)
        try:
            if claimed.changed:
                changes, extension = await asyncio.to_thread(self._compare_for_extension)
            planned = await asyncio.to_thread(extension.write) if extension is not None else None
        except BaseException:
            claimed.release()
            raise
        if planned is None:  # another process added the block in the meantime
            await asyncio.to_thread(claimed.release)
            return None
        writer, logbook = await open_claimed(self._reading, claimed)
        try:
            spec, inputs = spec_mapping(self._prepared.spec), inputs_of(self._prepared.works)
            files = (planned.plan, planned.data, planned.cells)
            versions = await asyncio.to_thread(collect_versions)
            extended = RunExtended(tuple(changes), spec, *files, inputs, versions, describe_host(), __version__)
            await writer.append(draft("run.extended", extended))
        except BaseException:
            await close_quietly(writer, logbook)
            raise
        return writer, logbook

    def _refuse_missing_keys(self, renamed: Mapping[str, str]) -> None:
        """SpecError if an API key is missing. Models without open answers need no key."""
        finished = self._fold.finished
        left = [cell.model for cell in self._fold.story.cells if not finished.has_all(cell.first, cell.count)]
        needed = {renamed.get(name, name) for name in left}
        spec = self._prepared.spec
        with prefix_errors(self._given):
            refuse_missing_keys(spec, {model.name for model in spec.models} - needed)

    def _complete(self) -> RunOutcome:
        finished, failed = self._fold.finished.count, self._fold.failed.count
        return RunOutcome(self._place, self._prepared.spec, finished, failed, 0, complete=True)

    def _replan(self, accepted: AcceptedChanges) -> RunReplanned:
        """Write a plan block that replaces the cells of corrected models. The run must be claimed."""
        prepared, story = self._prepared, self._fold.story
        number = len(story.blocks) + 1
        renamed = accepted.renamed
        replaced = cells_of(self._fold, accepted.corrected, renamed)
        plan, cells = PlanReplacement(
            self._place.folder, prepared.spec, prepared.works, replaced, renamed, number
        ).write()
        changes, spec = tuple(accepted.changes), spec_mapping(prepared.spec)
        return RunReplanned(
            changes, spec, plan, cells, number, host=describe_host(), version=__version__, renamed=renamed
        )

    @property
    def _fold(self) -> Fold:
        return self._reading.fold

    def _compare(self) -> AcceptedChanges:
        return self._drift.compare(self._fold, stored_spec(self._fold), self._reading.uid)

    def _compare_for_extension(self) -> tuple[list[Change], PlanExtension | None]:
        return self._drift.compare_for_extension(self._fold, stored_spec(self._fold))

    async def _work(self, writer: Writer, logbook: EventLog, observe: Observe | None) -> RunOutcome:
        started = self._fold.story.started
        assert started is None or not started.shards, "only shards answer the samples of a sharded run"
        try:
            await asyncio.to_thread(self._reading.catch_up)  # the records that were just appended
            await asyncio.to_thread(self._reading.write_start)
            await asyncio.to_thread(write_spec_file, self._place, self._fold.story)
        except BaseException:
            await close_quietly(writer, logbook)
            raise
        session = RunSession(self._prepared, self._place, self._reading.uid, observe, writer, logbook)
        return await run_session(session, self._fold)

    def _has_nothing_to_do(self, retried: tuple[int, ...] | None) -> bool:
        """Whether everything is answered and scored, and `run.completed` is recorded."""
        fold, prepared = self._fold, self._prepared
        end = fold.story.end
        if end is None or end.kind != "run.completed" or self._count_open(retried):
            return False
        if unrecorded(fold.damage, fold.story.anomalies):
            return False  # a resume records the losses, after which readers no longer warn of them
        if fold.evaluation and fold.evaluation != fold.story.evaluation:
            return False
        if prepared.declares_other_scales(fold.story.evaluations.get(fold.evaluation)):
            return False  # nothing is scored again, but reports need the new scales
        scored = [cell for cell in fold.story.cells if prepared.scorers[cell.task]]
        return not any(cell.first <= ordinal < cell.first + cell.count for ordinal in fold.unscored for cell in scored)

    def _count_open(self, retried: tuple[int, ...] | None) -> int:
        """The number of keys that need requests."""
        fold = self._fold
        return fold.unfinished + (fold.failed.count + len(fold.unjudged) if retried is None else len(retried))

    def _repair_copies(self) -> None:
        """Rewrite spec.yaml and started.jsonl if they are missing or out of date: a process crashed between its record
        and the copies.
        """
        is_spec_current = is_spec_file_current(self._place, self._fold.story)
        if is_spec_current and self._reading.is_start_new():
            return
        lock = Lock(self._place.folder)
        try:
            self._reading.write_start()
            if not is_spec_current:
                write_spec_file(self._place, self._fold.story)
        finally:
            lock.release()


def read_fold(place: RunLocation) -> Fold:
    """Fold the whole journal, also if a saved fold spares it: for commands that look for damage, or copy the run."""
    return Fold().read(Reader(place.journal).read()) if place.began else Fold()


def read_story(place: RunLocation) -> tuple[Fold, str]:
    """Fold only the records about the run as a whole: its spec, plan, resumes. Also returns the uid. Nothing is known
    of single keys, unless the run has no beginning: then everything is read, to find out why.
    """
    fold = Fold()
    if not place.began:
        return fold, ""
    found = FoldSnapshot(place.folder).restore_story(stamp_segments(place.journal))
    reader = Reader(place.journal)
    if found is not None:
        fold.story, cursor = found
        reader = Reader(place.journal, cursor=cursor)
    try:
        fold.read(each for each in reader.read() if isinstance(each, Damage) or each.line.k is None)
    except StaleCursorError:
        return read_fold(place), Reader(place.journal).uid
    return fold if fold.story.started is not None else read_fold(place), reader.uid


def read_and_prepare(given: Given, place: RunLocation) -> tuple[Prepared, Reading]:
    """Read the journal, if there is one, and prepare the spec; stored inputs replace files that are missing."""
    try:
        return _read_and_prepare(given, place)
    except SpecError:
        if not os.path.isdir(place.journal):
            check(given)  # nothing depends on what is stored: report all problems, not only the first
        raise


def _read_and_prepare(given: Given, place: RunLocation) -> tuple[Prepared, Reading]:
    with prefix_errors(given):
        given = _with_stored_values(given, place)
        scorers = find_scorers(given)
        identities = scorer_identities(scorers, given.spec)
        reading = Reading(place, evaluation_of(scorers, given.spec), identities)
        story = reading.fold.story
        before = stored_spec(reading.fold) if story.started is not None else None
        if before is not None:
            given = _with_stored_rows(given, place, reading.fold)
        if reading.fold.evaluation not in story.evaluations:
            refuse_mixed_scales(given, scorers, before)
        return prepare_given(given, scorers, story.inputs, before), reading


def _with_stored_rows(given: Given, place: RunLocation, fold: Fold) -> Given:
    """Use the stored rows of tasks with the same remote source as before: a resume needs no network."""
    remote = {task.name for task in given.spec.tasks if task.dataset.is_remote}
    if not remote - given.rows.keys():
        return given
    rows = {name: rows for name, rows in stored_rows(place, fold, given.spec).items() if name in remote}
    return msgspec.structs.replace(given, rows={**rows, **given.rows})


def _with_stored_values(given: Given, place: RunLocation) -> Given:
    """Use the stored values of variables in `options` and `params`: earlier versions stored values instead of names,
    and the ids of their evaluations depend on them. Also use the stored version of benchmarks.
    """
    models = [*given.spec.models, *given.spec.roles.values()]
    has_variables = any(variables_in([model.options, model.params]) for model in models)
    if given.from_run or not (has_variables or any(task.benchmark for task in given.spec.tasks)):
        return given
    fold, _ = read_story(place)
    if fold.story.started is None:
        return given
    stored = stored_spec(fold)
    return msgspec.structs.replace(given, spec=adopt_benchmarks(adopt_stored(given.spec, stored), stored))


async def claim(reading: Reading, mirror: Mirror | None) -> Claimed:
    """Claim the run, then read what was recorded before the claim succeeded."""
    before = reading.state
    whole = not reading.fold.damage
    claimed = await asyncio.to_thread(claim_run, mirror, reading.place, whole=whole)
    try:
        await asyncio.to_thread(reading.start_over if claimed.changed else reading.catch_up)
    except BaseException:
        claimed.release()
        raise
    return msgspec.structs.replace(claimed, changed=claimed.changed or reading.state != before)


async def open_claimed(reading: Reading, claimed: Claimed) -> tuple[Writer, EventLog]:
    """Open the journal of a claimed run, and record every loss in it."""
    writer, logbook = await open_journal(reading.place, reading.uid, claimed)
    try:
        await asyncio.to_thread(reading.catch_up)  # opening may have recorded losses
        for damage in unrecorded(reading.fold.damage, reading.fold.story.anomalies):
            await writer.append(draft("anomaly", damage.anomaly()))
    except BaseException:
        await close_quietly(writer, logbook)
        raise
    return writer, logbook
