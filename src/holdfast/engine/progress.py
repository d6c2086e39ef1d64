"""How far a run is: in total, for each model, and for each cell.

Invariant: a sample costs a few additions here and nothing else. Rates, sums over cells and texts are made by the
display that shows them, a few times a second. Nothing is stored: after a crash the next process counts what the journal
has (`Fold`) and continues.
"""

import bisect
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import msgspec

from holdfast.plan import PreparedTask
from holdfast.records import Cell, Usage, escape
from holdfast.score import CellScores, RunningMean, Scorer
from holdfast.state import Fold


class ModelProgress(msgspec.Struct):
    """All cells of one model."""

    planned: int = 0
    finished: int = 0
    failed: int = 0
    before: int = 0
    """Finished or failed before this process began."""
    stopped: int = 0
    """Samples that stay unfinished, because the model cannot be used."""
    sending: int = 0
    """Requests that are under way."""
    waiting: int = 0
    """Requests that wait until they may be sent."""
    dollars: float | None = None
    """What its answers and their judges cost so far, in all processes; None if no price is known."""
    has_unpriced: bool = False
    """A model without a price was used: the dollars are not all."""
    scores: dict[str, RunningMean] = msgspec.field(default_factory=dict)
    """By scorer, over all tasks."""
    scorer_failures: int = 0
    """How often a scorer failed on its answers, in this process."""


class CellProgress(msgspec.Struct):
    """One cell of the plan. The hot path counts here and in `of`."""

    task: str
    model: str
    of: ModelProgress
    scores: CellScores
    left: int
    """Samples that are neither finished nor failed."""


class Progress(msgspec.Struct):
    """How far a run is. Updated in place; progress displays read it. `progress_file` holds all of it as JSON, so fields
    are only ever added.
    """

    planned: int
    finished: int = 0
    failed: int = 0
    before: int = 0
    """Finished or failed before this process began."""
    failed_before: int = 0
    """Failed before this process began, and not retried by it."""
    retried: int = 0
    """How many requests were retried."""
    live: int = 0
    replayed: int = 0
    usage: Usage = Usage()
    in_flight: int = 0
    started: float = 0.0
    last_failure: str = ""
    last_retry: str = ""
    """Why the last retry was made."""
    sending: int = 0
    """Requests that are under way."""
    at_once: int = 0
    """How many requests the models that are in use may have under way."""
    held: str = ""
    """Why requests wait before they are sent: a rate limit, a server that is down."""
    scored: int = 0
    """Answers of earlier processes that this one scored."""
    taken: int = 0
    """Scores copied from earlier evaluations."""
    anomalies: int = 0
    """Anomalies found in answers of this process."""
    batch_jobs: int = 0
    """Open jobs at batch APIs."""
    batch_requests: int = 0
    """Requests in open batch jobs."""
    batch_since: float = 0.0
    """When the oldest open job was created, by the clock of `started`."""
    mirror_behind: float = 0.0
    """How many seconds the mirror is behind; 0 while that is within its interval."""
    to_score: int = 0
    """Answers of earlier processes that this one has to score."""
    models: dict[str, ModelProgress] = msgspec.field(default_factory=dict)
    """By name, in the order of the spec."""
    scorers: list[str] = msgspec.field(default_factory=list)
    """The names of the scores so far, and of scorers that have given no number."""
    scorer_failures: int = 0
    """How often a scorer failed on an answer of this process."""
    workers: int = 0
    """Processes that work on the shards of the run; 0 in the progress of one process."""
    shards: int = 0
    """How many shards the run has; 0 in the progress of one process."""
    shards_done: int = 0
    scoring: bool = False
    """Nothing is answered: `planned` and `finished` count saved answers that this process scores."""


class RunCounts:
    """The counters of one process's work on a run."""

    def __init__(
        self,
        fold: Fold,
        cells: Iterable[Cell],
        works: Mapping[str, PreparedTask],
        scorers: Mapping[str, Sequence[Scorer]],
        started: float,
        *,
        only_scores: bool = False,
    ) -> None:
        """`works` and `scorers`: by task. `only_scores`: nothing is answered."""
        before = fold.finished.count + fold.failed.count
        self.progress = Progress(
            fold.planned,
            fold.finished.count,
            fold.failed.count,
            before,
            fold.failed.count,
            started=started,
            to_score=len(fold.unscored),
        )
        self.cells: dict[int, CellProgress] = {}
        """By their first ordinal."""
        self._scorers = list(dict.fromkeys(scorer.name for every in scorers.values() for scorer in every))
        # What samples used since the last `sum_usage`.
        self.input_tokens = self.output_tokens = self.cached_tokens = 0
        self.reasoning_tokens = self.cache_write_tokens = self.requests = 0
        for cell in cells:
            finished, failed = (each.count_in(cell.first, cell.count) for each in (fold.finished, fold.failed))
            model = self.progress.models.setdefault(cell.model, ModelProgress())
            model.planned += cell.count
            model.finished += finished
            model.failed += failed
            model.before += finished + failed
            # Cells of the same task and model share their scores: `extend` adds a cell.
            name = f"{escape(cell.task)}/{escape(cell.model)}"
            scores = fold.scores.setdefault(name, CellScores(works[cell.task].task.repeats))
            if cell.count:  # one without keys has the same ordinal as the next
                left = cell.count - finished - failed
                self.cells[cell.first] = CellProgress(cell.task, cell.model, model, scores, left)
        if only_scores:
            self._plan_scoring(fold.unscored, scorers, started)

    def _plan_scoring(self, unscored: Collection[int], scorers: Mapping[str, Sequence[Scorer]], started: float) -> None:
        """Count the answers to score instead of samples."""
        firsts = sorted(self.cells)
        to_score = Counter(firsts[bisect.bisect_right(firsts, ordinal) - 1] for ordinal in unscored)
        self.progress = Progress(0, started=started, scoring=True)
        for cell in self.cells.values():
            cell.of.planned = cell.of.finished = cell.of.failed = cell.of.before = cell.left = 0
        for first, count in to_score.items():
            cell = self.cells[first]
            if scorers.get(cell.task):  # else Holdfast cannot score them: nothing is left to do
                cell.of.planned += count
                self.progress.planned += count
        self.progress.models = {cell.model: cell.of for cell in self.cells.values() if cell.of.planned}

    def count_scored(self, cell: Cell, answers: int) -> None:
        """Count saved answers that have their scores now."""
        self.progress.scored += answers
        if self.progress.scoring:
            self.progress.finished += answers
            self.cells[cell.first].of.finished += answers

    def sum_usage(self) -> None:
        """Add what samples used to the progress."""
        used = (self.input_tokens, self.output_tokens, self.cached_tokens, self.reasoning_tokens)
        self.progress.usage += Usage(*used, self.cache_write_tokens, self.requests)
        self.input_tokens = self.output_tokens = self.cached_tokens = 0
        self.reasoning_tokens = self.cache_write_tokens = self.requests = 0

    def sum_cells(self, stopped: Container[tuple[str, str]]) -> None:
        """Update what the models' cells have in common: scores, and samples that stay unfinished. `stopped`: tasks and
        models that are given up.
        """
        models = self.progress.models
        for model in models.values():
            model.stopped, model.scores, model.scorer_failures = 0, {}, 0
        for cell in self.cells.values():
            model = cell.of
            if (cell.task, cell.model) in stopped:
                model.stopped += cell.left
        shared = {id(cell.scores): cell for cell in self.cells.values()}
        for cell in shared.values():
            cell.of.scorer_failures += cell.scores.failures
            scores = cell.of.scores
            for scorer, mean in cell.scores.means.items():
                scores[scorer] = scores[scorer] + mean if scorer in scores else mean
        self.progress.scorer_failures = sum(cell.scores.failures for cell in shared.values())
        found = list(dict.fromkeys(name for model in models.values() for name in model.scores))
        self.progress.scorers = _in_order(self._scorers, found)


def _in_order(scorers: Sequence[str], found: Sequence[str]) -> list[str]:
    """The names of scores (`name`, or `name.part`) in the order of the scorers, with scorers that have none."""
    names = []
    for scorer in scorers:
        names += [name for name in found if name == scorer or name.startswith(f"{scorer}.")] or [scorer]
    return list(dict.fromkeys(names))
