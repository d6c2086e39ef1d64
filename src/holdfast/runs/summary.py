"""The structs that summarize a run. `RunSummary` is the output of `show --json`. Pure data."""

from typing import Any

import msgspec

from holdfast.records import Anomaly, Usage
from holdfast.report import Cost
from holdfast.state import EvaluationCounts


class MirrorProgress(msgspec.Struct, frozen=True):
    """How far a run's mirror has received the journal."""

    url: str
    mirrored: int
    """The number of the last record up to which everything is durable in the mirror."""
    acknowledged: int
    """The number of the last record that is durable in the run's folder."""
    behind_seconds: float
    """For a live run: how long the oldest unmirrored record has been waiting."""


class EvaluationLine(msgspec.Struct, frozen=True):
    """One evaluation of a run."""

    evaluation: str
    name: str
    scorers: list[str]
    begun: str
    counts: EvaluationCounts
    current: bool
    """Whether this is the default evaluation: its scores are shown unless another one is named."""


class ScoredAnswer(msgspec.Struct, frozen=True):
    """The scores of one answer, the one in record number `of`, in one evaluation."""

    evaluation: str
    of: int
    values: dict[str, Any]
    examples: dict[str, Any]
    """By scorer: any value that it gave in this evaluation, to show its type; None if it gave none."""


class WaitingJob(msgspec.Struct, frozen=True):
    """A batch API job whose end is not recorded."""

    token: str
    id: str
    """The server's id; empty if it is not recorded yet."""
    line: str
    """The spec field of the model, such as `models.local`."""
    requests: int
    at: str
    """When the job was recorded, before it was sent."""


class RunSummary(msgspec.Struct, frozen=True):
    """The output of `show --json`. A contract: fields are only ever added."""

    run_id: str
    experiment: str
    status: str
    reason: str = ""
    created: str = ""
    updated: str = ""
    completed: str | None = None
    planned: int = 0
    finished: int = 0
    failed: int = 0
    unfinished: int = 0
    steps: dict[str, int] = msgspec.field(default_factory=dict)
    usage: Usage = Usage()
    saved: Usage = Usage()
    scores: list[dict[str, Any]] = msgspec.field(default_factory=list)
    evaluations: list[str] = msgspec.field(default_factory=list)
    resumes: list[dict[str, Any]] = msgspec.field(default_factory=list)
    anomalies: list[Anomaly] = msgspec.field(default_factory=list)
    description: str = ""
    tags: list[str] = msgspec.field(default_factory=list)
    folder: str = ""
    bytes: int = 0
    failures: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Failed samples by cell and kind, each with an example."""
    extensions: list[dict[str, Any]] = msgspec.field(default_factory=list)
    corrections: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Corrections of models that had given no answer yet."""
    notes: list[dict[str, str]] = msgspec.field(default_factory=list)
    parent: dict[str, Any] | None = None
    """The run from which this one was forked."""
    evaluation_names: dict[str, str] = msgspec.field(default_factory=dict)
    """The display name of each evaluation: its own name, or its scorers."""
    mirror: MirrorProgress | None = None
    cost: Cost = Cost()
    marks: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Counts of filtered, empty and truncated answers, by cell."""
    answer_anomalies: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Other anomalies of answers, by cell and kind, each with an example. `anomalies` are losses in the journal."""
    jobs: list[WaitingJob] = msgspec.field(default_factory=list)
    """Batch API jobs without recorded results."""
    damage: list[str] = msgspec.field(default_factory=list)
    """What is missing or changed in the run's files, one sentence each."""
