"""A run's own facts, folded: what was asked, what it used, how it was resumed and how it ended. Small, whatever the
run's size.
"""

import itertools
from datetime import datetime
from typing import Any

import msgspec

from holdfast.journal.positions import Entry, Position
from holdfast.records import Anomaly, Line, Segment
from holdfast.records.decoder import FactDecoder, decode
from holdfast.records.facts import (
    BatchJob,
    Bill,
    Block,
    Cell,
    Change,
    Note,
    RunEnded,
    RunExtended,
    RunReplanned,
    RunResumed,
    RunStarted,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    ScoringStarted,
    Spent,
    TaskInputs,
    Totals,
)
from holdfast.records.keys import cell_of, with_model
from holdfast.records.ranges import Count, Ordinal
from holdfast.records.samples import Usage

ENDS = frozenset({"run.completed", "run.failed", "run.cancelled", "run.interrupted"})
BEGINNINGS = frozenset({"run.started", "run.resumed", "run.extended"})
_NO_USAGE = Usage()
_anomaly = FactDecoder(Anomaly)


class Resume(msgspec.Struct, frozen=True):
    at: str
    resumed: RunResumed


class Noted(msgspec.Struct, frozen=True):
    at: str
    note: Note


class Extension(msgspec.Struct, frozen=True):
    at: str
    extended: RunExtended


class Replan(msgspec.Struct, frozen=True):
    at: str
    replanned: RunReplanned


class End(msgspec.Struct, frozen=True):
    kind: str
    at: str
    data: RunEnded


class _Said(msgspec.Struct, frozen=True):
    usage: Usage = Usage()


class _Role(msgspec.Struct, frozen=True):
    role: str = ""


class _Failed(msgspec.Struct, frozen=True):
    """That there is a failure; what it says is not decoded."""


class StepGist(msgspec.Struct, frozen=True):
    """The little of a step, or of its announcement, that a fold needs; the rest is not decoded."""

    o: Ordinal
    scope: str = ""
    origin: Count = 0
    batch: str = ""
    tries: Count = 1
    asked: _Role | None = None
    answer: _Said | None = None
    kind: str = "generate"
    failure: _Failed | None = None
    cancelled: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether a model was asked and gave no answer."""
        return self.kind == "generate" and (self.failure is not None or self.cancelled)


class OpenJob(msgspec.Struct):
    """A job of a batch API of which some answers are no steps yet. Its requests are in the record at `position`."""

    token: str
    line: str
    at: str
    """When it was announced."""
    requests: int
    position: Position
    id: str = ""
    """Empty: nobody knows whether the server has it."""
    answered: int = -1
    """How many results it has; below zero until it has ended."""
    steps: int = 0
    """How many of them are steps."""


class Story(msgspec.Struct):
    """Grows by `apply` for records about the run itself, and by `answered`, `ended` and `scored` for those of keys."""

    started: RunStarted | None = None
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    created: str = ""
    updated: str = ""
    completed: str = ""
    resumes: list[Resume] = msgspec.field(default_factory=list)
    extensions: list[Extension] = msgspec.field(default_factory=list)
    replans: list[Replan] = msgspec.field(default_factory=list)
    end: End | None = None
    evaluation: str = ""
    evaluations: dict[str, ScoringStarted] = msgspec.field(default_factory=dict)
    evaluated: dict[str, str] = msgspec.field(default_factory=dict)
    """When each evaluation was begun."""
    steps: int = 0
    taken: int = 0
    """Steps that a fork took over from its parent."""
    replayed: int = 0
    orphaned: int = 0
    usage: Usage = Usage()
    """Of every request that was answered: what was paid for."""
    saved: Usage = Usage()
    """Of every answer that was replayed instead of being asked again."""
    bills: dict[str, dict[str, Bill]] = msgspec.field(default_factory=dict)
    """By cell (`task/model`, as in keys) and role; the evaluated model's under the empty one."""
    solving: set[int] = msgspec.field(default_factory=set)
    judging: set[int] = msgspec.field(default_factory=set)
    """Ordinals with steps of an attempt, or of judges, that has not ended yet."""
    worked_seconds: float = 0.0
    """Of processes that have ended, from their first record to their last."""
    sitting: str = ""
    """When the process began that worked on it last, if it has not said that it ended."""
    epoch: int = 0
    """Of the process that wrote last."""
    anomalies: list[Anomaly] = msgspec.field(default_factory=list)
    notes: list[Noted] = msgspec.field(default_factory=list)
    jobs: dict[str, OpenJob] = msgspec.field(default_factory=dict)
    """Jobs of batch APIs that are not through, by our token."""
    twice: int = 0
    """Keys that were finished a second time: the first answer counts."""

    @property
    def planned(self) -> int:
        """How many keys there are. Blocks that replace cells add none."""
        return sum(block.plan.count for block in self.blocks if block.data is not None)

    @property
    def blocks(self) -> list[Block]:
        """The parts of the plan, in the order in which they were recorded."""
        added: list[RunStarted | RunExtended] = [self.started] if self.started else []
        added += [each.extended for each in self.extensions]
        replans = {each.replanned.block: each.replanned for each in self.replans}
        newest = {identity: number for number, part in sorted(replans.items()) for identity in part.replaced()}
        numbers = (number for number in itertools.count(1) if number not in replans)
        blocks = [Block(number, part.plan, part.data, part.cells) for part, number in zip(added, numbers, strict=False)]
        blocks += [Block(number, part.plan, None, part.cells) for number, part in replans.items()]
        return [
            msgspec.structs.replace(
                block, cells=tuple(cell for cell in block.cells if newest.get(cell.identity, 0) <= block.number)
            )
            for block in sorted(blocks, key=lambda block: block.number)
        ]

    @property
    def cells(self) -> list[Cell]:
        """Of all blocks, in the order of their ordinals; a task with a model may have several."""
        cells = [cell for block in self.blocks for cell in block.cells]
        return sorted(cells, key=lambda cell: (cell.first, cell.count)) if self.replans else cells

    @property
    def tags(self) -> list[str]:
        """The spec's, and what was added and taken away since."""
        tags = dict.fromkeys(map(str, self.spec.get("tags", [])))
        for each in self.notes:
            tags |= dict.fromkeys(each.note.add)
            tags = {tag: None for tag in tags if tag not in each.note.remove}
        return list(tags)

    @property
    def inputs(self) -> dict[str, TaskInputs]:
        """By task, of every block."""
        found = dict(self.started.inputs) if self.started else {}
        for each in self.extensions:
            found.update(each.extended.inputs)
        return found

    @property
    def lineage(self) -> list[tuple[str, str, tuple[Change, ...]]]:
        """When, by which version, what was changed: every accepted difference since the run began."""
        told = [(each.at, each.resumed.version, each.resumed.changes) for each in self.resumes]
        told += [(each.at, each.extended.version, each.extended.changes) for each in self.extensions]
        told += [(each.at, each.replanned.version, each.replanned.changes) for each in self.replans]
        return sorted(told, key=lambda each: each[0])

    @property
    def specs(self) -> list[dict[str, Any]]:
        """Every spec that the run has had, the newest last."""
        if self.started is None:
            return []
        later = [(each.at, each.resumed.spec) for each in self.resumes if each.resumed.spec is not None]
        later += [(each.at, each.extended.spec) for each in self.extensions]
        later += [(each.at, each.replanned.spec) for each in self.replans]
        return [self.started.spec, *(spec for _, spec in sorted(later, key=lambda each: each[0]) if spec)]

    def has_start(self, line: Line) -> bool:
        """Whether a record is one that begins or extends the run, and was applied before."""
        if line.t == "run.started":
            return self.started is not None
        return line.t == "run.extended" and any(each.at == line.at for each in self.extensions)

    def apply(self, entry: Entry) -> None:
        line = entry.line
        if line.t.startswith("run."):
            self._run(line)
        elif line.t == "segment":
            self._opened(decode(line, Segment).epoch)
        elif line.t == "score.started":
            started = decode(line, ScoringStarted)
            before = self.evaluations.get(started.evaluation)
            if before is not None and not started.name:  # it is gone on with, under the name that it has
                started = msgspec.structs.replace(started, name=before.name)
            self.evaluations[started.evaluation] = started
            self.evaluated.setdefault(started.evaluation, line.at)
            self.evaluation = started.evaluation
        elif line.t == "batch":
            self._batch(entry, decode(line, BatchJob))
        elif line.t == "totals":
            self._restore(decode(line, Totals))
        elif line.t == "note":
            self.notes.append(Noted(line.at, decode(line, Note)))
        elif line.t == "anomaly" and line.k is None:  # those with a key tell of its answer
            self.anomalies.append(_anomaly.decode(line))

    def answered(self, step: StepGist, key: str | None) -> None:
        (self.judging if step.scope.startswith("score/") else self.solving).add(step.o)
        usage = _NO_USAGE if step.answer is None else step.answer.usage.of_one(bool(step.batch))
        if step.origin:
            self.taken += 1
        else:
            self.steps += 1
            self.usage += usage
            if step.batch and (job := self.jobs.get(step.batch)) is not None:
                job.steps += 1
                self._close_job(job)
        if step.asked is None:
            return  # a tool, the clock, or a call that was cancelled
        bill = self._bill(key, step.asked.role)
        bill.note(usage)
        if step.origin:
            bill.taken += usage
        else:
            bill.requests += step.tries
            bill.usage += usage

    def _batch(self, entry: Entry, record: BatchJob) -> None:
        if record.requests:
            position = Position(entry.line.n, entry.segment, entry.offset)
            self.jobs[record.token] = OpenJob(record.token, record.line, entry.line.at, len(record.requests), position)
            return
        job = self.jobs.get(record.token)
        if job is None:  # it was through before, or its announcement is lost
            return
        job.id = record.id or job.id
        if record.status:
            job.answered = record.answered
            self._close_job(job)

    def _close_job(self, job: OpenJob) -> None:
        """A job is through when all of its answers are steps: then nothing has to be collected again."""
        if 0 <= job.answered <= job.steps:
            del self.jobs[job.token]

    def ended(self, found: SampleFinished | SampleFailed, key: str | None) -> None:
        """Count what an attempt used."""
        if found.o in self.solving:
            self.solving.discard(found.o)
        else:
            self._count_removed(found.spent, key, is_first=found.attempt == 1)
        self._spent(found.spent, key)

    def scored(self, found: ScoreGiven, key: str | None) -> None:
        """Count what the judges of an answer used. Only the last score of an answer says that."""
        if not found.last:
            self._spent(found.spent, key)
            return
        if found.o in self.judging:
            self.judging.discard(found.o)
        else:
            self._count_removed(found.spent, key, is_first=False)
        self._spent(found.spent, key)

    def _count_removed(self, spent: Spent, key: str | None, *, is_first: bool) -> None:
        """Count an attempt of which the journal has no step: `recover --no-events` of older versions removed
        them and left no `totals`, or they are damaged.

        Retries, and the steps of killed processes in later attempts, are unknown then. A first attempt of a run that
        is no fork can only have replayed steps that the run itself had paid for.
        """
        with_replayed = is_first and self.started is not None and self.started.parent is None
        paid = spent.usage + spent.saved if with_replayed else spent.usage
        if not paid.requests:
            return
        self.steps += spent.live + (spent.replayed if with_replayed else 0)
        self.usage += paid
        for role, each in spent.by_role().items():
            used = each.usage + each.saved if with_replayed else each.usage
            if used.requests:
                bill = self._bill(key, role)
                bill.requests += used.requests
                bill.usage += used

    def _spent(self, spent: Spent, key: str | None) -> None:
        self.replayed += spent.replayed
        self.orphaned += spent.orphaned
        self.saved += spent.saved
        if spent.replayed or spent.orphaned:
            for role, each in spent.by_role().items():
                bill = self._bill(key, role)
                bill.saved += each.saved
                bill.orphaned += each.orphaned_usage

    def totals(self, profile: bytes) -> Totals:
        """What the run has used so far, for a journal that does not keep the steps it is counted from."""
        return Totals(
            steps=self.steps,
            taken=self.taken,
            replayed=self.replayed,
            orphaned=self.orphaned,
            usage=self.usage,
            saved=self.saved,
            bills=self.bills,
            worked_seconds=self.worked_seconds,
            sitting=self.sitting,
            jobs={token: job.steps for token, job in self.jobs.items()},
            profile=msgspec.Raw(profile),
        )

    def _restore(self, totals: Totals) -> None:
        """Totals are exact; what the records before them add up to is not, because some were removed."""
        self.steps, self.taken = totals.steps, totals.taken
        self.replayed, self.orphaned = totals.replayed, totals.orphaned
        self.usage, self.saved = totals.usage, totals.saved
        self.bills = totals.bills
        self.worked_seconds, self.sitting = totals.worked_seconds, totals.sitting
        for token, steps in totals.jobs.items():
            if token in self.jobs:
                self.jobs[token].steps = steps

    def _bill(self, key: str | None, role: str) -> Bill:
        return self.bills.setdefault(cell_of(key or ""), {}).setdefault(role, Bill())

    def _opened(self, epoch: int) -> None:
        """Another process adds to the run. One before it that was killed worked until its last record."""
        if epoch != self.epoch:
            self._stand_up(self.updated)
            self.epoch = epoch

    def _sit_down(self, at: str) -> None:
        """A process begins to work. A condensed journal does not tell when the one before it was killed."""
        self._stand_up(self.updated)
        self.sitting = at

    def _stand_up(self, at: str) -> None:
        if self.sitting:
            began, ended = datetime.fromisoformat(self.sitting), datetime.fromisoformat(at)
            self.worked_seconds += max((ended - began).total_seconds(), 0.0)
        self.sitting = ""

    def _run(self, line: Line) -> None:
        if line.t in BEGINNINGS:
            self._sit_down(line.at)
        elif line.t in ENDS:
            self._stand_up(line.at)
        if line.t == "run.started":
            self.started = decode(line, RunStarted)
            self.spec = self.started.spec
            self.created = line.at
        elif line.t == "run.resumed":
            resumed = decode(line, RunResumed)
            self.resumes.append(Resume(line.at, resumed))
            self.spec = resumed.spec or self.spec
            self.end = None
            self.completed = ""
        elif line.t == "run.extended":
            extended = decode(line, RunExtended)
            self.extensions.append(Extension(line.at, extended))
            self.spec = extended.spec
            self.end = None
            self.completed = ""
        elif line.t == "run.replanned":
            replanned = decode(line, RunReplanned)
            self.replans.append(Replan(line.at, replanned))
            self.bills = {with_model(cell, replanned.renamed): bills for cell, bills in self.bills.items()}
            self.spec = replanned.spec
            self.end = None
            self.completed = ""
        elif line.t in ENDS:
            self.end = End(line.t, line.at, decode(line, RunEnded))
            self.completed = line.at if line.t == "run.completed" else ""
