"""Anomalies in a run's answers.

Some were recorded with each answer. Others show only across answers: the same answer in all repeats, answers far slower
than the rest, different scores for equal answers. The first two follow from the totals of the index. The last one is
looked for in rows, only among scorers that can give equal answers different scores, and once for each state of a page:
what was found is kept in the cache, by the checksums of the pages, as a bit for each answer.
"""

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.records import JUDGES, Cell, Durations, bucket_of, normalized
from holdfast.score import ANOMALIES_VERSION, KINDS
from holdfast.state import LONG, AnswerRow, Bits, Index, Tally, repeated, stored_reducing

ENOUGH_SAMPLES = 5
ENOUGH_ANSWERS = 20
TIMES_MEDIAN = 5.0
SECONDS_MORE = 1.0
FENCES = 3.0
_MAY_DIFFER = JUDGES | {"code_tests", "bert_score", "embedding_similarity"}
"""Built-in scorers that can give the same answer another score."""


Differing = dict[str, list[tuple[int, str]]]
"""By scorer: a multiple of eight, and a bit for each ordinal from there on, in Base64. One pair for each page."""
_differing = msgspec.json.Decoder(Differing)


class Slow(msgspec.Struct, frozen=True):
    """Which answers of a cell are slow: those in a higher bucket (see `records.Durations`)."""

    bucket: int
    reason: str


class Identical(msgspec.Struct, frozen=True):
    """Answers that are equal in all repeats of their sample are anomalous; with `long`, only long ones."""

    long: bool
    reason: str


class CellAnomalies(msgspec.Struct, frozen=True):
    """The anomalies across the answers of one cell of one block."""

    cell: Cell
    slow: Slow | None = None
    identical: Identical | None = None

    def has(self, o: int) -> bool:
        return self.cell.first <= o < self.cell.first + self.cell.count


class Anomalies:
    """All anomalies of a run under one evaluation, except kinds that its spec has disabled."""

    def __init__(self, index: Index, evaluation: str) -> None:
        self._index = index
        self._kinds = kinds_in_force(index.story.spec)
        self._cells = list(_across(index, self._kinds)) if self._kinds else []
        self._across = [each for each in self._cells if each.slow is not None or each.identical is not None]
        self._differing: dict[str, Bits] = {}
        """By scorer: answers that it scored otherwise than an equal answer to the same sample."""
        if "scores_differ" in self._kinds and _may_differ(index, evaluation):
            self._differing = _find_differing(index, evaluation)
        self._any_differing = Bits()
        for members in self._differing.values():
            self._any_differing.merge(0, members.encoded())
        self._equal: tuple[Mapping[int, AnswerRow], frozenset[int]] = ({}, frozenset())
        """The rows of the page that was looked at last, and the ordinals of equal answers in it."""

    @property
    def kinds(self) -> frozenset[str]:
        """Those that the spec enables."""
        return self._kinds

    @property
    def across(self) -> Sequence[CellAnomalies]:
        """Cells with anomalies that show only across answers."""
        return self._across

    @property
    def differing(self) -> Mapping[str, Bits]:
        """By scorer: answers that it scored otherwise than an equal answer to the same sample."""
        return self._differing

    def of(self, row: AnswerRow) -> dict[str, str]:
        """The anomalies of one answer: the reason by kind."""
        if row.status != "finished" or not self._kinds:
            return {}
        found = row.found()
        if found:
            found = {kind: reason for kind, reason in found.items() if kind in self._kinds}
        for each in self._across:
            if each.has(row.o):
                if each.slow is not None and bucket_of(row.seconds) > each.slow.bucket:
                    found["slow"] = each.slow.reason
                if each.identical is not None and self._is_identical(row, each.identical):
                    found["identical"] = each.identical.reason
        for scorer, members in self._differing.items():
            if row.o in members:
                found["scores_differ"] = _differing_reason(scorer)
        return found

    def count(self, cells: Sequence[Cell]) -> dict[str, Tally]:
        """How many answers of these cells have each kind of anomaly, and the first of them."""
        found: dict[str, Tally] = {}
        for cell in cells if self._kinds else ():
            across = next(each for each in self._cells if each.cell == cell)
            for totals in self._index.totals([cell]):
                for kind, tally in totals.answers.anomalies.items():
                    if kind in self._kinds:
                        found.setdefault(kind, Tally()).add(tally.first, tally.count)
                if across.identical is not None:
                    equal = totals.answers.repeats.long if across.identical.long else totals.answers.repeats.equal
                    if equal.count:
                        found.setdefault("identical", Tally()).add(equal.first, equal.count)
                slow = 0
                if across.slow is not None:
                    limit = across.slow.bucket
                    slow = totals.answers.durations.above(limit)
                if slow:
                    if "slow" not in found:
                        found["slow"] = Tally(0, self._first_slow(totals.answers.first, limit))
                    found["slow"].count += slow
            self._count_differing(cell, found)
        return found

    def _first_slow(self, first: int, bucket: int) -> int:
        """The first slow answer on the page of a key, which has one."""
        rows = self._index.rows_around(first).values()
        return next((row.o for row in rows if row.status == "finished" and bucket_of(row.seconds) > bucket), first)

    def _count_differing(self, cell: Cell, found: dict[str, Tally]) -> None:
        count = self._any_differing.count_in(cell.first, cell.count)
        if count:
            first = self._any_differing.first_in(cell.first, cell.count)
            found.setdefault("scores_differ", Tally()).add(first, count)

    def _is_identical(self, row: AnswerRow, how: Identical) -> bool:
        if how.long and row.characters < LONG:
            return False
        rows = self._index.rows_around(row.o)
        if rows is not self._equal[0]:
            self._equal = (rows, equal_answers(rows))
        return row.o in self._equal[1]


def equal_answers(rows: Mapping[int, AnswerRow]) -> frozenset[int]:
    """The ordinals of answers that are equal in all repeats of their sample. `rows`: of a page of the index."""
    finished = [each for each in rows.values() if each.status == "finished"]
    same = (every for every in repeated(finished) if len({each.said for each in every}) == 1)
    return frozenset(each.o for every in same for each in every)


def unlooked(index: Index) -> int:
    """How many answers the current anomaly checks have not seen, though the spec enables them."""
    return index.unlooked(ANOMALIES_VERSION) if kinds_in_force(index.story.spec) else 0


def kinds_in_force(spec: Mapping[str, Any]) -> frozenset[str]:
    """The kinds that a run's spec enables. A spec from before there were anomalies enables all."""
    return frozenset(KINDS) - set(spec.get("anomalies_except", ())) if spec.get("anomalies", True) else frozenset()


def _across(index: Index, kinds: frozenset[str]) -> Iterator[CellAnomalies]:
    spec = index.story.spec
    temperatures = {
        model.get("name"): (model.get("params") or {}).get("temperature") for model in spec.get("models", ())
    }
    for cell in index.story.cells:
        slow = _find_slow(index, cell) if "slow" in kinds else None
        temperature = temperatures.get(cell.model)
        identical = None
        if "identical" in kinds and isinstance(temperature, int | float) and temperature > 0:
            identical = _find_identical(index, cell, temperature)
        yield CellAnomalies(cell, slow, identical)


def _find_slow(index: Index, cell: Cell) -> Slow | None:
    """Outliers by the quartiles of the logarithms, because times are skewed; and slow enough to matter to a person.
    Times are those of the histogram in the totals, exact to 2.5 percent.
    """
    durations = Durations()
    for totals in index.totals([cell]):
        durations.merge(totals.answers.durations)
    if durations.count < ENOUGH_ANSWERS:
        return None
    low, median, high = map(durations.quantile, (0.25, 0.5, 0.75))
    spread = high / low if low > 0 else 1.0
    limit = max(high * spread**FENCES, median * TIMES_MEDIAN, median + SECONDS_MORE)
    reason = f"more than {limit:.1f} s, where half of them took {median:.1f} s or less"
    return Slow(bucket_of(limit), reason) if durations.above(bucket_of(limit)) else None


def _find_identical(index: Index, cell: Cell, temperature: float) -> Identical | None:
    """Long answers that are equal in all repeats of a sample. Short ones too, if no sample has differing repeats."""
    repeats = [totals.answers.repeats for totals in index.totals([cell])]
    samples, differing = sum(each.samples for each in repeats), sum(each.differing for each in repeats)
    if samples == differing:
        return None
    only_long = samples < ENOUGH_SAMPLES or differing > 0
    return Identical(only_long, f"in all repeats, at a temperature of {temperature:g}")


def _may_differ(index: Index, evaluation: str) -> bool:
    """Whether equal answers to a sample can have different scores: a sample has several answers, and a scorer is not a
    built-in function of the answer alone.
    """
    story = index.story
    tasks = Counter(cell.task for cell in story.cells)
    several = (
        any(each.repeats > 1 for each in stored_reducing(story.spec).values()) or max(tasks.values(), default=0) > 1
    )
    started = story.evaluations.get(evaluation)
    known = started.scorers if started is not None else []
    return several and not (known and all(_is_function_of_answer(normalized(each)) for each in known))


def _is_function_of_answer(scorer: Any) -> bool:
    """Also of its parts: a scorer may combine others."""
    if isinstance(scorer, list | tuple):
        return all(map(_is_function_of_answer, scorer))
    if not isinstance(scorer, Mapping):
        return True
    if "function" in scorer and ("version" not in scorer or scorer["function"] in _MAY_DIFFER):
        return False
    return all(_is_function_of_answer(each) for each in scorer.values())


def _find_differing(index: Index, evaluation: str) -> dict[str, Bits]:
    """By scorer: answers that it scored otherwise than an equal answer to the same sample. Reads only the rows of pages
    that have changed since an earlier call.
    """
    name = f"differing {evaluation}"
    before = index.kept_results(name)
    known: dict[str, str] = {}
    found: dict[str, Bits] = {}
    for pages in index.related_pages():
        state = index.fingerprint(pages, evaluation)
        if state in before:
            known[state], differing = before[state], _differing.decode(before[state])
        else:
            differing = _differing_on(index, pages, evaluation)
            known[state] = msgspec.json.encode(differing).decode()
        for scorer, parts in differing.items():
            members = found.setdefault(scorer, Bits())
            for first, data in parts:
                members.merge(first, base64.b64decode(data))
    index.keep_results(name, known)
    return found


def _differing_on(index: Index, pages: Sequence[int], evaluation: str) -> Differing:
    """Of the answers on these pages. Reads their scores twice: few are apart."""
    first: dict[tuple[int, str], bytes] = {}
    apart: set[tuple[int, str]] = set()
    for answer, score in index.made(evaluation, pages):
        if not score.failure and score.encoded != b"null":
            same = (answer.said, score.scorer)
            if first.setdefault(same, score.encoded) != score.encoded:
                apart.add(same)
    found: Differing = {}
    for page in pages if apart else ():
        members: dict[str, list[int]] = {}
        for answer, score in index.made(evaluation, [page]):
            if (answer.said, score.scorer) in apart and not score.failure and score.encoded != b"null":
                members.setdefault(score.scorer, []).append(answer.o)
        for scorer, ordinals in members.items():
            start = min(ordinals) // 8 * 8
            bits = Bits()
            for o in ordinals:
                bits.add(o - start)
            found.setdefault(scorer, []).append((start, base64.b64encode(bits.encoded()).decode()))
    return found


def _differing_reason(scorer: str) -> str:
    return f"{scorer} gave an equal answer to this sample another score"
