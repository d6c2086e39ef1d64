"""The rows that the index returns: answers, scores, scores set by hand, and counts.

Code that writes because of a row reads the journal record behind it. Invariant: nothing is written to a journal because
of an index row alone. The row only gives a position; the record there decides. A row without a matching record is
treated as if it did not exist, so a wrong or forged index does no harm.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.journal import Entry, Position, Reader
from holdfast.records import SampleFinished, ScoreGiven, Usage
from holdfast.state.fold import finished_data, score_data
from holdfast.state.index import Index

_used = msgspec.json.Decoder(dict[str, Usage])
_found = msgspec.json.Decoder(dict[str, str])
_NOTHING = len(b"{}")


class AnswerRow(msgspec.Struct, frozen=True):
    """One key with its newest end, or its first answer."""

    o: int
    key: str
    status: str
    n: int
    segment: int
    at_byte: int
    attempt: int
    input_tokens: int
    output_tokens: int
    seconds: float
    kind: str
    message: str
    used: bytes
    """Usage by role of the attempt that counts, replayed steps included; JSON, because few callers decode it."""
    marks: str
    """What is wrong with the answer, separated by spaces: see `Answer.marks`."""
    looked: int
    """The version of the anomaly checks that last saw the answer; 0 if none did."""
    anomalies: bytes
    """What those checks found, by kind; JSON, because most answers have none."""
    said: int
    """A digest: the same for equal answers to the same sample of a task, in every repeat and of every model."""
    characters: int
    """Of the answer's text."""

    def found(self) -> dict[str, str]:
        return _found.decode(self.anomalies) if len(self.anomalies) > _NOTHING else {}

    def used_by_role(self) -> dict[str, Usage]:
        return _used.decode(self.used)


class ScoreRow(msgspec.Struct, frozen=True):
    """The score that counts: the scorer's, or the one set by hand that replaces it."""

    o: int
    scorer: str
    value: object
    reason: str
    failure: str
    author: str = ""
    """Who set it by hand."""


class EditRow(msgspec.Struct, frozen=True):
    """A score that was set by hand. For an answer and a scorer the last one counts."""

    o: int
    scorer: str
    value: object
    reason: str
    author: str
    at: str
    position: Position
    """Of its record."""


class MadeRow(msgspec.Struct, frozen=True):
    """The score that a scorer itself gave. `last`: it completes the scores of this answer."""

    scorer: str
    value: object
    reason: str
    failure: str
    metadata: dict[str, Any]
    last: bool
    position: Position
    """Of its record. `n` is 0 if the scorer gave no score and a person set one."""


class EvaluationCounts(msgspec.Struct, frozen=True):
    """Counts over one evaluation: answers with all scores, and scores by outcome."""

    answers: int = 0
    scored: int = 0
    no_score: int = 0
    failures: int = 0
    edited: int = 0
    """How many of the scores were set by hand."""
    taken: int = 0
    """How many of the scores were copied from earlier evaluations."""


def recorded_answer(reader: Reader, row: AnswerRow) -> SampleFinished | None:
    """The record of a finished answer; None if it is not where the row says, or is of another key."""
    entry = _entry_at(reader, Position(row.n, row.segment, row.at_byte), "sample.finished")
    if entry is None or entry.line.k != row.key:
        return None
    finished = finished_data.decode(entry.line)
    return finished if finished.o == row.o else None


def recorded_score(reader: Reader, position: Position, evaluation: str, scorer: str) -> ScoreGiven | None:
    """The record of one scorer's score; None if it is not there, or is of another evaluation or scorer."""
    entry = _entry_at(reader, position, "score")
    if entry is None:
        return None
    score = score_data.decode(entry.line)
    return score if (score.evaluation, score.scorer) == (evaluation, scorer) else None


def recorded_scores(reader: Reader, index: Index, answer: tuple[int, int], evaluation: str) -> list[ScoreGiven]:
    """Every score that the scorers of an evaluation gave an answer (`answer`: its ordinal and record number). Empty if
    the record of one of them is missing.
    """
    rows = [row for row in index.made_of(*answer, evaluation) if row.position.n]
    found = [recorded_score(reader, row.position, evaluation, row.scorer) for row in rows]
    confirmed = _of_answer(answer, found)
    return confirmed if len(confirmed) == len(rows) else []


def recorded_edits(reader: Reader, index: Index, answer: tuple[int, int], evaluation: str) -> list[ScoreGiven]:
    """Scores of an answer that people set by hand, oldest first."""
    rows = index.edits_of(*answer, evaluation)
    return _of_answer(answer, [recorded_score(reader, row.position, evaluation, row.scorer) for row in rows])


def example_value(reader: Reader, index: Index, evaluation: str, scorer: str) -> object:
    """A value that a scorer gave any answer; None if it gave none."""
    position = index.example_of(evaluation, scorer)
    found = None if position is None else recorded_score(reader, position, evaluation, scorer)
    return None if found is None else found.value


def _of_answer(answer: tuple[int, int], scores: Iterable[ScoreGiven | None]) -> list[ScoreGiven]:
    return [score for score in scores if score is not None and (score.o, score.of) == answer]


def _entry_at(reader: Reader, position: Position, kind: str) -> Entry | None:
    if position.n < 1 or position.segment < 1 or position.offset < 0:
        return None
    entry = reader.record_at(position.segment, position.offset)
    return entry if entry is not None and (entry.line.n, entry.line.t) == (position.n, kind) else None
