"""Scores the recorded answers of any run. The shards of a sharded run are scored one after another, also by several
processes at once. A crash leaves the shard that was scored as it leaves any run; the same command continues it.
"""

import asyncio
import contextlib
import copy
import logging
import random
import time
from collections.abc import Mapping

import msgspec

from holdfast.engine import Engine, ModelProgress, Progress
from holdfast.errors import HeldError, UsageError
from holdfast.journal import SHARDS, greatest_epoch, is_alive
from holdfast.records import Shard, parse_shard
from holdfast.runs.execution.answer_selection import SelectedAnswers
from holdfast.runs.execution.preparation import Given
from holdfast.runs.execution.resume import read_and_prepare
from holdfast.runs.execution.session import ObserveWork, end_observer
from holdfast.runs.executors.totals import WorkerTotals
from holdfast.runs.mirror.claim import last_beat, objects_of, restore_from_mirror, update_from_mirror
from holdfast.runs.scoring import AnomalyRescan, Scored, ScoreRequest, ShardPart, plan_scoring, select_answers
from holdfast.runs.scoring import rescan_anomalies as rescan_journal
from holdfast.runs.scoring import score as score_journal
from holdfast.runs.shards.copy import readable
from holdfast.runs.shards.layout import begun_shards, is_sharded, shard_location
from holdfast.runs.shards.merger import divide_ordinals
from holdfast.runs.store.lookup import RunLocation
from holdfast.spec import Mirror, Spec
from holdfast.state import Bits, standing_of

_PAUSE_SECONDS = 0.5


async def score(
    given: Given, place: RunLocation, request: ScoreRequest | None = None, observe: ObserveWork | None = None
) -> Scored:
    """Score every answer that the scorers in `given` have not scored yet, or those that `request` chooses, and record
    the scores. `given` is from `given_to_score`.
    """
    if is_sharded(place):
        return await _ShardScoring(given, place, request or ScoreRequest(), observe).run()
    return await score_journal(given, place, request, observe)


async def rescan_anomalies(given: Given, place: RunLocation) -> AnomalyRescan:
    """Scan every answer for anomalies with the kinds in force, and record new ones. Sends no request."""
    if not is_sharded(place):
        return await rescan_journal(given, place)
    total = AnomalyRescan(place, 0, 0)
    for shard in await asyncio.to_thread(_find_shards, given, place):
        done = await rescan_journal(_given_of(shard, given), shard)
        total = AnomalyRescan(place, total.answers + done.answers, total.changed + done.changed)
    return total


def _find_shards(given: Given, place: RunLocation) -> list[RunLocation]:
    """The shards that have begun, with the answers of other machines if the run has a mirror."""
    mirror = given.spec.mirror
    if mirror is not None:
        warn, objects = logging.getLogger("holdfast").warning, objects_of(mirror.url, place)
        for name in objects.folders(SHARDS):
            with contextlib.suppress(ValueError):  # another folder
                own = shard_location(place, parse_shard(name))
                restore_from_mirror(mirror, own, warn)
                update_from_mirror(mirror, own, warn)
    return list(begun_shards(place))


def _given_of(shard: RunLocation, given: Given) -> Given:
    return msgspec.structs.replace(given, spec=msgspec.structs.replace(given.spec, shard=shard.shard))


class _ShardsAsOne:
    """The engines that score the shards, one after another, as one to an observer: it shows all, and stops all."""

    def __init__(self, place: RunLocation, spec: Spec, observe: ObserveWork | None) -> None:
        self._place = place
        self.spec = spec
        self._observe = observe
        self._watcher: asyncio.Future[None] | None = None
        """The observer. It begins with the first engine."""
        self._plans: dict[str, Progress] = {}
        """By shard: what is to be done there, or was when its engine began."""
        self._begun: set[str] = set()
        self._planned = Progress(0, started=time.monotonic(), scoring=True)
        """What is to be done in all shards."""
        self._totals = WorkerTotals(self._planned)
        self._engine: Engine | None = None
        self._shard = ""
        self.stopped_because = ""
        """Empty while nobody has stopped the work."""

    def plan(self, shard: str, progress: Progress) -> None:
        """Set what is to be done in a shard. It becomes less if another process scores answers there."""
        before, self._plans[shard] = self._plans.get(shard, Progress(0)), progress
        self._planned.planned += progress.planned - before.planned
        for name in before.models.keys() | progress.models.keys():
            was, now = (each.models.get(name, ModelProgress()).planned for each in (before, progress))
            self._planned.models.setdefault(name, ModelProgress()).planned += now - was

    def skip(self, shard: str) -> None:
        """Note that nothing is left to do in a shard, unless an engine has done it."""
        if shard not in self._begun:
            self.plan(shard, Progress(0))

    def left_in(self, shard: str) -> int:
        """How many answers of a shard without an engine so far are to be scored."""
        return self._plans[shard].planned

    async def watch(self, engine: Engine, shard: RunLocation) -> None:
        """The observer of one engine, until that has ended."""
        self._engine, self._shard = engine, shard.shard
        self._begun.add(shard.shard)
        self.plan(shard.shard, copy.deepcopy(engine.progress))
        if self.stopped_because:
            engine.stop(self.stopped_because)
        if self._watcher is None and self._observe is not None:
            self._watcher = asyncio.ensure_future(self._observe(self, self._place))
        try:
            await asyncio.Event().wait()
        finally:
            self.progress_by_model()
            self._totals.end(0)
            self._engine = None

    async def close(self) -> None:
        if self._watcher is not None:
            await end_observer(self._watcher)

    def progress_by_model(self) -> Progress:
        if self._engine is not None:
            self._totals.add(0, [(self._shard, msgspec.json.encode(self._engine.progress_by_model()))])
        return self._totals.progress()

    def stop(self, reason: str) -> None:
        self.stopped_because = self.stopped_because or reason
        if self._engine is not None:
            self._engine.stop(reason)

    def leave(self) -> None:
        if self._engine is not None:
            self._engine.leave()

    def tell(self, event: str, message: str) -> None:
        if self._engine is not None:
            self._engine.tell(event, message)


class _ShardScoring:
    """Scores the answers of a sharded run, shard by shard. Several processes share the work: each takes a shard that no
    other scores, and waits for those of others at the end.
    """

    def __init__(self, given: Given, place: RunLocation, request: ScoreRequest, observe: ObserveWork | None) -> None:
        self._given = given
        self._place = place
        self._request = request
        self._work = _ShardsAsOne(place, given.spec, observe)

    async def run(self) -> Scored:
        """HeldError if a worker that answers samples holds a shard: it scores its own answers. UsageError if no shard
        has begun.
        """
        shards = await asyncio.to_thread(_find_shards, self._given, self._place)
        if not shards:
            raise UsageError(f"no shard of {self._place.run_id} has begun: there is nothing to score")
        parts, selected = await asyncio.to_thread(self._divide) if self._request.selection else (None, None)
        for each in shards:
            part, given = None if parts is None else parts[each.shard], _given_of(each, self._given)
            self._work.plan(each.shard, await asyncio.to_thread(plan_scoring, given, each, part))
        random.shuffle(shards)  # processes that start together begin at different places
        total = Scored(self._place, "", selected=selected)
        try:
            while shards and not (total.budget or self._work.stopped_because):
                total = await self._score_free(shards, parts, total)
        finally:
            await self._work.close()
        return msgspec.structs.replace(total, left=total.left + sum(self._work.left_in(each.shard) for each in shards))

    async def _score_free(
        self, shards: list[RunLocation], parts: Mapping[str, ShardPart] | None, total: Scored
    ) -> Scored:
        """Score those of the shards that no other process scores, and take them from the list; or wait a moment."""
        free = [each for each in shards if not await asyncio.to_thread(_is_scored_elsewhere, each)]
        for shard in free:
            with contextlib.suppress(_ScoredElsewhereError):
                total = _sum_up(total, await self._score(shard, parts))
                shards.remove(shard)
                self._work.skip(shard.shard)
            if total.budget or self._work.stopped_because:
                break
        if not free:
            await asyncio.sleep(_PAUSE_SECONDS)
        return total

    def _divide(self) -> tuple[dict[str, ShardPart], SelectedAnswers | None]:
        """Choose among the answers of the whole run. Returns what that is for each shard, by its name."""
        copied = readable(self._place)
        prepared, reading = read_and_prepare(self._given, copied)
        reading.fold.judge_again()
        selected = select_answers(prepared, reading, self._request.selection)
        started = reading.fold.story.started
        assert selected is not None
        assert started is not None
        blocks, wanted = reading.fold.story.blocks, selected.ordinals
        divided = divide_ordinals(copied.folder, blocks, started.shards, wanted.__contains__)
        is_part = any(ordinal not in wanted for ordinal in reading.fold.unscored)
        parts = {}
        for shard in (Shard(number, started.shards) for number in range(1, started.shards + 1)):
            bits = Bits()
            for ordinal in divided.get(shard, ()):
                bits.add(ordinal)
            parts[str(shard)] = ShardPart(msgspec.structs.replace(selected, ordinals=bits), is_part)
        return parts, selected

    async def _score(self, shard: RunLocation, parts: Mapping[str, ShardPart] | None) -> Scored:
        part = None if parts is None else parts[shard.shard]
        try:
            return await score_journal(_given_of(shard, self._given), shard, self._request, self._work.watch, part)
        except HeldError as error:
            if await asyncio.to_thread(_is_answered_elsewhere, shard, self._given.spec.mirror):
                raise
            raise _ScoredElsewhereError(str(error)) from error


class _ScoredElsewhereError(Exception):
    """Another process has claimed a shard, and scores it."""


def _is_scored_elsewhere(shard: RunLocation) -> bool:
    return standing_of(shard.folder).held and not _is_answered_elsewhere(shard)


def _is_answered_elsewhere(shard: RunLocation, mirror: Mirror | None = None) -> bool:
    """Whether the lease of a shard is that of a worker that answers its samples. `mirror`: look there too, for workers
    that share no store with this process.
    """
    lease = standing_of(shard.folder).lease
    if mirror is not None and mirror.exclusive:
        objects = objects_of(mirror.url, shard)
        epoch, beat = last_beat(objects)
        if beat is not None and (lease is None or epoch > lease.epoch):
            lease = beat.lease if epoch == greatest_epoch(objects) else None  # a later process has no lease yet
    return lease is not None and not lease.scoring and not lease.end and is_alive(lease.holder) is not False


def _sum_up(total: Scored, done: Scored) -> Scored:
    return Scored(
        total.place,
        done.evaluation,
        total.scored + done.scored,
        total.left + done.left,
        total.taken + done.taken,
        total.requests + done.requests,
        total.cost_usd if done.cost_usd is None else (total.cost_usd or 0.0) + done.cost_usd,
        done.budget,
        total.selected,
    )
