"""DROP: numbers, dates and sets of spans in free text."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.records.samples import Score
from holdfast.score import ScoringFailed
from holdfast.score.scorers.drop import drop_em, drop_f1, read_spans
from tests.unit.score.answers import answer, sample, score

CASES: list[tuple[Any, str, bool, float]] = [
    # target, answer, exact match, F1
    ("5", "5", True, 1.0),
    (["5"], "5.0", True, 1.0),
    (5, "5", True, 1.0),
    (["1,000"], "1000", True, 1.0),
    (["$5"], "5", True, 1.0),
    (["50%"], "50", True, 1.0),
    (["12.5"], "12.5.", False, 0.0),  # "12.5." is no number: DROP removes its dots
    (["5"], "6", False, 0.0),
    (["5 yards"], "6 yards", False, 0.0),  # the numbers must agree
    (["5 yards"], "5 metres", False, 0.5),
    (["yards"], "5 yards", False, 0.67),  # a number of the answer alone is only a wrong word
    (["the Broncos"], "Broncos!", True, 1.0),
    (["Denver Broncos"], "Broncos", False, 0.67),
    (["12-yard run"], "12 yard run", True, 1.0),
    (["8 May 1945"], "May 8, 1945", False, 1.0),  # the same words in another order
    (["8 May 1945"], "8 may 1945", True, 1.0),
    (["one", "two"], "two", True, 1.0),  # alternatives, not spans
    (["Smith", "Tom Smith"], "Tom Smith", True, 1.0),
    ([["Tom", "Ann"]], "Tom, Ann", True, 1.0),
    ([["Tom", "Ann"]], "Ann and Tom", True, 1.0),
    ([["Tom", "Ann"]], "- Ann\n- Tom", True, 1.0),
    ([["Tom", "Ann", "Eve"]], "Tom, Ann, and Eve", True, 1.0),
    ([["Tom", "Ann"]], "Tom", False, 0.5),
    ([["Tom", "Ann"]], "Tom, Ann, Eve", False, 0.67),
    ([["Tom", "Ann"]], "Tom, Tom", False, 0.5),
    ([["Tom and Ann", "Eve"]], "Tom and Ann\nEve", True, 1.0),
    ([["black dog", "dog"]], "dog; black dog", True, 1.0),
    ([["Tom", "Ann"], "Tom"], "Tom", True, 1.0),
    ([["Tom"]], "Tom and Ann", False, 0.5),  # one span: the answer is not split
    ([["3", "5"]], "5 and 3", True, 1.0),
    ([["3", "5"]], "5 and 4", False, 0.5),
    (["", "7"], "7", True, 1.0),
    (["the"], "a", True, 1.0),
    (["7"], "", False, 0.0),
    ([["7", "8"]], " ", False, 0.0),
    (["7"], "I do not know", False, 0.0),
]


@pytest.mark.parametrize(("target", "text", "exact", "f1"), CASES)
def test_answers_of_drop(target: Any, text: str, exact: bool, f1: float) -> None:
    assert drop_em(sample(target), answer(text)).value is exact
    assert drop_f1(sample(target), answer(text)).value == f1


@pytest.mark.parametrize("scorer", [drop_em, drop_f1])
def test_without_a_target_or_an_answer_the_reason_says_so(scorer: Any) -> None:
    nothing: list[Any] = [None, [], [""], [[]]]
    for target in nothing:
        assert scorer(sample(target), answer("7")) == Score(None, "the sample has no target")
    assert scorer(sample("7"), answer("\n")).reason == "no answer"


def test_an_object_is_no_target() -> None:
    with pytest.raises(ScoringFailed, match="the target is a dict; expected text"):
        score("drop_f1", [{"number": "7"}], "7")


WORDS = st.lists(
    st.sampled_from(["red fox", "red dog", "dog", "3 dogs", "4 dogs", "cat fox dog"]), min_size=2, max_size=4
)


@given(WORDS, WORDS)
def test_spans_are_paired_in_the_best_way(gold: list[str], given_spans: list[str]) -> None:
    def one(text: str, target: str) -> float:
        found = drop_f1(sample([target]), answer(text)).value
        assert isinstance(found, float)
        return found

    few, many = sorted((gold, given_spans), key=len)
    pairings = (zip(few, chosen, strict=True) for chosen in permutations(many, len(few)))
    sums = [sum(one(b, a) if few is gold else one(a, b) for a, b in pairs) for pairs in pairings]
    found = drop_f1(sample([gold]), answer("\n".join(given_spans))).value
    assert found == pytest.approx(max(sums) / len(many), abs=0.011)  # both sides are rounded


def test_an_answer_of_very_many_spans_is_refused() -> None:
    with pytest.raises(ValueError, match="the answer has 2001 spans; at most 1000 are compared: extract a part"):
        read_spans("a, " * 2000 + "a")
