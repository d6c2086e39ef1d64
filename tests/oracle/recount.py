"""What a run's journal holds, read a second time to check reports by: see `comparison`.

Nothing here is shared with what makes reports: no index, no fold. Records are read in order and kept by the plain rules
of docs/format.md (the first answer of a key counts; of a key without one, the last failure; the last score of a scorer
counts, if it is of the answer that counts; if an answer that has its last score gets another, none of those before
counts; what a person set counts over them). Groups are read from plan and rows. All that counts of a key is in memory
at once.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast.errors import JournalError
from holdfast.journal import Entry
from holdfast.journal.positions import Damage
from holdfast.plan import planned_lines, rows_of
from holdfast.records import Anomaly, Line, Segment
from holdfast.records.decoder import decode
from holdfast.records.facts import (
    AnomaliesRechecked,
    Cell,
    RunExtended,
    RunReplanned,
    RunResumed,
    RunStarted,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    ScoringStarted,
    Spent,
    Step,
    Totals,
)
from holdfast.records.keys import cell_names, parse_key
from holdfast.records.samples import Usage
from tests.oracle.speeds import Speeds

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
    text: int
    """A digest of its text, without blanks around it."""
    said: int
    """A digest of its text and tool calls."""
    characters: int
    odd: tuple[str, ...]
    """The kinds of anomaly that were found in it, with the list of this version:"""
    looked: int


class Said(msgspec.Struct, frozen=True, gc=False):
    """A scorer's last word on a key: which record it judged, and the value, or how it failed."""

    of: int
    value: Any
    failure: str
    by_hand: bool = False
    unreadable: bool = False


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
        self.chosen: set[str] = set()
        """Evaluations of chosen answers."""
        self.accounts: dict[tuple[str, str, str], Account] = {}
        """By task, model and role."""
        self.steps = {"live": 0, "replayed": 0, "orphaned": 0, "taken_over": 0}
        self.usage, self.saved = _NO_USAGE, _NO_USAGE
        self.records = 0
        self._damage: list[Damage] = []
        self._recorded: list[Anomaly] = []
        self.speeds = Speeds()
        self._open: set[tuple[int, bool]] = set()
        """Ordinals with steps of an attempt, or (True) of judges, that has not ended."""
        self._is_fork = False
        self.removed = False
        """Steps were removed from the journal: durations cannot be computed again."""
        self.groups: dict[int, str] = {}
        """By ordinal: what a row has in the column that the task's `dataset.group` names."""
        self.strata: dict[int, str] = {}
        """By ordinal: what a row has in the column that the task's `macro` names."""
        self._planned: dict[int, str] = {}
        """By ordinal: the sample."""

    def read(self, entries: Iterable[Entry | Damage]) -> "Recount":
        for entry in entries:
            if isinstance(entry, Damage):
                self._damage.append(entry)
            elif entry.line.n <= self.last:
                self.records += 1
                self._apply(entry)
        return self

    @property
    def losses(self) -> int:
        """Of the journal: those that it records, and damage in other bytes. A torn line was never acknowledged."""
        areas = [(each.segment, each.first, each.last) for each in self._recorded]
        return len(areas) + sum(
            each.kind != "torn"
            and not any(each.segment == at and first <= each.first and each.last <= last for at, first, last in areas)
            for each in self._damage
        )

    def read_plan(self, run: str) -> "Recount":
        """The samples. A plan that cannot be read has none."""
        for cell in self.cells:
            with contextlib.suppress(OSError, JournalError):
                self._planned |= {line.o: parse_key(line.k).sample_id for line in planned_lines(run, cell)}
        return self

    def sample_of(self, o: int) -> str:
        """By the plan, else by the answer. What has neither is taken for a sample of its own."""
        if o in self._planned:
            return self._planned[o]
        return parse_key(self.finished[o].key).sample_id if o in self.finished else f"number {o}"

    def read_groups(self, run: str) -> "Recount":
        """From the rows that the run holds, if it holds any. Of a task whose rows cannot be read there are none."""
        for task in self.spec.get("tasks", ()) if self.spec.get("record_data", True) else ():
            for found, column in (
                (self.groups, task.get("dataset", {}).get("group")),
                (self.strata, task.get("macro")),
            ):
                cells = [cell for cell in self.cells if cell.task == task["name"] and column]
                with contextlib.suppress(OSError, JournalError):
                    found |= {o: name for cell in cells for o, name in _groups(run, cell, column)}
        return self

    def _apply(self, entry: Entry) -> None:
        line = entry.line
        if line.t == "step":
            step = decode(line, Step)
            self._step(step, line.k or "")
            self.speeds.step(step, line)
        elif line.t == "sample.finished":
            self._finished(entry, decode(line, SampleFinished))
        elif line.t == "sample.failed":
            self._failed(decode(line, SampleFailed), line.k or "")
        elif line.t == "score":
            given = decode(line, ScoreGiven)
            self._score(given, line.k or "")
            if not given.author:
                self.speeds.scored(0.0 if given.taken else given.seconds, line)
        elif line.t == "score.started":
            started = decode(line, ScoringStarted)
            is_chosen = started.part and started.evaluation not in self.evaluations.keys() - self.chosen
            (self.chosen.add if is_chosen else self.chosen.discard)(started.evaluation)
            self.evaluations[started.evaluation] = started.scorers
        elif line.t == "anomaly":
            self._anomaly(entry)
        elif line.t == "segment":
            self.speeds.opened(decode(line, Segment).epoch)
        else:
            self._run(line)

    def _run(self, line: Line) -> None:
        if line.t == "totals":
            self._restore(decode(line, Totals))
        if not line.t.startswith("run."):
            return
        if line.t == "run.started":
            begun = decode(line, RunStarted)
            self.spec = begun.spec
            self._is_fork = begun.parent is not None
            self.cells += begun.cells
        elif line.t == "run.extended":
            more = decode(line, RunExtended)
            self.spec = more.spec
            self.cells += more.cells
        elif line.t == "run.replanned":
            corrected = decode(line, RunReplanned)
            self.spec = corrected.spec
            replacements = corrected.replaced()
            self.cells = [replacements.get(cell.identity, cell) for cell in self.cells]
            self._rename(corrected.renamed)
            return  # `run.resumed` follows
        elif line.t == "run.resumed":
            resumed = decode(line, RunResumed)
            self._resumed(resumed)
            if resumed.live:  # the process continues, with other limits
                return
        if line.t in ("run.started", "run.extended", "run.resumed"):
            self.speeds.began(line)
        else:
            self.speeds.ended(line)

    def _rename(self, renamed: Mapping[str, str]) -> None:
        """What a model did before it was renamed counts for its new name."""
        self.accounts = {(task, renamed.get(name, name), role): a for (task, name, role), a in self.accounts.items()}
        self.speeds.models = {
            (name if is_role else renamed.get(name, name), is_role): speed
            for (name, is_role), speed in self.speeds.models.items()
        }

    def _resumed(self, resumed: RunResumed) -> None:
        self.spec = resumed.spec or self.spec
        for ordinal in list(self.failed) if resumed.retried is None else resumed.retried:
            self.failed.pop(ordinal, None)

    def _step(self, step: Step, key: str) -> None:
        self._open.add((step.o, step.scope.startswith("score/")))
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
        answer = found.answer
        self.finished[found.o] = Kept(
            *place,
            used.input_tokens,
            used.output_tokens,
            found.spent.seconds,
            answer.marks,
            text=_digest(answer.text.strip().encode()),
            said=_digest(msgspec.json.encode([answer.text, answer.tool_calls])),
            characters=len(answer.text),
            odd=tuple(found.anomalies),
            looked=found.looked,
        )
        self._ended(found, key)

    def _anomaly(self, entry: Entry) -> None:
        if entry.line.k is None:
            self._recorded.append(decode(entry.line, Anomaly))
            return
        again = decode(entry.line, AnomaliesRechecked)
        before = self.finished.get(again.o)
        if before is not None and before.n == again.of:
            found = msgspec.structs.replace(before, odd=tuple(again.found), looked=again.version)
            self.finished[again.o] = found

    def _failed(self, found: SampleFailed, key: str) -> None:
        if found.o in self.finished:
            return
        self.failed.pop(found.o, None)
        if found.final:
            self.failed[found.o] = found.failure.kind
        self._ended(found, key)

    def _score(self, found: ScoreGiven, key: str) -> None:
        failure = found.failure.kind if found.failure is not None else ""
        if found.last and (found.o, True) not in self._open:
            self._pay(found.spent, key, with_replayed=False)
        if found.last:
            self._open.discard((found.o, True))
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
        given.setdefault(found.scorer, {})[found.o] = Said(
            found.of, found.value, failure, bool(found.author), found.unreadable
        )

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

    def _ended(self, found: SampleFinished | SampleFailed, key: str) -> None:
        if (found.o, False) not in self._open:
            self._pay(found.spent, key, with_replayed=found.attempt == 1 and not self._is_fork)
        self._open.discard((found.o, False))
        self._spent(found.spent, key)

    def _pay(self, spent: Spent, key: str, *, with_replayed: bool) -> None:
        """An attempt without steps: an older version removed them. What its end says was paid."""
        paid = spent.usage + spent.saved if with_replayed else spent.usage
        if not paid.requests:
            return
        self.removed = True
        self.steps["live"] += spent.live + (spent.replayed if with_replayed else 0)
        self.usage += paid
        for role, each in spent.by_role().items():
            used = each.usage + each.saved if with_replayed else each.usage
            if used.requests:
                self._account(key, role).paid += used

    def _spent(self, spent: Spent, key: str) -> None:
        self.steps["replayed"] += spent.replayed
        self.steps["orphaned"] += spent.orphaned
        self.saved += spent.saved
        for role, each in spent.by_role().items() if spent.replayed or spent.orphaned else ():
            account = self._account(key, role)
            account.saved += each.saved
            account.orphaned += each.orphaned_usage

    def _restore(self, totals: Totals) -> None:
        """Steps were removed: what they had used is known from this record alone."""
        self.removed = True
        self.steps = {
            "live": totals.steps,
            "replayed": totals.replayed,
            "orphaned": totals.orphaned,
            "taken_over": totals.taken,
        }
        self.usage, self.saved = totals.usage, totals.saved
        self.accounts.clear()
        for cell, bills in totals.bills.items():
            for role, bill in bills.items():
                self.accounts[(*cell_names(cell), role)] = Account(bill.usage, bill.saved, bill.orphaned)

    def _account(self, key: str, role: str) -> Account:
        parts = parse_key(key)
        return self.accounts.setdefault((parts.task, parts.model, role), Account())

    def members(self, task: str, model: str) -> Iterator[int]:
        """The ordinals of a cell, over all blocks of the plan."""
        for cell in self.cells:
            if (cell.task, cell.model) == (task, model):
                yield from range(cell.first, cell.first + cell.count)


def _groups(run: str, cell: Cell, column: str) -> Iterator[tuple[int, str]]:
    rows = {line.r: line.sample().row.get(column) for line in rows_of(run, cell)}
    for line in planned_lines(run, cell):
        value = rows[line.r]
        told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if value is not None and told.strip():
            yield line.o, told


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest())
