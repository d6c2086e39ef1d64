"""Comparisons as sentences: what a person would say about each of them, before any table.

"Better" is said only if the adjusted p is below 0.05 and no missing score could undo it. Scores of right or wrong, and
from 0 to 1, are compared in percentage points; all others in the unit of their scale. A scorer whose scale has no ends
(a length, a count) has no good direction, so its side is called "higher".
"""

from collections.abc import Sequence

from holdfast.report.compare.comparison import ALPHA, Comparison, derived_rows, family_size
from holdfast.report.text import counted
from holdfast.stats import Design, Scale, Summary, samples_needed

_POWER = 0.8
_VISIBLE_SHARE = 0.03
"""The difference that the advice on more samples is about, as a share of the scale: 3 points."""
_SENTENCES_MAX = 10


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
        sentences[_SENTENCES_MAX - 1 :] = [f"{counted(more, 'more comparison')}: see the table"]
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
    return f"{100 * abs(value):.1f} points" if is_in_points(scale) else f"{abs(value):.3g}"


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
    low, high = (f"{100 * end:.1f}" if is_in_points(scale) else f"{end:.3g}" for end in ends)
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
