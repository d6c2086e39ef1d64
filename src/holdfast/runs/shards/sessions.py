"""The workers of a sharded run: which process worked on which shard, when, and how it ended.

The merged journal has none of these records, because its readers know one process at a time. The copy keeps what they
say in `shards.json`: the status of every shard, and its sessions. From that follow the status of the run with its
reason, its wall time, and its lineage. Everything here is derived.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

import msgspec

from holdfast import files
from holdfast.records import Change, Count, Durations, FactDecoder, Line, RunEnded
from holdfast.report import LifeReport, LineageReport, SavedWork
from holdfast.runs.shards.fenced import FencedAnswer
from holdfast.runs.store.lookup import RunLocation
from holdfast.runs.summary import ShardStatus
from holdfast.state import BEGINNINGS, ENDS, Profile, Standing, status_by

SHARDS_FILE = "shards.json"
_BEGAN = {"run.started": "started", "run.resumed": "resumed", "run.extended": "extended", "score.started": "scored"}
_HARMLESS = frozenset({"throughput", "place"})
_REASONS_MAX = 4
_BUDGET = "budget:"
_LIVE = ("running", "stalled")


class ShardSession(msgspec.Struct, omit_defaults=True):
    """One process that worked on a shard."""

    began: str
    """The type of its first record; `score.started` for one that only scored."""
    at: str
    last_at: str
    """When it wrote its last record."""
    epoch: int = 0
    host: str = ""
    pid: int = 0
    version: str = ""
    changes: tuple[Change, ...] = ()
    end: str = ""
    """The type of the record of its end; empty if it recorded none."""
    reason: str = ""
    finished: int = 0
    failed: int = 0
    """Of the whole shard, when it ended."""
    steps: int = 0
    commits: Durations | None = None

    @property
    def seconds(self) -> tuple[float, float]:
        """When it began and when it wrote its last record, in Unix time."""
        began, last = (datetime.fromisoformat(each).timestamp() for each in (self.at, self.last_at))
        return began, max(began, last)


class _Beginning(msgspec.Struct, frozen=True):
    """The fields that `run.started`, `run.resumed` and `run.extended` have in common."""

    host: dict[str, Any] = {}
    version: str = ""
    changes: tuple[Change, ...] = ()
    live: bool = False


class _Opened(msgspec.Struct, frozen=True):
    epoch: Count = 0


_beginning, _ended, _opened = FactDecoder(_Beginning), FactDecoder(RunEnded), FactDecoder(_Opened)


class SessionLog(msgspec.Struct):
    """The sessions of one shard, from its records."""

    epoch: int = 0
    sessions: list[ShardSession] = msgspec.field(default_factory=list)

    @property
    def last(self) -> ShardSession | None:
        return self.sessions[-1] if self.sessions else None

    @property
    def finished(self) -> int:
        return sum(each.finished for each in self.sessions)

    def note(self, line: Line) -> None:
        """Update from any record of the shard."""
        if line.t == "segment":
            self.epoch = _opened.decode(line).epoch
            return
        if line.t in BEGINNINGS:
            self._begin(line, _beginning.decode(line))
        elif line.t == "score.started" and (self.last is None or self.last.epoch != self.epoch):
            self._begin(line, _Beginning())
        last = self.last
        if last is None or last.epoch != self.epoch:
            return  # a note, a tag or a score set by hand
        last.last_at = max(last.last_at, line.at)
        if line.t == "step":
            last.steps += 1
        elif line.t == "sample.finished":
            last.finished += 1
        elif line.t in ENDS:
            ended = _ended.decode(line)
            last.end, last.reason, last.failed, last.commits = line.t, ended.reason, ended.failed, ended.commits

    def _begin(self, line: Line, found: _Beginning) -> None:
        host, pid, last = str(found.host.get("host", "")), int(found.host.get("pid", 0)), self.last
        if found.live:
            return
        if last is not None and not last.end and pid and (last.host, last.pid) == (host, pid):
            last.epoch = self.epoch  # it has extended the plan of the shard, and now works on it
            last.changes += found.changes
            return
        session = ShardSession(line.t, line.at, line.at, self.epoch, host, pid, found.version, found.changes)
        self.sessions.append(session)


class ShardState(msgspec.Struct, frozen=True):
    """What is known about one shard."""

    status: ShardStatus
    sessions: list[ShardSession] = []
    fenced: list[FencedAnswer] = []


def describe_shard(
    shard: str,
    planned: int,
    log: SessionLog | None,
    standing: Standing | None,
    fenced: Sequence[FencedAnswer] = (),
) -> ShardState:
    """`planned`: how many keys of the plan belong to it. `log`: None if it has not begun."""
    if log is None or standing is None:
        return ShardState(ShardStatus(shard, "not begun", planned=planned))
    lease, last = standing.lease, _last_worker(log.sessions)
    finished, failed = log.finished, last.failed if last is not None else 0
    status, reason = status_by(standing)
    if lease is not None and (standing.held or last is None or not last.end):
        finished, failed = max(finished, lease.finished), lease.failed
    if not (standing.held and status in _LIVE):
        status = "interrupted"
        if last is not None and last.end:
            status, reason = last.end.removeprefix("run."), last.reason
        elif lease is None:
            reason = "its process ended without recording why"
    worker = f"process {last.pid} on {last.host}" if last is not None and last.host else ""
    if lease is not None:
        worker = f"process {lease.holder.pid} on {lease.holder.host}"
    return ShardState(ShardStatus(shard, status, reason, planned, finished, failed, worker), log.sessions, [*fenced])


def _last_worker(sessions: Sequence[ShardSession]) -> ShardSession | None:
    """The last process that answered samples. One that only scored does not change how a shard ended."""
    return next((each for each in reversed(sessions) if each.began != "score.started"), None)


def write_shards(run: str, shards: Iterable[ShardState]) -> None:
    files.replace_file(os.path.join(run, SHARDS_FILE), msgspec.json.encode(list(shards)))


def read_shards(place: RunLocation) -> list[ShardState]:
    """Of a copy of a sharded run; empty for another place."""
    if not place.root:
        return []
    try:
        return msgspec.json.decode(files.read_own_file(os.path.join(place.folder, SHARDS_FILE)), type=list[ShardState])
    except FileNotFoundError:  # a state of the past, in the viewer
        return []


def explain_status(shards: Sequence[ShardState]) -> tuple[str, str]:
    """The status of a run that no process works on and that has not ended, and why: the same reason once, with the
    number of shards that it is true for. A budget comes first, because the next command depends on it.
    """
    reasons = Counter[str]()
    for each in shards:
        shard, last = each.status, _last_worker(each.sessions)
        where = f" on {last.host}" if last is not None and last.host else ""
        if shard.status == "not begun":
            reasons["not begun"] += bool(shard.planned)
        elif last is None or not last.end:
            reasons[f"its worker{where} ended without recording why"] += 1
        elif shard.status == "completed":
            reasons["samples without an answer"] += shard.planned > shard.finished + shard.failed
        elif shard.reason.startswith(_BUDGET) or not shard.reason:
            reasons[shard.reason or shard.status] += 1
        else:
            reasons[f"{shard.reason}{where}"] += 1
    found = [(text, number) for text, number in reasons.most_common() if number]
    found.sort(key=lambda each: (not each[0].startswith(_BUDGET), each[0] == "not begun"))
    parts = [
        f"{text} ({number} of {len(shards)} shards)"
        if text.startswith(_BUDGET)
        else f"{number} of {len(shards)} shards: {text}"
        for text, number in found
    ]
    more = [f"{len(parts) - _REASONS_MAX} other reasons"] if len(parts) > _REASONS_MAX else []
    open_ones = {each.status.status for each in shards} - {"completed"}
    return "failed" if open_ones == {"failed"} else "interrupted", "; ".join([*parts[:_REASONS_MAX], *more])


def with_sessions(profile: Profile, shards: Sequence[ShardState]) -> Profile:
    """The profile of the merged journal, with the times of its workers: the merged journal looks like one process."""
    every = [session for each in shards for session in each.sessions]
    if not every:
        return profile
    return profile.with_sessions(
        unite(session.seconds for session in every),
        unite(session.seconds for session in every if session.began != "score.started"),
        [session.commits for session in every],
    )


def worked_seconds(shards: Sequence[ShardState]) -> float:
    """Summed over all workers."""
    spans = [session.seconds for each in shards for session in each.sessions]
    return sum(last - began for began, last in spans)


def unite(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of time without overlaps that cover the same."""
    found: list[tuple[float, float]] = []
    for began, last in sorted(spans):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((began, last))
    return found


def with_workers(report: LineageReport, shards: Sequence[ShardState]) -> LineageReport:
    """The lineage of a sharded run: every process on every shard, in the order of time."""
    lives = sorted((life for each in shards for life in _lives(each)), key=lambda life: life.at)
    lives = [msgspec.structs.replace(life, number=number) for number, life in enumerate(lives, 1)]
    return msgspec.structs.replace(
        report,
        lives=tuple(lives),
        kills=sum(each.ended in ("killed", "taken over") for each in lives),
        takeovers=sum(each.ended == "taken over" for each in lives),
        resumes=sum(each.began == "resumed" for each in lives),
    )


def _lives(shard: ShardState) -> Iterator[LifeReport]:
    finished = steps = 0
    before: ShardSession | None = None
    for session, following in zip_longest(shard.sessions, shard.sessions[1:]):
        ended, reason = _end_of(session, following, shard.status)
        yield LifeReport(
            number=0,
            began=_BEGAN.get(session.began, session.began),
            at=session.at,
            ended=ended,
            ended_at=session.last_at,
            reason=reason,
            first_n=0,
            last_n=0,
            host=session.host,
            pid=session.pid,
            version=session.version,
            changes=session.changes,
            is_throughput_only=all(each.kind in _HARMLESS for each in session.changes),
            finished=session.finished,
            finished_in_all=finished + session.finished,
            failed_in_all=session.failed,
            steps=session.steps,
            orphaned=0,
            usage=SavedWork().usage,
            dollars=None,
            kept=SavedWork(steps),
            kept_finished=finished,
            kept_seconds=0.0,
            replayed=SavedWork(),
            replayed_steps=0,
            idle_seconds=max(session.seconds[0] - before.seconds[1], 0.0) if before is not None else 0.0,
            epoch=session.epoch,
            shard=shard.status.shard,
        )
        finished, steps, before = finished + session.finished, steps + session.steps, session


def _end_of(session: ShardSession, following: ShardSession | None, shard: ShardStatus) -> tuple[str, str]:
    """How a session ended, and why."""
    if session.end:
        return session.end.removeprefix("run."), session.reason
    if session.began == "score.started":
        return "", ""  # scoring records no end
    if following is None:
        return ("running", "") if shard.status in _LIVE else ("killed", shard.reason)
    if session.host and following.host and session.host != following.host:
        return "taken over", f"{following.host} continued the shard under epoch {following.epoch}"
    return "killed", "it recorded no end"
