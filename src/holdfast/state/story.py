"""A run's own facts, folded: what was asked, what it used, how it was resumed and how it ended. Small, whatever the
run's size.
"""

import contextlib
from typing import Any

import msgspec

from holdfast.journal.marks import Entry
from holdfast.records import Anomaly, Line
from holdfast.records.exchange import Usage
from holdfast.records.facts import RunEnded, RunResumed, RunStarted, ScoringStarted, Spent

ENDS = frozenset({"run.completed", "run.failed", "run.cancelled", "run.interrupted"})
_anomaly = msgspec.json.Decoder(Anomaly)


class Resume(msgspec.Struct, frozen=True):
    at: str
    resumed: RunResumed


class End(msgspec.Struct, frozen=True):
    kind: str
    at: str
    data: RunEnded


class Story(msgspec.Struct):
    """Grows by `apply`, for records about the run itself, and by `answered` and `spent` for those about keys."""

    started: RunStarted | None = None
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    created: str = ""
    updated: str = ""
    completed: str = ""
    resumes: list[Resume] = msgspec.field(default_factory=list)
    end: End | None = None
    evaluation: str = ""
    evaluations: dict[str, ScoringStarted] = msgspec.field(default_factory=dict)
    steps: int = 0
    replayed: int = 0
    orphaned: int = 0
    usage: Usage = Usage()
    """Of every request that was answered: what was paid for."""
    saved: Usage = Usage()
    """Of every answer that was replayed instead of being asked again."""
    anomalies: list[Anomaly] = msgspec.field(default_factory=list)
    twice: int = 0
    """Keys that were finished a second time: the first answer counts."""

    @property
    def planned(self) -> int:
        return self.started.plan.count if self.started else 0

    def apply(self, entry: Entry) -> None:
        line = entry.line
        if line.t.startswith("run."):
            self._run(line)
        elif line.t == "score.started":
            started = msgspec.json.decode(line.d, type=ScoringStarted)
            self.evaluations[started.evaluation] = started
            self.evaluation = started.evaluation
        elif line.t == "anomaly":
            with contextlib.suppress(msgspec.ValidationError):  # other rooms' anomalies are theirs to read
                self.anomalies.append(_anomaly.decode(line.d))

    def answered(self, usage: Usage) -> None:
        self.steps += 1
        self.usage += usage

    def spent(self, spent: Spent) -> None:
        self.replayed += spent.replayed
        self.orphaned += spent.orphaned
        self.saved += spent.saved

    def _run(self, line: Line) -> None:
        if line.t == "run.started":
            self.started = msgspec.json.decode(line.d, type=RunStarted)
            self.spec = self.started.spec
            self.created = line.at
        elif line.t == "run.resumed":
            resumed = msgspec.json.decode(line.d, type=RunResumed)
            self.resumes.append(Resume(line.at, resumed))
            self.spec = resumed.spec or self.spec
            self.end = None
            self.completed = ""
        elif line.t in ENDS:
            self.end = End(line.t, line.at, msgspec.json.decode(line.d, type=RunEnded))
            self.completed = line.at if line.t == "run.completed" else ""
