"""Comparisons as sentences: what a person would say about each of them, before any table. The notes below a table.

"Better" is said only if the adjusted p is below 0.05 and no missing score could undo it. Scores of right or wrong, and
from 0 to 1, are compared in percentage points; all others in the unit of their scale. A scorer whose scale has no ends
(a length, a count) has no good direction, so its side is called "higher".
"""

from collections.abc import Iterator, Sequence

from holdfast.report.compare.comparison import ALPHA, Comparison, derived_rows, family_size
from holdfast.report.compare.leaderboard import Board
from holdfast.report.text import counted, describe_methods, format_number, three_digits
from holdfast.stats import Design, Scale, Summary, samples_needed

_POWER = 0.8
_VISIBLE_SHARE = 0.03
"""The difference that the advice on more samples is about, as a share of the scale: 3 points."""
_SENTENCES_MAX = 10
SEE_TABLE = "see the table"
_TESTS = {"mcnemar": "McNemar's exact test", "permutation": "sign-flip permutation test"}
_REASONS = {
    "label": "with a label instead",
    "no_score": "no score",
    "scorer_failed": "scorer failed",
    "no_value": "without a value",
}


def comparison_sentences(found: Sequence[Comparison]) -> list[str]:
    """One sentence for each comparison of numbers that is not derived from another one, the clear differences first."""
    several = family_size(found) > 1
    chosen = [
        each
        for each, is_derived in zip(found, derived_rows(found), strict=True)
        if each.difference is not None and not is_derived
    ]
    chosen.sort(key=lambda each: not is_clear(each))
    sentences = [_title(each) + comparison_sentence(each, is_adjusted=several) for each in chosen]
    if len(sentences) > _SENTENCES_MAX:
        more = len(sentences) - _SENTENCES_MAX + 1
        sentences[_SENTENCES_MAX - 1 :] = [f"{counted(more, 'more comparison')}: {SEE_TABLE}"]
    return sentences


def is_clear(each: Comparison) -> bool:
    """Whether one side can be called better."""
    return each.adjusted_p is not None and each.adjusted_p < ALPHA and not each.depends_on_missing


def comparison_sentence(each: Comparison, *, is_adjusted: bool = False) -> str:
    """The result of one comparison of numbers. `is_adjusted`: its p was adjusted for others beside it."""
    difference = each.difference
    if difference is None or difference.mean is None:
        return "nothing can be compared"
    first, second = each.first.label(each.second), each.second.label(each.first)
    samples = counted(each.samples, "paired sample")
    if difference.groups is not None:
        samples += f" in {counted(difference.groups, 'group')}"
    if not each.wins and not each.losses:
        return f"{first} and {second} have equal scores on {samples}"
    p = _p(each, is_adjusted)
    if not _has_winner(each) and _contains_zero(difference):
        shown = ", ".join(filter(None, (_range(difference, each.scale, second), p, samples)))
        return f"no difference can be seen between {first} and {second} ({shown}){_advice(each, difference)}"
    shown = f"({', '.join(filter(None, (_interval(difference, each.scale), p, samples)))})"
    winner, loser = (second, first) if difference.mean > 0 else (first, second)
    word = "better" if each.scale is not None and each.scale.width is not None else "higher"
    amount = f"by {_amount(difference.mean, each.scale)} {shown}"
    if each.depends_on_missing:
        return f"{winner} looks {word} than {loser} {amount}, but missing scores could undo that"
    if not _has_winner(each):
        return f"{winner} seems {word} than {loser} {amount}, but that may be chance"
    return f"{winner} is {word} than {loser} {amount}"


def is_in_points(scale: Scale | None) -> bool:
    """Whether scores of this scale are shares, so that differences are percentage points."""
    return scale is not None and (scale.lowest, scale.highest) == (0.0, 1.0)


def _has_winner(each: Comparison) -> bool:
    return each.adjusted_p is not None and each.adjusted_p < ALPHA


def _contains_zero(difference: Summary) -> bool:
    return difference.low is None or difference.high is None or difference.low <= 0 <= difference.high


def _title(each: Comparison) -> str:
    model = f"/{each.first.model}" if each.first.model == each.second.model else ""
    task = each.first.task if each.first.task == each.second.task else each.first.family
    return f"{task}{model}, {each.scorer}: "


def _amount(value: float, scale: Scale | None) -> str:
    return f"{100 * abs(value):.1f} points" if is_in_points(scale) else three_digits(abs(value))


def _range(difference: Summary, scale: Scale | None, side: str) -> str:
    """The interval around zero: how much lower and how much higher a side may be."""
    if difference.low is None or difference.high is None:
        return ""
    low, high = _amount(-difference.low, scale), _amount(difference.high, scale)
    return f"95%: {side} is up to {low} lower or {high} higher"


def _interval(difference: Summary, scale: Scale | None) -> str:
    """The interval, seen from the better side."""
    if difference.low is None or difference.high is None:
        return ""
    is_second = (difference.mean or 0.0) > 0
    ends = (difference.low, difference.high) if is_second else (-difference.high, -difference.low)
    low, high = (f"{100 * end:.1f}" if is_in_points(scale) else three_digits(end) for end in ends)
    return f"95%: {low} to {high}"


def _p(each: Comparison, is_adjusted: bool) -> str:
    p = each.p if each.adjusted_p is None else each.adjusted_p
    if p is None:
        return ""
    name = "adjusted p" if is_adjusted and each.adjusted_p is not None else "p"
    return f"{name} < 0.001" if p < 0.001 else f"{name} {'<=' if each.p_is_bound else '='} {p:.3f}"


def _advice(each: Comparison, difference: Summary) -> str:
    """How many samples would show a small difference, if they vary as these do."""
    if each.scale is None or each.scale.width is None or not difference.standard_error:
        return ""
    effect = _VISIBLE_SHARE * each.scale.width
    variance = each.samples * difference.standard_error**2
    needed = samples_needed(Design(variance), effect, _POWER)
    amount = _amount(effect, each.scale).replace(".0 ", " ")
    if needed is None:
        return ""
    if needed <= each.samples:
        return f"; {amount} would have been seen with {_POWER:.0%} power"
    return f"; {needed:,} samples would show {amount} with {_POWER:.0%} power"


def common_model(each: Comparison) -> str:
    """The model, if both sides have the same one; else empty."""
    return each.first.model if each.first.model == each.second.model else ""


def comparison_title(each: Comparison, task: str, several: bool) -> str:
    """Task and scorer of a comparison, with the model if `several` models are compared with themselves."""
    model = f"/{common_model(each)}" if several and common_model(each) else ""
    return f"{task}{model} {each.scorer}"


def comparison_method(found: Sequence[Comparison], adjust: str, family: int) -> str:
    """One line: intervals, tests and adjustment of a table of comparisons. `family`: the number of tests."""
    parts = []
    method = describe_methods(each.difference for each in found if each.difference is not None)
    if method:
        parts.append(f"95% intervals: {method}")
    tests = " or ".join(_TESTS.get(test, test) for test in dict.fromkeys(each.test for each in found if each.test))
    if tests:
        name = "Holm" if adjust == "holm" else "Benjamini-Hochberg"
        among = f"{name} over {counted(family, 'test')} (not: rows derived from others, rows without a difference)"
        parts.append(f"p: {tests}, two-sided; adjusted p: {among}")
    return "; ".join(parts)


def overlap_line(each: Comparison, several: bool) -> str:
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
