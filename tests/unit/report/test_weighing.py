"""Sides, comparisons, leaderboards and gates from lines alone: what is rare in whole runs."""

from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats as scipy_stats  # type: ignore[import-untyped]  # scipy has no types

from holdfast.records.facts import Failure
from holdfast.report import ExportLine
from holdfast.report.compare.comparison import adjust_p_values, compare_sides, differing_scorers
from holdfast.report.compare.gate import GateRule, judge_against, judge_level
from holdfast.report.compare.leaderboard import leaderboards
from holdfast.report.compare.sides import SideAnswers, choose_measures, sides_of
from holdfast.report.costs import Cost
from holdfast.report.summaries.agreement import agreements, judges_of, panels
from holdfast.score.reduction import Repeat, reduced_value
from holdfast.spec.reductions import Reduction, reductions
from holdfast.stats import COUNT, NUMBER, UNIT, Scale


def line(sample: str, value: Any = None, repeat: int = 1, status: str = "finished", text: str = "") -> ExportLine:
    error = Failure("timeout", "too slow") if status == "failed" else None
    scores = {"s": value} if status == "finished" else {}
    return ExportLine(f"t/m/{sample}/{repeat}", "t", "m", sample, repeat, status, text, error, scores)


def side(*values: Any, run: str = "r", reduce: Any = "mean", scale: Scale | None = None) -> SideAnswers:
    lines = [line(f"x{i}", value) for i, value in enumerate(values)]
    return side_of(lines, run, reduce, scale)


def side_of(
    lines: Sequence[ExportLine], run: str = "r", reduce: Any = "mean", scale: Scale | None = None
) -> SideAnswers:
    """`scale`: as the scorer declares it."""
    return sides_of(run, lines, {"t": (reductions(reduce), lambda name: scale)})["t", "m"]


def test_labels_are_compared_without_numbers() -> None:
    (found,) = adjust_p_values(list(compare_sides(side("a", "b", "b"), side("a", "c", "b"))))
    assert (found.common, found.ties, found.p, found.adjusted_p, found.difference) == (3, 2, None, None, None)
    assert [(each.before, each.after) for each in found.changed] == [("b", "c")]


def test_a_label_among_numbers_is_left_out_and_told_and_so_is_a_number_beyond_measure() -> None:
    """The numbers are what a report has the mean of: they must not vanish from comparisons and gates."""
    mine, theirs = side(0.5, 1.0, "unreadable", 10**400, 1e200), side(0.0, 0.0, 0.0, 0.0, 0.0)
    (found,) = compare_sides(theirs, mine)
    assert (found.common, found.mean_second, found.missing_second) == (2, 0.75, {"no_score": 2, "label": 1})
    assert outcome(mine, GateRule(at_least=0.0)) == "missing"


def test_without_a_common_key_there_is_no_number() -> None:
    first, second = side(True), sides_of("r", [line("y", True)])["t", "m"]
    (found,) = compare_sides(first, second)
    assert (found.common, found.only_first, found.only_second, found.p, found.test) == (0, 1, 1, None, "")


def test_the_reason_why_a_key_has_no_value_is_that_of_its_own_side() -> None:
    lines = [line("a", True), line("b", status="failed"), line("c", status="unfinished"), line("d", None)]
    second = sides_of("r", [*lines, line("e", {"failure": {"message": "broke"}})])["t", "m"]
    first = sides_of("r", [line(each, True) for each in "abcdefg"])["t", "m"]
    (found,) = compare_sides(first, second)
    assert (found.common, found.only_first, found.missing_first) == (1, 2, {})
    assert found.missing_second == {"failed": 1, "unfinished": 1, "no_score": 1, "scorer_failed": 1}


def test_what_only_one_side_was_to_answer_is_not_missing() -> None:
    first = sides_of("r", [line("a", True), line("b", status="failed")])["t", "m"]
    second = sides_of("r", [line("a", True), line("c", status="unfinished")])["t", "m"]
    (found,) = compare_sides(first, second)
    assert (found.only_first, found.only_second, found.missing_first, found.missing_second) == (1, 1, {}, {})


def test_right_or_wrong_with_repeats_is_no_matter_for_mcnemars_test() -> None:
    """It would count a sample by the sign of its difference, and the table shows the difference itself."""
    several = [sides_of("r", [line(x, x == y, r) for x in "abc" for r in (1, 2)])["t", "m"] for y in "ab"]
    (found,) = compare_sides(*several)
    assert (found.test, found.samples, found.common) == ("permutation", 3, 6)
    (found,) = compare_sides(side(True, False), side(True, True))
    assert found.test == "mcnemar"


@pytest.mark.parametrize("how", [Reduction("at_least", 2), Reduction("max")])
def test_a_missing_repeat_leaves_a_maximum_and_a_count_without_a_value(how: Reduction) -> None:
    right, wrong, none = Repeat(True), Repeat(False), Repeat(None)
    for missing in ([right, wrong, none], [right, right, none], [wrong, wrong, none], [none]):
        assert reduced_value(how, missing) is None
    assert reduced_value(how, [right, right], repeats=2) == 1.0
    assert reduced_value(how, [wrong, wrong], repeats=2) == 0.0
    assert reduced_value(how, [right, right], repeats=3) is None


def test_of_an_answer_scored_right_and_wrong_nothing_is_said() -> None:
    how = Reduction("cons_at_k", 2)
    assert reduced_value(how, [Repeat(True, "4"), Repeat(False, "4 ")]) is None
    assert reduced_value(how, [Repeat(True, "4"), Repeat(True, " 4")]) == 1.0
    assert reduced_value(how, [Repeat(True, "4"), Repeat(True)]) is None


def test_a_majority_of_labels_is_a_label_and_a_tie_is_none() -> None:
    how = Reduction("majority")
    assert reduced_value(how, [Repeat("a"), Repeat("b"), Repeat("a")]) == "a"
    assert reduced_value(how, [Repeat("a"), Repeat("b")]) is None


def test_a_name_means_a_measure_or_all_of_a_scorer() -> None:
    both = side(True, reduce=["mean", "max"]).measures()
    assert list(choose_measures(both, None)) == ["s", "s max"]
    assert list(choose_measures(both, "s")) == ["s"]
    assert list(choose_measures(side(True, reduce="max").measures(), "s")) == ["s max"]
    assert choose_measures(both, "other") == {}


def board_of(*sides: SideAnswers) -> list[tuple[str, int]]:
    (found,) = leaderboards([{("t", "m"): each} for each in sides], [{("t", "m"): Cost()}] * len(sides))
    return [(each.run, each.rank) for each in found.ranked]


def test_ranks_count_who_is_significantly_better_in_any_order_of_entrants() -> None:
    good, fair, bad = side(*[1] * 20, run="good"), side(*[1] * 18, 0, 0, run="fair"), side(*[0] * 20, run="bad")
    expected = [("good", 1), ("fair", 1), ("bad", 3)]
    assert board_of(good, fair, bad) == expected
    assert board_of(bad, fair, good) == expected


def test_the_more_are_ranked_the_more_it_takes_to_be_better() -> None:
    good, bad = [1] * 8, [0] * 6 + [1, 1]  # p = 2 / 2**6
    assert board_of(side(*good, run="good"), side(*bad, run="bad")) == [("good", 1), ("bad", 2)]
    three = board_of(side(*good, run="good"), side(*good, run="twin"), side(*bad, run="bad"))
    assert three == [("good", 1), ("twin", 1), ("bad", 1)]


def test_those_without_a_common_key_share_a_rank() -> None:
    other = sides_of("other", [line(f"y{i}", 0) for i in range(20)])["t", "m"]
    assert board_of(side(*[1] * 20, run="good"), other) == [("good", 1), ("other", 1)]


def outcome(mine: SideAnswers, bar: GateRule, theirs: SideAnswers | None = None) -> str:
    own = mine.measures()["s"]
    found = judge_level(mine, own, bar) if theirs is None else judge_against(mine, own, theirs.measures()["s"], bar)
    return found.outcome


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ([0.5, 0.6, 0.7], [0.5, 0.6, 0.7], "unsure"),  # of other samples nobody knows
        ([0.4, 0.5, 0.6], [0.5, 0.6, 0.7], "unsure"),  # each by 0.1: how much that varies is not known either
        ([0.4, 0.51, 0.59], [0.5, 0.6, 0.7], "worse"),  # by 0.1, give or take 0.0249
        ([0.5], [0.5], "unsure"),  # of one sample nobody knows how it varies
        ([1, 0, 1], [0, 1, 1], "unsure"),
        ([0.48, 0.57, 0.66], [0.5, 0.6, 0.7], "unsure"),
        ([0.49, 0.585, 0.68], [0.5, 0.6, 0.7], "passed"),
    ],
)
def test_a_run_passes_is_worse_or_unsure(mine: list[float], theirs: list[float], expected: str) -> None:
    assert outcome(side(*mine), GateRule(margin=0.05), side(*theirs)) == expected


@pytest.mark.parametrize("at_least", [0.1, 0.3, 0.31, 0.9])
def test_where_nothing_varies_and_a_scale_has_no_ends_nothing_is_sure(at_least: float) -> None:
    for scale in (None, NUMBER, COUNT):
        assert outcome(side(*[0.3] * 50, scale=scale), GateRule(at_least=at_least)) == "unsure"


@pytest.mark.parametrize(
    ("n", "at_least", "expected"),
    [
        (20, 0.25, "unsure"),  # the lower end is 0.3 * 0.025^(1/n): 0.2495 of 20, 0.2517 of 21
        (21, 0.25, "passed"),
        (21, 0.3, "unsure"),
        (23, 0.4, "unsure"),  # the upper one is 1 - 0.7 * 0.025^(1/n): 0.4037 of 23, 0.3997 of 24
        (24, 0.4, "worse"),
    ],
)
def test_where_nothing_varies_the_ends_of_the_scale_decide(n: int, at_least: float, expected: str) -> None:
    assert outcome(side(*[0.3] * n, scale=UNIT), GateRule(at_least=at_least)) == expected
    assert outcome(side(*[0.3] * n, scale=UNIT), GateRule(at_least=at_least + 0.1, margin=0.1)) == expected


def test_a_lower_end_that_is_just_the_bound_is_enough() -> None:
    values = [0.1, 0.2, 0.3, 0.4]
    low = 0.25 - 3.182446305284263 * (0.05 / 3) ** 0.5 / 2  # Student's, as in a table
    assert outcome(side(*values), GateRule(at_least=low)) == "passed"
    assert outcome(side(*values), GateRule(at_least=low + 0.1, margin=0.1)) == "passed"
    assert outcome(side(*values), GateRule(at_least=low + 1e-6)) == "unsure"


def test_how_many_samples_are_needed_counts_repeats_as_repeats() -> None:
    lines = [line(f"x{i}", (i + repeat) % 3 == 0, repeat) for i in range(9) for repeat in (1, 2, 3)]
    answers = sides_of("r", lines)["t", "m"]
    found = judge_level(answers, answers.measures()["s"], GateRule(at_least=0.3))
    assert (found.common, found.samples, found.outcome) == (27, 9, "unsure")  # each sample has one right of three
    # Nine samples without variance are worth 21 answers, and less because the variance is an estimate.
    worth = 21 * (scipy_stats.norm.ppf(0.975) / scipy_stats.t.ppf(0.975, 8)) ** 2
    low = scipy_stats.beta.ppf(0.025, worth / 3, worth * 2 / 3 + 1)
    high = scipy_stats.beta.ppf(0.975, worth / 3 + 1, worth * 2 / 3)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), rel=1e-9)
    lines = [line(f"x{i}", i % 3 == 0, repeat) for i in range(9) for repeat in (1, 2, 3)]
    answers = sides_of("r", lines)["t", "m"]
    thrice = judge_level(answers, answers.measures()["s"], GateRule(at_least=0.2))
    once = judge_level(
        side(*(i % 3 == 0 for i in range(9))),
        side(*(i % 3 == 0 for i in range(9))).measures()["s"],
        GateRule(at_least=0.2),
    )
    assert thrice.outcome == once.outcome == "unsure"
    assert thrice.samples_needed == once.samples_needed


def test_scorers_are_the_same_with_the_same_code_arguments_and_judges() -> None:
    one = {
        "name": "rubric",
        "function": "holdfast.score.judges:rubric",
        "args": {"roles": ["a", "b"]},
        "source": "x",
    }
    roles = {"a": {"provider": "mock", "model": "1"}, "b": {"provider": "mock"}, "c": {"provider": "mock"}}
    other = {**roles, "b": {"provider": "mock", "model": "2"}}

    def judged(roles: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**one, "judges": judges_of(one, roles)}]

    assert differing_scorers(judged(roles), judged(roles)) == []
    assert differing_scorers(judged(roles), judged(other)) == ["rubric"]
    assert differing_scorers(judged(roles), judged({**roles, "c": {}})) == []
    assert judges_of({**one, "function": "mine:scorer"}, roles) == {}


def test_a_scorer_of_0_1_0_is_the_one_of_version_1() -> None:
    old = {"name": "s", "function": "holdfast.score.texts:exact_match", "args": {}, "source": "any"}
    new = {"name": "s", "function": "exact_match", "version": 1, "args": {}}
    assert differing_scorers([old], [new]) == []
    assert differing_scorers([old], [{**new, "version": 2}]) == ["s"]
    assert differing_scorers([old], [{**new, "function": "includes"}]) == ["s"]
    assert differing_scorers([old], [{**old, "function": "mine:exact_match"}]) == ["s"]


def test_a_panel_has_an_agreement_for_each_criterion_and_missing_votes_are_left_out() -> None:
    scorers = [
        {"task": "t", "name": "rubric", "args": {"roles": ["a", "b"]}},
        {"task": "t", "name": "alone", "args": {"roles": ["a"]}},
        {"task": "other", "name": "pairwise", "args": {"roles": ["a", "b"]}},
    ]
    found = panels(scorers, "t")
    assert found == {"rubric": ("a", "b")}
    votes: dict[str, dict[int, Any]] = {"rubric.clear": {}, "rubric.short": {}, "numeric": {1: True}}
    votes |= {"rubric.clear.a": {1: 5, 2: 1, 3: 2}, "rubric.clear.b": {1: 5, 2: 1}}
    votes |= {"rubric.short.a": {1: 3, 2: 3}, "rubric.short.b": {1: 3, 2: 3}}
    clear, short = agreements(found, votes)
    assert (clear.scorer, clear.n, clear.alpha, clear.kappa, clear.agreement) == ("rubric.clear", 2, 1.0, 1.0, 1.0)
    assert (short.scorer, short.n, short.alpha, short.kappa, short.agreement) == ("rubric.short", 2, None, None, 1.0)
    assert "Krippendorff's alpha (ordinal) -" in str(short)
