"""Running a spec, for the first time or again: the one path that every command and every call takes.

Order of a first run, and what is true if we die there: everything that can be refused is refused before anything
exists; then folder, data, plan and spec.yaml, synced (a folder that holds no run yet: the same command begins anew);
then `run.started` (the run exists). A second run of the same id reads the journal, refuses drift, and goes on.
"""

import asyncio
import contextlib
import logging
import os
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast import __version__
from holdfast.api.places import RunPlace, make_run_id, place_of
from holdfast.api.provenance import code, host, now, write_spec_file
from holdfast.engine import Engine, Job, open_provider
from holdfast.errors import (
    BadNameError,
    DriftError,
    HoldfastError,
    JournalError,
    SpecError,
    StaleCursorError,
    UsageError,
)
from holdfast.journal import OS_DISK, Damage, Lock, Reader, Request, Writer, folder_name, make_folders, open_writer
from holdfast.plan import (
    DATA,
    PLAN,
    Planned,
    Rows,
    Work,
    changed_cells,
    changed_rows,
    digest_file,
    prepare,
    survey,
    write_plan,
)
from holdfast.records import draft
from holdfast.records.facts import Change, RunEnded, RunResumed, RunStarted, ScoringStarted
from holdfast.score import Scorer, identity, resolve
from holdfast.spec import Spec, spec_mapping
from holdfast.spec.drift import differences, refused
from holdfast.state import Fold

Observe = Callable[[Engine, RunPlace], Awaitable[None]]


class Given(msgspec.Struct, frozen=True):
    """A spec, and what a script passed as Python objects instead of names."""

    spec: Spec
    rows: Mapping[str, Rows] = msgspec.field(default_factory=dict)
    solvers: Mapping[str, Any] = msgspec.field(default_factory=dict)
    scorers: Mapping[str, Sequence[Any]] = msgspec.field(default_factory=dict)
    where: str = ""
    """The file that the spec was read from, for errors."""
    from_run: bool = False
    """The spec is the one that the run itself holds: its rows are the run's too, and data files do not matter."""


class Ended(msgspec.Struct, frozen=True):
    """How a run stands after this process's work on it."""

    place: RunPlace
    finished: int
    failed: int
    unfinished: int
    interrupted: bool = False

    def exit_code(self, allowed: float) -> int:
        if self.interrupted:
            return 130
        total = self.finished + self.failed + self.unfinished
        limit = allowed * total if 0 < allowed < 1 else allowed
        return 1 if self.failed > limit else 0


class Prepared(msgspec.Struct, frozen=True):
    """A spec with everything that it names found."""

    spec: Spec
    works: Mapping[str, Work]
    scorers: Mapping[str, Sequence[Scorer]]

    @property
    def evaluation(self) -> str:
        """The identity of this scorer configuration: what it is called and what its code is."""
        if not any(self.scorers.values()):
            return ""
        told = {name: [identity(scorer) for scorer in scorers] for name, scorers in self.scorers.items()}
        return xxhash.xxh3_64_hexdigest(msgspec.json.encode(told, order="deterministic"))


def check(given: Given) -> tuple[Prepared, int]:
    """Everything that can be wrong with a spec, without creating anything. Returns how many keys it means."""
    with _naming(given.where):
        prepared = _prepare(given)
        return prepared, survey(given.spec, prepared.works)


async def execute(given: Given, store: str, run_id: str | None = None, observe: Observe | None = None) -> Ended:
    """Run, or go on with, a spec under an id."""
    with _naming(given.where):
        prepared = await asyncio.to_thread(_prepare, given)
    place = place_of(store, given.spec.experiment, make_run_id() if run_id is None else run_id)
    reading = await asyncio.to_thread(_Reading, place, prepared.evaluation)
    if reading.fold.story.started is None:
        with _naming(given.where):
            await asyncio.to_thread(survey, given.spec, prepared.works)
        return await _begin(prepared, place, observe, given.where)
    return await _go_on(prepared, reading, observe, given.from_run)


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    """What is wrong with a spec is told with the file that it is in."""
    try:
        yield
    except JournalError:
        raise
    except HoldfastError as error:
        text = str(error)
        raise SpecError(text if not where or text.startswith(where) else f"{where}: {text}") from error


def read_fold(place: RunPlace, evaluation: str | None = None) -> Fold:
    fold = Fold(evaluation)
    return fold.read(Reader(place.journal).read()) if place.began else fold


class _Reading:
    """What the journal holds so far. Read once; `catch_up` adds what came since."""

    def __init__(self, place: RunPlace, evaluation: str) -> None:
        self.place = place
        self._evaluation = evaluation
        self._start_over()

    def catch_up(self) -> None:
        try:
            if self._reader is not None:
                self.fold.read(self._reader.read())
        except StaleCursorError:
            self._start_over()

    def _start_over(self) -> None:
        self.fold = Fold(self._evaluation)
        self._reader = Reader(self.place.journal) if self.place.began else None
        if self._reader is not None:
            self.fold.read(self._reader.read())


def stored_spec(fold: Fold) -> Spec:
    return msgspec.convert(fold.story.spec, Spec)


async def _begin(prepared: Prepared, place: RunPlace, observe: Observe | None, source: str) -> Ended:
    lock = await asyncio.to_thread(_claim, place)
    try:
        reading = await asyncio.to_thread(_Reading, place, prepared.evaluation)
        fold = reading.fold
        if fold.story.started is not None:  # another process began it while we were preparing
            lock.release()
            return await _go_on(prepared, reading, observe)
        _refuse_headless(fold, place)
        uid = (Reader(place.journal).uid if place.began else "") or uuid.uuid4().hex
        planned = await asyncio.to_thread(write_plan, place.folder, prepared.spec, prepared.works)
        spec = spec_mapping(prepared.spec)
        await asyncio.to_thread(write_spec_file, place.folder, spec, place.run_id)
    except BaseException:
        lock.release()
        raise
    writer = await open_writer(place.folder, Request(uid), lock=lock)
    try:
        started = _started(place, planned, spec, source)
        fold.story.started, fold.story.spec = started, spec
        await writer.append(draft("run.started", started))
    except BaseException:
        await _close(writer)
        raise
    return await _work(_Work(prepared, place, uid, observe), writer, fold)


def _refuse_headless(fold: Fold, place: RunPlace) -> None:
    """Answers without the record that says what was asked: beginning anew would mix or repeat them."""
    if not place.began and os.path.exists(os.path.join(place.folder, "index.db")):
        raise JournalError(f"{place.folder} had a run, and its journal is gone: restore it, or choose another id")
    if fold.story.steps or fold.finished.count or fold.failed.count or fold.story.resumes or fold.story.evaluations:
        raise JournalError(
            f"{place.journal} holds answers, but the record that began the run is damaged: "
            "restore the journal from a copy, or start a run with another id"
        )


def _claim(place: RunPlace) -> Lock:
    try:
        make_folders(OS_DISK, place.folder)
        return Lock(place.folder)
    except OSError as error:
        raise UsageError(f"{place.folder} cannot be made: {error.strerror}; choose another store") from error


def _started(place: RunPlace, planned: Planned, spec: dict[str, Any], source: str) -> RunStarted:
    told = (code(), host(), __version__, os.path.abspath(source) if source else "")
    return RunStarted(place.run_id, spec, planned.plan, planned.data, planned.cells, *told)


def find_modules_beside(path: str) -> None:
    """The user's own modules are found in the current folder and beside the spec."""
    for folder in (os.path.dirname(os.path.abspath(path)) if path else "", os.getcwd()):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)


async def _go_on(prepared: Prepared, reading: _Reading, observe: Observe | None, from_run: bool = False) -> Ended:
    place, fold = reading.place, reading.fold
    changes = differences(stored_spec(fold), prepared.spec)
    _refuse_drift(refused(changes), place)
    await asyncio.to_thread(_check_files, place, fold)
    _refuse_drift(await asyncio.to_thread(_changed_plan, prepared, place, fold, from_run), place)
    if _is_complete(fold, prepared) and not changes:
        return Ended(place, fold.finished.count, 0, 0)
    uid = Reader(place.journal).uid
    writer = await open_writer(place.folder, Request(uid))
    try:
        await asyncio.to_thread(reading.catch_up)  # another process may have gone on before us
        fold = reading.fold
        for damage in _untold(fold):
            await writer.append(draft("anomaly", damage.anomaly()))
        spec = spec_mapping(prepared.spec)
        resumed = RunResumed(tuple(changes), spec if changes else None, code(), host(), __version__)
        await writer.append(draft("run.resumed", resumed))
        lineage = [(each.at, change) for each in fold.story.resumes for change in each.resumed.changes]
        lineage += [(now(), change) for change in changes]
        await asyncio.to_thread(write_spec_file, place.folder, spec, place.run_id, lineage)
        fold.retry_failed()
    except BaseException:
        await _close(writer)
        raise
    return await _work(_Work(prepared, place, uid, observe), writer, fold)


def _untold(fold: Fold) -> list[Damage]:
    """Losses in older segments that no record tells of yet; opening the journal has told of those in the last one."""
    known = fold.story.anomalies
    return [each for each in fold.damage if each.kind != "torn" and not any(map(each.is_known_by, known))]


def _is_complete(fold: Fold, prepared: Prepared) -> bool:
    """Everything is answered and scored, and the run has said so."""
    end, started = fold.story.end, fold.story.started
    if started is None or end is None or end.kind != "run.completed" or fold.finished.count < fold.planned:
        return False
    if prepared.evaluation and prepared.evaluation != fold.story.evaluation:
        return False
    scored = [cell for cell in started.cells if prepared.scorers[cell.task]]
    return not any(cell.first <= ordinal < cell.first + cell.count for ordinal in fold.unscored for cell in scored)


def _refuse_drift(changes: Sequence[Change], place: RunPlace) -> None:
    if not changes:
        return
    rows = "; ".join(f"{change.field}: stored {change.old!r}, given {change.new!r}" for change in changes)
    raise DriftError(
        f"{place.run_id} cannot go on: it would mix two experiments ({rows}); "
        "give the stored values, or start a run with another id",
        changes,
    )


def _changed_plan(prepared: Prepared, place: RunPlace, fold: Fold, from_run: bool) -> list[Change]:
    """What the spec's fields do not show: other code, other rows."""
    assert fold.story.started is not None
    cells = fold.story.started.cells
    code_changes = changed_cells(prepared.spec, prepared.works, cells)
    if code_changes or (from_run and prepared.spec.record_data):
        return code_changes
    return changed_rows(place.folder, prepared.spec, prepared.works, cells)


def _check_files(place: RunPlace, fold: Fold) -> None:
    """Plan and data are the run's other originals: what was damaged in them must not be asked."""
    assert fold.story.started is not None
    for name, stored in ((PLAN, fold.story.started.plan), (DATA, fold.story.started.data)):
        path = os.path.join(place.folder, name)
        if os.path.exists(path) and digest_file(path) == stored:
            continue
        raise JournalError(f"{path} is missing or not what the run began with; restore it from a copy of the run")


class _Work(msgspec.Struct, frozen=True):
    prepared: Prepared
    place: RunPlace
    uid: str
    observe: Observe | None


async def _work(work: _Work, writer: Writer, fold: Fold) -> Ended:
    """Let the engine work, and record how it ended."""
    prepared, place = work.prepared, work.place
    assert fold.story.started is not None
    try:
        if prepared.evaluation and prepared.evaluation != fold.story.evaluation:
            told = [{"task": name, **identity(each)} for name, every in prepared.scorers.items() for each in every]
            await writer.append(draft("score.started", ScoringStarted(prepared.evaluation, told)))
        job = Job(
            run=place.folder,
            journal_folder=place.journal,
            uid=work.uid,
            spec=prepared.spec,
            works=prepared.works,
            scorers=prepared.scorers,
            evaluation=prepared.evaluation,
            cells=fold.story.started.cells,
        )
        engine = Engine(job, writer, fold)
        watcher = asyncio.ensure_future(work.observe(engine, place)) if work.observe else None
        try:
            await engine.run()
        finally:
            if watcher is not None:
                watcher.cancel()
                _tell_failure(*await asyncio.gather(watcher, return_exceptions=True))
        ended = _ended(place, engine)
        await writer.append(_last_word(ended))
    except BaseException:
        await _close(writer)
        raise
    await writer.close(seal_last=not ended.interrupted)
    return ended


def _tell_failure(result: object) -> None:
    """Whoever watches a run must not be able to end it."""
    if isinstance(result, Exception):
        logging.getLogger("holdfast").warning("what shows the run has failed: %r; the run is not affected", result)


def _ended(place: RunPlace, engine: Engine) -> Ended:
    progress = engine.progress
    left = progress.planned - progress.finished - progress.failed
    return Ended(place, progress.finished, progress.failed, left, interrupted=engine.stopped)


def _last_word(ended: Ended) -> Any:
    reason = "stopped by a signal" if ended.interrupted else ""
    data = RunEnded(ended.finished, ended.failed, ended.unfinished, reason)
    return draft("run.interrupted" if ended.interrupted or ended.unfinished else "run.completed", data)


async def _close(writer: Writer) -> None:
    with contextlib.suppress(JournalError):  # the first error is the one to tell
        await writer.close()


def _prepare(given: Given) -> Prepared:
    try:
        folder_name(given.spec.experiment)
    except BadNameError as error:
        raise SpecError(f"experiment: {error}") from error
    works = prepare(given.spec, given.rows, given.solvers)
    scorers = {}
    for index, task in enumerate(given.spec.tasks):
        entries: Sequence[Any] = given.scorers.get(task.name) or task.scorers
        scorers[task.name] = [resolve(entry, f"tasks[{index}].scorers[{i}]") for i, entry in enumerate(entries)]
        _refuse_same_names([scorer.name for scorer in scorers[task.name]], f"tasks[{index}].scorers")
    for index, model in enumerate(given.spec.models):
        open_provider(model, f"models[{index}]")  # only to see that it can be made: it opens no connection
    for name, model in given.spec.roles.items():
        open_provider(model, f"roles.{name}")
    return Prepared(given.spec, works, scorers)


def _refuse_same_names(names: Sequence[str], place: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            hint = f"{{{name}: {{name: another}}}}"
            raise SpecError(f"{place}[{index}]: there is a scorer {name!r} already; rename one of them: {hint}")
