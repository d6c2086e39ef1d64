"""Summarizes one run; reads only. `RunSummary` is the output of `show --json`, made from an index that is current."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.records import Anomaly, RunExtended, RunReplanned, Usage
from holdfast.report import BenchmarkData, CellReport, Cost, PaidTwice, StoredBenchmark, StoredSpec
from holdfast.runs.store.lookup import RunLocation
from holdfast.state import EvaluationCounts, Index, Story, standing_of, stored_repeats

_SELECTING = ("dataset.where", "dataset.sample", "dataset.limit", "dataset.config")
"""Fields of a task that leave rows out."""


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


class ShardStatus(msgspec.Struct, frozen=True):
    """One shard of a run."""

    shard: str
    status: str
    reason: str = ""
    planned: int = 0
    finished: int = 0
    failed: int = 0
    worker: str = ""
    """The process that works on it, or did last."""


def count_shards(shards: Sequence[ShardStatus]) -> str:
    """How many shards are in which state, such as `10 completed, 2 running`."""
    states = Counter(each.status for each in shards)
    return ", ".join(f"{count:,} {status}" for status, count in states.most_common())


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
    shards: list[ShardStatus] = msgspec.field(default_factory=list)
    """The parts of a sharded run."""
    paid_twice: PaidTwice = PaidTwice()
    """Responses to samples that another worker, or another of the merged runs, had answered too. Their cost is part of
    `cost`, except for those of a worker that had lost its shard.
    """


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
        folder=place.url or place.home,
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


def benchmark_lines(story: Story) -> Iterator[str]:
    """Which tasks of a run are benchmarks, how they differ from them, and which have only a part of the samples."""
    every = StoredSpec.of(story.spec).benchmarks()
    yield from changed_benchmark_lines(every)
    same = [each.described for each in every.values() if not each.changed and not each.copy]
    if same:
        yield f"{'benchmark' if len(same) == 1 else 'benchmarks'}: {'; '.join(same)}"
    for task, origin in every.items():
        if origin.data and (origin.changed or origin.copy):
            yield f"{task} has the data {origin.data}"
        if origin.copy:
            continue
        planned = _planned_samples(story, task)
        called = origin.name if task == origin.name else f"{origin.name} ({task})"
        if origin.samples is not None and planned < origin.samples:
            yield f"part of a benchmark: {planned:,} of {origin.samples:,} samples of {called}"
        elif origin.samples is None and (names := _selecting_fields(story.spec, origin)):
            yield f"part of a benchmark: {planned:,} samples of {called}, selected by {', '.join(names)}"


def benchmark_data(story: Story) -> Iterator[BenchmarkData]:
    """Which data the benchmarks of a run have."""
    for task, each in StoredSpec.of(story.spec).benchmarks().items():
        data = (each.revision, each.commit, each.is_unverified)
        yield BenchmarkData(task, each.name, each.version, *data)


def changed_benchmark_lines(benchmarks: Mapping[str, StoredBenchmark]) -> Iterator[str]:
    """Which tasks differ from their benchmark, and in which fields. `benchmarks`: by task."""
    for task, origin in benchmarks.items():
        if origin.copy:
            yield f"{task} is {_copy_words(origin.title, origin.changed)}"
        elif origin.changed:
            yield f"{task} differs from the benchmark {origin.title} in: {', '.join(origin.changed)}"


def _planned_samples(story: Story, task: str) -> int:
    """How many samples each model is asked."""
    by_model = Counter[str]()
    for cell in story.cells:
        if cell.task == task:
            by_model[cell.model] += cell.count
    return max(by_model.values(), default=0) // max(stored_repeats(story.spec).get(task, 1), 1)


def _selecting_fields(spec: Mapping[str, Any], origin: StoredBenchmark) -> list[str]:
    """The fields that leave samples of a benchmark out."""
    names = [name for name in ("limit", "samples") if spec.get(name)]
    return names + [name for name in origin.changed if name in _SELECTING]


def _copy_words(called: str, changed: Sequence[str]) -> str:
    if not changed:
        return f"a copy of the benchmark {called}"
    return f"an edited copy of the benchmark {called}, changed in: {', '.join(changed)}"


def evaluation_names(story: Story) -> dict[str, str]:
    """The display name of each evaluation: its own name, or its scorers. Equal names are numbered: `rubric #2`."""
    names = _plain_names(story)
    known, seen = Counter(names.values()), Counter[str]()
    for evaluation, name in names.items():
        seen[name] += 1
        if known[name] > 1:
            names[evaluation] = f"{name} #{seen[name]}"
    return names


def find_evaluations(story: Story, name: str) -> list[str]:
    """The ids of the evaluations that a user means: by name or label as they are printed, by id, or by the beginning of
    an id. Of several with the same name, the newest.
    """
    plain, labels = _plain_names(story), evaluation_names(story)
    if name in labels:
        return [name]
    named = [each for each in labels if name in (plain[each], labels[each])]
    return named[-1:] or [each for each in labels if each.startswith(name)]


def _plain_names(story: Story) -> dict[str, str]:
    """The name of each evaluation, else its scorers."""
    return {
        evaluation: started.name or ", ".join(dict.fromkeys(str(each.get("name", "")) for each in started.scorers))
        for evaluation, started in story.evaluations.items()
    }


def waiting_jobs(story: Story) -> list[WaitingJob]:
    """Jobs of batch APIs whose results have not been received."""
    waiting = (each for each in story.jobs.values() if each.answered < 0)
    return [WaitingJob(each.token, each.id, each.line, each.requests, each.at) for each in waiting]


def _mirror_progress(place: RunLocation, index: Index) -> MirrorProgress | None:
    """How far the mirror is; None without a mirror, or if its state is unknown."""
    standing, last = standing_of(place.folder), index.last_n
    mirror = index.story.spec.get("mirror") or {}
    url = place.url or str(mirror.get("url", ""))
    if not url or standing.mirrored is None or place.root:  # each shard of a run has its own
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
