"""Anomalies of answers a second time, from the journal, as docs/anomalies.md defines them.

Used by `comparison`.
"""

import math
from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy

from holdfast.records.facts import Cell
from holdfast.records.keys import parse_key
from holdfast.report.anomalies import (
    ENOUGH_ANSWERS,
    ENOUGH_SAMPLES,
    FENCES,
    SECONDS_MORE,
    TIMES_MEDIAN,
    kinds_in_force,
)
from holdfast.score.anomalies import ANOMALIES_VERSION
from holdfast.state import LONG
from tests.oracle.recount import Kept, Recount


def anomalous_answers(recount: Recount, evaluation: str) -> dict[int, set[str]]:
    """By ordinal, the kinds that an answer has, as far as the run's spec has not switched them off."""
    found = {o: set(kept.odd) for o, kept in recount.finished.items() if kept.odd}
    for cell in recount.cells:
        for kind, members in (("slow", _slow(recount, cell)), ("identical", _identical(recount, cell))):
            for o in members:
                found.setdefault(o, set()).add(kind)
    for o in _scored_apart(recount, evaluation):
        found.setdefault(o, set()).add("scores_differ")
    kinds = kinds_in_force(recount.spec)
    return {o: each & kinds for o, each in found.items()}


def not_looked_at(recount: Recount) -> int:
    """Answers that the list in force was not used on, and should be."""
    looked = [kept.looked for kept in recount.finished.values()]
    return len(looked) - looked.count(ANOMALIES_VERSION) if kinds_in_force(recount.spec) else 0


def _answers(recount: Recount, cell: Cell) -> dict[int, Kept]:
    ordinals = range(cell.first, cell.first + cell.count)
    return {o: recount.finished[o] for o in ordinals if o in recount.finished}


def _slow(recount: Recount, cell: Cell) -> list[int]:
    seconds = {o: kept.seconds for o, kept in _answers(recount, cell).items()}
    if len(seconds) < ENOUGH_ANSWERS:
        return []
    buckets = {o: _bucket(took) for o, took in seconds.items()}
    times = numpy.sort(numpy.array([_duration(bucket) for bucket in buckets.values()]))
    longest = max((took for took in seconds.values() if _bucket(took)), default=0.0)
    places = [max(math.ceil(len(times) * quarter / 4), 1) - 1 for quarter in (1, 2, 3)]
    low, median, high = (min(float(times[place]), longest) for place in places)
    fence = high * (high / low) ** FENCES if low > 0 else high
    limit = max(fence, TIMES_MEDIAN * median, median + SECONDS_MORE)
    return [o for o, bucket in buckets.items() if bucket > _bucket(limit)]


def _bucket(seconds: float) -> int:
    """Durations are counted in steps of 5 percent from 0.1 ms on."""
    return 0 if seconds < 1e-4 else min(1 + math.floor(math.log(seconds / 1e-4, 1.05) + 0.5), 700)


def _duration(bucket: int) -> float:
    return 1e-4 * 1.05 ** (bucket - 1) if bucket else 0.0


def _identical(recount: Recount, cell: Cell) -> list[int]:
    models = {model.get("name"): model.get("params") or {} for model in recount.spec.get("models", ())}
    temperature = models.get(cell.model, {}).get("temperature")
    if not isinstance(temperature, int | float) or temperature <= 0:
        return []
    samples: dict[str, list[tuple[int, Kept]]] = {}
    for o, kept in _answers(recount, cell).items():
        samples.setdefault(parse_key(kept.key).sample_id, []).append((o, kept))
    several = [each for each in samples.values() if len(each) > 1]
    alike = [each for each in several if len({kept.said for _, kept in each}) == 1]
    every = len(alike) == len(several) >= ENOUGH_SAMPLES
    return [o for each in alike for o, kept in each if every or kept.characters >= LONG]


def _scored_apart(recount: Recount, evaluation: str) -> Iterator[int]:
    """What scorers said themselves counts here, not what people set."""
    for said in recount.scores.get(evaluation, {}).values():
        equal: dict[tuple[str, str, int], dict[int, bytes]] = {}
        for o, each in said.items():
            kept = recount.finished.get(o)
            if kept is not None and each.of == kept.n and not each.failure and each.value is not None:
                key = parse_key(kept.key)
                place = (key.task, key.sample_id, kept.said)
                equal.setdefault(place, {})[o] = msgspec.json.encode(each.value)
        for scores in equal.values():
            if len(Counter(scores.values())) > 1:
                yield from scores
