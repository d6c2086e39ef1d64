"""Adds up the progress of all workers of a sharded run, for one display.

A worker reports absolute counts of the shard on which it works. What shards without a report have is known from the
start (`WorkerTotals(before)`). Invariant: a shard counts once, however many workers had it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.engine import ModelProgress, Progress
from holdfast.records import Usage
from holdfast.score import RunningMean

_PROGRESS = msgspec.json.Decoder(Progress)
_SUMMED = ("retried", "live", "replayed", "scored", "taken", "anomalies", "to_score", "scorer_failures")
"""Counts of one process."""
_NOW = ("in_flight", "sending", "at_once", "batch_jobs", "batch_requests")
"""Only true while the process works on the shard."""


class WorkerTotals:
    """All workers of one run."""

    def __init__(self, before: Progress) -> None:
        """`before`: the whole run when the driver began, with all of its models."""
        self._before = before
        self._first: dict[str, Progress] = {}
        """By shard: its state when the first worker that this driver knows began with it."""
        self._last: dict[str, Progress] = {}
        self._sessions: dict[tuple[str, int, int], Progress] = {}
        """By shard, worker and how often it was replaced: a process that took over counts its own requests."""
        self._current: dict[int, tuple[str, int, int]] = {}
        self._replaced: Counter[int] = Counter()

    def add(self, worker: int, reports: Iterable[tuple[str, bytes]]) -> None:
        """Add reports of a worker: shards, each with its progress as JSON."""
        for shard, data in reports:
            progress = _PROGRESS.decode(data)
            self._first.setdefault(shard, _beginning(progress))
            self._last[shard] = progress
            self._current[worker] = (shard, worker, self._replaced[worker])
            self._sessions[self._current[worker]] = progress

    def end(self, worker: int) -> None:
        """The worker has ended or died: nothing is in flight there any more."""
        self._current.pop(worker, None)
        self._replaced[worker] += 1

    def shard_of(self, worker: int) -> str:
        """The shard on which a worker works; empty if it has none."""
        return self._current.get(worker, ("", 0, 0))[0]

    @property
    def work(self) -> int:
        """Grows with every step and every sample that workers have done: whether there is any progress."""
        return sum(each.live + each.finished + each.failed - each.before for each in self._sessions.values())

    def progress(self) -> Progress:
        """The state of the whole run."""
        total = msgspec.structs.replace(self._before)
        total.models = {name: _add_shards(name, model, self) for name, model in self._before.models.items()}
        for shard, last in self._last.items():
            first = self._first[shard]
            total.finished += last.finished - first.finished
            total.failed += last.failed - first.failed
        sessions = list(self._sessions.values())
        for name in _SUMMED:
            setattr(total, name, sum(getattr(each, name) for each in sessions))
        current = [self._sessions[each] for each in self._current.values()]
        for name in _NOW:
            setattr(total, name, sum(getattr(each, name) for each in current))
        total.usage = sum((each.usage for each in sessions), Usage())
        total.held = next((each.held for each in current if each.held), "")
        total.mirror_behind = max((each.mirror_behind for each in current), default=0.0)
        for each in current:
            total.last_failure = each.last_failure or total.last_failure
            total.last_retry = each.last_retry or total.last_retry
        total.scorers = list(dict.fromkeys(name for each in sessions for name in each.scorers))
        return total

    def of_model(self, name: str) -> Iterable[tuple[ModelProgress, ModelProgress]]:
        """The first and the last state of a model in each shard."""
        for shard, last in self._last.items():
            if name in last.models:
                yield self._first[shard].models[name], last.models[name]

    def now_of_model(self, name: str) -> Iterable[ModelProgress]:
        """What workers do with a model at this moment."""
        for each in self._current.values():
            if name in self._sessions[each].models:
                yield self._sessions[each].models[name]


def _add_shards(name: str, before: ModelProgress, totals: WorkerTotals) -> ModelProgress:
    model = msgspec.structs.replace(before)
    model.scores = {}
    for first, last in totals.of_model(name):
        model.finished += last.finished - first.finished
        model.failed += last.failed - first.failed
        model.stopped += last.stopped
        model.scorer_failures += last.scorer_failures
        model.has_unpriced = model.has_unpriced or last.has_unpriced
        if last.dollars is not None:
            model.dollars = (model.dollars or 0.0) + last.dollars
        for scorer, mean in last.scores.items():
            model.scores[scorer] = model.scores.get(scorer, RunningMean()) + mean
    for now in totals.now_of_model(name):
        model.sending += now.sending
        model.waiting += now.waiting
    return model


def _beginning(progress: Progress) -> Progress:
    """The state before the process that reports began. A model's failures at that time are not known."""
    models = {}
    for name, model in progress.models.items():
        failed = min(model.failed, model.before) if progress.failed_before else 0
        models[name] = ModelProgress(model.planned, model.before - failed, failed, model.before)
    failed = progress.failed_before
    return Progress(progress.planned, progress.before - failed, failed, progress.before, models=models)


def whole_run(planned: Mapping[str, int], cells: Iterable[tuple[str, int, int]], started: float) -> Progress:
    """The state of a run in which no worker works. `planned`: by model. `cells`: model, finished, failed."""
    models = {name: ModelProgress(count) for name, count in planned.items()}
    for name, finished, failed in cells:
        model = models.setdefault(name, ModelProgress())
        model.finished += finished
        model.failed += failed
        model.before += finished + failed
    finished, failed = sum(each.finished for each in models.values()), sum(each.failed for each in models.values())
    total = sum(planned.values())
    return Progress(total, finished, failed, finished + failed, failed, started=started, models=models)
