"""The lives of a run for people and as JSON: every process, how it ended, what it changed, what it did not pay again.

The numbers of a life are the difference between the totals of the run at its beginning and at its end. Dollars follow
from usage and the prices of the spec in force, as in every other report.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.records import Bill, Change, Usage
from holdfast.report.costs import StoredSpec
from holdfast.report.text import counted, dollars
from holdfast.state import Index, Life, RunTotals

_BEGAN = {
    "run.started": "started",
    "run.resumed": "resumed",
    "run.extended": "extended",
    "score.started": "scored",
}
_HARMLESS = frozenset({"throughput", "place"})
"""Classes of changes that cannot change an answer or a score."""


class SavedWork(msgspec.Struct, frozen=True):
    """Responses that were recorded before, and not requested again."""

    responses: int = 0
    usage: Usage = Usage()
    dollars: float | None = None
    """None if a model has no price."""


class LifeReport(msgspec.Struct, frozen=True):
    """One process that worked on the run."""

    number: int
    began: str
    """started, forked, resumed, extended or scored."""
    at: str
    ended: str
    """completed, failed, cancelled, interrupted, killed, taken over, running; empty if it is not known. `continued`:
    the same process began the next life.
    """
    ended_at: str
    reason: str
    first_n: int
    """The record that began it, and the last one that it wrote."""
    last_n: int
    host: str
    pid: int
    version: str
    changes: tuple[Change, ...]
    is_throughput_only: bool
    """Whether nothing that was changed can change an answer or a score."""
    finished: int
    """Samples that it finished."""
    finished_in_all: int
    failed_in_all: int
    """Counts of the run at its end."""
    steps: int
    """Responses and results of tools that it recorded."""
    orphaned: int
    usage: Usage
    dollars: float | None
    kept: SavedWork
    """Everything that earlier processes had paid for, without orphaned steps: a new start would pay it again."""
    kept_finished: int
    kept_seconds: float
    """Time in flight of the requests that it did not have to send again."""
    replayed: SavedWork
    """The part of that which it replayed inside samples that were not finished."""
    replayed_steps: int
    idle_seconds: float
    """From the last record of the process before to its beginning."""
    epoch: int = 0
    """Of the lease that it held: grows with every process."""
    shard: str = ""
    """The part of a sharded run that it worked on. What it paid is known only for the run as a whole."""


class TunedLimits(msgspec.Struct, frozen=True):
    """Limits that were changed while a process was running."""

    at: str
    changes: tuple[Change, ...]


class LineageReport(msgspec.Struct, frozen=True):
    """The history of one run."""

    run_id: str
    experiment: str
    status: str
    reason: str
    parent: dict[str, Any] | None
    """The run from which this one was forked."""
    taken: SavedWork
    """What the fork copied: its parent paid for it."""
    taken_steps: int
    lives: tuple[LifeReport, ...]
    tuned: tuple[TunedLimits, ...]
    notes: tuple[dict[str, str], ...]
    replayed: SavedWork
    """Over all lives."""
    kills: int
    """How many processes ended without a word, those included that lost the run to another machine."""
    takeovers: int = 0
    """How often another machine continued the run after the expiry of a lease."""
    resumes: int = 0
    """How many processes resumed the run. One that makes a fork and then runs it is none."""

    @property
    def processes(self) -> int:
        """A worker of a sharded run has one life in each shard that it works on."""
        workers = {(life.host, life.pid) for life in self.lives if life.shard and life.pid}
        return len(workers) or len(self.lives)


def lineage_report(index: Index, names: tuple[str, str], status: tuple[str, str], *, live: bool) -> LineageReport:
    """`names`: run and experiment. `status`: with its reason. `live`: a process is working on the run."""
    story, spec = index.story, StoredSpec.of(index.story.spec)
    now = index.run_totals()
    afters = [*(life.before for life in index.lives[1:]), now][: len(index.lives)]
    lives = []
    for number, (life, after) in enumerate(zip(index.lives, afters, strict=True), 1):
        following = index.lives[number] if number < len(index.lives) else None
        before = index.lives[number - 2] if number > 1 else None
        ended = _end_of(life, following, status, live=live)
        lives.append(_life_report(number, (before, life), after, ended, index))
    parent = msgspec.to_builtins(story.started.parent) if story.started else None
    return LineageReport(
        *names,
        *status,
        parent=parent,
        taken=_saved(now.bills, spec, "taken"),
        taken_steps=now.taken,
        lives=tuple(lives),
        tuned=tuple(TunedLimits(each.at, each.resumed.changes) for each in story.resumes if each.resumed.live),
        notes=tuple({"at": each.at, "text": each.note.text} for each in story.notes if each.note.text),
        replayed=_saved(now.bills, spec, "saved"),
        kills=sum(each.ended in ("killed", "taken over") for each in lives),
        takeovers=sum(each.ended == "taken over" for each in lives),
        resumes=_count_resumes(lives),
    )


def _count_resumes(lives: Sequence[LifeReport]) -> int:
    continued = {life.number + 1 for life in lives if life.ended == "continued"}
    return sum(life.began == "resumed" and life.number not in continued for life in lives)


def _end_of(life: Life, following: Life | None, status: tuple[str, str], *, live: bool) -> tuple[str, str]:
    """How a process ended, and why."""
    if life.end:
        return life.end.removeprefix("run."), life.reason
    if following is None and life.kind != "score.started":
        return ("running", "") if live else ("killed", status[1])
    if life.kind == "score.started":
        return "", ""  # scoring records no end
    if following is not None and life.pid and (life.host, life.pid) == (following.host, following.pid):
        return "continued", ""  # a fork is made first and then resumed
    if following is not None and life.host and following.host and following.host != life.host:
        return "taken over", f"{following.host} continued the run under epoch {following.epoch}"
    return "killed", "it recorded no end"


def _life_report(
    number: int, lives: tuple[Life | None, Life], after: RunTotals, ended: tuple[str, str], index: Index
) -> LifeReport:
    """`lives`: the one before, and this one. `after`: the totals at its end."""
    before, life = lives
    start, last_at, spec = life.before, life.last_at or index.story.updated, StoredSpec.of(index.story.spec)
    paid = _difference(after.bills, start.bills)
    started = index.story.started
    is_fork = life.kind == "run.started" and started is not None and started.parent is not None
    return LifeReport(
        number=number,
        began="forked" if is_fork else _BEGAN.get(life.kind, life.kind),
        at=life.at,
        ended=ended[0],
        ended_at=last_at,
        reason=ended[1],
        first_n=life.n,
        last_n=life.last_n or index.last_n,
        host=life.host,
        pid=life.pid,
        version=life.version,
        epoch=life.epoch,
        changes=life.changes,
        is_throughput_only=all(each.kind in _HARMLESS for each in life.changes),
        finished=max(after.finished - start.finished, 0),
        finished_in_all=after.finished,
        failed_in_all=after.failed,
        steps=max(after.steps - start.steps, 0),
        orphaned=max(after.orphaned - start.orphaned, 0),
        usage=sum((bill.usage for roles in paid.values() for bill in roles.values()), Usage()),
        dollars=_saved(paid, spec, "usage").dollars,
        kept=_saved(start.bills, spec, "usage", less="orphaned"),
        kept_finished=start.finished,
        kept_seconds=start.sent_seconds,
        replayed=_saved(paid, spec, "saved"),
        replayed_steps=max(after.replayed - start.replayed, 0),
        idle_seconds=_seconds_between(before.last_at, life.at) if before is not None else 0.0,
    )


_Bills = dict[str, dict[str, Bill]]


def _difference(after: _Bills, before: _Bills) -> _Bills:
    found: _Bills = {}
    for model, roles in after.items():
        for role, bill in roles.items():
            was = before.get(model, {}).get(role, Bill())
            found.setdefault(model, {})[role] = Bill(
                requests=max(bill.requests - was.requests, 0),
                usage=bill.usage - was.usage,
                saved=bill.saved - was.saved,
                orphaned=bill.orphaned - was.orphaned,
            )
    return found


def _saved(bills: _Bills, spec: StoredSpec, name: str, less: str = "") -> SavedWork:
    """One of the sums of a bill over all models, with its cost. `less`: another sum that is taken off."""
    usage, amount, is_known = Usage(), 0.0, True
    for model, roles in bills.items():
        prices = spec.prices(model)
        for role, bill in roles.items():
            found: Usage = getattr(bill, name)
            if less:
                found = found - getattr(bill, less)
            usage += found
            price = prices.get(role)
            if found.requests and price is None:
                is_known = False
            elif price is not None:
                amount += price.dollars(found)
    return SavedWork(usage.requests, usage, amount if is_known else None)


def _seconds_between(first: str, second: str) -> float:
    if not first or not second:
        return 0.0
    return max((datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds(), 0.0)


def lineage_sentences(report: LineageReport) -> Iterator[str]:
    """What a person would say about the history of a run."""
    lives = report.lives
    if not lives:
        yield "the journal does not say which processes worked on this run"
        return
    parts = [counted(len(lives), "process", "processes"), counted(report.resumes, "resume")]
    shards = {life.shard for life in lives if life.shard}
    if shards:
        machines = counted(len({life.host for life in lives if life.host}), "machine")
        parts[:1] = [f"{counted(report.processes, 'worker')} on {machines}"]
        parts.insert(1, f"{counted(len(lives), 'session')} in {counted(len(shards), 'shard')}")
    scored = sum(life.began == "scored" for life in lives)
    if scored:
        parts.append(f"{scored} only scored")
    if report.kills > report.takeovers:
        parts.append(f"{report.kills - report.takeovers} killed")
    if report.takeovers:
        parts.append(f"{report.takeovers} taken over by another machine")
    yield f"{', '.join(parts)}; the run is {report.status}"
    if report.replayed.responses:
        yield f"replayed inside unfinished samples: {_amount(report.replayed)}, not paid again"
    most = max(lives, key=lambda life: life.kept.responses)
    if most.kept.responses and most.number > 1 and not shards:
        what = f"{counted(most.kept_finished, 'finished sample')} and {_amount(most.kept)}"
        yield f"process {most.number} continued with {what} of the processes before it"
    if report.taken_steps:
        yield f"the fork copied {counted(report.taken_steps, 'step')} from its parent: {_amount(report.taken)}"


def _amount(work: SavedWork) -> str:
    money = "" if not work.dollars else f" ({dollars(work.dollars)})"
    return f"{counted(work.responses, 'response')}{money}"


def changed_fields(changes: Iterable[Change]) -> Sequence[tuple[str, str, str, str]]:
    """Field, old value, new value and class of each change, as texts."""
    return [(each.field, _text(each.old), _text(each.new), each.kind) for each in changes]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
