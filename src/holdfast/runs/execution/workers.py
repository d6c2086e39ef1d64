"""Works on a sharded run: begins it, claims free shards one after another, and takes over those of dead workers.

The first worker records the plan of the whole run in the root journal; the others wait for that and check that they
would plan the same. From then on workers meet only where they claim shards. A shard is an ordinary run of a part of
the keys, so everything that makes a run survive a crash applies to each.

A crash of a worker leaves its shard as a crashed run: another worker continues it once its term or claim has expired.
"""

import asyncio
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Sequence

import msgspec

from holdfast.errors import (
    DriftError,
    FencedError,
    HeldError,
    HoldfastError,
    StoreError,
    UnreachableError,
    UsageError,
    storage_errors,
)
from holdfast.journal import (
    OS_DISK,
    SHARDS,
    Lease,
    Writer,
    make_folders,
    observe_claim,
    observe_term,
    read_lease,
)
from holdfast.plan import PlanDivision, PlanSlice, StoredRows, draft_plan
from holdfast.records import Cell, RunResumed, ScoringStarted, Shard, draft, parse_shard
from holdfast.runs.execution.drift import DriftCheck, Retry, rounds_done
from holdfast.runs.execution.execute import BegunRun, JournalStart, begin_journal, trust_run
from holdfast.runs.execution.execute import execute as execute_whole
from holdfast.runs.execution.execute import extend as extend_whole
from holdfast.runs.execution.orders import OrderWatch, is_cancelled, with_tuned
from holdfast.runs.execution.preparation import Given, Prepared, prefix_errors, refuse_missing_keys
from holdfast.runs.execution.resume import (
    Reading,
    Resumption,
    claim,
    open_claimed,
    read_and_prepare,
    read_fold,
    read_story,
    stored_spec,
)
from holdfast.runs.execution.session import Observe, RunOutcome, RunSession, close_quietly, run_session
from holdfast.runs.mirror.claim import (
    expiry_seconds,
    is_mirrored,
    last_beat,
    objects_of,
    restore_from_mirror,
    update_from_mirror,
)
from holdfast.runs.shards.copy import readable
from holdfast.runs.shards.layout import read_started, shard_location, shard_uid
from holdfast.runs.shards.ledger import unsettled_shards
from holdfast.runs.shards.marks import ShardMarks
from holdfast.runs.shards.merger import divide_ordinals
from holdfast.runs.shards.search import PAUSE_SECONDS, ShardLook, ShardSearch
from holdfast.runs.shards.standings import has_failures, shard_standings
from holdfast.runs.store.lookup import RunLocation
from holdfast.runs.store.provenance import collect_versions, describe_host, write_spec_file
from holdfast.spec import Mirror, RunLimits, spec_mapping, with_own_places
from holdfast.state import Standing, Story, is_networked
from holdfast.version import __version__

_TIME_LIMIT = "limits.run.seconds "
_LOOKS_PER_EXPIRY = 4
"""So often a worker looks for orders in the root journal. With a mirror once: each look costs a request."""
_UNSETTLED_MAX = 10
"""So many shards that may hold an unspent budget are looked at: each look costs requests to the object store."""
_ALL = Retry()
_log = logging.getLogger("holdfast")


class ShardChoice(msgspec.Struct, frozen=True):
    """What a worker works on: one shard of `count`, or with `number` 0 all that it can claim."""

    count: int
    number: int = 0
    this_host: bool = False
    """All workers run on this machine, so that a store on its own disk is shared by all of them."""


async def execute(
    given: Given,
    place: RunLocation,
    observe: Observe | None = None,
    retry: Retry = _ALL,
    choice: ShardChoice | None = None,
) -> RunOutcome:
    """Start or continue a run: all of it or, with a `choice`, as one of the workers of a sharded run."""
    with storage_errors(place.folder):
        count = await _count_shards(given, place, waits=choice is not None)
    if choice is None and not count:
        return await execute_whole(given, place, observe, retry)
    if choice is not None:
        _check_choice(choice, given, place, count)
    with storage_errors(place.folder):
        return await _Worker(given, place, observe, choice or ShardChoice(count or 1)).run(None if choice else retry)


async def extend(given: Given, place: RunLocation, observe: Observe | None = None) -> RunOutcome:
    """Add keys to the plan of a run, and resume it. The plans of shards follow when a worker claims them."""
    with storage_errors(place.folder):
        count = await _count_shards(given, place, waits=False)
        if not count:
            return await extend_whole(given, place, observe)
        prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
        worker = _Worker(given, place, observe, ShardChoice(count))
        opened = await Resumption(prepared, reading, given, _ALL).add_block()
        if opened is not None:
            try:
                await asyncio.to_thread(worker.write_copies, reading)
            finally:
                await close_quietly(*opened)
        return await worker.run(None)


async def join(given: Given, place: RunLocation, choice: ShardChoice) -> None:
    """Begin a sharded run, or check that this process would plan the same as the one that began it. Claims no shard:
    for a driver, so that a wrong spec is refused before workers are placed.
    """
    with storage_errors(place.folder):
        _check_choice(choice, given, place, await _count_shards(given, place, waits=True))
        await _Worker(given, place, None, choice).join()


async def _count_shards(given: Given, place: RunLocation, *, waits: bool) -> int | None:
    """How many shards an existing run has; 0 if it was begun without; None if it does not exist. `waits`: until another
    worker of this machine, which began at the same time, has fetched the run from its mirror. Else HeldError.
    """
    while True:
        try:
            await asyncio.to_thread(restore_from_mirror, given.spec.mirror, place, _log.warning)
            break
        except HeldError:
            if not waits:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
    started = await asyncio.to_thread(read_started, place)
    return None if started is None else started.shards


def _check_choice(choice: ShardChoice, given: Given, place: RunLocation, count: int | None) -> None:
    if count is not None and count != choice.count:
        has = f"has {count} shards" if count else "was begun without shards"
        raise DriftError(f"{place.run_id} {has}: the number of shards cannot change; start a run with another --id")
    if not (choice.number or choice.this_host or is_networked(place.store)):
        require_claims("--shards", place.store, given.spec.mirror)


def require_claims(what: str, store: str, mirror: Mirror | None) -> None:
    """UsageError if workers of several machines cannot claim shards in the mirror, as a local store requires. `what`
    they were to be started with.
    """
    if mirror is not None and mirror.exclusive:
        return
    lacks = "the spec has no mirror" if mirror is None else "nobody claims shards in a mirror with exclusive: false"
    remedy = "add a mirror" if mirror is None else "set mirror.exclusive: true"
    raise UsageError(
        f"{what}: {store} is on a disk of this machine, and {lacks}, so workers on other machines would each pay for "
        f"all shards; {remedy}, use a store on a network file system, or, if all workers run on this machine, add "
        "--this-host"
    )


class _Worker:
    """One process that works on a sharded run."""

    def __init__(self, given: Given, root: RunLocation, observe: Observe | None, choice: ShardChoice) -> None:
        self._given = given
        self._root = root
        self._choice = choice
        self._reading: Reading
        """Of the root journal."""
        self._reading_lock = threading.Lock()
        self._done: dict[Shard, RunOutcome] = {}
        """Shards that this process has worked on, also if it could not finish them."""
        self._done_at: dict[Shard, tuple[int, int]] = {}
        """The stage of the run when this process worked on each of them."""
        self._is_cut_off = False
        """Whether the mirror could not be reached the last time."""
        self._division = PlanDivision(root.folder, choice.count)
        self._is_waiting = False
        """Whether it was said that all shards that are left are held by others."""
        self._rounds: list[dict[Shard, tuple[int, ...]] | None] = []
        """Of each round of the run, by shard: the ordinals of the shard's samples that get new attempts. None: all."""
        self._search = ShardSearch(choice.count, expiry_seconds(), time.monotonic)
        mirror = given.spec.mirror
        is_shared = mirror is not None and mirror.exclusive
        self._marks = ShardMarks(root.folder, objects_of(mirror.url, root) if mirror and is_shared else None)
        pause = expiry_seconds() / (1 if mirror is not None else _LOOKS_PER_EXPIRY)
        self._observe = OrderWatch(self._read_root, observe, pause, tunes=not self._is_apart)

    async def run(self, retry: Retry | None) -> RunOutcome:
        """`retry`: begin a new round for failed samples, if there are any; None: only join."""
        prepared = await self._join_round(retry)
        stopped: RunOutcome | None = None
        while stopped is not None or not self._observe.is_stopped:
            try:
                shard = await self._next_shard(only_crashed=stopped is not None)
                if shard is None:
                    break
                outcome = await self._work_if_free(shard)
            except (StoreError, UnreachableError) as error:
                await self._wait_for_mirror(error)
                continue
            if outcome is not None and outcome.interrupted:
                stopped = outcome
                if not outcome.budget or outcome.budget.startswith(_TIME_LIMIT):
                    break
        return await asyncio.to_thread(self._sum_up, prepared, stopped)

    async def _work_if_free(self, shard: Shard) -> RunOutcome | None:
        """None if another worker has the shard, or has taken it over."""
        self._is_cut_off = False
        try:
            outcome = await self._work_on(shard, self._given_for(self._given_now(), shard))
        except (HeldError, FencedError) as error:
            if self._choice.number:
                raise
            if isinstance(error, FencedError):
                _log.warning("shard %s was taken over by another worker; continuing with the next", shard)
            return None
        is_first, folder = shard not in self._done, shard_location(self._root, shard).folder
        self._done[shard] = outcome
        if outcome.unfinished or not is_first or await asyncio.to_thread(is_mirrored, folder):
            self._done_at[shard] = self._stage  # else it is claimed once more, and sends the rest
        await asyncio.to_thread(self._look, shard)  # marks it if it is complete
        return outcome

    async def _join_round(self, retry: Retry | None) -> Prepared:
        prepared, self._reading = await self.join()
        if retry is not None:
            await self._begin_round(self._reading, prepared, retry)
        if self._is_cancelled:
            raise UsageError(f"{self._root.run_id} was cancelled; to continue it: {self._root.command('resume')}")
        return prepared

    async def _wait_for_mirror(self, error: HoldfastError) -> None:
        """A worker that cannot reach the mirror cannot claim shards. All that it has done is on its own disk."""
        if not self._is_cut_off:
            _log.warning("%s; this worker waits until the mirror can be reached", error)
        self._is_cut_off = True
        await asyncio.sleep(PAUSE_SECONDS)

    def _given_now(self) -> Given:
        """The spec and the rows of the run as they are now: an extension changes them for all workers, whether they
        have the new data or not.
        """
        fold, given = self._reading.fold, self._given
        stored = stored_spec(fold)
        if fold.story.extensions:
            given = msgspec.structs.replace(given, spec=with_own_places(stored, given.spec))
        given = msgspec.structs.replace(given, spec=with_tuned(given.spec, fold.story))
        if not stored.record_data:
            return given
        cells: dict[str, list[Cell]] = {}
        for cell in fold.story.cells:
            cells.setdefault(cell.task, []).append(cell)
        rows = {task: StoredRows(self._root.folder, mine) for task, mine in cells.items()}
        return msgspec.structs.replace(given, rows=rows)

    def _given_for(self, given: Given, shard: Shard) -> Given:
        """The spec of a shard. A shard that shares no store with others gets its part of the run's budget, by its
        number of keys; all others spend from a common ledger.
        """
        spec = msgspec.structs.replace(given.spec, shard=str(shard))
        if not self._is_apart:
            return msgspec.structs.replace(given, spec=spec)
        planned, limits = self._division.planned, spec.limits.run
        part = planned[shard.number - 1] / max(sum(planned), 1)
        own = RunLimits(
            cost_usd=None if limits.cost_usd is None or not part else limits.cost_usd * part,
            tokens=None if limits.tokens is None else max(int(limits.tokens * part), 1),
            requests=None if limits.requests is None else max(int(limits.requests * part), 1),
            seconds=limits.seconds,
        )
        if own != limits:
            _log.warning(
                "shard %s shares no store with other workers: it gets %.1f %% of the run's budget, as of its samples",
                shard,
                100 * part,
            )
        spec = msgspec.structs.replace(spec, limits=msgspec.structs.replace(spec.limits, run=own))
        return msgspec.structs.replace(given, spec=spec, apart=True)

    @property
    def _is_apart(self) -> bool:
        """Whether other workers cannot see what this one spends."""
        mirror, choice = self._given.spec.mirror, self._choice
        is_shared = (mirror is not None and mirror.exclusive) or choice.this_host or is_networked(self._root.store)
        return bool(choice.number) and not is_shared

    async def _work_on(self, shard: Shard, given: Given) -> RunOutcome:
        """Begin a shard, or continue it. `given`: the spec of the shard."""
        place = shard_location(self._root, shard)
        await asyncio.to_thread(make_folders, OS_DISK, os.path.dirname(place.folder))
        await asyncio.to_thread(restore_from_mirror, given.spec.mirror, place, _log.warning)
        prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
        if reading.fold.story.started is None:
            begun = await self._begin_shard(shard, given, prepared, place)
            if isinstance(begun, BegunRun):
                session = RunSession(prepared, place, begun.reading.uid, self._observe, begun.writer, begun.logbook)
                return await run_session(session, begun.reading.fold)
            reading = begun
        if len(reading.fold.story.blocks) < len(self._reading.fold.story.blocks):
            await self._extend_shard(shard, reading, prepared)
        return await execute_whole(given, place, self._observe, Retry(rounds=self._rounds_of(shard)))

    async def _begin_shard(
        self, shard: Shard, given: Given, prepared: Prepared, place: RunLocation
    ) -> BegunRun | Reading:
        with prefix_errors(given):
            refuse_missing_keys(prepared.spec)
        first, *_ = self._reading.fold.story.blocks
        part = PlanSlice(self._division, place.folder, first, shard, 0)
        start = JournalStart(shard_uid(self._reading.uid, shard), versions=lambda: self._versions)
        begun = await begin_journal(prepared, place, given, lambda: part.write(prepared.works), start)
        if isinstance(begun, BegunRun):
            try:
                await self._add_blocks(shard, begun.reading, prepared, begun.writer)
            except BaseException:
                await close_quietly(begun.writer, begun.logbook)
                raise
        return begun

    async def _extend_shard(self, shard: Shard, reading: Reading, prepared: Prepared) -> None:
        writer, logbook = await open_claimed(reading, await claim(reading, prepared.spec.mirror))
        try:
            await self._add_blocks(shard, reading, prepared, writer)
        finally:
            await close_quietly(writer, logbook)

    async def _add_blocks(self, shard: Shard, reading: Reading, prepared: Prepared, writer: Writer) -> None:
        """Record the extensions of the run in one of its shards, one by one: with the same blocks in the same order,
        the keys of both plans can be matched.
        """
        story = self._reading.fold.story
        for number in range(len(reading.fold.story.blocks), len(story.blocks)):
            part = PlanSlice(
                self._division, reading.place.folder, story.blocks[number], shard, reading.fold.story.planned
            )
            planned = await asyncio.to_thread(part.write, prepared.works)
            extended = story.extensions[number - 1].extended
            spec = {**extended.spec, "shard": str(shard)}
            record = msgspec.structs.replace(
                extended, spec=spec, plan=planned.plan, data=planned.data, cells=planned.cells, host=describe_host()
            )
            await writer.append(draft("run.extended", record))
            await asyncio.to_thread(reading.catch_up)
        await asyncio.to_thread(reading.write_start)

    @functools.cached_property
    def _versions(self) -> dict[str, str]:
        """Those of this process for all its shards: git is slow in a large repository."""
        return collect_versions()

    @property
    def _is_cancelled(self) -> bool:
        return is_cancelled(self._reading.fold.story)

    @property
    def _stage(self) -> tuple[int, int]:
        """The number of plan blocks and of retry rounds. A shard is complete up to one of these stages."""
        return self._division.blocks, len(self._rounds)

    def _rounds_of(self, shard: Shard) -> tuple[tuple[int, ...] | None, ...]:
        """Of each round of the run: the ordinals of a shard's samples that get new attempts; None means all."""
        return tuple(None if each is None else each.get(shard, ()) for each in self._rounds)

    async def join(self) -> tuple[Prepared, Reading]:
        """Begin the run, or wait for the worker that does; then check that this one would plan the same."""
        waited = False
        while True:
            await asyncio.to_thread(update_from_mirror, self._given.spec.mirror, self._root, _log.warning)
            prepared, reading = await asyncio.to_thread(read_and_prepare, self._given, self._root)
            if reading.fold.story.started is not None:
                check = DriftCheck(prepared, self._given, self._root, _ALL)
                await asyncio.to_thread(check.require_agreement, reading.fold, stored_spec(reading.fold), reading.uid)
                await asyncio.to_thread(trust_run, reading, prepared)
                # By this folder readers know a sharded run, also if all its shards are on other machines.
                await asyncio.to_thread(make_folders, OS_DISK, os.path.join(self._root.folder, SHARDS))
                return prepared, reading
            try:
                await self._begin(prepared)
            except (HeldError, FencedError):  # fenced: this process was paused, and another one has begun the run since
                if not waited:
                    _log.warning("another worker is beginning %s; waiting for it", self._root.run_id)
                waited = True
                await asyncio.sleep(PAUSE_SECONDS)

    async def _begin(self, prepared: Prepared) -> None:
        with prefix_errors(self._given):
            refuse_missing_keys(prepared.spec)
            drafted = await asyncio.to_thread(draft_plan, self._root.folder, prepared.spec, prepared.works)
        try:
            start = JournalStart(shards=self._choice.count)
            begun = await begin_journal(prepared, self._root, self._given, drafted, start)
        finally:
            if drafted is not None:
                drafted.close()
        if not isinstance(begun, BegunRun):
            return
        try:
            if prepared.evaluation:
                started = ScoringStarted(prepared.evaluation, prepared.scorer_identities())
                await begun.writer.append(draft("score.started", started))
        finally:
            await close_quietly(begun.writer, begun.logbook)

    async def _begin_round(self, reading: Reading, prepared: Prepared, retry: Retry) -> None:
        """Record in the root journal which failed samples get new attempts, what is changed for all workers from now
        on, and that a cancelled run continues. From then on every worker that claims a shard applies exactly this
        choice, also after a crash.
        """
        check = DriftCheck(prepared, self._given, self._root, retry)
        while True:
            end, stored = reading.fold.story.end, stored_spec(reading.fold)
            changes = tuple(await asyncio.to_thread(check.differences, stored))
            retried = await asyncio.to_thread(self._select_retried, prepared, retry)
            if retried == () and not changes and (end is None or end.kind != "run.cancelled"):
                return
            try:
                claimed = await claim(reading, prepared.spec.mirror)
                break
            except HeldError:  # another command records something
                await asyncio.sleep(PAUSE_SECONDS)
                await asyncio.to_thread(reading.catch_up)
        writer, logbook = await open_claimed(reading, claimed)
        try:
            versions = await asyncio.to_thread(collect_versions)
            spec = spec_mapping(prepared.spec) if changes else None
            resumed = RunResumed(changes, spec, versions, describe_host(), __version__, retried)
            await writer.append(draft("run.resumed", resumed))
            await asyncio.to_thread(self.write_copies, reading)
        finally:
            await close_quietly(writer, logbook)

    def write_copies(self, reading: Reading) -> None:
        """Bring the copies of the root's first records and of its spec up to date."""
        reading.catch_up()
        reading.write_start()
        write_spec_file(self._root, reading.fold.story)

    def _select_retried(self, prepared: Prepared, retry: Retry) -> tuple[int, ...] | None:
        """The ordinals, in the plan of the whole run, of failed samples that get new attempts; None means all. The
        records of all shards are read only for a choice.
        """
        if retry.kinds or retry.keys:
            copied = readable(self._root)
            return DriftCheck(prepared, self._given, copied, retry).select_retried(read_fold(copied))
        return None if not retry.keep and any(map(has_failures, self._standings().values())) else ()

    async def _next_shard(self, *, only_crashed: bool) -> Shard | None:
        """Wait for a shard that can be claimed; None if all are complete, or this worker cannot help. `only_crashed`:
        the budget is used up, except for what dead workers did not spend; then look once.
        """
        count, number = self._choice.count, self._choice.number
        await asyncio.to_thread(self._catch_up)
        if number:
            shard = Shard(number, count)
            return None if self._is_done(shard) else shard
        unsettled = await asyncio.to_thread(self._read_unsettled) if only_crashed else frozenset()
        while not self._is_cancelled:
            left = self._search.candidates([each for each in self._done if self._is_done(each)])
            for shard in itertools.chain(itertools.islice(unsettled, _UNSETTLED_MAX), left):
                found = await asyncio.to_thread(self._look, shard)
                is_wanted = not only_crashed or found.is_crashed or shard in unsettled
                if self._search.note(shard, found) and is_wanted:
                    await asyncio.to_thread(self._marks.add_begun, shard)
                    return shard
                if self._search.should_list_marks:
                    marked = await asyncio.to_thread(self._marks.read, *self._stage)
                    self._search.learn(marked.begun, marked.complete)
            if self._search.is_over or only_crashed or self._observe.is_stopped:
                break
            if not self._is_waiting:
                _log.warning("other workers hold all shards that are left; waiting in case one of them dies")
                self._is_waiting = True
            await self._pause()
            await asyncio.to_thread(self._catch_up)
        return None

    async def _pause(self) -> None:
        """Wait before the next look at shards that others hold. A signal ends it."""
        end = time.monotonic() + self._search.pause
        while not self._observe.is_stopped and (left := end - time.monotonic()) > 0:  # noqa: ASYNC110 - the loop's own end
            await asyncio.sleep(min(left, PAUSE_SECONDS))

    def _read_unsettled(self) -> frozenset[Shard]:
        """By the ledger: its worker may have been killed before it wrote a lease."""
        found = map(parse_shard, unsettled_shards(self._root, self._reading.uid, self._given.spec))
        return frozenset(each for each in found if not self._is_done(each))

    def _is_done(self, shard: Shard) -> bool:
        """Whether this process has worked on a shard, and neither keys nor a round were added since."""
        return self._done_at.get(shard) == self._stage

    def _catch_up(self) -> None:
        """Read orders and extensions since the last look, count the keys of every shard, and find those of rounds."""
        before, story = self._stage, self._read_root()
        for block in story.blocks[self._division.blocks :]:
            self._division.add(block)
        rounds = [each.resumed.retried for each in story.resumes if not each.resumed.live]
        self._rounds += [self._divide(each) for each in rounds[len(self._rounds) :]]
        if self._stage != before:
            self._search.start_over()

    def _read_root(self) -> Story:
        """Read new records of the root journal, also while this process works on a shard."""
        with self._reading_lock:
            update_from_mirror(self._given.spec.mirror, self._root, _log.warning)
            self._reading.catch_up()
            return self._reading.fold.story

    def _divide(self, retried: Sequence[int] | None) -> dict[Shard, tuple[int, ...]] | None:
        """Ordinals in the plan of the whole run, as ordinals in the plans of the shards. None stays None: all."""
        if not retried:
            return None if retried is None else {}
        blocks = self._reading.fold.story.blocks
        found = divide_ordinals(self._root.folder, blocks, self._choice.count, frozenset(retried).__contains__)
        return {shard: tuple(own) for shard, own in found.items()}

    def _look(self, shard: Shard) -> ShardLook:
        place = shard_location(self._root, shard)
        lease, is_free = read_lease(place.folder), observe_term(place.folder)
        mirror = self._given.spec.mirror
        is_known = True
        if mirror is not None and mirror.exclusive:
            objects = objects_of(mirror.url, place)
            is_unclaimed, beat = observe_claim(objects)
            is_free = is_free and is_unclaimed
            if beat is not None and beat.ended and beat.lease is None:
                beat = last_beat(objects)[1]  # the last process claimed the shard and found nothing to do
            if beat is not None and beat.lease is not None and (lease is None or beat.lease.epoch >= lease.epoch):
                lease = beat.lease
            is_known = beat is not None and lease is beat.lease
        planned = self._division.planned[shard.number - 1]
        # A shard that is complete only on the disk of this machine has work left: its records must be sent.
        is_complete = (
            lease is not None
            and is_known
            and lease.end == "run.completed"
            and lease.planned == planned == lease.finished + lease.failed
        )
        if is_complete and lease is not None and lease.failed and self._has_open_round(shard):
            is_complete = False
        if is_complete:
            self._marks.add_complete(shard, *self._stage)  # its worker died before it did, or this is a new stage
        return ShardLook(is_free, is_complete, is_crashed=lease is not None and not lease.end)

    def _has_open_round(self, shard: Shard) -> bool:
        """Whether the run has begun a round for failed samples of a shard that has not taken part in it."""
        if not self._rounds:
            return False
        done = rounds_done(read_story(shard_location(self._root, shard))[0].story)
        return Retry(rounds=self._rounds_of(shard)).select_open(done) != ()

    def _standings(self) -> dict[Shard, Standing]:
        """Of all shards that have begun, here or on other machines."""
        mirror = self._given.spec.mirror
        return shard_standings(self._root, self._choice.count, mirror.url if mirror else "")

    def _sum_up(self, prepared: Prepared, stopped: RunOutcome | None) -> RunOutcome:
        """The outcome of the whole run, as far as this worker can see it."""
        planned = self._reading.fold.story.planned
        known: dict[Shard, Lease | RunOutcome | None] = {
            **{shard: each.lease for shard, each in self._standings().items()},
            **self._done,
        }
        counts = [(each.finished, each.failed) for each in known.values() if each is not None]
        finished, failed = sum(each for each, _ in counts), sum(each for _, each in counts)
        left = max(planned - finished - failed, 0)
        total = RunOutcome(self._root, prepared.spec, finished, failed, left)
        if stopped is not None:
            spec = prepared.spec  # its limits may have been tuned; those of a shard alone are only a part
            if not self._is_apart:
                spec = msgspec.structs.replace(spec, limits=stopped.spec.limits)
            return msgspec.structs.replace(total, spec=spec, interrupted=True, budget=stopped.budget)
        if (self._is_cancelled or self._observe.is_stopped) and left:
            return msgspec.structs.replace(total, interrupted=True)
        reasons = dict.fromkeys(each for done in self._done.values() for each in done.stopped)
        is_complete = not left and all(each.complete for each in self._done.values())
        return msgspec.structs.replace(total, stopped=tuple(reasons), complete=is_complete)
