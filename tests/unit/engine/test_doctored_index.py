"""Nothing is recorded on the word of an index: one that lies, with the right checksum, changes no journal."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.scoring import EarlierScores, KeptScores, sources_of
from holdfast.errors import UsageError
from holdfast.journal import Reader, journal_folder
from holdfast.records import draft
from holdfast.records.facts import ScoringStarted
from holdfast.runs import Run
from holdfast.runs.scoring import Edit, edited
from holdfast.state import Index, recorded_answer
from tests.caches import doctored, index_file
from tests.unit.state.stories import finished, fold_of, new_run, score, started

LIES: dict[str, str] = {
    "another number": "UPDATE {table} SET n = n + 1",
    "another place": "UPDATE {table} SET at_byte = at_byte + 1",
    "another segment": "UPDATE {table} SET segment = 7",
    "beyond the end": "UPDATE {table} SET at_byte = 9223372036854775807",
    "before the beginning": "UPDATE {table} SET segment = -1, at_byte = -5",
    "the record of another": "UPDATE {table} SET (n, segment, at_byte) = "
    "(SELECT n, segment, at_byte FROM {table} other WHERE other.o = 1 - {table}.o LIMIT 1)",
}


def scorer(name: str) -> dict[str, Any]:
    return {"task": "task", "name": name, "source": "1"}


@pytest.fixture
def run(tmp_path: Path) -> str:
    """Two answers, in records 3 and 4, with a score each."""
    evaluation = draft("score.started", ScoringStarted("one", [scorer("right")]))
    scores = [score(0, 3, True, "right", "one"), score(1, 4, False, "right", "one")]
    return new_run(tmp_path, [started(2), finished(0), finished(1), evaluation, *scores])


def lie(run: str, change: str) -> None:
    Index(run).close()
    with doctored(index_file(run)) as database:
        _all_at_once(database, change) if "SELECT" in change else database.execute(change)


def _all_at_once(database: sqlite3.Connection, change: str) -> None:
    """Exchange the rows' places: an UPDATE would see its own changes."""
    table = change.split()[1]
    rows = database.execute(f"SELECT o, n, segment, at_byte FROM {table} ORDER BY o").fetchall()
    for (o, *_), (_, *place) in zip(rows, reversed(rows), strict=True):
        database.execute(f"UPDATE {table} SET n = ?, segment = ?, at_byte = ? WHERE o = ?", (*place, o))


def taken_over(run: str) -> dict[str, KeptScores]:
    sources = sources_of(fold_of(run).story, "new", [scorer("right")])

    async def find() -> dict[str, KeptScores]:
        earlier = EarlierScores(run, "new", sources)
        await earlier.open()
        try:
            (found,) = await earlier.find("task", [(0, 3)])
        finally:
            await earlier.close()
        return found

    return asyncio.run(find())


@pytest.mark.parametrize("change", LIES.values(), ids=LIES)
def test_a_score_without_its_record_is_not_taken_over(run: str, change: str) -> None:
    assert [each.value for each in taken_over(run)["right"].scores] == [True], "the control"
    lie(run, change.format(table="scores"))
    assert taken_over(run)["right"].scores == ()


def test_the_value_that_is_taken_over_is_the_records(run: str) -> None:
    lie(run, "UPDATE scores SET value = CAST('false' AS BLOB), reason = 'forged', metadata = CAST('{\"x\":1}' AS BLOB)")
    (found,) = taken_over(run)["right"].scores
    assert (found.value, found.reason, found.metadata) == (True, "", {})


@pytest.mark.parametrize(
    "change", [*LIES.values(), "UPDATE answers SET key = 'task/model/s9/1'"], ids=[*LIES, "another key"]
)
def test_an_answer_without_its_record_is_not_believed(run: str, change: str) -> None:
    def first() -> object:
        with contextlib.closing(Index(run)) as index, contextlib.closing(Reader(journal_folder(run))) as reader:
            return recorded_answer(reader, next(index.answers()))

    assert first() is not None, "the control"
    lie(run, change.format(table="answers"))
    assert first() is None


@holdfast.scorer
def good(sample: holdfast.Sample, answer: holdfast.Answer) -> bool:
    return True


DOCTORED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "answer": ("UPDATE answers SET n = n + 1", lambda found: found is None),
    "score": ("UPDATE scores SET at_byte = at_byte + 1", lambda found: found is None),
    "kind of the value": ("UPDATE scores SET value = CAST('\"good\"' AS BLOB)", lambda found: found is True),
}


@pytest.mark.parametrize(("change", "expected"), DOCTORED.values(), ids=DOCTORED)
def test_a_score_set_by_hand_rests_on_the_journal(tmp_path: Path, change: str, expected: Callable[[Any], bool]) -> None:
    task = holdfast.Task("t", [{"id": "a", "q": "?"}], "{q}", scorers=[good])
    holdfast.run(task, models=["mock/m"], store=str(tmp_path), id="r").close()
    place = Run.find(str(tmp_path), "r").place
    lie(place.folder, change)
    with Run(place) as run:
        try:
            found = edited(run, Edit("t/m/a/1", "good", "true", "why", "ann")).value
        except UsageError:
            found = None
    assert expected(found)
