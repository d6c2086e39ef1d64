"""What earlier evaluations said is found again for scorers that are what they were, and only for them."""

import asyncio
from typing import Any

import pytest

from holdfast.engine.scoring import EarlierScores, KeptScores, owner_of, sources_of
from holdfast.records import Draft, draft
from holdfast.records.facts import Failure, ScoreGiven, ScoringStarted
from holdfast.state import Story
from tests.unit.state.stories import entries, finished, fold_of, key, new_run, score, started

OF = 3
"""The number of the only answer's record, behind the segment's header and the run's beginning."""


def told(name: str, source: str = "1", task: str = "task") -> dict[str, Any]:
    return {"task": task, "name": name, "source": source}


def evaluation(name: str, *scorers: dict[str, Any]) -> Draft:
    return draft("score.started", ScoringStarted(name, list(scorers)))


def broken(scorer: str, evaluation: str) -> Draft:
    return draft("score", ScoreGiven(0, OF, evaluation, scorer, failure=Failure("scorer", "no"), last=True), key(0))


def by_hand(scorer: str, value: Any, evaluation: str, author: str = "ann") -> Draft:
    given = ScoreGiven(0, OF, evaluation, scorer, value, "read it", author=author, at="2026-01-01T00:00:00+00:00")
    return draft("score", given, key(0))


def kept(folder: object, *records: Draft, scorers: tuple[dict[str, Any], ...], of: int = OF) -> dict[str, KeptScores]:
    """What the evaluation "new" of these scorers need not ask of the only answer."""
    run = new_run(folder, [started(1), finished(0), *records])
    assert entries(run)[OF - 1].line.t == "sample.finished"
    sources = sources_of(fold_of(run).story, "new", scorers)

    async def find() -> dict[str, KeptScores]:
        earlier = EarlierScores(run, "new", sources)
        await earlier.open()
        try:
            (found,) = await earlier.find("task", [(0, of)])
        finally:
            await earlier.close()
        return found

    return asyncio.run(find())


def values(found: KeptScores) -> list[tuple[str, Any, str]]:
    return [(each.scorer, each.value, each.taken) for each in found.scores]


def test_an_unchanged_scorer_is_found_with_its_parts_and_a_changed_one_is_not(tmp_path: object) -> None:
    records = [
        evaluation("one", told("a"), told("a.b"), told("c")),
        score(0, OF, 1, "a.x", "one", last=False),
        score(0, OF, 2, "a.b.x", "one", last=False),
        score(0, OF, 3, "c", "one"),
    ]
    found = kept(tmp_path, *records, scorers=(told("a"), told("c", source="2")))
    assert {name: values(each) for name, each in found.items()} == {"a": [("a.x", 1, "one")]}


def test_the_newest_evaluation_that_has_all_scores_of_an_answer_counts(tmp_path: object) -> None:
    records = [
        evaluation("one", told("a")),
        score(0, OF, 1, "a", "one"),
        evaluation("two", told("a"), told("b")),
        score(0, OF, 2, "a", "two", last=False),
    ]
    assert values(kept(tmp_path, *records, scorers=(told("a"),))["a"]) == [("a", 1, "one")], "the second was cut off"


def test_what_failed_is_made_again_and_what_was_set_by_hand_stays(tmp_path: object) -> None:
    records = [evaluation("one", told("a")), broken("a", "one"), by_hand("a", 1, "one"), by_hand("a", 2, "one", "bob")]
    found = kept(tmp_path, *records, scorers=(told("a"),))["a"]
    assert found.scores == ()
    assert [(each.value, each.author, each.evaluation) for each in found.edits] == [
        (1, "ann", "new"),
        (2, "bob", "new"),
    ]


def test_scores_of_another_answer_or_another_task_are_not_taken(tmp_path: object) -> None:
    records = [evaluation("one", told("a"), told("b", task="other")), score(0, OF, 1, "a", "one")]
    found = kept(tmp_path, *records, scorers=(told("a"), told("b")), of=OF - 1)
    assert {name: values(each) for name, each in found.items()} == {"a": []}


def test_an_answer_that_is_younger_than_the_index_is_not_looked_up(tmp_path: object) -> None:
    records = [evaluation("one", told("a")), score(0, OF, 1, "a", "one")]
    assert kept(tmp_path, *records, scorers=(told("a"),), of=1_000) == {}


def test_an_evaluation_is_never_its_own_source() -> None:
    story = Story(evaluation="new", evaluations={"new": ScoringStarted("new", [told("a")])})
    assert sources_of(story, "new", [told("a")]) == {}


@pytest.mark.parametrize(
    ("name", "owner"), [("a", "a"), ("a.x", "a"), ("a.b", "a.b"), ("a.b.x", "a.b"), ("ab", ""), ("c", "")]
)
def test_a_score_belongs_to_the_scorer_with_the_longest_name_that_begins_it(name: str, owner: str) -> None:
    assert owner_of(name, ["a", "a.b"]) == owner
