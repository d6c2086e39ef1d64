"""Chooses the example answers of a report, and measures how long answers took: one pass over the index.

Examples are few, whatever the size of the run, and their texts are cut. The choice is a draw with a fixed seed, by the
id of the sample: the same run always shows the same examples, and models tend to show the same samples. Texts are read
from the journal only for the answers that were chosen.

The outcome of an answer is decided by one scorer of its task: the first of right or wrong, else the first with numbers,
whose highest and lowest scores are shown. Tasks without such a scorer have plain examples.
"""

import bisect
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import xxhash

from holdfast.journal import Reader
from holdfast.records import Cell, Key, parse_key
from holdfast.report.cells import CellReport, RunReport, ScorerReport
from holdfast.report.text import shortened, without_scorer_name
from holdfast.score import as_number
from holdfast.state import AnswerRow, Index, ScoreRow, recorded_answer
from holdfast.stats import Scale, pass_at_k, quantile

RIGHT, WRONG, HIGHEST, LOWEST, ANSWERED = "right", "wrong", "highest", "lowest", "answered"
OUTCOMES = (RIGHT, WRONG, HIGHEST, LOWEST, ANSWERED)
EXAMPLES_MAX = 6
"""Of one outcome, over all tasks and models."""
_CELL_MAX = 4
_TEXT_MAX = 3_000
_END_MAX = 500
_REASON_MAX = 500
_SCORES_MAX = 8
_CURVE_MAX = 1_000

_Ranked = tuple[float, int, int]
"""The place of an answer among the examples of its outcome: by score, then by the draw. Its ordinal."""


class GivenScore(msgspec.Struct, frozen=True):
    """One score of an example. `value` None: no score."""

    scorer: str
    value: Any
    reason: str = ""
    failure: str = ""
    scale: Scale | None = None


class ExampleAnswer(msgspec.Struct, frozen=True):
    """One answer with its scores. `text` is at most its beginning and its end; it has `characters` in all."""

    name: str
    """Its key as text."""
    key: Key
    text: str
    characters: int
    scores: tuple[GivenScore, ...] = ()


class ExampleGroup(msgspec.Struct, frozen=True):
    """Examples with one outcome, and how many answers they were chosen from."""

    outcome: str
    total: int
    answers: tuple[ExampleAnswer, ...]


class Curve(msgspec.Struct, frozen=True):
    """The mean pass@k of one cell for k = 1, 2, …"""

    label: str
    scorer: str
    values: tuple[float, ...]


class Latency(msgspec.Struct, frozen=True):
    """Quantiles of the seconds per answer of one cell, replayed steps included."""

    label: str
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float


class AnswerSurvey(msgspec.Struct, frozen=True):
    """What a pass over the answers of a run found."""

    groups: tuple[ExampleGroup, ...] = ()
    latencies: tuple[Latency, ...] = ()
    curves: tuple[Curve, ...] = ()
    """pass@k of scorers of right or wrong, for tasks with repeats."""


def survey_answers(index: Index, report: RunReport, reader: Reader) -> AnswerSurvey:
    """Choose examples of each outcome under the evaluation of a report. `reader`: of the run's journal."""
    parts: dict[tuple[str, str], list[Cell]] = {}
    for cell in index.story.cells:  # `extend` adds another block with the same cells
        parts.setdefault((cell.task, cell.model), []).append(cell)
    deciding = {cell.task: each for cell in reversed(report.cells) if (each := _deciding(cell)) is not None}
    repeated = {
        (cell.task, cell.model): [each.scorer for each in cell.scorers if each.summary.samples is not None]
        for cell in report.cells
    }
    surveys: dict[str, _CellSurvey] = {}
    several = len({task for task, _ in parts}) > 1
    for (task, model), cells in parts.items():
        survey = _CellSurvey(deciding.get(task), repeated.get((task, model), ()))
        surveys[f"{task} / {model}" if several else model] = survey
        survey.read(index, report.evaluation, cells)
    scales = {(cell.task, each.scorer): each.scale for cell in report.cells for each in cell.scorers}
    texts = _ExampleReader(index, report.evaluation, reader, scales)
    groups = (_group(outcome, list(surveys.values()), texts) for outcome in OUTCOMES)
    return AnswerSurvey(
        tuple(each for each in groups if each.answers),
        tuple(latency_of(label, survey.seconds) for label, survey in surveys.items() if survey.seconds),
        tuple(Curve(label, *each) for label, survey in surveys.items() for each in survey.curves()),
    )


def _deciding(cell: CellReport) -> ScorerReport | None:
    """The scorer that decides which answers of a cell are right; None without numbers. Not a judge's vote."""
    parts = tuple(f"{each.scorer}." for each in cell.scorers)
    numbers = [each for each in cell.scorers if each.summary.n and not each.of and not each.scorer.startswith(parts)]
    return next((each for each in numbers if each.scale.is_bool), numbers[0] if numbers else None)


class _CellSurvey:
    """The candidates of one cell, at most `_CELL_MAX` of each outcome."""

    def __init__(self, decider: ScorerReport | None, repeated: Iterable[str]) -> None:
        """`repeated`: scorers of samples with several repeats."""
        self.seconds = array("d")
        self.totals: Counter[str] = Counter()
        self._decider = decider.scorer if decider is not None else None
        self._is_bool = decider is not None and decider.scale.is_bool
        self._chosen: dict[str, list[_Ranked]] = {}
        self._repeats: dict[str, dict[str, list[float]]] = {scorer: {} for scorer in repeated}

    def read(self, index: Index, evaluation: str, cells: Iterable[Cell]) -> None:
        """Answers and scores are read side by side: both are in plan order."""
        for cell in cells:
            scores = index.scores(evaluation, cell.first, cell.count)
            score = next(scores, None)
            for row in index.answers("finished", cell.first, cell.count):
                self.seconds.append(row.seconds)
                given: dict[str, float] = {}
                while score is not None and score.o <= row.o:
                    number = as_number(score.value)
                    if score.o == row.o and not score.failure and number is not None:
                        given[score.scorer] = number
                    score = next(scores, None)
                self._add(row, given)

    def ordinals(self, outcome: str) -> list[int]:
        """The candidates, the first choice first."""
        return [o for _, _, o in self._chosen.get(outcome, ())]

    def curves(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """pass@k of every scorer of right or wrong, if there are repeats."""
        for scorer, samples in self._repeats.items():
            curve = pass_curve(list(samples.values()))
            if curve:
                yield scorer, curve

    def _add(self, row: AnswerRow, given: Mapping[str, float]) -> None:
        sample = row.key.rsplit("/", 2)[1]
        for scorer, samples in self._repeats.items():
            if scorer in given:
                samples.setdefault(sample, []).append(given[scorer])
        if self._decider is None:
            self._keep(ANSWERED, 0.0, sample, row.o)
            return
        number = given.get(self._decider)
        if number is None:
            return
        if self._is_bool:
            self._keep(RIGHT if number else WRONG, 0.0, sample, row.o)
        else:
            self._keep(HIGHEST, -number, sample, row.o)
            self._keep(LOWEST, number, sample, row.o)

    def _keep(self, outcome: str, rank: float, sample: str, o: int) -> None:
        """Keep the answer if it is among the first, one for each sample."""
        self.totals[outcome] += 1
        chosen = self._chosen.setdefault(outcome, [])
        entry = (rank, xxhash.xxh3_64_intdigest(sample.encode()), o)
        if len(chosen) == _CELL_MAX and entry >= chosen[-1]:
            return
        same = next((each for each in chosen if each[1] == entry[1]), None)
        if same is not None:
            if same <= entry:
                return
            chosen.remove(same)
        bisect.insort(chosen, entry)
        del chosen[_CELL_MAX:]


def _group(outcome: str, surveys: Sequence[_CellSurvey], texts: "_ExampleReader") -> ExampleGroup:
    """The examples of one outcome, from as many cells as possible."""
    own = [each for each in surveys if each.ordinals(outcome)]
    total = sum(each.totals[outcome] for each in own)
    each_cell = max(1, min(_CELL_MAX, EXAMPLES_MAX // max(len(own), 1)))
    if len(own) > EXAMPLES_MAX:
        own = [own[number * len(own) // EXAMPLES_MAX] for number in range(EXAMPLES_MAX)]
    found = (texts.read(o) for each in own for o in each.ordinals(outcome)[:each_cell])
    return ExampleGroup(outcome, total, tuple(each for each in found if each is not None))


def cut_middle(text: str) -> str:
    """The beginning and the end of a long text: answers often have their result at the end."""
    if len(text) <= _TEXT_MAX:
        return text
    left_out = f"\n[… {len(text) - _TEXT_MAX:,} characters left out …]\n"
    return f"{text[: _TEXT_MAX - _END_MAX]}{left_out}{text[-_END_MAX:]}"


class _ExampleReader:
    """Reads the answers that were chosen, each once."""

    def __init__(self, index: Index, evaluation: str, reader: Reader, scales: Mapping[tuple[str, str], Scale]) -> None:
        self._index = index
        self._evaluation = evaluation
        self._reader = reader
        self._scales = scales
        self._seen: set[int] = set()

    def read(self, o: int) -> ExampleAnswer | None:
        """None if it is in another group already, or if its record was lost after it was indexed."""
        row = self._index.row(o)
        recorded = recorded_answer(self._reader, row) if row is not None and o not in self._seen else None
        if row is None or recorded is None:
            return None
        self._seen.add(o)
        key, text = parse_key(row.key), recorded.answer.text
        scores = itertools.islice(self._index.scores(self._evaluation, o, 1), _SCORES_MAX)
        given = tuple(self._score(key, each) for each in scores)
        return ExampleAnswer(row.key, key, cut_middle(text), len(text), given)

    def _score(self, key: Key, row: ScoreRow) -> GivenScore:
        failure = shortened(without_scorer_name(row.scorer, row.failure), _REASON_MAX)
        scale = self._scales.get((key.task, row.scorer))
        value = shortened(row.value, _REASON_MAX) if isinstance(row.value, str) else row.value
        return GivenScore(row.scorer, value, shortened(row.reason, _REASON_MAX), failure, scale)


def pass_curve(samples: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The mean pass@k for k = 1, 2, …; empty if a sample has one answer only, or scores are not right or wrong."""
    fewest = min(map(len, samples), default=0)
    if fewest < 2 or any(value not in (0, 1) for values in samples for value in values):
        return ()
    # Over the same samples for every k; otherwise the curve could fall.
    ks = range(1, min(fewest, _CURVE_MAX) + 1)
    return tuple(sum(pass_at_k(each, k) or 0.0 for each in samples) / len(samples) for k in ks)


def latency_of(label: str, seconds: Iterable[float]) -> Latency:
    ordered = sorted(seconds)
    return Latency(label, *(quantile(ordered, share) or 0.0 for share in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)))
