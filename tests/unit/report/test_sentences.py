"""Comparisons as sentences: who is better, by how much, and when nothing can be said."""

from typing import Any

import pytest

from holdfast.report.compare.comparison import Comparison
from holdfast.report.compare.sentences import comparison_sentence, comparison_sentences
from holdfast.report.compare.sides import Side
from holdfast.stats import BOOL, COUNT, NUMBER, Scale, Summary


def comparison(
    mean: float = 0.08, low: float | None = 0.029, high: float | None = 0.131, p: float | None = 0.003, **fields: Any
) -> Comparison:
    """`small` and then `large`, on 200 samples."""
    values: dict[str, Any] = {
        "first": Side("r", "sums", "small"),
        "second": Side("r", "sums", "large"),
        "scorer": "right",
        "common": 200,
        "only_first": 0,
        "only_second": 0,
        "missing_first": {},
        "missing_second": {},
        "mean_first": 0.5,
        "mean_second": 0.5 + mean,
        "difference": Summary(200, mean, 0.026, low, high),
        "effect": 0.2,
        "test": "mcnemar",
        "samples": 200,
        "p": p,
        "adjusted_p": p,
        "exact": True,
        "wins": 30,
        "losses": 14,
        "ties": 156,
        "changed": [],
        "scale": BOOL,
    }
    return Comparison(**{**values, **fields})


def test_a_clear_difference_is_said_in_points() -> None:
    assert comparison_sentence(comparison()) == (
        "large is better than small by 8.0 points (95%: 2.9 to 13.1, p = 0.003, 200 paired samples)"
    )


def test_the_better_side_is_named_first_whatever_the_order() -> None:
    assert comparison_sentence(comparison(-0.08, -0.131, -0.029, 0.0002)) == (
        "small is better than large by 8.0 points (95%: 2.9 to 13.1, p < 0.001, 200 paired samples)"
    )


def test_without_a_visible_difference_the_samples_that_would_show_one_are_named() -> None:
    sentence = comparison_sentence(comparison(0.01, -0.041, 0.061, 0.7))
    assert sentence == (
        "no difference can be seen between small and large (95%: large is up to 4.1 points lower or 6.1 points higher, "
        "p = 0.700, 200 paired samples); 1,181 samples would show 3 points with 80% power"
    )


def test_enough_samples_would_have_shown_a_small_difference() -> None:
    each = comparison(0.001, -0.004, 0.006, 0.7, difference=Summary(200, 0.001, 0.0025, -0.004, 0.006))
    assert comparison_sentence(each).endswith("; 3 points would have been seen with 80% power")


@pytest.mark.parametrize("p", [0.05, 0.06])
def test_a_p_that_is_not_below_five_percent_makes_no_side_better(p: float) -> None:
    sentence = comparison_sentence(comparison(p=p))
    assert sentence.startswith("large seems better than small by 8.0 points (")
    assert sentence.endswith("), but that may be chance")


def test_a_difference_that_missing_scores_could_undo_makes_no_side_better() -> None:
    sentence = comparison_sentence(comparison(depends_on_missing=True))
    assert sentence.startswith("large looks better than small by 8.0 points (")
    assert sentence.endswith("), but missing scores could undo that")


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (Scale("range", 1.0, 5.0), "large is better than small by 0.08 (95%: 0.029 to 0.131"),
        (Scale("range", 0.0, 1.0), "large is better than small by 8.0 points (95%: 2.9 to 13.1"),
        (COUNT, "large is higher than small by 0.08 (95%: 0.029 to 0.131"),
        (NUMBER, "large is higher than small by 0.08 (95%: 0.029 to 0.131"),
    ],
)
def test_the_unit_is_that_of_the_scale(scale: Scale, words: str) -> None:
    assert comparison_sentence(comparison(scale=scale)).startswith(words)


def test_equal_scores_are_called_equal() -> None:
    each = comparison(0.0, None, None, 1.0, wins=0, losses=0, adjusted_p=None)
    assert comparison_sentence(each) == "small and large have equal scores on 200 paired samples"


def test_derived_rows_and_labels_have_no_sentence_and_clear_differences_come_first() -> None:
    unclear = comparison(0.01, -0.041, 0.061, 0.7, scorer="other")
    derived = comparison(scorer="right pass@2", adjusted_p=None)
    labels = comparison(scorer="kind", difference=None, p=None, adjusted_p=None, scale=None)
    sentences = comparison_sentences([unclear, comparison(), derived, labels])
    assert [sentence.split(": ")[0] for sentence in sentences] == ["sums, right", "sums, other"]
    assert "adjusted p = 0.003" in sentences[0]


def test_many_comparisons_are_cut_to_ten_lines() -> None:
    sentences = comparison_sentences([comparison(scorer=f"s{number}") for number in range(12)])
    assert len(sentences) == 10
    assert sentences[-1] == "3 more comparisons: see the table"


def test_groups_of_samples_are_counted() -> None:
    each = comparison(difference=Summary(200, 0.08, 0.026, 0.029, 0.131, groups=20))
    assert "200 paired samples in 20 groups" in comparison_sentence(each)
