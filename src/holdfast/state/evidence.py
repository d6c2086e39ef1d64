"""Reads the journal records behind index rows, for code that writes because of a row.

Invariant: nothing is written to a journal because of an index row alone. The row only gives a position; the record
there decides. A row without a matching record is treated as if it did not exist, so a wrong or forged index does no
harm.
"""

from collections.abc import Iterable

from holdfast.journal import Entry, Position, Reader
from holdfast.records import SampleFinished, ScoreGiven
from holdfast.state.fold import finished_data, score_data
from holdfast.state.index import Index
from holdfast.state.rows import AnswerRow


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
