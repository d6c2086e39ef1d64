"""What CI is told of a key, and when a run is good enough."""

from typing import Any

import pytest

from holdfast.records.facts import Failure
from holdfast.report import ExportLine
from holdfast.report.compare.gate import RequiredScore
from holdfast.report.compare.gate import shortcomings as shortcomings_of
from holdfast.report.compare.sides import sides_of
from holdfast.report.formats.junit import case_result


def line(number: int = 1, status: str = "finished", model: str = "m", **scores: Any) -> ExportLine:
    error = Failure("timeout", "too slow") if status == "failed" else None
    return ExportLine(f"t/{model}/s{number}/1", "t", model, f"s{number}", 1, status, "text", error, scores)


def shortcomings(lines: list[ExportLine], required: RequiredScore) -> list[str]:
    return shortcomings_of(sides_of("run", lines), required)


@pytest.mark.parametrize(
    ("given", "at_least", "kind"),
    [
        (line(exact=True), None, ""),
        (line(exact=False), None, "failure"),
        (line(exact=0.2), None, ""),
        (line(exact=0.2), 0.5, "failure"),
        (line(exact=0.5), 0.5, ""),
        (line(one=True, two=0), None, "failure"),
        (line(), None, ""),
        (line(exact=None), None, "skipped"),
        (line(label="good"), 0.5, ""),
        (line(one=True, two={"failure": {"message": "broke"}}), None, "error"),
        (line(status="failed"), None, "error"),
        (line(status="unfinished"), None, "skipped"),
    ],
    ids=str,
)
def test_a_key_passes_only_if_something_says_so(given: ExportLine, at_least: float | None, kind: str) -> None:
    assert case_result(given, at_least).kind == kind


def test_a_failed_sample_is_told_with_its_kind_and_message() -> None:
    assert case_result(line(status="failed"), None) == ("error", "timeout", "too slow")


def test_a_run_that_meets_the_standard_has_no_shortcomings() -> None:
    lines = [line(i, exact=i != 0) for i in range(5)]
    assert shortcomings(lines, RequiredScore(0.8)) == []


def test_each_model_has_to_meet_it() -> None:
    lines = [line(i, model=model, exact=model == "good") for i in range(4) for model in ("good", "bad")]
    told = shortcomings(lines, RequiredScore(0.5))
    assert [each.split(":")[0] for each in told if "wanted" in each] == ["t / bad / exact"]


def test_only_the_named_scorer_counts() -> None:
    lines = [line(i, exact=False, includes=True) for i in range(4)]
    assert shortcomings(lines, RequiredScore(0.5, "includes")) == []
    assert shortcomings(lines, RequiredScore(0.5, "exact")) != []
    assert shortcomings(lines, RequiredScore(0.5)) != []


def test_what_has_no_score_is_counted_and_allowed_for() -> None:
    lines = [
        line(1, exact=True),
        line(2, "failed"),
        line(3, "unfinished"),
        line(4, exact={"failure": {"message": "x"}}),
    ]
    told = shortcomings(lines, RequiredScore(0.25))
    assert told == [
        "t / m / exact: 3 answers without a score:",
        "    t/m/s2/1 (failed)",
        "    t/m/s3/1 (unfinished)",
        "    t/m/s4/1 (scorer failed)",
    ]
    assert shortcomings(lines, RequiredScore(0.25, failed_max=2)) == told
    assert shortcomings(lines, RequiredScore(0.25, failed_max=3)) == []


def test_scores_that_may_be_missing_count_as_wrong() -> None:
    lines = [*(line(i, exact=True) for i in range(8)), line(8, "failed"), line(9, exact=None)]
    assert shortcomings(lines, RequiredScore(0.8, failed_max=2)) == []  # 8 of 10
    told = ["t / m / exact: reaches 0.81, but perhaps not with the 2 missing scores, which count as wrong"]
    assert shortcomings(lines, RequiredScore(0.81, failed_max=2)) == told
    numbers = [line(1, exact=0.9), line(2, exact=0.7), line(3, "failed")]  # how low is the lowest number?
    assert "perhaps not with the 1 missing score" in shortcomings(numbers, RequiredScore(0.1, failed_max=1))[0]


def test_a_run_without_scores_is_not_good_enough() -> None:
    assert shortcomings([line(label="good")], RequiredScore(0.5)) == ["no answer has a score"]
    assert shortcomings([], RequiredScore(0.5, "exact")) == ["no answer has a score of exact"]


def test_many_wrong_keys_are_counted_not_listed() -> None:
    told = shortcomings([line(i, exact=0) for i in range(30)], RequiredScore(0.5))
    assert "  30 answers below it:" in told
    assert told[-1] == "    … and 20 more"


def test_certainty_asks_for_the_whole_interval() -> None:
    lines = [line(i, exact=True) for i in range(10)]
    assert shortcomings(lines, RequiredScore(0.9)) == []
    (told, *_) = shortcomings(lines, RequiredScore(0.9, certain=True))
    assert "mean 1.0000, wanted certainly at least 0.9 (95% interval 0.6915 .. 1.0000, n 10)" in told
    assert pytest.approx(0.6915, abs=5e-5) == 0.025 ** (1 / 10)  # Clopper and Pearson's, as in a gate
