"""What changed between runs, or between the models and variants of one: on the keys that both have, scorer by scorer.

A side without a value for a key has no part in the numbers; how many that are, and why, is told. Repeats of a sample
are one group, and so are samples that share one, as in a report; where the sides say otherwise, the side with fewer
groups is right. The difference is second minus first. Its test is McNemar's exact one where there is one
answer a sample and it is right or wrong, else the permutation test; of several comparisons the ps are adjusted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.records.built_in import normalized
from holdfast.report.compare.sides import Answers, Measure, Pair, Side
from holdfast.report.groups import with_groups
from holdfast.stats import Pairs, Summary, benjamini_hochberg, cohens_dz, holm, pair_up, paired_difference

if TYPE_CHECKING:
    from holdfast.stats import PairedTest

Adjustment = Literal["holm", "bh"]


class Shift(msgspec.Struct, frozen=True):
    """A key that is scored otherwise, with both answers; repeat 0: all of a sample's, which have no one answer."""

    sample_id: str
    repeat: int
    before: Any
    after: Any
    output_before: str
    output_after: str


class Comparison(msgspec.Struct, frozen=True):
    """One measure on one pair of sides. What needs numbers is None for labels."""

    first: Side
    second: Side
    scorer: str
    common: int
    """Keys with a value on both sides: what all numbers are of."""
    only_first: int
    """Keys that only the first side was to answer."""
    only_second: int
    missing_first: dict[str, int]
    """Keys of both plans that have no value on this side, by the reason."""
    missing_second: dict[str, int]
    mean_first: float | None
    mean_second: float | None
    difference: Summary | None
    effect: float | None
    """Cohen's dz: the mean difference over its spread from sample to sample."""
    test: str
    """What p is of; empty for labels."""
    samples: int
    """How many the common keys are of. `difference.groups` says how many groups they are in, if they share some."""
    p: float | None
    """Two-sided."""
    adjusted_p: float | None
    """The same, given how many comparisons the table has."""
    exact: bool
    """Unless p was drawn or approximated."""
    wins: int
    """Keys on which the second side is higher."""
    losses: int
    ties: int
    changed: list[Shift]


def compare(first: Answers, second: Answers) -> Iterator[Comparison]:
    """Measure by measure, in the order of the first side's. A side without a single score has a part in all of them."""
    mine, theirs = first.measures(), second.measures()
    for name, each in (mine or theirs).items():
        one = mine.get(name) or first.unscored(each.scorer, each.reduction)
        other = theirs.get(name) or second.unscored(each.scorer, each.reduction)
        if one is not None and other is not None:
            yield _compare(first, second, one, other)


def adjusted(comparisons: Sequence[Comparison], how: Adjustment = "holm") -> list[Comparison]:
    """With the adjusted p of each: all of them are one family of tests."""
    adjust = holm if how == "holm" else benjamini_hochberg
    ps = adjust([each.p for each in comparisons])
    return [msgspec.structs.replace(each, adjusted_p=p) for each, p in zip(comparisons, ps, strict=True)]


def paired(first: Measure, second: Measure) -> Pairs | None:
    """The numbers of both on common keys, with what is independent: the groups of the side that has fewer, since what
    shares one there shares it here. None if there are none.
    """
    mine, theirs = first.numbers(), second.numbers()
    if mine is None or theirs is None:
        return None
    grouping = [side for side in (first, second) if side.groups] or [first]
    several = [pair_up(mine, theirs, side.member) for side in grouping]
    found = min(several, key=lambda pairs: len(set(pairs.groups)))
    return found if found.first else None


def paired_test(pairs: Pairs) -> "PairedTest":
    """The one that assumes least. For right or wrong, once a sample, McNemar's has the same p and is better known."""
    from holdfast.stats import mcnemar_test, permutation_test

    right_or_wrong = set(pairs.first) | set(pairs.second) <= {0.0, 1.0}
    if right_or_wrong and len(set(pairs.groups)) == len(pairs.groups):
        return mcnemar_test(pairs.differences, pairs.groups)
    return permutation_test(pairs.differences, pairs.groups)


def _compare(first: Answers, second: Answers, mine: Measure, theirs: Measure) -> Comparison:
    common = [pair for pair in mine.values if pair in theirs.values]
    samples = [sample for sample, _ in common]
    pairs = paired(mine, theirs)
    steps = pairs.differences if pairs is not None else []
    difference = None
    if pairs is not None:
        difference = with_groups(paired_difference(steps, pairs.groups), samples, pairs.groups)
    test = paired_test(pairs) if pairs is not None else None
    before, after = _planned(mine), _planned(theirs)
    return Comparison(
        first=first.side,
        second=second.side,
        scorer=mine.name,
        common=len(common),
        only_first=len(before - after),
        only_second=len(after - before),
        missing_first=_reasons(mine, after),
        missing_second=_reasons(theirs, before),
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
        ties=sum(mine.values[pair] == theirs.values[pair] for pair in common),
        changed=[
            Shift(
                *pair, mine.values[pair], theirs.values[pair], first.outputs.get(pair, ""), second.outputs.get(pair, "")
            )
            for pair in common
            if mine.values[pair] != theirs.values[pair]
        ],
    )


def _planned(measure: Measure) -> set[Pair]:
    return {*measure.values, *measure.missing}


def _reasons(measure: Measure, also_in: set[Pair]) -> dict[str, int]:
    return dict(Counter(reason for pair, reason in measure.missing.items() if pair in also_in).most_common())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def unlike_scorers(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of scorers that are not the same thing in two evaluations: other code, arguments or judges."""
    mine, theirs = _identities(first), _identities(second)
    return sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])


def _identities(scorers: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for each in map(normalized, scorers):
        told = [each.get(part) for part in ("source", "version", "args", "counts", "judges")]
        if "version" in each:
            told.append(each["function"])
        identity = msgspec.json.encode(told, order="deterministic").decode()
        found.setdefault(str(each.get("name", "")), set()).add(identity)
    return found
