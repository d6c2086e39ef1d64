"""Journals of runs that never ran: any order of records that a test likes, in a real folder."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.journal import Entry, OpenRequest, Position, Reader, journal_folder
from holdfast.records import Draft, draft
from holdfast.records.facts import (
    Cell,
    Failure,
    RunEnded,
    RunResumed,
    RunStarted,
    SampleFailed,
    SampleFinished,
    ScoreGiven,
    ScoringStarted,
    Spent,
    Step,
    StoredFile,
)
from holdfast.records.samples import Answer, Usage
from holdfast.state import Fold
from tests.journals import UID, write_session

EVALUATION = "evaluation-1"


def key(o: int) -> str:
    return f"task/model/s{o}/1"


def started(count: int) -> Draft:
    cells = (Cell("task", "model", 0, count, 0, 0),)
    return draft("run.started", RunStarted("run", {"seed": 1}, StoredFile(count, "p"), StoredFile(count, "d"), cells))


def resumed(spec: dict[str, Any] | None = None) -> Draft:
    return draft("run.resumed", RunResumed(spec=spec))


def ended(kind: str = "completed", reason: str = "") -> Draft:
    return draft(f"run.{kind}", RunEnded(0, 0, 0, reason))


def scoring(evaluation: str = EVALUATION, scorers: Sequence[dict[str, Any]] = ()) -> Draft:
    return draft("score.started", ScoringStarted(evaluation, list(scorers)))


def step(o: int, attempt: int = 1, tokens: int = 3) -> Draft:
    answer = Answer(f"step of {o}", usage=Usage(tokens, 1))
    return draft("step", Step(o, f"solve/{attempt}", "q", answer=answer), key(o))


def finished(o: int, text: str = "answer", attempt: int = 1, scorers: int = 1) -> Draft:
    spent = Spent(live=1, replayed=2, orphaned=1, usage=Usage(3, 1), saved=Usage(5, 2), seconds=0.5)
    return draft("sample.finished", SampleFinished(o, attempt, Answer(text), spent, scorers), key(o))


def failed(o: int, attempt: int = 1, final: bool = True, kind: str = "server") -> Draft:
    spent = Spent(live=1, replayed=1, saved=Usage(1, 1))
    return draft("sample.failed", SampleFailed(o, attempt, Failure(kind, "no"), final, spent), key(o))


def score(
    o: int, of: int, value: Any = True, scorer: str = "right", evaluation: str = EVALUATION, last: bool = True
) -> Draft:
    return draft("score", ScoreGiven(o, of, evaluation, scorer, value, last=last), key(o))


def write(run: str, records: Iterable[Draft]) -> list[Position]:
    """One process's records, each durable by itself; returns where they are."""
    return write_session(journal_folder(run), records, wanted=OpenRequest(UID))[1]


def new_run(folder: object, records: Sequence[Draft] = ()) -> str:
    run = os.path.join(str(folder), "run")
    os.makedirs(run)
    if records:
        write(run, records)
    return run


def fold_of(run: str, evaluation: str | None = None, scorers: Sequence[dict[str, Any]] = ()) -> Fold:
    return Fold(evaluation, scorers).read(Reader(journal_folder(run)).read())


def entries(run: str) -> list[Entry]:
    return [each for each in Reader(journal_folder(run)).read() if isinstance(each, Entry)]
