"""Chooses answers of a run to be scored: the first samples, samples by id, or answers that are wrong so far.

Samples are chosen in the order of the data, so that the same options choose the same answers after a crash. Reads the
plan and, for `wrong`, the scores of the current evaluation. Nothing is written.
"""

import difflib
import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.plan import planned_lines
from holdfast.records import Cell, ScoringStarted, normalized, parse_key
from holdfast.runs.store.lookup import RunLocation
from holdfast.score import as_number, scales_of
from holdfast.state import Bits, Fold, Index
from holdfast.stats import LABEL, Scale

_SHOWN_MAX = 5
_IDS_COMPARED = 10_000
"""For the nearest id of a sample that does not exist: a hint must not take minutes."""
_RIGHT = 1.0
"""A number of a scorer without a declared scale is right from here on, as for reducers."""


class AnswerSelection(msgspec.Struct, frozen=True):
    """Which answers to score; all if nothing is set. Every condition that is set must hold."""

    limit: int | None = None
    """The first so many samples of each task, with the answers of all models and repeats."""
    samples: tuple[str, ...] = ()
    """Ids of samples."""
    wrong: bool = False
    """Answers that the first scorer of their task in the current evaluation scored below the best."""

    def __bool__(self) -> bool:
        return self != AnswerSelection()

    def __str__(self) -> str:
        """As options of the command."""
        parts = ["--wrong"] if self.wrong else []
        parts += [f"--sample {each}" for each in self.samples[:_SHOWN_MAX]]
        parts += [f"({len(self.samples) - _SHOWN_MAX} more samples)"] if len(self.samples) > _SHOWN_MAX else []
        return " ".join([*parts, *([f"--limit {self.limit}"] if self.limit is not None else [])])

    def check(self) -> None:
        """UsageError for values that select nothing."""
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit {self.limit}: at least 1")
        if "" in self.samples:
            raise UsageError("--sample: write the id of a sample")


class SelectedAnswers(msgspec.Struct, frozen=True):
    """The answers that were chosen, as ordinals. `keys`: the first of them, in plan order."""

    ordinals: Bits
    keys: tuple[str, ...] = ()
    judge: str = ""
    """The scorers that decided what is wrong."""


class AnswerSelector:
    """Chooses among the finished answers of one run."""

    def __init__(self, place: RunLocation, fold: Fold, grouped: Collection[str]) -> None:
        """`grouped`: tasks with a scorer that needs all repeats of a sample at once."""
        self._place = place
        self._fold = fold
        self._grouped = grouped

    def select(self, selection: AnswerSelection) -> SelectedAnswers:
        """Choose the answers. UsageError for an unknown sample, and if there is no answer or no score to choose by.
        Blocks: it reads the plan and the index.
        """
        selection.check()
        cells = self._fold.story.cells
        self._check_samples(selection.samples, cells)
        wrong, judge = self._find_wrong(cells) if selection.wrong else (None, "")
        chosen, keys = Bits(), list[str]()
        for task in dict.fromkeys(cell.task for cell in cells):
            own = [cell for cell in cells if cell.task == task]
            for ordinal, key in self._select_in_task(own, selection, wrong):
                chosen.add(ordinal)
                keys += [key] if len(keys) < _SHOWN_MAX else []
        if not chosen.count and not selection.wrong:
            what = "none of these samples has" if selection.samples else "no sample has"
            raise UsageError(f"{self._place.run_id}: {what} an answer, so there is nothing to score")
        return SelectedAnswers(chosen, tuple(keys), judge)

    def _select_in_task(
        self, cells: Sequence[Cell], selection: AnswerSelection, wrong: Bits | None
    ) -> Iterator[tuple[int, str]]:
        ids = set(selection.samples)
        is_grouped = cells[0].task in self._grouped
        candidates = _Candidates(selection.limit)
        samples: set[tuple[str, str]] = set()
        """For scorers of groups: model and id of every sample with a chosen answer."""
        for cell, ordinal, sample, row, _ in self._answers(cells, ids):
            if wrong is None or ordinal in wrong:
                candidates.add(sample, (cell.rows_block, row))
                if is_grouped:
                    samples.add((cell.model, sample))
        allowed = candidates.first()
        for cell, ordinal, sample, _, key in self._answers(cells, ids):
            is_wanted = (cell.model, sample) in samples if is_grouped else wrong is None or ordinal in wrong
            if is_wanted and (allowed is None or sample in allowed):
                yield ordinal, key

    def _answers(self, cells: Sequence[Cell], ids: Collection[str]) -> Iterator[tuple[Cell, int, str, int, str]]:
        """Cell, ordinal, sample, row number and key of every finished answer to these samples; to all if none is
        named.
        """
        for cell in cells:
            for line in planned_lines(self._place.folder, cell):
                if line.o in self._fold.finished:
                    sample = _sample_of(line.k)
                    if not ids or sample in ids:
                        yield cell, line.o, sample, line.r, line.k

    def _check_samples(self, samples: Sequence[str], cells: Sequence[Cell]) -> None:
        if not samples:
            return
        missing, known = set(samples), dict[str, None]()
        for line in itertools.chain.from_iterable(planned_lines(self._place.folder, cell) for cell in cells):
            sample = _sample_of(line.k)
            missing.discard(sample)
            if len(known) < _IDS_COMPARED:
                known[sample] = None
            if not missing:
                return
        name = next(each for each in samples if each in missing)
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"ids look like {next(iter(known), '')!r}"
        raise UsageError(f"--sample {name}: {self._place.run_id} has no such sample; {hint}")

    def _find_wrong(self, cells: Sequence[Cell]) -> tuple[Bits, str]:
        """The answers that are below the best, and the scorers that decided it."""
        story = self._fold.story
        started = story.evaluations.get(story.evaluation)
        if started is None:
            score = f"{self._place.command('score')} --scorers FILE|NAME"
            raise UsageError(f"--wrong chooses by scores, and {self._place.run_id} has none yet: {score}")
        wrong, judges = Bits(), dict[str, None]()
        index = Index(self._place.folder)
        try:
            for cell in cells:
                deciding = _DecidingScorer(started, cell.task, self._place.run_id)
                judges[deciding.name] = None
                for row in index.scores(story.evaluation, cell.first, cell.count):
                    if not row.failure and deciding.is_wrong(row.scorer, row.value):
                        wrong.add(row.o)
        finally:
            index.close()
        return wrong, ", ".join(judges)


class _Candidates:
    """Samples of a task in the order of the data. With a limit, few more than the first of them are kept."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._places: dict[str, tuple[int, int]] = {}

    def add(self, sample: str, place: tuple[int, int]) -> None:
        """`place`: number of the data file, and of the row in it."""
        if self._limit is None:
            return
        self._places.setdefault(sample, place)  # blocks are read in order: the first place is the earliest
        if len(self._places) > 4 * self._limit + 100:
            self._places = self._kept()

    def first(self) -> Collection[str] | None:
        """The samples within the limit; None without a limit."""
        return None if self._limit is None else self._kept()

    def _kept(self) -> dict[str, tuple[int, int]]:
        assert self._limit is not None
        return dict(heapq.nsmallest(self._limit, self._places.items(), key=lambda each: each[1]))


class _DecidingScorer:
    """The first scorer of a task whose scores say what is wrong."""

    def __init__(self, started: ScoringStarted, task: str, run_id: str) -> None:
        own = [normalized(each) for each in started.scorers if each.get("task", task) == task]
        self._scale_of = scales_of(own, task).of
        decisive = [each for each in own if _has_best(self._scale_of(str(each.get("name", ""))), each)]
        if not decisive:
            names = ", ".join(str(each.get("name", "")) for each in own) or "no scorer"
            raise UsageError(
                f"--wrong: no scorer of task {task} in {run_id} has a best score (there is: {names}); choose with "
                "--sample or --limit"
            )
        first = decisive[0]
        self.name = str(first.get("name", ""))
        self._is_taxonomy = first.get("function") == "taxonomy"
        roles = (first.get("args") or {}).get("roles") or []
        self._votes = tuple(f".{role}" for role in roles) if len(roles) > 1 else ()

    def is_wrong(self, scorer: str, value: Any) -> bool:
        """Whether a score is below the best. Of a scorer with several scores, each counts; of a panel, no single
        vote.
        """
        if scorer != self.name and not scorer.startswith(f"{self.name}."):
            return False
        if isinstance(value, str):
            return self._is_taxonomy and value != "correct"
        number, scale = as_number(value), self._scale_of(scorer)
        if number is None or (self._votes and scorer.endswith(self._votes)):
            return False
        if scale is None:
            return number < _RIGHT
        return scale.highest is not None and number < scale.highest


def _has_best(scale: Scale | None, identity: Mapping[str, Any]) -> bool:
    """Whether a scale has a best value: not for counts, other numbers, and labels other than those of taxonomy."""
    if scale == LABEL:
        return identity.get("function") == "taxonomy"
    return scale is None or scale.highest is not None


def _sample_of(key: str) -> str:
    return key.split("/")[2] if "%" not in key else parse_key(key).sample_id
