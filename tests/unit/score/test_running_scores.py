"""The scores of a cell so far: one value per sample, whatever the order of repeats, and the same as a report's mean."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records import draft, escape
from holdfast.records.facts import Failure, ScoreGiven
from holdfast.score import CellScores, RunningMean, repeats_in
from tests.unit.state.stories import (
    EVALUATION,
    finished,
    fold_of,
    key,
    new_run,
    resumed,
    score,
    scoring,
    started,
    write,
)

CELL = "task/model"
answers = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.booleans(), st.floats(-10, 10), st.sampled_from([None, "label"]))),
    max_size=30,
)


def counted(scores: CellScores, given: "list[tuple[int, object]]") -> RunningMean:
    for sample, value in given:
        scores.add(f"{CELL}/s{sample}/1", {"x": value})
    return scores.means.get("x", RunningMean())


@given(answers)
def test_without_repeats_every_answer_counts_once(given: "list[tuple[int, object]]") -> None:
    numbers = [value for _, value in given if isinstance(value, int | float)]
    mean = counted(CellScores(), given)
    assert mean.samples == len(numbers)
    assert mean.total == pytest.approx(sum(numbers), abs=1e-9)


@given(answers, st.integers(2, 9))
def test_with_repeats_a_sample_has_one_value_at_any_moment(given: "list[tuple[int, object]]", repeats: int) -> None:
    kept: dict[int, list[Fraction]] = {}
    taken: list[tuple[int, object]] = []
    for sample, value in given:
        if len(kept.get(sample, [])) < repeats:
            taken.append((sample, value))
            if isinstance(value, int | float):
                kept.setdefault(sample, []).append(Fraction(value))
    scores = CellScores(repeats)
    mean = counted(scores, taken)
    assert mean.samples == len(kept)
    assert mean.total == pytest.approx(float(sum(sum(each) / len(each) for each in kept.values())), abs=1e-9)
    assert {name.split("/")[2] for name in scores.begun.get("x", {})} == {
        f"s{sample}" for sample, each in kept.items() if len(each) < repeats
    }, "complete samples take no memory"


def test_numbers_that_a_report_does_not_average_do_not_count() -> None:
    scores = CellScores()
    for value in (math.nan, math.inf, 1e200, 10**400, "right", None, {"a": 1}, Failure("scorer", "no")):
        scores.add(f"{CELL}/s/1", {"x": value})
    assert (scores.means, scores.failures) == ({}, 1)


def test_a_fold_counts_an_answer_once_all_its_scores_are_there(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(3), scoring()])
    first, second, third = (each.n for each in write(run, [finished(0), finished(1), finished(2)]))
    write(run, [score(0, first, True, "a", last=False), score(0, first, 0.5, "b")])
    write(run, [score(1, second, True, "a", last=False)])  # killed between two scores
    assert means(run) == {"a": (1, 1.0), "b": (1, 0.5)}
    write(run, [resumed(), score(1, second, False, "a", last=False), score(1, second, 0.0, "b")])
    assert means(run) == {"a": (2, 1.0), "b": (2, 0.5)}, "scored again: the first half is replaced"
    write(run, [score(2, third, "label", "a", last=False), score(2, third, None, "b")])
    write(run, [score(1, second, True, "a", last=False), score(1, second, 1.0, "b")])
    assert means(run) == {"a": (2, 1.0), "b": (2, 0.5)}, "an answer counts once, and labels do not"


def test_a_judge_that_could_not_be_reached_is_counted_when_it_answers(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1), scoring()])
    (answer,) = write(run, [finished(0)])
    broken = ScoreGiven(0, answer.n, EVALUATION, "b", failure=Failure("server", "no"), last=True)
    write(run, [score(0, answer.n, True, "a", last=False), draft("score", broken, key(0))])
    assert means(run) == {}
    write(run, [resumed(), score(0, answer.n, True, "a", last=False), score(0, answer.n, 0.5, "b")])
    assert means(run) == {"a": (1, 1.0), "b": (1, 0.5)}


def test_scores_of_other_evaluations_and_by_hand_do_not_count(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1), scoring("evaluation-0")])
    (answer,) = write(run, [finished(0)])
    by_hand = ScoreGiven(0, answer.n, EVALUATION, "right", True, author="me", last=True)
    write(run, [score(0, answer.n, 0.25, evaluation="evaluation-0"), scoring()])
    assert means(run) == {}
    write(run, [draft("score", by_hand, key(0)), score(0, answer.n, 0.75)])
    assert means(run) == {"right": (1, 0.75)}


def means(run: str) -> dict[str, tuple[int, float]]:
    found = fold_of(run, EVALUATION).scores.get(CELL, CellScores()).means
    return {scorer: (mean.samples, mean.total) for scorer, mean in found.items()}


@pytest.mark.parametrize(
    ("spec", "repeats"),
    [
        ({"tasks": [{"name": "a b/c", "repeats": 3}]}, 3),
        ({"tasks": [{"name": "other", "repeats": 3}, {"name": "a b/c"}]}, 1),
        ({"tasks": [{"name": "a b/c", "repeats": "three"}]}, 1),
        ({"tasks": "a b/c"}, 1),
        ({}, 1),
    ],
)
def test_repeats_come_from_any_stored_spec(spec: dict[str, object], repeats: int) -> None:
    assert repeats_in(spec, f"{escape('a b/c')}/model") == repeats
