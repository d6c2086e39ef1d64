"""Forks: a new run that copies the recorded steps of another run which its samples may request again.

A fork is built in a hidden folder and renamed when it is complete and synced. A crash before the rename leaves a hidden
folder that is not a run; the next fork removes it. After the rename the fork does not need its parent, and the same
command resumes it (`is_made_fork`). Copied steps keep their requests; as after a crash, replay decides whether a sample
makes the same request again.

`Fork.forecast` says what a fork will reuse, what it will request, and the cost, before it is made. For a key that the
parent has finished, the forecast counts the recorded steps that are not reused. A key that failed or was cut off in the
parent has not recorded all its steps: it will need as many as the mean finished key. For a new key, the forecast is the
parent's average. Dollars are counted only for models that have a price.
"""

import asyncio
import contextlib
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import msgspec

from holdfast.datasets import ReferenceCache
from holdfast.engine import KeyTraces, LastAttempt, Ticket, Tickets
from holdfast.engine.replay import Rehearsal, ReplayInput, rehearse
from holdfast.errors import UsageError
from holdfast.journal import (
    OS_DISK,
    OWNER,
    BlobStore,
    Entry,
    OpenRequest,
    Reader,
    Writer,
    blob_path,
    check_blob_files,
    copy_start,
    is_alive,
    make_run_folder,
    open_writer,
    own,
    owner_of,
)
from holdfast.models import Slots, identity_of
from holdfast.plan import PreparedTask, WrittenPlan, survey, write_plan
from holdfast.records import Parent, Reference, RunStarted, TaskInputs, Usage, decode, draft, draft_fact
from holdfast.report import counted
from holdfast.runs.execution.execute import make_started_record
from holdfast.runs.execution.preparation import (
    Given,
    Prepared,
    find_scorers,
    prefix_errors,
    prepare_given,
    refuse_mixed_scales,
)
from holdfast.runs.execution.resume import read_fold
from holdfast.runs.mirror.claim import restore_from_mirror
from holdfast.runs.shards.copy import readable
from holdfast.runs.store.damage import require_originals, require_started
from holdfast.runs.store.lookup import RunLocation
from holdfast.runs.store.provenance import collect_versions
from holdfast.runs.store.trust import executed_by, remember
from holdfast.solve import RecordedStep, servers_in
from holdfast.spec import Fewshot, Model, Spec, read_stored_spec


class Forecast(msgspec.Struct, frozen=True):
    """What a fork will reuse and request, according to a rehearsal without requests."""

    keys: int
    reused: int
    """Recorded steps that the fork will request again and get from the parent."""
    complete: int
    """Keys that need no new request."""
    requests: int
    """Estimated new requests: what the parent needed beyond what is reused; for keys that it did not finish, and for
    new keys, an average.
    """
    tokens: int
    dollars: float | None = None
    """Estimated cost of new requests to models that have a price; None if none has."""
    unpriced: int = 0
    """Keys that will send requests to a model without a price."""


class Mean(msgspec.Struct, frozen=True):
    """The mean steps and tokens of a finished key."""

    steps: float
    input_tokens: float
    output_tokens: float


class ForecastBuilder:
    """Adds up a forecast, key by key."""

    def __init__(self, spec: Spec, mean: Mean) -> None:
        """`mean`: of the whole parent, for new keys."""
        self._mean = mean
        self._models = {model.name: model for model in spec.models}
        self._roles = spec.roles
        self._keys = self._complete = self._reused = self._unpriced = 0
        self._requests = self._tokens = self._dollars = 0.0
        self._finished = self._finished_steps = 0
        self._finished_usage = Usage()
        self._partial: list[tuple[str, Rehearsal, Sequence[RecordedStep]]] = []
        """Keys that the parent began and did not finish. They are counted last: their mean needs all finished keys."""

    def add(self, model: str, rehearsed: Rehearsal, recorded: Sequence[RecordedStep], *, finished: bool) -> None:
        """Add a key: its model, what it would reuse, its steps in the parent, and whether it has an answer there."""
        self._keys += 1
        self._reused += rehearsed.reused
        if finished:
            self._finished += 1
            self._finished_steps += len(recorded)
            self._finished_usage += sum((each.step.usage for each in recorded), Usage())
        if not rehearsed.incomplete:
            self._complete += 1
        elif not recorded:
            self._count(model, self._mean.steps, {"": (self._mean.input_tokens, self._mean.output_tokens)})
        elif rehearsed.restarts:  # the next attempt reuses nothing
            self._count(model, len(recorded), _tokens_left(recorded, Usage()))
        elif finished:
            left = max(len(recorded) - rehearsed.reused, 1)
            self._count(model, left, _tokens_left(recorded, rehearsed.saved))
        else:
            self._partial.append((model, rehearsed, recorded))

    def _count(self, model: str, requests: float, tokens: dict[str, tuple[float, float]]) -> None:
        """Add a key's new requests, and their input and output tokens by role."""
        self._requests += requests
        self._tokens += sum(map(sum, tokens.values()))
        models = {role: self._roles.get(role) if role else self._models[model] for role in tokens}
        costs = [_dollars(models[role], *each) for role, each in tokens.items()]
        self._unpriced += None in costs
        self._dollars += sum(filter(None, costs))

    def forecast(self) -> Forecast:
        """Add the partial keys, and return the sums. Called once."""
        count, used = max(self._finished, 1), self._finished_usage
        steps, means = self._finished_steps / count, (used.input_tokens / count, used.output_tokens / count)
        for model, rehearsed, recorded in self._partial:
            tokens, saved = _tokens_left(recorded, rehearsed.saved), rehearsed.saved
            if steps > len(recorded):
                tokens = {"": (max(means[0] - saved.input_tokens, 0.0), max(means[1] - saved.output_tokens, 0.0))}
            self._count(model, max(steps, len(recorded), rehearsed.reused + 1) - rehearsed.reused, tokens)
        priced = any(each.price is not None for each in (*self._models.values(), *self._roles.values()))
        return Forecast(
            self._keys,
            self._reused,
            self._complete,
            round(self._requests),
            round(self._tokens),
            self._dollars if priced else None,
            self._unpriced if priced else 0,
        )


def _tokens_left(recorded: Sequence[RecordedStep], saved: Usage) -> dict[str, tuple[float, float]]:
    """By role: recorded input and output tokens, without the share that is reused. The rehearsal does not count reuse
    by role, so every role gets the same share.
    """
    used: dict[str, Usage] = {}
    for each in recorded:
        if each.step.answer is not None:
            role = each.step.asked.role if each.step.asked is not None else ""
            used[role] = used.get(role, Usage()) + each.step.answer.usage
    total = sum(used.values(), Usage())
    left_in = _share(total.input_tokens - saved.input_tokens, total.input_tokens)
    left_out = _share(total.output_tokens - saved.output_tokens, total.output_tokens)
    return {role: (usage.input_tokens * left_in, usage.output_tokens * left_out) for role, usage in used.items()}


def _share(part: int, whole: int) -> float:
    return max(part, 0) / whole if whole else 0.0


def _dollars(model: Model | None, input_tokens: float, output_tokens: float) -> float | None:
    return None if model is None else model.dollars(Usage(round(input_tokens), round(output_tokens)))


_BATCH = 256
_PREFIX = ".fork-"
_OWNERLESS_SECONDS = 3600.0
"""A hidden folder without an owner file is abandoned at this age: its process may just be about to write the file."""


class Fork:
    """One fork being made: `forecast`, then `make` or `drop`."""

    def __init__(self, parent: RunLocation, place: RunLocation, given: Given) -> None:
        parent = readable(parent)
        self._parent = _Parent(parent)
        self._given = given
        self._place = place
        self._above = os.path.dirname(place.folder)
        building = os.path.join(self._above, f"{_PREFIX}{uuid.uuid4().hex}")
        self._building = msgspec.structs.replace(place, folder=building)
        self._blobs = BlobStore(building, parent.folder)
        self._useful: set[int] = set()
        self._places = {task.name: Slots(task.max_samples or _BATCH) for task in given.spec.tasks}
        self._steps = 0
        self._without_files: set[str] = set()
        if os.path.exists(place.folder):
            raise _exists_error(place)

    async def forecast(self) -> Forecast:
        """Plan the fork and rehearse every key. Sends no request; the fork is not visible yet."""
        self._prepared, self._planned = await asyncio.to_thread(self._plan)
        builder = ForecastBuilder(self._prepared.spec, self._parent.mean())
        async for tickets in self._tickets():
            rehearsals = await asyncio.gather(*map(self._rehearse, tickets))
            for ticket, (rehearsed, last) in zip(tickets, rehearsals, strict=True):
                finished = self._parent.is_finished(ticket.key)
                builder.add(ticket.cell.model, rehearsed, last.steps, finished=finished)
                # A key that reuses nothing up to its first new request may reuse later steps.
                if last.unsure or (
                    last.steps
                    and (rehearsed.reused or self._parent.may_share_requests(self._prepared.spec, ticket.cell.model))
                ):
                    self._useful.add(ticket.o)
                    self._steps += len(last.steps)
        return builder.forecast()

    @property
    def doubt(self) -> str:
        """A warning about lost files of the parent; empty if none are lost. Known after `forecast`."""
        if not self._without_files:
            return ""
        samples, files = counted(len(self._without_files), "sample"), counted(len(self._parent.lost), "file")
        return (
            f"the tools of {samples} are called again: {files} that they left, e.g. {min(self._parent.lost)}, cannot "
            "be read or is damaged; to reuse their results, restore it from a copy of the run and fork again"
        )

    async def make(self) -> None:
        """Write the journal with the copied steps, then rename the folder so that the run becomes visible."""
        uid = uuid.uuid4().hex
        writer = await open_writer(self._building.folder, OpenRequest(uid))
        try:
            parent = self._parent.describe(self._steps)
            given = self._given if self._given.where else self._parent.with_sources(self._given)
            code = await asyncio.to_thread(collect_versions)  # runs git
            record = await asyncio.to_thread(
                make_started_record, self._prepared, self._place, self._planned, given, code, parent
            )
            await asyncio.to_thread(remember, uid, executed_by(self._prepared.spec, record.source, record.included))
            await writer.append(draft("run.started", record))
            start = Reader(self._building.journal, uid).read(live=True)
            await asyncio.to_thread(copy_start, self._building.folder, uid, start)
            async for tickets in self._tickets():
                useful = [ticket for ticket in tickets if ticket.o in self._useful]
                await asyncio.gather(*(self._copy_steps(ticket, writer) for ticket in useful))
        finally:
            await writer.close()
        await asyncio.to_thread(self._publish)

    async def drop(self) -> None:
        """Close the parent, and remove the hidden folder if it was not published."""
        self._parent.close()
        await asyncio.to_thread(self._clear)

    def _plan(self) -> tuple[Prepared, WrittenPlan]:
        """Prepare the spec, and write the plan and the data into the hidden folder."""
        with prefix_errors(self._given):
            inputs = self._parent.inputs(self._given.spec)
            scorers = find_scorers(self._given)
            refuse_mixed_scales(self._given, scorers, self._parent.spec)
            prepared = prepare_given(self._given, scorers, inputs, self._parent.spec)
            survey(prepared.spec, prepared.works)
        make_run_folder(OS_DISK, self._building.folder)
        remove_leftovers(self._above)
        own(self._building.folder)
        return prepared, write_plan(self._building.folder, prepared.spec, prepared.works, self._parent.folder)

    def _clear(self) -> None:
        shutil.rmtree(self._building.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: it holds other runs
            os.rmdir(self._above)

    def _publish(self) -> None:
        """Rename the folder, and sync its parent so that the new name survives a crash."""
        os.unlink(os.path.join(self._building.folder, OWNER))
        try:
            os.rename(self._building.folder, self._place.folder)
        except OSError as error:
            if os.path.exists(self._place.folder):
                raise _exists_error(self._place) from error
            raise
        OS_DISK.sync_folder(self._above)

    async def _tickets(self) -> AsyncIterator[list[Ticket]]:
        """Yield all keys of the fork in batches."""
        for cell in self._planned.cells:
            work = self._prepared.works[cell.task]
            tickets = Tickets(self._building.folder, cell, self._prepared.spec, work)
            batch: list[Ticket] = []
            while (ticket := await tickets.next()) is not None:
                batch.append(ticket)
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
            if batch:
                yield batch

    async def _rehearse(self, ticket: Ticket) -> tuple[Rehearsal, LastAttempt]:
        """Return what the key would reuse, and its last attempt in the parent. Concurrency is limited to `max_samples`
        as in a run, because a solver may start programs.
        """
        last = await self._reusable_attempt(ticket)
        work = self._prepared.works[ticket.cell.task]
        scene = ReplayInput(ticket, work, self._prepared.spec, last.attempt, last.steps, run=self._building.folder)
        places = self._places[ticket.cell.task]
        if not places.take():
            await places.wait()
        try:
            return await rehearse(scene), last
        finally:
            places.give_back()

    async def _copy_steps(self, ticket: Ticket, writer: Writer) -> None:
        """Copy a key's steps. Requests refer to earlier steps by record number, so references are renumbered. Announced
        calls without a result are copied too: such a call may have been made, and must not be repeated blindly.
        """
        numbers: dict[int, int] = {}
        last = await self._reusable_attempt(ticket)
        scope = f"solve/{last.attempt}"
        await asyncio.to_thread(self._copy_files, last.steps)
        for announced in {(each.started.q, each.started.c): each.started for each in last.unsure}.values():
            again = msgspec.structs.replace(announced, o=ticket.o, scope=scope)
            await writer.append(draft("step.started", again, ticket.key))
        for each in last.steps:
            step = each.step
            asked = None if step.asked is None else step.asked.renumbered(numbers)
            copied = msgspec.structs.replace(step, o=ticket.o, scope=scope, asked=asked, origin=each.n)
            numbers[each.n] = (await writer.append(draft_fact("step", copied, ticket.key))).n

    async def _reusable_attempt(self, ticket: Ticket) -> LastAttempt:
        """The steps of the parent that the key may reuse: model responses, and tool results if the tools are unchanged
        and the files that they left are intact.
        """
        task = self._prepared.works[ticket.cell.task]
        last = self._parent.last(ticket.key, calls=self._parent.are_tools_unchanged(task))
        blobs = _blobs_of(last.steps)
        if not blobs or await asyncio.to_thread(self._parent.has_all, blobs):
            return last
        self._without_files.add(ticket.key)
        kept = [each for each in last.steps if each.step.answer is not None or each.step.once]
        return msgspec.structs.replace(last, steps=_drop_dangling(kept))

    def _copy_files(self, steps: Sequence[RecordedStep]) -> None:
        """Copy the sandbox files of calls and sync them, before the steps that refer to them are written."""
        blobs = _blobs_of(steps)
        for blob in blobs:
            self._blobs.keep(Reference(blob, ""), ReferenceCache())
        if blobs:
            self._blobs.sync()


class _Parent:
    """Reads the run that is forked."""

    def __init__(self, place: RunLocation) -> None:
        self._place = place
        self.folder = place.folder
        fold = read_fold(place)  # from the journal, not the index: what is read here is recorded in the fork
        self._story, self._finished = fold.story, fold.finished.count
        require_started(place, fold)
        require_originals(place, self._story)  # records lost from its journal are only requested again
        self.spec = read_stored_spec(self._story.spec)
        self._traces = KeyTraces(place.journal)
        self._intact: set[str] = set()
        self.lost: set[str] = set()
        """Paths of blobs that are missing or damaged."""

    def with_sources(self, given: Given) -> Given:
        """A spec without a file of its own: the user's modules are beside the files of the parent's spec."""
        started = self._story.started
        return (
            given
            if started is None
            else msgspec.structs.replace(given, where=started.source, included=started.included)
        )

    def inputs(self, spec: Spec) -> dict[str, TaskInputs]:
        """The stored inputs of tasks, without those whose few-shot examples are selected differently in the fork."""
        before = {task.name: task.fewshot for task in self.spec.tasks}
        same = {task.name for task in spec.tasks if _is_same_choice(task.fewshot, before.get(task.name))}
        return {name: inputs for name, inputs in self._story.inputs.items() if name in same}

    def may_share_requests(self, spec: Spec, model: str) -> bool:
        """Whether a recorded step may match a later request: the model is unchanged, or there are roles, which are not
        compared here.
        """
        before = {each.name: each for each in self.spec.models}
        now = {each.name: each for each in spec.models}
        if spec.roles or model not in before:
            return bool(spec.roles)
        return identity_of(before[model]) == identity_of(now[model]) and before[model].params == now[model].params

    def are_tools_unchanged(self, work: PreparedTask) -> bool:
        """Whether a task's tools are the same in both specs: their code, their MCP servers and their sandbox."""
        name, now = work.task.name, work.task
        before = next((task for task in self.spec.tasks if task.name == name), None)
        if before is None or before.sandbox != now.sandbox or servers_in(before.solver) != servers_in(now.solver):
            return False
        return self._story.inputs.get(name, TaskInputs()).solver == work.solver.digest()

    def last(self, key: str, *, calls: bool) -> LastAttempt:
        """The last attempt of a key with the steps that a fork may reuse: answered requests, and with `calls` also tool
        calls. Failed calls are included, because the model has seen their errors.
        """
        last = self._traces.last_attempt(key)
        kept = [
            each
            for each in last.steps
            if each.step.answer is not None or (calls and each.step.kind != "generate" and not each.step.cancelled)
        ]
        return LastAttempt(last.attempt, _drop_dangling(kept), last.unsure if calls else [])

    def is_finished(self, key: str) -> bool:
        return self._traces.finished(key) > 0

    def has_all(self, blobs: Iterable[str]) -> bool:
        """Whether all blobs are present and intact. Thread-safe; each blob is read once."""
        for blob in blobs:
            path = blob_path(self.folder, Reference(blob, ""))
            if blob not in self._intact and path not in self.lost:
                if any(check_blob_files(self.folder, [blob])):
                    self.lost.add(path)
                else:
                    self._intact.add(blob)
            if path in self.lost:
                return False
        return True

    def mean(self) -> Mean:
        story, finished = self._story, max(self._finished, 1)
        used = story.usage + story.saved
        steps = max((story.steps + story.taken) / finished, 1.0)
        return Mean(steps, used.input_tokens / finished, used.output_tokens / finished)

    def close(self) -> None:
        self._traces.close()

    def describe(self, steps: int) -> Parent:
        return Parent(self._place.run_id, self._place.experiment, self._traces.uid, steps)


async def make_fork(fork: Fork, announce: Callable[[Forecast], None], *, dry: bool = False) -> None:
    """Announce what the fork will reuse and cost, then make it, unless `dry`."""
    try:
        announce(await fork.forecast())
        if not dry:
            await fork.make()
    finally:
        await fork.drop()  # removes an incomplete fork; a complete one has been renamed to its final folder


def is_made_fork(parent: RunLocation, place: RunLocation, given: Given, warn: Callable[[str], None]) -> bool:
    """Whether `place`, or its mirror, holds a fork of `parent`; False if it is empty. UsageError if it holds another
    run. A fork that is only in the mirror is restored first.

    The spec is not compared here: the resume of the fork does that, and names the fields that differ.
    """
    restore_from_mirror(given.spec.mirror, place, warn)
    if not os.path.exists(place.folder):
        return False
    lines = (each.line for each in Reader(place.journal).read() if isinstance(each, Entry)) if place.began else ()
    first = next((line for line in lines if line.t == "run.started"), None)
    origin = None if first is None else decode(first, RunStarted).parent
    if origin is None or origin.uid != Reader(parent.journal).uid:
        raise _exists_error(place, f", which is not a fork of {parent.run_id}")
    return True


def remove_leftovers(experiment: str) -> list[str]:
    """Remove the hidden folders of forks whose process has died, and return their paths."""
    removed = []
    for name in os.listdir(experiment):
        path = os.path.join(experiment, name)
        if name.startswith(_PREFIX) and is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def is_abandoned(path: str) -> bool:
    """Whether the process that was building a fork in this folder is dead."""
    owner = owner_of(path)
    if owner is not None:
        return is_alive(owner) is False
    with contextlib.suppress(OSError):  # another process removes it
        return time.time() - os.stat(path).st_mtime > _OWNERLESS_SECONDS
    return False


def _exists_error(place: RunLocation, which: str = "") -> UsageError:
    resume = place.command("resume")
    return UsageError(
        f"there is already a run {place.run_id}{which}; choose another --id, or resume that run: {resume}"
    )


def _is_same_choice(one: Fewshot | None, other: Fewshot | None) -> bool:
    """Whether two rules select the same examples, if they have the same source."""
    if one is None or other is None:
        return one is other
    return (one.n, one.seed, one.split, one.by, one.pick) == (other.n, other.seed, other.split, other.by, other.pick)


def _blobs_of(steps: Sequence[RecordedStep]) -> set[str]:
    """The digests of the files that calls left in a sandbox."""
    return {kept.blob for each in steps if each.step.files for kept in each.step.files.changed.values()} - {""}


def _drop_dangling(recorded: Iterable[RecordedStep]) -> list[RecordedStep]:
    """Drop steps whose request refers to a step that is not kept."""
    kept: list[RecordedStep] = []
    numbers: set[int] = set()
    for each in recorded:
        if each.step.asked is None or each.step.asked.needs <= numbers:
            kept.append(each)
            numbers.add(each.n)
    return kept
