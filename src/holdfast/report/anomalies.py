"""Anomalies in a run's answers.

Some were recorded with each answer. Others show only across answers and are computed here from the index: the same
answer in all repeats, answers far slower than the rest, different scores for equal answers. Memory: one bit for each
such answer, and the seconds of the answers of one cell at a time.
"""

from array import array
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import msgspec

from holdfast.records import Cell, parse_key
from holdfast.score import ANOMALIES_VERSION, KINDS
from holdfast.state import AnswerRow, Bits, Index

LONG = 100
"""Two answers of this many characters are hardly equal by chance; a shorter one may be the only correct answer."""
ENOUGH_SAMPLES = 5
ENOUGH_ANSWERS = 20
TIMES_MEDIAN = 5.0
SECONDS_MORE = 1.0
FENCES = 3.0


class Across(msgspec.Struct, frozen=True):
    """One kind of anomaly across answers: why it was reported, and which ordinals have it."""

    kind: str
    reason: str
    members: Bits


class Anomalies:
    """All anomalies of a run under one evaluation, except kinds that its spec has disabled."""

    def __init__(self, index: Index, evaluation: str) -> None:
        self._kinds = kinds_in_force(index.story.spec)
        self._across = list(_across(index, evaluation, self._kinds)) if self._kinds else []

    def of(self, row: AnswerRow) -> dict[str, str]:
        """The anomalies of one answer: the reason by kind."""
        if row.status != "finished" or not self._kinds:
            return {}
        found = {kind: reason for kind, reason in row.found().items() if kind in self._kinds}
        return found | {each.kind: each.reason for each in self._across if row.o in each.members}


def unlooked(index: Index) -> int:
    """How many answers the current anomaly checks have not seen, though the spec enables them."""
    return index.unlooked(ANOMALIES_VERSION) if kinds_in_force(index.story.spec) else 0


def kinds_in_force(spec: Mapping[str, Any]) -> frozenset[str]:
    """The kinds that a run's spec enables. A spec from before there were anomalies enables all."""
    return frozenset(KINDS) - set(spec.get("anomalies_except", ())) if spec.get("anomalies", True) else frozenset()


def _across(index: Index, evaluation: str, kinds: frozenset[str]) -> Iterator[Across]:
    spec = index.story.spec
    temperatures = {
        model.get("name"): (model.get("params") or {}).get("temperature") for model in spec.get("models", ())
    }
    for cell in index.story.cells:
        if "slow" in kinds:
            yield from _slow(index, cell)
        temperature = temperatures.get(cell.model)
        if "identical" in kinds and isinstance(temperature, int | float) and temperature > 0:
            yield from _identical(index, cell, temperature)
    if "scores_differ" in kinds:
        by_scorer: dict[str, Bits] = {}
        for o, scorer in index.scored_apart(evaluation):
            by_scorer.setdefault(scorer, Bits()).add(o)
        for scorer, members in by_scorer.items():
            yield Across("scores_differ", f"{scorer} gave an equal answer to this sample another score", members)


def _slow(index: Index, cell: Cell) -> Iterator[Across]:
    """Outliers by the quartiles of the logarithms, because times are skewed; and slow enough to matter to a person."""
    times = array("d", sorted(seconds for _, seconds in index.seconds(cell.first, cell.count)))
    if len(times) < ENOUGH_ANSWERS:
        return
    low, median, high = (times[len(times) * quarter // 4] for quarter in (1, 2, 3))
    spread = high / low if low > 0 else 1.0
    limit = max(high * spread**FENCES, median * TIMES_MEDIAN, median + SECONDS_MORE)
    if times[-1] > limit:
        members = Bits()
        for o, seconds in index.seconds(cell.first, cell.count):
            if seconds > limit:
                members.add(o)
        yield Across("slow", f"more than {limit:.1f} s, where half of them took {median:.1f} s or less", members)


def _identical(index: Index, cell: Cell, temperature: float) -> Iterator[Across]:
    """Long answers that are equal in all repeats of a sample. Short ones too, if no sample has differing repeats."""
    long, every, samples, differing = Bits(), Bits(), 0, 0
    rows = index.answers("finished", cell.first, cell.count)
    for _, repeats in groupby(rows, key=lambda row: parse_key(row.key).sample_id):
        answers = [(row.o, row.said, row.characters) for row in repeats]
        if len(answers) < 2:
            continue
        samples += 1
        if len({digest for _, digest, _ in answers}) > 1:
            differing += 1
            continue
        for o, _, characters in answers:
            every.add(o)
            if characters >= LONG:
                long.add(o)
    members = every if samples >= ENOUGH_SAMPLES and not differing else long
    if members.count:
        yield Across("identical", f"in all repeats, at a temperature of {temperature:g}", members)
