"""Notes below a comparison or a leaderboard: how the numbers were computed, and what they leave out."""

from collections.abc import Iterator, Sequence

from holdfast.report.compare.comparison import Comparison
from holdfast.report.compare.leaderboard import Board
from holdfast.report.text import counted, describe_methods, format_number

_REASONS = {
    "label": "with a label instead",
    "no_score": "no score",
    "scorer_failed": "scorer failed",
    "no_value": "without a value",
}
_TESTS = {"mcnemar": "McNemar's exact test", "permutation": "sign-flip permutation test"}


def common_model(each: Comparison) -> str:
    """The model, if both sides have the same one; else empty."""
    return each.first.model if each.first.model == each.second.model else ""


def comparison_title(each: Comparison, task: str, several: bool) -> str:
    """Task and scorer of a comparison, with the model if `several` models are compared with themselves."""
    model = f"/{common_model(each)}" if several and common_model(each) else ""
    return f"{task}{model} {each.scorer}"


def describe_comparisons(found: Sequence[Comparison], adjust: str, family: int) -> str:
    """One line: intervals, tests, adjustment and effect size of the table."""
    parts = []
    method = describe_methods(each.difference for each in found if each.difference is not None)
    if method:
        parts.append(f"95% intervals: {method}")
    tests = " or ".join(_TESTS.get(test, test) for test in dict.fromkeys(each.test for each in found if each.test))
    if tests:
        name = "Holm" if adjust == "holm" else "Benjamini-Hochberg"
        among = f"{name} over {counted(family, 'test')} (not: rows derived from others, rows without a difference)"
        parts.append(f"p: {tests}, two-sided; adjusted p: {among}")
    return "; ".join([*parts, "dz: mean difference over its standard deviation between samples"])


def describe_overlap(each: Comparison, several: bool) -> str:
    """How many keys two sides were compared on, and what was left out."""
    first, second = each.first.label(each.second), each.second.label(each.first)
    sides = f"{comparison_title(each, each.first.family, several)}, {first} and {second}"
    parts = [f"compared on {counted(each.common, 'key')} of {counted(each.samples, 'sample')}"]
    if each.difference is not None and each.difference.groups is not None:
        parts[0] += f" in {counted(each.difference.groups, 'group')}"
    for label, only, missing in (
        (first, each.only_first, each.missing_first),
        (second, each.only_second, each.missing_second),
    ):
        if only:
            parts.append(f"{only} only in {label}")
        if missing:
            reasons = ", ".join(f"{count} {_REASONS.get(why, why)}" for why, count in missing.items())
            parts.append(f"left out of {label}: {reasons}")
    if each.bounds is not None:
        low, high = (format_number(end, "+") for end in each.bounds)
        parts.append(f"with what is missing the difference is between {low} and {high}")
    elif each.difference is not None and (each.missing_first or each.missing_second):
        parts.append("what is missing may change the difference, by how much is unknown: the scale has no known ends")
    return f"{sides}: {'; '.join(parts)}"


def describe_boards(found: Sequence[Board]) -> Iterator[str]:
    """How means, intervals and ranks were computed."""
    method = describe_methods(each.summary for board in found for each in board.ranked)
    if method:
        yield f"95% intervals: {method}"
    common = {str(board.common_min) for board in found if board.common_min is not None}
    if common:
        count = f" ({common.pop()})" if len(common) == 1 else ""
        rests = f"means and ranks rest on the keys that all models have a score for{count}"
        yield f"{rests}; rank: 1 + the number of significantly better models (paired tests, Holm, 0.05)"
    if any(each.missing for board in found for each in board.ranked):
        what = "the mean over all keys of a model, also those that others lack, with each missing score"
        yield f"on all keys: {what} at the low .. high end of the scale (unknown without ends)"
