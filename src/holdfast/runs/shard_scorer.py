"""Scores the recorded answers of any run. The shards of a sharded run are scored one after another, also by several
processes at once. A crash leaves the shard that was scored as it leaves any run; the same command continues it.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping

import msgspec

from holdfast.errors import HeldError
from holdfast.journal import SHARDS, is_alive
from holdfast.records import Shard, parse_shard
from holdfast.runs.execution.answer_selection import SelectedAnswers
from holdfast.runs.execution.preparation import Given
from holdfast.runs.execution.resume import read_and_prepare
from holdfast.runs.execution.session import Observe
from holdfast.runs.mirror.claim import objects_of, restore_from_mirror, update_from_mirror
from holdfast.runs.scoring import AnomalyRescan, Scored, ScoreRequest, ShardPart, select_answers
from holdfast.runs.scoring import rescan_anomalies as rescan_journal
from holdfast.runs.scoring import score as score_journal
from holdfast.runs.shards.copy import readable
from holdfast.runs.shards.layout import begun_shards, is_sharded, shard_location
from holdfast.runs.shards.merger import divide_ordinals
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import Bits, standing_of

_PAUSE_SECONDS = 0.5


async def score(
    given: Given, place: RunLocation, request: ScoreRequest | None = None, observe: Observe | None = None
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


class _ShardScoring:
    """Scores the answers of a sharded run, shard by shard. Several processes share the work: each takes a shard that no
    other scores, and waits for those of others at the end.
    """

    def __init__(self, given: Given, place: RunLocation, request: ScoreRequest, observe: Observe | None) -> None:
        self._given = given
        self._place = place
        self._request = request
        self._observe = observe

    async def run(self) -> Scored:
        """HeldError if a worker that answers samples holds a shard: it scores its own answers."""
        shards = await asyncio.to_thread(_find_shards, self._given, self._place)
        parts, selected = await asyncio.to_thread(self._divide) if self._request.selection else (None, None)
        random.shuffle(shards)  # processes that start together begin at different places
        total = Scored(self._place, "", selected=selected)
        while shards and not total.budget:
            free = [each for each in shards if not await asyncio.to_thread(_is_scored_elsewhere, each)]
            for shard in free:
                with contextlib.suppress(_ScoredElsewhereError):
                    total = _sum_up(total, await self._score(shard, parts))
                    shards.remove(shard)
                if total.budget:
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
            return await score_journal(_given_of(shard, self._given), shard, self._request, self._observe, part)
        except HeldError as error:
            if await asyncio.to_thread(_is_answered_elsewhere, shard):
                raise
            raise _ScoredElsewhereError(str(error)) from error


class _ScoredElsewhereError(Exception):
    """Another process has claimed a shard, and scores it."""


def _is_scored_elsewhere(shard: RunLocation) -> bool:
    return standing_of(shard.folder).held and not _is_answered_elsewhere(shard)


def _is_answered_elsewhere(shard: RunLocation) -> bool:
    """Whether the lease of a shard is that of a worker that answers its samples."""
    lease = standing_of(shard.folder).lease
    return lease is not None and not lease.scoring and not lease.end and is_alive(lease.holder) is not False


def _sum_up(total: Scored, done: Scored) -> Scored:
    return Scored(
        total.place,
        done.evaluation,
        total.scored + done.scored,
        total.left + done.left,
        total.taken + done.taken,
        total.requests + done.requests,
        None if done.cost_usd is None else (total.cost_usd or 0.0) + done.cost_usd,
        done.budget,
        total.selected,
    )
