"""Every number of a report a second time, from the journal itself.

Nothing here is shared with what makes reports: no index, no fold, no statistics of ours. Records are read in order and
kept by the plain rules of docs/format.md (the first answer of a key counts; of a key without one, the last failure; the
last score of a scorer counts, if it is of the answer that counts; if an answer that has its last score gets another,
none of those before counts; what a person set counts over them), and numbers are what their definitions say, by numpy
and scipy. All that counts of a key is in memory at once.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.journal import Entry
from holdfast.journal.marks import Damage
from holdfast.records.exchange import Usage
from holdfast.records.facts import (
    Cell,
    RunExtended,
    RunResumed,
    RunStarted,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    Spent,
    Step,
)
from holdfast.records.keys import parse_key
from holdfast.report.cells import CellReport, RunReport, ScorerReport
from holdfast.report.costs import Cost, Told

_CLOSE = 1e-9
_ROUNDED = 0.0006
"""Seconds are rounded to three digits in a report."""
_NO_USAGE = Usage()


class Kept(msgspec.Struct, frozen=True, gc=False):
    """An answer that counts, and where its record is."""

    n: int
    segment: int
    offset: int
    key: str
    input_tokens: int
    output_tokens: int
    seconds: float
    marks: tuple[str, ...]


class Said(msgspec.Struct, frozen=True, gc=False):
    """A scorer's last word on a key: which record it judged, and the value, or how it failed."""

    of: int
    value: Any
    failure: str
    by_hand: bool = False


class Account(msgspec.Struct):
    """What one model was asked in one cell: tokens that were paid, replayed, and orphaned."""

    paid: Usage = _NO_USAGE
    saved: Usage = _NO_USAGE
    orphaned: Usage = _NO_USAGE


class Recount:
    """All of a run that a report has numbers of."""

    def __init__(self, last: int = 0) -> None:
        """Up to record `last`: what a run that is still at work writes meanwhile is in no report yet."""
        self.last = last
        self.spec: dict[str, Any] = {}
        self.cells: list[Cell] = []
        self.finished: dict[int, Kept] = {}
        self.failed: dict[int, str] = {}
        self.scores: dict[str, dict[str, dict[int, Said]]] = {}
        """By evaluation, scorer and ordinal: what scorers said, or what was taken over of them."""
        self.by_hand: dict[str, dict[str, dict[int, Said]]] = {}
        """What people set in place of that."""
        self._complete: set[tuple[str, int, int]] = set()
        """Answers that have their last score: evaluation, ordinal, and number of the answer's record."""
        self.evaluations: dict[str, list[dict[str, Any]]] = {}
        self.accounts: dict[tuple[str, str, str], Account] = {}
        """By task, model and role."""
        self.steps = {"live": 0, "replayed": 0, "orphaned": 0, "taken_over": 0}
        self.usage, self.saved = _NO_USAGE, _NO_USAGE
        self.records = 0

    def read(self, entries: Iterable[Entry | Damage]) -> "Recount":
        for entry in entries:
            if isinstance(entry, Entry) and entry.line.n <= self.last:
                self.records += 1
                self._apply(entry)
        return self

    def _apply(self, entry: Entry) -> None:
        line = entry.line
        if line.t == "step":
            self._step(msgspec.json.decode(line.d, type=Step), line.k or "")
        elif line.t == "sample.finished":
            self._finished(entry, msgspec.json.decode(line.d, type=SampleFinished))
        elif line.t == "sample.failed":
            self._failed(msgspec.json.decode(line.d, type=SampleFailed), line.k or "")
        elif line.t == "score":
            self._score(msgspec.json.decode(line.d, type=ScoreGiven), line.k or "")
        elif line.t == "score.started":
            started = msgspec.json.decode(line.d)
            self.evaluations[started["evaluation"]] = started["scorers"]
        elif line.t == "run.started":
            begun = msgspec.json.decode(line.d, type=RunStarted)
            self.spec = begun.spec
            self.cells += begun.cells
        elif line.t == "run.extended":
            more = msgspec.json.decode(line.d, type=RunExtended)
            self.spec = more.spec
            self.cells += more.cells
        elif line.t == "run.resumed":
            self._resumed(msgspec.json.decode(line.d, type=RunResumed))

    def _resumed(self, resumed: RunResumed) -> None:
        self.spec = resumed.spec or self.spec
        for ordinal in list(self.failed) if resumed.retried is None else resumed.retried:
            self.failed.pop(ordinal, None)

    def _step(self, step: Step, key: str) -> None:
        self.steps["taken_over" if step.origin else "live"] += 1
        if not step.origin:
            self.usage += step.usage
        if step.asked is not None:
            account = self._account(key, step.asked.role)
            account.paid += _NO_USAGE if step.origin else step.usage

    def _finished(self, entry: Entry, found: SampleFinished) -> None:
        if found.o in self.finished:
            return
        key = entry.line.k or ""
        self.failed.pop(found.o, None)
        used = found.spent.usage + found.spent.saved
        place = (entry.line.n, entry.segment, entry.offset, key)
        marks = found.answer.marks
        self.finished[found.o] = Kept(*place, used.input_tokens, used.output_tokens, found.spent.seconds, marks)
        self._spent(found.spent, key)

    def _failed(self, found: SampleFailed, key: str) -> None:
        if found.o in self.finished:
            return
        self.failed.pop(found.o, None)
        if found.final:
            self.failed[found.o] = found.failure.kind
        self._spent(found.spent, key)

    def _score(self, found: ScoreGiven, key: str) -> None:
        failure = found.failure.kind if found.failure is not None else ""
        self._spent(found.spent, key)
        every = self.by_hand if found.author else self.scores
        given = every.setdefault(found.evaluation, {})
        place = (found.evaluation, found.o, found.of)
        if not found.author and place in self._complete:
            self._complete.remove(place)
            for said in given.values():
                if found.o in said and said[found.o].of == found.of:
                    del said[found.o]
        if found.last and not found.author:
            self._complete.add(place)
        given.setdefault(found.scorer, {})[found.o] = Said(found.of, found.value, failure, bool(found.author))

    def counting(self, evaluation: str, ordinals: Sequence[int]) -> dict[str, dict[int, Said]]:
        """What counts, of the answers that count, by scorer."""
        found: dict[str, dict[int, Said]] = {}
        for every in (self.scores, self.by_hand):
            for scorer, said in every.get(evaluation, {}).items():
                of_answers = {o: said[o] for o in ordinals if o in said and o in self.finished}
                mine = {o: each for o, each in of_answers.items() if each.of == self.finished[o].n}
                if mine:
                    found.setdefault(scorer, {}).update(mine)
        return found

    def _spent(self, spent: Spent, key: str) -> None:
        self.steps["replayed"] += spent.replayed
        self.steps["orphaned"] += spent.orphaned
        self.saved += spent.saved
        for role, each in spent.by_role().items() if spent.replayed or spent.orphaned else ():
            account = self._account(key, role)
            account.saved += each.saved
            account.orphaned += each.orphaned_usage

    def _account(self, key: str, role: str) -> Account:
        parts = parse_key(key)
        return self.accounts.setdefault((parts.task, parts.model, role), Account())


def differences(report: RunReport, recount: Recount) -> Iterator[str]:
    """Each number of the report that is not what the journal says."""
    if list(report.evaluations) != list(recount.evaluations):
        yield f"evaluations: the report has {list(report.evaluations)}, the journal {list(recount.evaluations)}"
    for name, number in recount.steps.items():
        yield from _differs(f"steps {name}", report.steps.get(name), number)
    yield from _usage_differs("tokens", report.usage, recount.usage)
    yield from _usage_differs("tokens saved", report.saved, recount.saved)
    yield from _cost_differs("", report.cost, _cost(recount, None))
    planned: Counter[tuple[str, str]] = Counter()
    for cell in recount.cells:
        planned[cell.task, cell.model] += cell.count
    told = {(cell.task, cell.model): cell for cell in report.cells}
    for missing in planned.keys() ^ told.keys():
        yield f"{'/'.join(missing)}: is in the {'journal' if missing in planned else 'report'} only"
    for where in planned.keys() & told.keys():
        yield from _cell_differs(told[where], recount, planned[where], report.evaluation)


def counted_numbers(report: RunReport) -> int:
    """How many numbers `differences` looks at."""
    of_scorers = sum(8 + len(each.labels) for cell in report.cells for each in cell.scorers)
    of_cells = sum(10 + len(cell.failures) + len(cell.marks) for cell in report.cells)
    return 4 + 12 + 3 + of_cells + of_scorers


def uncounted(report: RunReport) -> set[str]:
    """Numbers of the report that `differences` does not look at."""
    found = {reduced.reducer for cell in report.cells for each in cell.scorers for reduced in each.reduced}
    found |= {"agreement of judges" for cell in report.cells if cell.agreement}
    return found | {"anomalies of answers" for cell in report.cells if cell.anomalies}


def members(recount: Recount, task: str, model: str) -> Iterator[int]:
    """The ordinals of a cell, over all blocks of the plan."""
    for cell in recount.cells:
        if (cell.task, cell.model) == (task, model):
            yield from range(cell.first, cell.first + cell.count)


def _cell_differs(cell: CellReport, recount: Recount, planned: int, evaluation: str) -> Iterator[str]:
    place = f"{cell.task}/{cell.model}: "
    ordinals = list(members(recount, cell.task, cell.model))
    kept = [recount.finished[o] for o in ordinals if o in recount.finished]
    kinds = Counter(recount.failed[o] for o in ordinals if o in recount.failed)
    marks = Counter(mark for each in kept for mark in each.marks)
    numbers = {
        "planned": (cell.planned, planned),
        "finished": (cell.finished, len(kept)),
        "failed": (cell.failed, kinds.total()),
        "unfinished": (cell.unfinished, planned - len(kept) - kinds.total()),
        "input tokens": (cell.usage.input_tokens, sum(each.input_tokens for each in kept)),
        "output tokens": (cell.usage.output_tokens, sum(each.output_tokens for each in kept)),
        **{f"failed, {kind}": (cell.failures.get(kind, 0), kinds[kind]) for kind in {*kinds, *cell.failures}},
        **{f"answers, {mark}": (cell.marks.get(mark, 0), marks[mark]) for mark in {*marks, *cell.marks}},
    }
    for name, (reported, found) in numbers.items():
        yield from _differs(f"{place}{name}", reported, found)
    yield from _differs(f"{place}seconds", cell.seconds, math.fsum(each.seconds for each in kept), _ROUNDED)
    yield from _cost_differs(place, cell.cost, _cost(recount, (cell.task, cell.model)))
    given = recount.counting(evaluation, ordinals)
    told = {each.scorer: each for each in cell.scorers}
    for name in given.keys() ^ told.keys():
        yield f"{place}the scorer {name} is in the {'journal' if name in given else 'report'} only"
    for name in given.keys() & told.keys():
        yield from _scorer_differs(f"{place}{name}: ", told[name], given[name], recount)


def _scorer_differs(place: str, told: ScorerReport, said: dict[int, Said], recount: Recount) -> Iterator[str]:
    values: list[float] = []
    groups: list[str] = []
    labels: Counter[str] = Counter()
    silent = broken = 0
    for o, each in said.items():
        if each.failure:
            broken += 1
        elif isinstance(each.value, str):
            labels[each.value] += 1
        elif _is_number(each.value):
            values.append(float(each.value))
            groups.append(parse_key(recount.finished[o].key).sample_id)
        else:
            silent += 1
    mean, error, low, high = _by_definition(values, groups)
    numbers: dict[str, tuple[float | None, float | None]] = {
        "n": (told.summary.n, len(values)),
        "no score": (told.no_score, silent),
        "scorer failed": (told.failures, broken),
        "edited by hand": (told.edited, sum(each.by_hand for each in said.values())),
        "mean": (told.summary.mean, mean),
        "standard error": (told.summary.standard_error, error),
        "lower end": (told.summary.low, low),
        "upper end": (told.summary.high, high),
        **{f"label {name!r}": (told.labels.get(name, 0), labels[name]) for name in {*labels, *told.labels}},
    }
    for name, (reported, found) in numbers.items():
        yield from _differs(f"{place}{name}", reported, found)


def _is_number(value: Any) -> bool:
    """A bool is 1 or 0. A whole number beyond all floats is no number to average."""
    return isinstance(value, int | float) and abs(value) < 2**1023 and math.isfinite(value)


def _by_definition(
    values: Sequence[float], groups: Sequence[str]
) -> tuple[float | None, float | None, float | None, float | None]:
    """Mean, standard error and the ends of the interval, as docs/statistics.md defines them."""
    import numpy
    from scipy import stats  # type: ignore[import-untyped]  # scipy has no types

    if not values:
        return None, None, None, None
    given, names = numpy.asarray(values), numpy.unique(groups, return_inverse=True)[1]
    mean, count = float(given.mean()), int(names.max()) + 1
    if count < 2:
        return mean, None, None, None
    sizes, sums = numpy.bincount(names), numpy.bincount(names, weights=given)
    error = float(numpy.sqrt(((sums - sizes * mean) ** 2).sum() * count / (count - 1)) / len(values))
    shares = sums / sizes
    right = int(shares.sum()) if set(shares) <= {0.0, 1.0} and set(values) <= {0.0, 1.0} else None
    if right is not None and (len(set(sizes)) == 1 or right in (0, count)):
        ends = stats.binomtest(right, count).proportion_ci(method="wilson")
        return mean, error, float(ends.low), float(ends.high)
    if error <= _CLOSE * abs(mean):
        return mean, error, None, None
    low, high = (float(end) for end in stats.t.interval(0.95, count - 1, mean, error))
    if set(values) <= {0.0, 1.0}:
        low, high = max(low, 0.0), min(high, 1.0)
    return mean, error, low, high


def _cost(recount: Recount, only: tuple[str, str] | None) -> Cost:
    """Of one cell, or of all."""
    told, cost = Told.of(recount.spec), Cost()
    for (task, model, role), account in recount.accounts.items():
        if only is not None and only != (task, model):
            continue
        price = told.prices(model).get(role)
        if price is None:
            used = account.paid.requests or account.saved.requests
            cost += Cost(unpriced=(f"{role} (a role)" if role else model,) if used else ())
        else:
            paid, saved, orphaned = map(price.dollars, (account.paid, account.saved, account.orphaned))
            cost += Cost(paid, saved, orphaned)
    return cost


def _cost_differs(place: str, reported: Cost, found: Cost) -> Iterator[str]:
    for name in ("dollars", "saved_dollars", "orphaned_dollars"):
        yield from _differs(f"{place}{name.replace('_', ' ')}", getattr(reported, name), getattr(found, name))
    if set(reported.unpriced) != set(found.unpriced):
        yield f"{place}the report has no price for {reported.unpriced}, the journal none for {found.unpriced}"


def _usage_differs(name: str, reported: Usage, found: Usage) -> Iterator[str]:
    for field in Usage.__struct_fields__:
        if field != "batched":
            yield from _differs(f"{name}, {field}", getattr(reported, field), getattr(found, field))
    if reported.batched != found.batched:
        yield from _usage_differs(f"{name} in batches", reported.batched or _NO_USAGE, found.batched or _NO_USAGE)


def _differs(name: str, reported: float | None, found: float | None, slack: float = 0.0) -> Iterator[str]:
    if reported is None or found is None:
        same = reported is found
    else:
        same = math.isclose(reported, found, rel_tol=_CLOSE, abs_tol=max(slack, 1e-12))
    if not same:
        yield f"{name}: the report says {_told(reported)}, the journal {_told(found)}"


def _told(number: float | None) -> str:
    return "nothing" if number is None else f"{number:.12g}"
