"""Compares two sides (runs, or models or variants of one run) on the keys that both have, scorer by scorer.

Keys without a value on one side are left out and counted by reason. Repeats of a sample form one group, and so do
samples that share one, as in a report; if the sides disagree, the side with fewer groups decides. The difference is
second minus first.

Where the p-value comes from: `_compare` pairs the values (`paired`), `paired_test` chooses McNemar's exact test (one
right-or-wrong answer per sample) or the permutation test, both in `stats.paired_tests`, and `adjust_p_values` corrects
the p-values of a whole table for the number of comparisons (`stats.adjustment`).
"""

import itertools
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.records import normalized
from holdfast.report.compare.sides import Measure, Pair, Side, SideAnswers
from holdfast.report.reduction import with_groups
from holdfast.stats import Pairs, Summary, benjamini_hochberg, cohens_dz, holm, pair_up, paired_difference

if TYPE_CHECKING:
    from holdfast.stats import PairedTest

Adjustment = Literal["holm", "bh"]


class ChangedKey(msgspec.Struct, frozen=True):
    """A key with different scores on the two sides, and both answers. Repeat 0: a reduced score of all repeats."""

    sample_id: str
    repeat: int
    before: Any
    after: Any
    output_before: str
    output_after: str


class Comparison(msgspec.Struct, frozen=True):
    """One measure on one pair of sides. For labels, everything that needs numbers is None."""

    first: Side
    second: Side
    scorer: str
    common: int
    """Keys with a value on both sides. All numbers are computed on these."""
    only_first: int
    """Keys that only the first side's plan has."""
    only_second: int
    missing_first: dict[str, int]
    """Keys of both plans without a value on this side, by reason."""
    missing_second: dict[str, int]
    mean_first: float | None
    mean_second: float | None
    difference: Summary | None
    effect: float | None
    """Cohen's dz: the mean difference over its standard deviation between samples."""
    test: str
    """The test that gave `p`: `mcnemar` or `permutation`; empty for labels."""
    samples: int
    """Samples of the common keys. `difference.groups` is the number of groups, if samples share groups."""
    p: float | None
    """Two-sided, from `paired_test`, before adjustment."""
    adjusted_p: float | None
    """`p` adjusted for the number of comparisons in the table, from `adjust_p_values`."""
    exact: bool
    """False if p was sampled or approximated."""
    wins: int
    """Keys on which the second side is higher."""
    losses: int
    ties: int
    changed: list[ChangedKey]


def compare(first: SideAnswers, second: SideAnswers) -> Iterator[Comparison]:
    """One comparison per measure, in the order of the first side. A side without any score appears in all of them."""
    mine, theirs = first.measures(), second.measures()
    for name, each in (mine or theirs).items():
        one = mine.get(name) or first.unscored(each.scorer, each.reduction)
        other = theirs.get(name) or second.unscored(each.scorer, each.reduction)
        if one is not None and other is not None:
            yield _compare(first, second, one, other)


def adjust_p_values(comparisons: Sequence[Comparison], how: Adjustment = "holm") -> list[Comparison]:
    """Fill in `adjusted_p`: all comparisons form one family of tests."""
    adjust = holm if how == "holm" else benjamini_hochberg
    ps = adjust([each.p for each in comparisons])
    return [msgspec.structs.replace(each, adjusted_p=p) for each, p in zip(comparisons, ps, strict=True)]


def paired(first: Measure, second: Measure) -> Pairs | None:
    """The numbers of both sides on common keys, with their groups; None without common numbers.

    If only one side knows groups, or they differ, the grouping with fewer groups is used: it assumes less independence.
    """
    mine, theirs = first.numbers(), second.numbers()
    if mine is None or theirs is None:
        return None
    grouping = [side for side in (first, second) if side.groups] or [first]
    several = [pair_up(mine, theirs, side.member) for side in grouping]
    found = min(several, key=lambda pairs: len(set(pairs.groups)))
    return found if found.first else None


def paired_test(pairs: Pairs) -> "PairedTest":
    """Choose and run the test behind every reported p-value.

    The permutation test assumes least. For one right-or-wrong answer per sample, McNemar's exact test gives the same p
    and is better known.
    """
    from holdfast.stats import mcnemar_test, permutation_test

    right_or_wrong = set(pairs.first) | set(pairs.second) <= {0.0, 1.0}
    if right_or_wrong and len(set(pairs.groups)) == len(pairs.groups):
        return mcnemar_test(pairs.differences, pairs.groups)
    return permutation_test(pairs.differences, pairs.groups)


def _compare(first: SideAnswers, second: SideAnswers, mine: Measure, theirs: Measure) -> Comparison:
    common = [pair for pair in mine.values if pair in theirs.values]
    samples = [sample for sample, _ in common]
    pairs = paired(mine, theirs)
    steps = pairs.differences if pairs is not None else []
    difference = None
    if pairs is not None:
        difference = with_groups(paired_difference(steps, pairs.groups), samples, pairs.groups)
    test = paired_test(pairs) if pairs is not None else None
    ours, others = [mine.values[pair] for pair in common], [theirs.values[pair] for pair in common]
    return Comparison(
        first=first.side,
        second=second.side,
        scorer=mine.name,
        common=len(common),
        only_first=_count_only(mine, theirs, len(common)),
        only_second=_count_only(theirs, mine, len(common)),
        missing_first=_reasons(mine, theirs),
        missing_second=_reasons(theirs, mine),
        mean_first=_mean(pairs.first) if pairs is not None else None,
        mean_second=_mean(pairs.second) if pairs is not None else None,
        difference=difference,
        effect=cohens_dz(steps, samples) if pairs is not None else None,
        test=test.method if test is not None else "",
        samples=len(set(samples)),
        p=test.p if test is not None else None,
        adjusted_p=None,
        exact=test is None or test.exact,
        wins=sum(step > 0 for step in steps),
        losses=sum(step < 0 for step in steps),
        ties=sum(map(operator.eq, ours, others)),
        changed=[
            ChangedKey(*pair, one, other, first.output(pair), second.output(pair))
            for pair, one, other in zip(common, ours, others, strict=True)
            if one != other
        ],
    )


def _count_only(mine: Measure, theirs: Measure, common: int) -> int:
    """How many planned keys only the first side has. `common`: how many have a value on both."""
    unlike = (pair for pair in mine.values if pair not in theirs.values) if common < len(mine.values) else ()
    return sum(not _has(theirs, pair) for pair in itertools.chain(unlike, mine.missing))


def _has(measure: Measure, pair: Pair) -> bool:
    return pair in measure.values or pair in measure.missing


def _reasons(measure: Measure, other: Measure) -> dict[str, int]:
    """Why planned keys of both sides have no value on the first."""
    return dict(Counter(reason for pair, reason in measure.missing.items() if _has(other, pair)).most_common())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def differing_scorers(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of scorers that differ between two evaluations in code, arguments or judges."""
    mine, theirs = _identities(first), _identities(second)
    return sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])


def _identities(scorers: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in map(normalized, scorers):
        parts = [each.get(part) for part in ("source", "version", "args", "counts", "judges")]
        if "version" in each:
            parts.append(each["function"])
        identity = msgspec.json.encode(parts, order="deterministic").decode()
        found.setdefault(str(each.get("name", "")), set()).add(identity)
    return found
