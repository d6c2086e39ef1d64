"""Going on with a run: what differs is refused or recorded, then the engine does what is left.

Order, and what is true if we die there: everything that can be refused is refused before anything is changed; then
losses that nobody has recorded, then `run.resumed` with every accepted difference (from here on it is the truth), then
started.jsonl and spec.yaml, which the next start writes again if we did not come to it.
"""

import asyncio
import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import DamagedError, DataError, DriftError, StaleCursorError, UsageError
from holdfast.journal import START, Cursor, Lock, Reader, Writer
from holdfast.journal.positions import unrecorded
from holdfast.journal.start_copy import StartLines, is_start_new, write_start
from holdfast.plan import (
    Extension,
    Replacement,
    StoredRows,
    changed_inputs,
    changed_rows,
    check_groups,
    inputs_of,
    judges_of,
    planned_lines,
    survey,
)
from holdfast.records import draft
from holdfast.records.facts import Change, RunExtended, RunReplanned, RunResumed
from holdfast.records.redaction import without_shapes
from holdfast.records.samples import Row
from holdfast.report.text import shortened
from holdfast.runs.execution.corrections import (
    cells_of,
    corrected_models,
    find_obstacle,
    find_renames,
    model_in,
    with_names,
    with_stored_models,
)
from holdfast.runs.execution.log import Logbook
from holdfast.runs.execution.preparation import (
    Given,
    Prepared,
    evaluation_of,
    find_scorers,
    naming,
    prepare_given,
    refuse_missing_keys,
    scorer_identities,
)
from holdfast.runs.execution.provenance import check_spec_file, code, host, is_spec_file_new, write_spec_file
from holdfast.runs.execution.session import Ended, Observe, Undertaking, close_quietly, open_journal, work
from holdfast.runs.mirror.claim import Claimed, claim_run, is_overtaken, send_rest
from holdfast.runs.store.damage import require_originals
from holdfast.runs.store.lookup import RunPlace
from holdfast.spec import Mirror, Spec, read_stored_spec, spec_mapping
from holdfast.spec.drift import differences, extending, refused
from holdfast.spec.source.variables import adopt_stored, variables_in
from holdfast.state import Fold
from holdfast.version import __version__

_NAME_CHARACTERS = 100


class Retry(msgspec.Struct, frozen=True):
    """Which failed samples get new attempts: all, none, those of some kinds, or those named."""

    keep: bool = False
    kinds: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True):
    """What a resume changes, all of it acceptable."""

    changes: list[Change]
    retried: tuple[int, ...] | None
    """Failed keys that get new attempts; None is all of them."""
    corrected: dict[str, str]
    """The names of models without answers that were corrected."""
    renamed: dict[str, str]
    """The stored names of those that have other names now, with the new ones."""


class Reading:
    """What the journal holds so far. Read once; `catch_up` adds what came since."""

    def __init__(
        self, place: RunPlace, evaluation: str | None = None, scorers: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """`evaluation` and `scorers`: as `Fold` takes them."""
        self.place = place
        self._evaluation = evaluation
        self._scorers = scorers
        self.start_over()

    @property
    def state(self) -> tuple[int, int, int]:
        """As long as it is the same, nothing was recorded: the last number, how many resumes and extensions."""
        story = self.fold.story
        return self._reader.cursor.n if self._reader else 0, len(story.resumes), len(story.extensions)

    @property
    def end(self) -> Cursor:
        return self._reader.cursor if self._reader else START

    def start_over(self) -> None:
        """Where what was read may no longer be what is stored."""
        self.fold = Fold(self._evaluation, self._scorers)
        self._start = StartLines()
        self._reader = Reader(self.place.journal) if self.place.began else None
        if self._reader is not None:
            self.fold.read(self._start.watch(self._reader.read()))
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
        return is_start_new(self.place.folder, self.uid, self._start)

    def write_start(self) -> None:
        """Keep a second copy of what begins the journal, if there is none or it is not up to date."""
        write_start(self.place.folder, self.uid, self._start)


def stored_spec(fold: Fold) -> Spec:
    """DamagedError if the spec and the cells of a run contradict each other: nothing may be asked by them."""
    spec = read_stored_spec(fold.story.spec)
    tasks, models = {task.name for task in spec.tasks}, {model.name for model in spec.models}
    for cell in fold.story.cells:
        if cell.task not in tasks or cell.model not in models:
            raise DamagedError(
                f"a cell of the run's plan names the task {shortened(cell.task, _NAME_CHARACTERS)!r} and the model "
                f"{shortened(cell.model, _NAME_CHARACTERS)!r}, and its spec does not: somebody has changed this journal"
            )
    return spec


def stored_rows(place: RunPlace, fold: Fold, spec: Spec) -> dict[str, Sequence[Row]]:
    """The rows that the run holds, for tasks whose data is not where the spec says, or was never in a file."""
    if not stored_spec(fold).record_data:
        return {}
    cells = {cell.task: cell for cell in fold.story.cells}
    gone = [task.name for task in spec.tasks if not os.path.exists(task.dataset.path)]
    rows: dict[str, Sequence[Row]] = {}
    for name in gone:
        if name in cells:
            rows[name] = StoredRows(place.folder, [cell for cell in fold.story.cells if cell.task == name])
    return rows


class Resumption:
    """One process's going on with one run."""

    def __init__(self, prepared: Prepared, reading: Reading, given: Given, retry: Retry) -> None:
        self._prepared = prepared
        self._reading = reading
        self._given = given
        self._retry = retry
        self._place = reading.place

    async def go_on(self, observe: Observe | None) -> Ended:
        compared = await asyncio.to_thread(self._compared)
        mirror = self._prepared.spec.mirror
        done = not compared.changes and self._has_nothing_to_do(compared.retried)
        if done and not await asyncio.to_thread(is_overtaken, mirror, self._place):
            await asyncio.to_thread(self._repair_copies)
            end = self._reading.end
            warn = logging.getLogger("holdfast").warning
            await asyncio.to_thread(send_rest, mirror, self._place, self._reading.uid, end, warn)
            return self._complete()
        if self._left(compared.retried):
            await asyncio.to_thread(self._refuse_missing_keys, compared.renamed)
        claimed = await claim(self._reading, mirror)
        try:
            if claimed.changed:
                compared = await asyncio.to_thread(self._compared)
                done = not compared.changes and self._has_nothing_to_do(compared.retried)
            if done:  # another process has done it meanwhile, or before us
                await asyncio.to_thread(claimed.release)
                return self._complete()
            replanned = await asyncio.to_thread(self._replan, compared) if compared.corrected else None
        except BaseException:
            claimed.release()
            raise
        writer, logbook = await open_claimed(self._reading, claimed)
        try:
            changes = () if replanned is not None else tuple(compared.changes)
            spec = spec_mapping(self._prepared.spec) if changes else None
            versions = await asyncio.to_thread(code)  # it asks git
            if replanned is not None:  # from here on it is the truth, also if we die before the next record
                await writer.append(draft("run.replanned", msgspec.structs.replace(replanned, code=versions)))
                logbook.tell("run.replanned", f"corrected models: {', '.join(compared.corrected)}")
            resumed = RunResumed(changes, spec, versions, host(), __version__, compared.retried)
            await writer.append(draft("run.resumed", resumed))
        except BaseException:
            await close_quietly(writer, logbook)
            raise
        return await self._work(writer, logbook, observe)

    async def extend(self, observe: Observe | None) -> Ended:
        """Add a block of new keys to the plan, then answer what is left.

        If an earlier run of the same command already added the block, resume: the command can be repeated after a
        crash at any point.
        """
        with naming(self._given.where):
            await asyncio.to_thread(survey, self._prepared.spec, self._prepared.works)
        changes, extension = await asyncio.to_thread(self._compared_to_extend)
        if extension is None:
            return await self.go_on(observe)
        with naming(self._given.where):
            refuse_missing_keys(self._prepared.spec)
        claimed = await claim(self._reading, self._prepared.spec.mirror)
        try:
            if claimed.changed:
                changes, extension = await asyncio.to_thread(self._compared_to_extend)
            planned = await asyncio.to_thread(extension.write) if extension is not None else None
        except BaseException:
            claimed.release()
            raise
        if planned is None:  # another process added the block in the meantime
            await asyncio.to_thread(claimed.release)
            return await self.go_on(observe)
        writer, logbook = await open_claimed(self._reading, claimed)
        try:
            spec, inputs = spec_mapping(self._prepared.spec), inputs_of(self._prepared.works)
            files = (planned.plan, planned.data, planned.cells)
            versions = await asyncio.to_thread(code)
            extended = RunExtended(tuple(changes), spec, *files, inputs, versions, host(), __version__)
            await writer.append(draft("run.extended", extended))
        except BaseException:
            await close_quietly(writer, logbook)
            raise
        return await self._work(writer, logbook, observe)

    def _refuse_missing_keys(self, renamed: Mapping[str, str]) -> None:
        """A model that has given all its answers needs no key any more."""
        finished = self._fold.finished
        left = [cell.model for cell in self._fold.story.cells if not finished.has_all(cell.first, cell.count)]
        asked = {renamed.get(name, name) for name in left}
        spec = self._prepared.spec
        with naming(self._given.where):
            refuse_missing_keys(spec, {model.name for model in spec.models} - asked)

    def _complete(self) -> Ended:
        finished, failed = self._fold.finished.count, self._fold.failed.count
        return Ended(self._place, self._prepared.spec, finished, failed, 0, complete=True)

    def _replan(self, compared: Comparison) -> RunReplanned:
        """Write a plan block in place of the cells of corrected models. The run is ours by now."""
        prepared, story = self._prepared, self._fold.story
        number = len(story.blocks) + 1
        renamed = compared.renamed
        replaced = cells_of(self._fold, compared.corrected, renamed)
        plan, cells = Replacement(self._place.folder, prepared.spec, prepared.works, replaced, renamed, number).write()
        changes, spec = tuple(compared.changes), spec_mapping(prepared.spec)
        return RunReplanned(changes, spec, plan, cells, number, host=host(), version=__version__, renamed=renamed)

    def _compared(self) -> Comparison:
        """What differs, all of it acceptable, and which failed keys get new attempts. Refuses the rest."""
        stored = stored_spec(self._fold)
        renames = find_renames(stored, self._prepared.spec)
        obstacles = {old: find_obstacle(old, self._fold) for old in renames}
        renamed = {old: new for old, new in renames.items() if not obstacles[old]}
        changes = [Change(f"models.{new}.name", old, new, "result") for old, new in renamed.items()]
        changes += self._differences(with_names(stored, renamed))
        corrected = corrected_models(changes, self._fold, renamed)
        accepted = [name for name, obstacle in corrected.items() if not obstacle]
        wrong = [each for each in refused(changes) if not model_in(each.field, accepted)]
        self._refuse(wrong, list(filter(None, [*obstacles.values(), *corrected.values()])))
        self._check_files()
        self._refuse(self._changed_content(corrected, renamed))
        if any(each.field.endswith(".dataset.group") for each in changes):
            with naming(self._given.where):
                check_groups(self._prepared.spec, self._prepared.works)
        return Comparison(changes, self._retried(), corrected, renamed)

    def _differences(self, stored: Spec) -> list[Change]:
        """Fields that differ. Other judges, where only scores depend on them, mean another evaluation."""
        found = differences(stored, self._prepared.spec)
        if any(each.field.startswith("tasks.") and each.field.endswith(".solver") for each in found):
            return found  # what another solver asks says nothing of the answers that there are
        judges = judges_of(self._prepared.spec, self._prepared.works)
        return [
            msgspec.structs.replace(each, kind="evaluation")
            if each.kind == "result" and _role_in(each.field) in judges | {"(order)"}
            else each
            for each in found
        ]

    def _compared_to_extend(self) -> tuple[list[Change], Extension | None]:
        """What differs, and the block to add; None if an earlier extension has added it already."""
        changes = self._differences(stored_spec(self._fold))
        self._refuse(extending(changes))
        self._check_files()
        self._refuse(changed_inputs(self._fold.story.inputs, self._prepared.works))
        extension = self._extension()
        self._refuse(extension.lost())
        if extension.count():
            return changes, extension
        if self._fold.story.extensions and not refused(changes):
            return changes, None
        raise UsageError(
            f"{self._place.run_id} has all of these keys already; change repeats, limit, data, models or tasks"
        )

    @property
    def _fold(self) -> Fold:
        return self._reading.fold

    def _extension(self) -> Extension:
        prepared = self._prepared
        return Extension(self._place.folder, prepared.spec, prepared.works, self._fold.story.blocks)

    async def _work(self, writer: Writer, logbook: Logbook, observe: Observe | None) -> Ended:
        try:
            await asyncio.to_thread(self._reading.catch_up)  # what was just recorded
            await asyncio.to_thread(self._reading.write_start)
            await asyncio.to_thread(write_spec_file, self._place, self._fold.story)
        except BaseException:
            await close_quietly(writer, logbook)
            raise
        undertaking = Undertaking(self._prepared, self._place, self._reading.uid, observe, writer, logbook)
        return await work(undertaking, self._fold)

    def _refuse(self, changes: Sequence[Change], reasons: Sequence[str] = ()) -> None:
        if not changes:
            return
        fields = [f"{change.field}: stored {change.old!r}, given {change.new!r}" for change in changes]
        rows = without_shapes("; ".join([*fields, *reasons]))  # earlier versions stored keys that specs held
        raise DriftError(
            f"{self._place.run_id} cannot go on: it would mix two experiments ({rows}); give the stored values, or "
            f"start a run that reuses what is unchanged: holdfast fork {self._place.run_id}",
            changes,
            self._place.run_id,
            reasons,
        )

    def _check_files(self) -> None:
        """Plan and data are the run's other originals: what was damaged in them must not be asked."""
        require_originals(self._place, self._fold.story)
        check_spec_file(self._place, self._fold.story)

    def _changed_content(self, corrected: Collection[str], renamed: Mapping[str, str]) -> list[Change]:
        """What the spec's fields do not show: other code, other examples, other rows."""
        prepared, story = self._prepared, self._fold.story
        changes = changed_inputs(story.inputs, prepared.works)
        if changes or (self._given.from_run and prepared.spec.record_data):
            return changes
        try:
            spec = with_stored_models(prepared.spec, stored_spec(self._fold), corrected, renamed)
            return changed_rows(self._place.folder, spec, prepared.works, story.cells)
        except DataError as error:
            own = f"the run holds its own rows and files: go on with them with: {self._place.command('resume')}"
            raise UsageError(f"{error}; {own}" if prepared.spec.record_data else str(error)) from error

    def _retried(self) -> tuple[int, ...] | None:
        """The ordinals of the failed keys that get new attempts; None is all of them."""
        retry, fold = self._retry, self._fold
        if retry.keep:
            return ()
        if not retry.kinds and not retry.keys:
            return None
        failed = [ordinal for ordinal in fold.trails if ordinal in fold.failed]
        kinds = {ordinal: _last_kind(fold.trails[ordinal].failures) for ordinal in failed}
        # Kinds and keys that an earlier `retry` took are accepted again, so that a killed `retry` can be repeated.
        unknown = sorted({*retry.kinds} - fold.failure_kinds)
        if unknown:
            there = ", ".join(sorted(fold.failure_kinds)) or "none"
            raise UsageError(f"no sample failed as {', '.join(unknown)}; kinds of failures in this run: {there}")
        named = self._ordinals(retry.keys)
        for key, ordinal in named.items():
            if ordinal not in kinds and not self._was_retried(ordinal):
                raise UsageError(f"{key} has not failed: only failed samples can be tried again")
        chosen = {*named.values(), *(ordinal for ordinal in failed if kinds[ordinal] in retry.kinds)}
        return tuple(sorted(chosen & kinds.keys()))

    def _was_retried(self, ordinal: int) -> bool:
        return any(ordinal in (each.resumed.retried or ()) for each in self._fold.story.resumes)

    def _ordinals(self, keys: Iterable[str]) -> dict[str, int]:
        wanted = set(keys)
        found = {
            line.k: line.o
            for cell in (self._fold.story.cells if wanted else ())
            for line in planned_lines(self._place.folder, cell)
            if line.k in wanted
        }
        for key in wanted - found.keys():
            raise UsageError(f"{self._place.run_id} has no key {key!r}; list keys with: holdfast export")
        return found

    def _has_nothing_to_do(self, retried: tuple[int, ...] | None) -> bool:
        """Everything is answered and scored, and the run has said so."""
        fold, prepared = self._fold, self._prepared
        end = fold.story.end
        if end is None or end.kind != "run.completed" or self._left(retried):
            return False
        if unrecorded(fold.damage, fold.story.anomalies):
            return False  # going on records the losses: from then on readers need not warn of them
        if fold.evaluation and fold.evaluation != fold.story.evaluation:
            return False
        scored = [cell for cell in fold.story.cells if prepared.scorers[cell.task]]
        return not any(cell.first <= ordinal < cell.first + cell.count for ordinal in fold.unscored for cell in scored)

    def _left(self, retried: tuple[int, ...] | None) -> int:
        """How many keys have something to be asked."""
        fold = self._fold
        return fold.unfinished + (fold.failed.count + len(fold.unjudged) if retried is None else len(retried))

    def _repair_copies(self) -> None:
        """Write spec.yaml and started.jsonl if they are missing or older than the journal: their process died after its
        record.
        """
        is_spec_new = is_spec_file_new(self._place, self._fold.story)
        if is_spec_new and self._reading.is_start_new():
            return
        lock = Lock(self._place.folder)
        try:
            self._reading.write_start()
            if not is_spec_new:
                write_spec_file(self._place, self._fold.story)
        finally:
            lock.release()


def read_fold(place: RunPlace) -> Fold:
    return Reading(place).fold


def read_and_prepare(given: Given, place: RunPlace) -> tuple[Prepared, Reading]:
    """What the run holds, if it has begun, and what the spec names, with the run's help where files are gone."""
    with naming(given.where):
        given = _with_stored_values(given, place)
        scorers = find_scorers(given)
        identities = scorer_identities(scorers, given.spec)
        reading = Reading(place, evaluation_of(scorers, given.spec), identities)
        story = reading.fold.story
        before = stored_spec(reading.fold) if story.started is not None else None
        return prepare_given(given, scorers, story.inputs, before), reading


def _with_stored_values(given: Given, place: RunPlace) -> Given:
    """Earlier versions stored the values of variables in `options` and `params`: what identifies an evaluation, too,
    must be found in their runs.
    """
    models = [*given.spec.models, *given.spec.roles.values()]
    if given.from_run or not any(variables_in([model.options, model.params]) for model in models):
        return given
    fold = read_fold(place)
    if fold.story.started is None:
        return given
    return msgspec.structs.replace(given, spec=adopt_stored(given.spec, stored_spec(fold)))


async def claim(reading: Reading, mirror: Mirror | None) -> Claimed:
    """From here on the run is ours, and we know what it holds."""
    before = reading.state
    whole = not reading.fold.damage
    claimed = await asyncio.to_thread(claim_run, mirror, reading.place, whole=whole)
    try:
        await asyncio.to_thread(reading.start_over if claimed.changed else reading.catch_up)
    except BaseException:
        claimed.release()
        raise
    return msgspec.structs.replace(claimed, changed=claimed.changed or reading.state != before)


async def open_claimed(reading: Reading, claimed: Claimed) -> tuple[Writer, Logbook]:
    """The journal, with every loss in it recorded."""
    writer, logbook = await open_journal(reading.place, reading.uid, claimed)
    try:
        await asyncio.to_thread(reading.catch_up)  # opening may have recorded losses
        for damage in unrecorded(reading.fold.damage, reading.fold.story.anomalies):
            await writer.append(draft("anomaly", damage.anomaly()))
    except BaseException:
        await close_quietly(writer, logbook)
        raise
    return writer, logbook


def _role_in(field: str) -> str:
    """`judge` in roles.judge.model; `(order)` if roles are only written in another order."""
    part, _, rest = field.partition(".")
    return rest.partition(".")[0] if part == "roles" else part.removeprefix("roles ")


def _last_kind(failures: dict[int, str]) -> Any:
    return failures[max(failures)] if failures else ""
