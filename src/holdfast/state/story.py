"""The facts about a run as a whole: its plan, what it used and cost, its resumes, evaluations, notes and end.

Owns `Story`, which the writer's fold and the index both feed with records. Its size does not grow with the number of
samples. It is derived: a crash loses nothing, because the next reader computes it again from the journal.
"""

import itertools
from datetime import datetime
from typing import Any

import msgspec

from holdfast.errors import FormatError
from holdfast.journal import Entry, Position
from holdfast.records import (
    Anomaly,
    BatchJob,
    Bill,
    Block,
    Cell,
    Change,
    Count,
    FactDecoder,
    Line,
    Note,
    Ordinal,
    RunEnded,
    RunExtended,
    RunReplanned,
    RunResumed,
    RunStarted,
    ScoringStarted,
    Segment,
    Spent,
    TaskInputs,
    Totals,
    Usage,
    cell_of,
    decode,
    with_model,
)
from holdfast.spec import Price
from holdfast.state.dispatch import RecordHandlers

ENDS = frozenset({"run.completed", "run.failed", "run.cancelled", "run.interrupted"})
BEGINNINGS = frozenset({"run.started", "run.resumed", "run.extended"})
_NO_USAGE = Usage()
_anomaly = FactDecoder(Anomaly)
_HANDLERS: RecordHandlers["Story", Entry] = RecordHandlers()


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


class _Answer(msgspec.Struct, frozen=True, gc=False):
    usage: Usage = Usage()


class _Role(msgspec.Struct, frozen=True, gc=False):
    role: str = ""


class _Failed(msgspec.Struct, frozen=True, gc=False):
    """Only that there is a failure; its message is not decoded."""


class StepGist(msgspec.Struct, frozen=True, gc=False):
    """The few fields of a step, or of its announcement, that a fold needs.

    Decoding skips the rest: a step holds whole conversations, and every resume reads all steps.
    """

    o: Ordinal
    scope: str = ""
    origin: Count = 0
    batch: str = ""
    tries: Count = 1
    asked: _Role | None = None
    answer: _Answer | None = None
    kind: str = "generate"
    failure: _Failed | None = None
    cancelled: bool = False

    @property
    def evaluation(self) -> str:
        """The evaluation whose judge made the request; empty for requests of samples."""
        return self.scope.split("/")[1] if self.scope.startswith("score/") else ""

    @property
    def is_refused(self) -> bool:
        """Whether this is a model request that got no answer."""
        return self.kind == "generate" and (self.failure is not None or self.cancelled)


class OpenJob(msgspec.Struct):
    """A batch job with answers that are not recorded as steps yet. Its requests are in the record at `position`."""

    token: str
    line: str
    at: str
    """When it was announced."""
    requests: int
    position: Position
    id: str = ""
    """The server's id. Empty: the process died before it recorded whether the server accepted the job."""
    answered: int = -1
    """How many results the job has; -1 until it has ended."""
    steps: int = 0
    """How many of the results are recorded as steps."""


class Story(msgspec.Struct):
    """Updated by `apply` for records about the run, and by `answered`, `ended` and `scored` for records of keys.

    The second kind is passed in decoded, because each caller decodes another set of fields.
    """

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
    """When each evaluation was started."""
    partial: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Evaluations of which only chosen answers were to be scored, and how these were chosen. Never the current one."""
    steps: int = 0
    taken: int = 0
    """Steps that a fork copied from its parent."""
    replayed: int = 0
    orphaned: int = 0
    usage: Usage = Usage()
    """Of every answered request: what was paid for."""
    saved: Usage = Usage()
    """Of every answer that was replayed instead of requested again."""
    bills: dict[str, dict[str, Bill]] = msgspec.field(default_factory=dict)
    """By cell (`task/model`, as in keys) and role (see `ScoringStarted.bill_name`). The evaluated model has the empty
    role.
    """
    solving: set[int] = msgspec.field(default_factory=set)
    judging: set[int] = msgspec.field(default_factory=set)
    """Ordinals with steps of an attempt (`solving`) or of judges (`judging`) that has not ended yet."""
    worked_seconds: float = 0.0
    """Sum over ended processes, each from its first record to its last."""
    sitting: str = ""
    """When the latest process began its session; empty if it recorded its end."""
    epoch: int = 0
    """Of the latest writer."""
    anomalies: list[Anomaly] = msgspec.field(default_factory=list)
    notes: list[Noted] = msgspec.field(default_factory=list)
    jobs: dict[str, OpenJob] = msgspec.field(default_factory=dict)
    """Batch jobs whose answers are not all recorded, by our token."""
    twice: int = 0
    """How many records finished a key that was finished already. The first answer counts."""

    @property
    def planned(self) -> int:
        """How many keys the plan has. Blocks that replace cells (no data of their own) add none."""
        return sum(block.plan.count for block in self.blocks if block.data is not None)

    @property
    def blocks(self) -> list[Block]:
        """The parts of the plan, in the order of their records, without cells that a later block replaced."""
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
        """Of all blocks, by ordinal. The same task and model may appear in several blocks."""
        cells = [cell for block in self.blocks for cell in block.cells]
        return sorted(cells, key=lambda cell: (cell.first, cell.count)) if self.replans else cells

    @property
    def tags(self) -> list[str]:
        """The tags of the spec, with those added and removed since."""
        tags = dict.fromkeys(map(str, self.spec.get("tags", [])))
        for each in self.notes:
            tags |= dict.fromkeys(each.note.add)
            tags = {tag: None for tag in tags if tag not in each.note.remove}
        return list(tags)

    @property
    def inputs(self) -> dict[str, TaskInputs]:
        """By task, over all blocks."""
        found = dict(self.started.inputs) if self.started else {}
        for each in self.extensions:
            found.update(each.extended.inputs)
        return found

    @property
    def lineage(self) -> list[tuple[str, str, tuple[Change, ...]]]:
        """Every accepted spec change since the start: time, Holdfast version, changes."""
        changes = [(each.at, each.resumed.version, each.resumed.changes) for each in self.resumes]
        changes += [(each.at, each.extended.version, each.extended.changes) for each in self.extensions]
        changes += [(each.at, each.replanned.version, each.replanned.changes) for each in self.replans]
        return sorted(changes, key=lambda each: each[0])

    @property
    def specs(self) -> list[dict[str, Any]]:
        """Every spec that the run has had, newest last."""
        if self.started is None:
            return []
        later = [(each.at, each.resumed.spec) for each in self.resumes if each.resumed.spec is not None]
        later += [(each.at, each.extended.spec) for each in self.extensions]
        later += [(each.at, each.replanned.spec) for each in self.replans]
        return [self.started.spec, *(spec for _, spec in sorted(later, key=lambda each: each[0]) if spec)]

    def has_start(self, line: Line) -> bool:
        """Whether this `run.started` or `run.extended` record was applied before (a reader may see its copy again)."""
        if line.t == "run.started":
            return self.started is not None
        return line.t == "run.extended" and any(each.at == line.at for each in self.extensions)

    def apply(self, entry: Entry) -> None:
        """Update from a record about the run. Other records are ignored."""
        handler = _HANDLERS.get(entry.line.t)
        if handler is not None:
            handler(self, entry)

    @_HANDLERS.on("segment")
    def _apply_segment(self, entry: Entry) -> None:
        self._open_epoch(decode(entry.line, Segment).epoch)

    @_HANDLERS.on("score.started")
    def _apply_scoring_started(self, entry: Entry) -> None:
        started = decode(entry.line, ScoringStarted)
        before = self.evaluations.get(started.evaluation)
        if before is not None:  # continued without --name: it keeps the name that it has
            roles = {**before.roles, **started.roles}
            started = msgspec.structs.replace(started, name=started.name or before.name, roles=roles)
        self.evaluations[started.evaluation] = started
        self.evaluated.setdefault(started.evaluation, entry.line.at)
        if not started.part:
            self.evaluation = started.evaluation
            self.partial.pop(started.evaluation, None)
        elif before is None or started.evaluation in self.partial:
            chosen = self.partial.setdefault(started.evaluation, [])
            chosen += [started.part] if started.part not in chosen else []

    @_HANDLERS.on("note")
    def _apply_note(self, entry: Entry) -> None:
        self.notes.append(Noted(entry.line.at, decode(entry.line, Note)))

    @_HANDLERS.on("anomaly")
    def _apply_anomaly(self, entry: Entry) -> None:
        if entry.line.k is None:  # an anomaly with a key is about that key's answer, not about the journal
            self.anomalies.append(_anomaly.decode(entry.line))

    @_HANDLERS.on("run.started")
    def _apply_started(self, entry: Entry) -> None:
        self._begin_session(entry.line.at)
        self.started = decode(entry.line, RunStarted)
        self.spec = self.started.spec
        self.created = entry.line.at

    @_HANDLERS.on("run.resumed")
    def _apply_resumed(self, entry: Entry) -> None:
        self._begin_session(entry.line.at)
        resumed = decode(entry.line, RunResumed)
        self.resumes.append(Resume(entry.line.at, resumed))
        self._reopen(resumed.spec or self.spec)

    @_HANDLERS.on("run.extended")
    def _apply_extended(self, entry: Entry) -> None:
        self._begin_session(entry.line.at)
        extended = decode(entry.line, RunExtended)
        self.extensions.append(Extension(entry.line.at, extended))
        self._reopen(extended.spec)

    @_HANDLERS.on("run.replanned")
    def _apply_replanned(self, entry: Entry) -> None:
        replanned = decode(entry.line, RunReplanned)
        self.replans.append(Replan(entry.line.at, replanned))
        self.bills = {with_model(cell, replanned.renamed): bills for cell, bills in self.bills.items()}
        self._reopen(replanned.spec)

    @_HANDLERS.on(*ENDS)
    def _apply_end(self, entry: Entry) -> None:
        line = entry.line
        self._end_session(line.at)
        self.end = End(line.t, line.at, decode(line, RunEnded))
        self.completed = line.at if line.t == "run.completed" else ""

    def _reopen(self, spec: dict[str, Any]) -> None:
        """The run continues with this spec: an earlier end no longer describes it."""
        self.spec = spec
        self.end = None
        self.completed = ""

    def answered(self, step: StepGist, key: str | None) -> None:
        (self.judging if step.scope.startswith("score/") else self.solving).add(step.o)
        response, batched = None if step.answer is None else step.answer.usage, step.batch != ""
        if step.origin:
            self.taken += 1
        else:
            self.steps += 1
            if response is not None:
                self.usage = self.usage.with_response(response, batched=batched)
            if step.batch and (job := self.jobs.get(step.batch)) is not None:
                job.steps += 1
                self._close_job(job)
        if step.asked is None:
            return  # not a model request: a tool, the clock, or a cancelled call
        role = step.asked.role
        bill = self._bill(key, self._bill_name(role, step.evaluation) if role else "")
        if not step.origin:
            bill.requests += step.tries
        if response is None:
            return
        bill.note(response, batched=batched)
        if step.origin:
            bill.taken = bill.taken.with_response(response, batched=batched)
        else:
            bill.usage = bill.usage.with_response(response, batched=batched)

    @_HANDLERS.on("batch")
    def _apply_batch(self, entry: Entry) -> None:
        record = decode(entry.line, BatchJob)
        if record.requests:
            position = Position(entry.line.n, entry.segment, entry.offset)
            self.jobs[record.token] = OpenJob(record.token, record.line, entry.line.at, len(record.requests), position)
            return
        job = self.jobs.get(record.token)
        if job is None:  # all of its answers are steps already, or its announcement was lost to damage
            return
        job.id = record.id or job.id
        if record.status:
            job.answered = record.answered
            self._close_job(job)

    def _close_job(self, job: OpenJob) -> None:
        """Forget a job once all of its answers are steps: a resume has nothing left to fetch from the server."""
        if 0 <= job.answered <= job.steps:
            del self.jobs[job.token]

    def ended(self, o: int, attempt: int, spent: Spent, key: str | None) -> None:
        """Count what an attempt used when it finished or failed."""
        if o in self.solving:
            self.solving.discard(o)
        else:
            self._count_removed(spent, key, is_first=attempt == 1)
        self._spent(spent, key)

    def answered_again(self, spent: Spent, key: str | None) -> None:
        """Count an answer to a key that was finished already: the first one counts, both were paid for."""
        self.twice += 1
        for role, each in spent.by_role().items():
            if each.usage.requests:
                bill = self._bill(key, role)
                bill.twice += each.usage

    def scored(self, o: int, spent: Spent, key: str | None, evaluation: str, *, last: bool) -> None:
        """Count what the judges of an answer used. The last score of an answer carries the totals."""
        if last:
            if o in self.judging:
                self.judging.discard(o)
            else:
                self._count_removed(spent, key, evaluation, is_first=False)
        self._spent(spent, key, evaluation)

    def _count_removed(self, spent: Spent, key: str | None, evaluation: str = "", *, is_first: bool) -> None:
        """Count an attempt whose steps are missing: removed by `recover --no-events` of an older version, which wrote
        no `totals`, or lost to damage.

        Retries, and the steps of killed processes in later attempts, are unknown then. But the first attempt of a run
        that is not a fork can only have replayed steps that this run had paid for, so replayed usage counts as paid.
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
                bill = self._bill(key, self._bill_name(role, evaluation))
                bill.requests += used.requests
                bill.usage += used

    def _spent(self, spent: Spent, key: str | None, evaluation: str = "") -> None:
        self.replayed += spent.replayed
        self.orphaned += spent.orphaned
        if spent.saved != _NO_USAGE:
            self.saved += spent.saved
        if spent.replayed or spent.orphaned:
            for role, each in spent.by_role().items():
                bill = self._bill(key, self._bill_name(role, evaluation))
                bill.saved += each.saved
                bill.orphaned += each.orphaned_usage

    def totals(self, profile: bytes) -> Totals:
        """What the run has used so far, for a compacted journal, which no longer has the steps that were counted."""
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

    @_HANDLERS.on("totals")
    def _apply_totals(self, entry: Entry) -> None:
        """Replace the sums so far: a compacted journal has lost steps, so only its totals are exact."""
        totals = decode(entry.line, Totals)
        self.steps, self.taken = totals.steps, totals.taken
        self.replayed, self.orphaned = totals.replayed, totals.orphaned
        self.usage, self.saved = totals.usage, totals.saved
        self.bills = totals.bills
        self.worked_seconds, self.sitting = totals.worked_seconds, totals.sitting
        for token, steps in totals.jobs.items():
            if token in self.jobs:
                self.jobs[token].steps = steps

    def _bill_name(self, role: str, evaluation: str) -> str:
        started = self.evaluations.get(evaluation) if role and evaluation else None
        return role if started is None or not started.roles else started.bill_name(role)

    def _bill(self, key: str | None, role: str) -> Bill:
        bills = self.bills.setdefault(cell_of(key or ""), {})
        found = bills.get(role)
        if found is None:
            found = bills[role] = Bill()
        return found

    def _open_epoch(self, epoch: int) -> None:
        """A new epoch is a new writer. If the one before was killed, its session ended with its last record."""
        if epoch != self.epoch:
            self._end_session(self.updated)
            self.epoch = epoch

    def _begin_session(self, at: str) -> None:
        """Also ends an open session: a compacted journal has no epochs that show that the process was killed."""
        self._end_session(self.updated)
        self.sitting = at

    def _end_session(self, at: str) -> None:
        if self.sitting:
            began, ended = datetime.fromisoformat(self.sitting), datetime.fromisoformat(at)
            self.worked_seconds += max((ended - began).total_seconds(), 0.0)
        self.sitting = ""


class _Priced(msgspec.Struct, frozen=True):
    price: Price | None = None


class _Roles(msgspec.Struct, frozen=True):
    roles: dict[str, _Priced] = {}


def role_prices(story: Story) -> dict[str, Price | None]:
    """Prices of roles by their names in bills: those of the stored spec, and models that were given for single
    evaluations. None: no price is known.
    """
    every = list(story.evaluations.values())
    given = {each.bill_name(role): {"price": model.price} for each in every for role, model in each.roles.items()}
    try:
        roles = {**msgspec.convert(story.spec, _Roles).roles, **msgspec.convert({"roles": given}, _Roles).roles}
    except msgspec.ValidationError as error:
        raise FormatError(f"a price in the journal cannot be read ({error}); upgrade Holdfast") from error
    return {name: each.price for name, each in roles.items()}
