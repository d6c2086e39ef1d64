"""Nothing is recorded on the word of an index: one that lies, with the right checksum, changes no journal."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
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
from tests.caches import Change, set_row, tamper
from tests.unit.state.stories import finished, fold_of, new_run, score, started

LIES: dict[str, Change] = {
    "another number": lambda row: msgspec.structs.replace(row, n=row.n + 1),
    "another place": lambda row: msgspec.structs.replace(row, at_byte=row.at_byte + 1),
    "another segment": set_row(segment=7),
    "beyond the end": set_row(at_byte=(1 << 63) - 1),
    "before the beginning": set_row(segment=-1, at_byte=-5),
    "the record of another": lambda row: row,
}


def scorer(name: str) -> dict[str, Any]:
    return {"task": "task", "name": name, "source": "1"}


@pytest.fixture
def run(tmp_path: Path) -> str:
    """Two answers, in records 3 and 4, with a score each."""
    evaluation = draft("score.started", ScoringStarted("one", [scorer("right")]))
    scores = [score(0, 3, True, "right", "one"), score(1, 4, False, "right", "one")]
    return new_run(tmp_path, [started(2), finished(0), finished(1), evaluation, *scores])


def lie(run: str, table: str, name: str) -> None:
    if name != "the record of another":
        tamper(run, table, LIES[name])
        return
    with contextlib.closing(Index(run)) as index:
        rows = list(index.answers()) if table == "answers" else [row for _, row in index.made("one")]
    places = {row.o: {"n": row.n, "segment": row.segment, "at_byte": row.at_byte} for row in rows}
    tamper(run, table, lambda row: msgspec.structs.replace(row, **places[1 - row.o]))


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


@pytest.mark.parametrize("name", LIES)
def test_a_score_without_its_record_is_not_taken_over(run: str, name: str) -> None:
    assert [each.value for each in taken_over(run)["right"].scores] == [True], "the control"
    lie(run, "scores", name)
    assert taken_over(run)["right"].scores == ()


def test_the_value_that_is_taken_over_is_the_records(run: str) -> None:
    tamper(run, "scores", set_row(encoded=b"false", reason="forged"))
    (found,) = taken_over(run)["right"].scores
    assert (found.value, found.reason, found.metadata) == (True, "", {})


@pytest.mark.parametrize("name", [*LIES, "another key"])
def test_an_answer_without_its_record_is_not_believed(run: str, name: str) -> None:
    def first() -> object:
        with contextlib.closing(Index(run)) as index, contextlib.closing(Reader(journal_folder(run))) as reader:
            return recorded_answer(reader, next(index.answers()))

    assert first() is not None, "the control"
    if name == "another key":
        tamper(run, "answers", set_row(key="task/model/s9/1"))
    else:
        lie(run, "answers", name)
    assert first() is None


@holdfast.scorer
def good(sample: holdfast.Sample, answer: holdfast.Answer) -> bool:
    return True


DOCTORED: dict[str, tuple[str, Change, Callable[[Any], bool]]] = {
    "answer": ("answers", LIES["another number"], lambda found: found is None),
    "score": ("scores", LIES["another place"], lambda found: found is None),
    "kind of the value": ("scores", set_row(encoded=b'"good"'), lambda found: found is True),
}


@pytest.mark.parametrize(("table", "change", "expected"), DOCTORED.values(), ids=DOCTORED)
def test_a_score_set_by_hand_rests_on_the_journal(
    tmp_path: Path, table: str, change: Change, expected: Callable[[Any], bool]
) -> None:
    task = holdfast.Task("t", [{"id": "a", "q": "?"}], "{q}", scorers=[good])
    holdfast.run(task, models=["mock/m"], store=str(tmp_path), id="r").close()
    place = Run.find(str(tmp_path), "r").place
    tamper(place.folder, table, change)
    with Run(place) as run:
        try:
            found = edited(run, Edit("t/m/a/1", "good", "true", "why", "ann")).value
        except UsageError:
            found = None
    assert expected(found)
