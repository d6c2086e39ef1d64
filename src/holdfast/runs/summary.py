"""What is said of a run as a whole."""

from typing import Any

import msgspec

from holdfast.records import Anomaly
from holdfast.records.samples import Usage
from holdfast.report.costs import Cost
from holdfast.state import EvaluationCounts


class MirrorStanding(msgspec.Struct, frozen=True):
    """How far a run's mirror is."""

    url: str
    mirrored: int
    """The number of the last record that is durable there, with all before it."""
    acknowledged: int
    """The number of the last record that is durable where the run is written."""
    behind_seconds: float
    """Of a live run: for how long there has been something that is not there yet."""


class EvaluationLine(msgspec.Struct, frozen=True):
    """One evaluation of a run."""

    evaluation: str
    name: str
    scorers: list[str]
    begun: str
    counts: EvaluationCounts
    current: bool
    """Its scores are those that are shown unless another is named."""


class ScoredAnswer(msgspec.Struct, frozen=True):
    """What one evaluation says of one answer, the one in record `of`."""

    evaluation: str
    of: int
    values: dict[str, Any]
    examples: dict[str, Any]
    """By scorer: a value that it gave any answer of the evaluation; None if it gave none."""


class WaitingJob(msgspec.Struct, frozen=True):
    """A job of a batch API that has not ended, as far as is recorded."""

    token: str
    id: str
    """At the server; empty if that was not recorded yet."""
    line: str
    """The field of the spec whose model it asks."""
    requests: int
    at: str
    """When it was announced."""


class RunSummary(msgspec.Struct, frozen=True):
    """What `show --json` says: a contract, fields are only ever added."""

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
    """Of samples, by kind, each with an example."""
    extensions: list[dict[str, Any]] = msgspec.field(default_factory=list)
    corrections: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Models that were corrected before they gave an answer."""
    notes: list[dict[str, str]] = msgspec.field(default_factory=list)
    parent: dict[str, Any] | None = None
    """The run that this one is a fork of."""
    evaluation_names: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the evaluations: what each is called, or its scorers."""
    mirror: MirrorStanding | None = None
    cost: Cost = Cost()
    marks: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Finished answers that are no ordinary ones, by cell: filtered, empty, truncated."""
    answer_anomalies: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """What else is odd about answers, by cell and kind, each with an example. `anomalies` are losses of the journal."""
    jobs: list[WaitingJob] = msgspec.field(default_factory=list)
    """With the servers of batch APIs."""
    damage: list[str] = msgspec.field(default_factory=list)
    """What is missing or changed in the run's files, a sentence each."""
