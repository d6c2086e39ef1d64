"""The fold that a writer goes on with: what is finished, what is left, what is not scored."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.journal import Position
from holdfast.records import ORDINALS_MAX
from holdfast.records.samples import Usage
from holdfast.state.fold import Bits, Positions
from tests.unit.state.stories import (
    ended,
    failed,
    finished,
    fold_of,
    new_run,
    resumed,
    score,
    scoring,
    started,
    step,
    write,
)


def test_totals_add_up_after_every_record(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    first = [started(4), step(0), finished(0), step(1), failed(1, final=False), failed(1, 2)]
    for record in [*first, resumed(), finished(1, attempt=3), failed(2), finished(2)]:
        write(run, [record])
        fold = fold_of(run)
        assert fold.finished.count + fold.failed.count + fold.unfinished == fold.planned == 4
    assert (fold.finished.count, fold.failed.count, fold.unfinished) == (3, 0, 1)


def test_the_first_finished_record_counts_and_the_second_is_counted_as_twice(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(2), finished(0, "first"), finished(0, "second")])
    fold = fold_of(run)
    assert (fold.finished.count, fold.story.twice) == (1, 1)
    assert fold.unscored[0].n == 3


def test_the_steps_of_an_unfinished_key_are_kept_and_those_of_a_finished_one_are_not(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(3), step(0), step(1), step(1), finished(0), step(0)])
    fold = fold_of(run)
    assert {o: [position.n for position in trail.steps] for o, trail in fold.trails.items()} == {1: [4, 5]}


def test_how_attempts_ended_is_kept_for_the_next_one(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1), failed(0, 1, False, "server"), failed(0, 2, True, "solver")])
    assert fold_of(run).trails[0].failures == {1: "server", 2: "solver"}


def test_a_resume_makes_failed_keys_unfinished_and_keeps_their_trails(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(2), step(0), failed(0), ended(), resumed()])
    fold = fold_of(run)
    assert (fold.failed.count, fold.unfinished) == (0, 2)
    assert (len(fold.trails[0].steps), fold.trails[0].failures) == (1, {1: "server"})


def test_an_answer_is_unscored_until_its_last_score(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(3), scoring(), finished(0), finished(1), finished(2, scorers=0)])
    positions = {each.n for each in fold_of(run).unscored.values()}
    assert positions == {4, 5}
    write(run, [score(0, 4, last=False), score(1, 5)])
    assert list(fold_of(run).unscored) == [0]


def test_a_score_of_a_lost_or_superseded_answer_is_ignored(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(2), scoring(), finished(0), score(0, 99), score(1, 4)])
    assert list(fold_of(run).unscored) == [0]


def test_a_score_of_another_evaluation_does_not_count(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1), scoring("old"), finished(0), score(0, 4, evaluation="old")])
    assert list(fold_of(run).unscored) == []
    assert list(fold_of(run, "new").unscored) == [0]
    write(run, [scoring("new"), score(0, 4, evaluation="new")])
    assert list(fold_of(run, "new").unscored) == []


def test_an_evaluation_of_the_same_scorers_is_continued_under_the_id_that_0_1_0_gave_it(tmp_path: Path) -> None:
    old = {"task": "t", "name": "s", "function": "holdfast.score.texts:includes", "args": {}, "source": "x"}
    now = [{"task": "t", "name": "s", "function": "includes", "version": 1, "args": {}}]
    run = new_run(tmp_path, [started(2), finished(0), scoring("old", [old]), score(0, 3, evaluation="old")])
    fold = fold_of(run, "new", now)
    assert (fold.evaluation, list(fold.unscored)) == ("old", [])
    raised = fold_of(run, "new", [{**now[0], "version": 2}])
    assert (raised.evaluation, list(raised.unscored)) == ("new", [0])
    write(run, [scoring("later", [{**old, "source": "y"}]), finished(1), score(1, 6, evaluation="later")])
    fold = fold_of(run, "new", now)
    assert (fold.evaluation, list(fold.unscored)) == ("old", [1])  # its scores are taken over from "later"


def test_answers_made_without_scorers_wait_for_an_evaluation_that_is_added_later(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(1), finished(0, scorers=0)])
    assert list(fold_of(run, "").unscored) == []
    assert list(fold_of(run, "added").unscored) == [0]


def test_what_was_used_saved_and_orphaned_is_summed(tmp_path: Path) -> None:
    run = new_run(tmp_path, [started(2), step(0), step(0), finished(0), step(1), failed(1)])
    story = fold_of(run).story
    assert (story.steps, story.replayed, story.orphaned) == (3, 3, 1)
    assert (story.usage, story.saved) == (Usage(9, 3, requests=3), Usage(6, 3))


def test_bits_are_a_set_of_numbers() -> None:
    bits = Bits()
    numbers = [0, 1, 7, 8, 9, 63, 64, 100_000, 8191, 8192]
    assert all(bits.add(number) for number in numbers)
    assert not any(bits.add(number) for number in numbers)
    assert all(number in bits for number in numbers)
    assert [number for number in range(200) if number in bits] == [0, 1, 7, 8, 9, 63, 64]
    bits.discard(8)
    bits.discard(8)
    assert (8 in bits, 9 in bits, bits.count) == (False, True, 9)


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=30))
def test_many_positions_are_kept_as_a_dict_keeps_them(changes: list[tuple[int, bool]]) -> None:
    kept, model = Positions(), dict[int, Position]()
    for number, (ordinal, is_new) in enumerate(changes, 1):
        if is_new:
            kept[ordinal] = model[ordinal] = Position(number, 2, 3 * number)
        else:
            assert kept.pop(ordinal, None) == model.pop(ordinal, None)
        assert (len(kept), kept.get(ordinal)) == (len(model), model.get(ordinal))
    assert dict(kept.items()) == dict(sorted(model.items()))
    assert -1 not in kept
    with pytest.raises(KeyError):
        kept[5000]


@given(st.sets(st.integers(0, 60)) | st.integers(0, 60).map(lambda last: set(range(last))), *[st.integers(0, 70)] * 2)
def test_bits_know_of_a_range_whether_any_or_all_are_set(numbers: set[int], first: int, count: int) -> None:
    bits = Bits()
    for number in numbers:
        bits.add(number)
    wanted = set(range(first, first + count))
    assert (bits.has_any(first, count), bits.has_all(first, count)) == (bool(numbers & wanted), numbers >= wanted)
    assert bits.first_in(first, count) == min(numbers & wanted, default=-1)


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(0, 5))
def test_bits_can_be_merged(numbers: set[int], others: set[int], at: int) -> None:
    bits, added = Bits(), Bits()
    for number in numbers:
        bits.add(number)
    for number in others:
        added.add(number)
    bits.merge(8 * at, added.encoded())
    every = numbers | {8 * at + number for number in others}
    assert ({number for number in range(200) if number in bits}, bits.count) == (every, len(every))


def test_bits_beyond_all_plans_are_not_merged() -> None:
    bits = Bits()
    bits.merge(ORDINALS_MAX, b"\1")
    assert (bits.count, bits.encoded()) == (0, b"")
