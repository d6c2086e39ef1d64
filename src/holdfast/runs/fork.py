"""A fork: a new run that takes over every recorded step of another whose request may be asked again.

It is built in a private folder whose name begins with a dot, and renamed when it is complete and synced. A crash
before the rename leaves a folder that is not a run; the next fork removes it. After the rename the fork is a run like
any other and does not need its parent; the same command resumes it (`is_fork_of`). Steps keep the request that they
answer; replay decides whether a sample asks for it again, as after a crash.
"""

import asyncio
import contextlib
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence

import msgspec

from holdfast.datasets import Digests
from holdfast.engine.history import Last, Traces
from holdfast.engine.replay import Rehearsed, Scene, rehearse
from holdfast.engine.schedule import Ticket, Tickets
from holdfast.errors import UsageError
from holdfast.journal import OS_DISK, Entry, Reader, Request, Writer, make_run_folder, open_writer
from holdfast.journal.blobs import BlobStore, blob_path, check_kept
from holdfast.journal.ownership.lease import OWNER, is_alive, own, owner_of
from holdfast.journal.start_copy import copy_start
from holdfast.models.opening import identity_of
from holdfast.models.pacing.queue import Places
from holdfast.plan import Planned, Work, survey, write_plan
from holdfast.records import draft
from holdfast.records.decoder import decode
from holdfast.records.facts import Parent, RunStarted, Step, TaskInputs, draft_fact
from holdfast.records.references import Reference
from holdfast.report.text import counted
from holdfast.runs.execution.execute import started
from holdfast.runs.execution.preparation import Given, Prepared, find_scorers, naming, prepare_given
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.fork_forecast import Forecast, Guess, Mean
from holdfast.runs.store.damage import require_originals, require_started
from holdfast.runs.store.lookup import RunPlace
from holdfast.runs.store.trust import executed_by, remember
from holdfast.solve import Recorded
from holdfast.solve.tools.mcp import servers_in
from holdfast.spec import Fewshot, Spec, read_stored_spec

_AT_ONCE = 256
_PREFIX = ".fork-"
_OWNERLESS_SECONDS = 3600.0


class Fork:
    """One fork being made: `forecast`, then `make` or `drop`."""

    def __init__(self, parent: RunPlace, place: RunPlace, given: Given) -> None:
        self._parent = _Parent(parent)
        self._given = given
        self._place = place
        self._above = os.path.dirname(place.folder)
        building = os.path.join(self._above, f"{_PREFIX}{uuid.uuid4().hex}")
        self._building = msgspec.structs.replace(place, folder=building)
        self._blobs = BlobStore(building, parent.folder)
        self._useful: set[int] = set()
        self._places = {task.name: Places(task.max_samples or _AT_ONCE) for task in given.spec.tasks}
        self._steps = 0
        self._without_files: set[str] = set()
        if os.path.exists(place.folder):
            raise _taken(place)

    async def forecast(self) -> Forecast:
        """Plan the fork and rehearse it. Nothing is sent, and no run exists yet."""
        self._prepared = await asyncio.to_thread(self._prepare)
        self._planned: Planned = await asyncio.to_thread(self._write_plan)
        guess = Guess(self._prepared.spec, self._parent.mean())
        async for tickets in self._tickets():
            rehearsals = await asyncio.gather(*map(self._rehearse, tickets))
            for ticket, (rehearsed, last) in zip(tickets, rehearsals, strict=True):
                guess.add(ticket.cell.model, rehearsed, last.steps)
                if last.unsure or (last.steps and (rehearsed.reused or self._may_match(ticket))):
                    self._useful.add(ticket.o)
                    self._steps += len(last.steps)
        return guess.forecast()

    @property
    def doubt(self) -> str:
        """What is lost of the parent, in a sentence; empty if nothing is. Known after the forecast."""
        if not self._without_files:
            return ""
        samples, files = counted(len(self._without_files), "sample"), counted(len(self._parent.lost), "file")
        return (
            f"the tools of {samples} are called again: {files} that they left, e.g. {min(self._parent.lost)}, cannot "
            "be read or is damaged; restore it from a copy of the run, and fork again, to reuse what they came to"
        )

    async def make(self) -> None:
        """Write the journal with the steps that were taken over, and give the run its name."""
        uid = uuid.uuid4().hex
        writer = await open_writer(self._building.folder, Request(uid))
        try:
            parent = self._parent.described(self._steps)
            where = self._given.where or self._parent.source
            record = await asyncio.to_thread(started, self._prepared, self._place, self._planned, where, parent)
            await asyncio.to_thread(remember, uid, executed_by(self._prepared.spec, record.source))
            await writer.append(draft("run.started", record))
            await asyncio.to_thread(self._copy_start, uid)
            async for tickets in self._tickets():
                mine = [ticket for ticket in tickets if ticket.o in self._useful]
                await asyncio.gather(*(self._take_over(ticket, writer) for ticket in mine))
        finally:
            await writer.close()
        await asyncio.to_thread(self._publish)

    def _copy_start(self, uid: str) -> None:
        copy_start(self._building.folder, uid, Reader(self._building.journal, uid).read(live=True))

    async def drop(self) -> None:
        """Let go of the parent, and of what was not made whole."""
        self._parent.close()
        await asyncio.to_thread(self._clear)

    def _prepare(self) -> Prepared:
        with naming(self._given.where):
            inputs = self._parent.inputs(self._given.spec)
            prepared = prepare_given(self._given, find_scorers(self._given), inputs, self._parent.spec)
            survey(prepared.spec, prepared.works)
        return prepared

    def _may_match(self, ticket: Ticket) -> bool:
        """A key that reuses nothing up to its first new request may still reuse what it asks later, if it asks the same
        model in the same way.
        """
        return self._parent.asks_alike(self._prepared.spec, ticket.cell.model)

    def _write_plan(self) -> Planned:
        make_run_folder(OS_DISK, self._building.folder)
        remove_leftovers(self._above)
        own(self._building.folder)
        return write_plan(self._building.folder, self._prepared.spec, self._prepared.works, self._parent.folder)

    def _clear(self) -> None:
        shutil.rmtree(self._building.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it holds other runs
            os.rmdir(self._above)

    def _publish(self) -> None:
        os.unlink(os.path.join(self._building.folder, OWNER))
        try:
            os.rename(self._building.folder, self._place.folder)
        except OSError as error:
            if os.path.exists(self._place.folder):
                raise _taken(self._place) from error
            raise
        OS_DISK.sync_folder(self._above)

    async def _tickets(self) -> AsyncIterator[list[Ticket]]:
        """All keys of the fork, some at a time."""
        for cell in self._planned.cells:
            work = self._prepared.works[cell.task]
            tickets = Tickets(self._building.folder, cell, self._prepared.spec, work, lambda ordinal: True)
            batch: list[Ticket] = []
            while (ticket := await tickets.next()) is not None:
                batch.append(ticket)
                if len(batch) == _AT_ONCE:
                    yield batch
                    batch = []
            if batch:
                yield batch

    async def _rehearse(self, ticket: Ticket) -> tuple[Rehearsed, Last]:
        """What the key would reuse, and what it has in the parent. No more at once than a run would have: a solver may
        start programs.
        """
        last = await self._last_of(ticket)
        work = self._prepared.works[ticket.cell.task]
        scene = Scene(ticket, work, self._prepared.spec, last.attempt, last.steps, run=self._building.folder)
        places = self._places[ticket.cell.task]
        if not places.take():
            await places.wait()
        try:
            return await rehearse(scene), last
        finally:
            places.give_back()

    async def _take_over(self, ticket: Ticket, writer: Writer) -> None:
        """A step's request refers to earlier steps by their numbers, which are others here. A call that must not be
        made twice, and may have been made, is announced here too: it is not made again blindly.
        """
        numbers: dict[int, int] = {}
        last = await self._last_of(ticket)
        scope = f"solve/{last.attempt}"
        await asyncio.to_thread(self._take_files_over, last.steps)
        for announced in {(each.started.q, each.started.c): each.started for each in last.unsure}.values():
            again = msgspec.structs.replace(announced, o=ticket.o, scope=scope)
            await writer.append(draft("step.started", again, ticket.key))
        for each in last.steps:
            step = each.step
            asked = None if step.asked is None else step.asked.renumbered(numbers)
            mine = msgspec.structs.replace(step, o=ticket.o, scope=scope, asked=asked, origin=each.n)
            numbers[each.n] = (await writer.append(draft_fact("step", mine, ticket.key))).n

    async def _last_of(self, ticket: Ticket) -> Last:
        """What the parent has of a key that may be asked for again: answers of models, and what tools came to if those
        of the fork would do the same, and the files that they left are still what they were.
        """
        task = self._prepared.works[ticket.cell.task]
        last = self._parent.last(ticket.key, calls=self._parent.calls_alike(task))
        blobs = _blobs_of(last.steps)
        if not blobs or await asyncio.to_thread(self._parent.has_all, blobs):
            return last
        self._without_files.add(ticket.key)
        kept = [each for each in last.steps if each.step.answer is not None or each.step.once]
        return msgspec.structs.replace(last, steps=_whole(kept))

    def _take_files_over(self, steps: Sequence[Recorded]) -> None:
        """The content of files that calls left in a sandbox, durable before the steps that name it."""
        blobs = _blobs_of(steps)
        for blob in blobs:
            self._blobs.keep(Reference(blob, ""), Digests())
        if blobs:
            self._blobs.sync()


class _Parent:
    """The run that is forked: its keys by name, and the answered steps of each."""

    def __init__(self, place: RunPlace) -> None:
        self._place = place
        self.folder = place.folder
        fold = read_fold(place)  # not the index: what is read here is recorded in the fork's journal
        self._story, self._finished = fold.story, fold.finished.count
        require_started(place, fold)
        require_originals(place, self._story)  # what its journal has lost is asked for again
        self.source = self._story.started.source if self._story.started else ""
        self.spec = read_stored_spec(self._story.spec)
        self._traces = Traces(place.journal)
        self._sound: set[str] = set()
        self.lost: set[str] = set()
        """Files with content that is missing or damaged."""

    def inputs(self, spec: Spec) -> dict[str, TaskInputs]:
        """What the parent holds of tasks, without examples that the fork chooses otherwise."""
        before = {task.name: task.fewshot for task in self.spec.tasks}
        same = {task.name for task in spec.tasks if _choice(task.fewshot) == _choice(before.get(task.name))}
        return {name: inputs for name, inputs in self._story.inputs.items() if name in same}

    def asks_alike(self, spec: Spec, model: str) -> bool:
        """Whether a model, or a role, is the same here and there."""
        before = {each.name: each for each in self.spec.models}
        now = {each.name: each for each in spec.models}
        if spec.roles or model not in before:
            return bool(spec.roles)
        return identity_of(before[model]) == identity_of(now[model]) and before[model].params == now[model].params

    def calls_alike(self, work: Work) -> bool:
        """Whether a task's tools would do the same here and there: their code, their servers and their sandbox."""
        name, now = work.task.name, work.task
        before = next((task for task in self.spec.tasks if task.name == name), None)
        if before is None or before.sandbox != now.sandbox or servers_in(before.solver) != servers_in(now.solver):
            return False
        return self._story.inputs.get(name, TaskInputs()).solver == work.solver.digest()

    def last(self, key: str, *, calls: bool) -> Last:
        """The attempt to go on with, and its steps that a fork may ask for again: requests that were answered, and
        calls, also those that failed: that too is what the model was told.
        """
        last = self._traces.last_attempt(key)
        kept = [each for each in last.steps if each.step.answer is not None or (calls and _is_call(each.step))]
        return Last(last.attempt, _whole(kept), last.unsure if calls else [])

    def has_all(self, blobs: Iterable[str]) -> bool:
        """Whether content is there and is what it was, from any thread; each is read once."""
        return all(map(self._has, blobs))

    def _has(self, blob: str) -> bool:
        path = blob_path(self.folder, Reference(blob, ""))
        if blob not in self._sound and path not in self.lost:
            if any(check_kept(self.folder, [blob])):
                self.lost.add(path)
            else:
                self._sound.add(blob)
        return blob in self._sound

    def mean(self) -> Mean:
        story, finished = self._story, max(self._finished, 1)
        used = story.usage + story.saved
        steps = max((story.steps + story.taken) / finished, 1.0)
        return Mean(steps, used.input_tokens / finished, used.output_tokens / finished)

    def close(self) -> None:
        self._traces.close()

    def described(self, steps: int) -> Parent:
        return Parent(self._place.run_id, self._place.experiment, self._traces.uid, steps)


def is_fork_of(parent: RunPlace, place: RunPlace) -> bool:
    """Whether `place` holds a fork of `parent`; False if it holds nothing. UsageError if it holds another run.

    Whether the fork has the same spec is for its resume to decide, which names the fields that differ.
    """
    if not os.path.exists(place.folder):
        return False
    begun = _run_started(place) if place.began else None
    if begun is None or begun.parent is None or begun.parent.uid != Reader(parent.journal).uid:
        raise _taken(place, f", which is not a fork of {parent.run_id}")
    return True


def _run_started(place: RunPlace) -> RunStarted | None:
    entries = (each for each in Reader(place.journal).read() if isinstance(each, Entry))
    found = next((each.line for each in entries if each.line.t == "run.started"), None)
    return None if found is None else decode(found, RunStarted)


def remove_leftovers(experiment: str) -> list[str]:
    """Folders of forks whose process died while it made them."""
    removed = []
    for name in os.listdir(experiment):
        path = os.path.join(experiment, name)
        if name.startswith(_PREFIX) and is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def is_abandoned(path: str) -> bool:
    """Whether the process that was making a fork there is dead."""
    owner = owner_of(path)
    if owner is not None:
        return is_alive(owner) is False
    with contextlib.suppress(OSError):  # another process removes it
        return time.time() - os.stat(path).st_mtime > _OWNERLESS_SECONDS
    return False


def _taken(place: RunPlace, which: str = "") -> UsageError:
    resume = place.command("resume")
    return UsageError(
        f"there is already a run {place.run_id}{which}; choose another --id, or resume that run: {resume}"
    )


def _choice(fewshot: Fewshot | None) -> tuple[int, int] | None:
    return None if fewshot is None else (fewshot.n, fewshot.seed)


def _is_call(step: Step) -> bool:
    return step.kind != "generate" and not step.cancelled


def _blobs_of(steps: Sequence[Recorded]) -> set[str]:
    """The digests of the files that calls left in a sandbox."""
    return {kept.blob for each in steps if each.step.files for kept in each.step.files.changed.values()} - {""}


def _whole(recorded: Iterable[Recorded]) -> list[Recorded]:
    """Without those whose request needs a step that is not here to be read."""
    kept: list[Recorded] = []
    numbers: set[int] = set()
    for each in recorded:
        if each.step.asked is None or each.step.asked.needs <= numbers:
            kept.append(each)
            numbers.add(each.n)
    return kept
