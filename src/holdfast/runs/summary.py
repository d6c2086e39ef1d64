"""Summarizes one run; reads only. `RunSummary` is the output of `show --json`, made from an index that is current."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.records import Anomaly, RunExtended, RunReplanned, Usage
from holdfast.report import CellReport, Cost
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import EvaluationCounts, Index, Story, standing_of


class Observed(msgspec.Struct, frozen=True):
    """The total usage of the finished answers of a cell in an earlier run, by role (empty: the evaluated model)."""

    run_id: str
    finished: int
    used: dict[str, Usage] = msgspec.field(default_factory=dict)


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
    partial: bool = False
    """Whether only chosen answers are scored; never in the current evaluation."""
    finished: int = 0
    """How many answers the run has."""


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
    partial_evaluations: list[str] = msgspec.field(default_factory=list)
    """Evaluations in which only chosen answers are scored."""
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


def make_summary(
    place: RunLocation, index: Index, cells: Sequence[CellReport], status: tuple[str, str], damage: Sequence[str]
) -> RunSummary:
    """`cells`: under the evaluation whose scores are shown. `status`: with its reason."""
    story = index.story
    return RunSummary(
        run_id=place.run_id,
        experiment=place.experiment,
        status=status[0],
        reason=status[1],
        created=story.created,
        updated=story.updated,
        completed=story.completed or None,
        planned=story.planned,
        finished=index.finished,
        failed=index.failed,
        unfinished=index.unfinished,
        steps=step_counts(story),
        usage=story.usage,
        saved=story.saved,
        scores=list(_scores(cells)),
        evaluations=list(story.evaluations),
        evaluation_names=evaluation_names(story),
        partial_evaluations=list(story.partial),
        resumes=[
            {"at": each.at, "changes": list(map(_plain, each.resumed.changes)), "live": each.resumed.live}
            for each in story.resumes
        ],
        extensions=[_plan_change(each.at, each.extended) for each in story.extensions],
        corrections=[_plan_change(each.at, each.replanned) for each in story.replans],
        parent=_plain(story.started.parent) if story.started else None,
        anomalies=story.anomalies,
        description=story.spec.get("description", ""),
        tags=story.tags,
        notes=[{"at": each.at, "text": each.note.text} for each in story.notes if each.note.text],
        folder=place.url or place.folder,
        bytes=place.size(),
        failures=[
            {"task": cell.task, "model": cell.model, "kind": kind, "count": n, "example": _plain(cell.examples[kind])}
            for cell in cells
            for kind, n in cell.failures.items()
        ],
        cost=sum((cell.cost for cell in cells), Cost()),
        marks=[
            {"task": cell.task, "model": cell.model, "mark": mark, "count": n}
            for cell in cells
            for mark, n in cell.marks.items()
        ],
        answer_anomalies=[
            {"task": cell.task, "model": cell.model, "kind": kind, "count": n, "example": _plain(cell.odd[kind])}
            for cell in cells
            for kind, n in cell.anomalies.items()
        ],
        mirror=_mirror_progress(place, index),
        jobs=waiting_jobs(story),
        damage=list(damage),
    )


def step_counts(story: Story) -> dict[str, int]:
    return {"live": story.steps, "replayed": story.replayed, "orphaned": story.orphaned, "taken_over": story.taken}


def benchmark_lines(spec: Mapping[str, Any]) -> Iterator[str]:
    """Which tasks of a stored spec are benchmarks, and how they differ from them."""
    same = []
    for task in spec.get("tasks", ()):
        origin = task.get("benchmark")
        if not origin:
            continue
        called = f"{origin.get('name')} version {origin.get('version', 1)}"
        if origin.get("changed"):
            yield f"{task['name']} differs from the benchmark {called} in: {', '.join(origin['changed'])}"
        else:
            same.append(called)
    if same:
        yield f"{'benchmark' if len(same) == 1 else 'benchmarks'}: {', '.join(same)}"


def evaluation_names(story: Story) -> dict[str, str]:
    """The display name of each evaluation: its own name, or its scorers. Equal names are numbered: `rubric #2`."""
    names: dict[str, str] = {}
    for evaluation, started in story.evaluations.items():
        scorers = dict.fromkeys(str(each.get("name", "")) for each in started.scorers)
        names[evaluation] = started.name or ", ".join(scorers)
    known, seen = Counter(names.values()), Counter[str]()
    for evaluation, name in names.items():
        seen[name] += 1
        if known[name] > 1:
            names[evaluation] = f"{name} #{seen[name]}"
    return names


def waiting_jobs(story: Story) -> list[WaitingJob]:
    """Jobs of batch APIs whose results have not been received."""
    waiting = (each for each in story.jobs.values() if each.answered < 0)
    return [WaitingJob(each.token, each.id, each.line, each.requests, each.at) for each in waiting]


def _mirror_progress(place: RunLocation, index: Index) -> MirrorProgress | None:
    """How far the mirror is; None without a mirror, or if its state is unknown."""
    standing, last = standing_of(place.folder), index.last_n
    mirror = index.story.spec.get("mirror") or {}
    url = place.url or str(mirror.get("url", ""))
    if not url or standing.mirrored is None:
        return None
    behind = standing.lease.mirror_behind if standing.held and standing.lease else 0.0
    if place.url:  # our copy comes from the mirror; only the heartbeat says what the machine of the run has
        return MirrorProgress(url, last, max(last, standing.lease.acknowledged if standing.lease else 0), behind)
    return MirrorProgress(url, min(standing.mirrored, last), last, behind)


def _plan_change(at: str, record: RunExtended | RunReplanned) -> dict[str, Any]:
    return {"at": at, "planned": record.plan.count, "changes": list(map(_plain, record.changes))}


def _scores(cells: Sequence[CellReport]) -> Iterator[dict[str, Any]]:
    for cell in cells:
        for each in cell.scorers:
            yield {
                "task": cell.task,
                "model": cell.model,
                "scorer": each.scorer,
                **_plain(each.summary),
                "no_score": each.no_score,
                "failures": each.failures,
                "edited": each.edited,
                "example": _plain(each.example),
                "scale": each.scale.declared() if each.is_declared or each.scale.is_bool else None,
            }


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
