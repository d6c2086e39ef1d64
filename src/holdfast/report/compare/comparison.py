"""Compares two sides (runs, or models or variants of one run) on the keys that both have, scorer by scorer.

Keys without a value on one side are left out and counted by reason. Samples weigh equally: the values of a sample's
repeats are averaged first. Samples that share a group are not independent; if the sides disagree about groups, the side
with fewer groups decides. The difference is second minus first.

Missing values are never an advantage. If the scale has ends, the comparison is repeated with every missing value
against the observed difference; a difference that is then no longer significant `depends_on_missing`.

Where the p-value comes from: `_compare` pairs the values (`paired`), `paired_test` chooses McNemar's exact test (one
right-or-wrong answer per sample) or the permutation test, both in `stats.paired_tests`, and `adjust_p_values` corrects
the p-values of a whole table for the number of comparisons (`stats.adjustment`).
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.records import Row, normalized
from holdfast.report.compare.sides import Measure, Pair, Side, SideAnswers
from holdfast.report.questions import UNKNOWN, Question
from holdfast.report.reduction import with_counts
from holdfast.state import mean_by_sample
from holdfast.stats import LEVEL, NUMBER, Scale, Summary, benjamini_hochberg, cohens_dz, holm, paired_interval

if TYPE_CHECKING:
    from holdfast.stats import PairedTest

Adjustment = Literal["holm", "bh"]
ALPHA = 0.05


class ChangedKey(msgspec.Struct, frozen=True):
    """A key with different scores on the two sides, and both answers. Repeat 0: a reduced score of all repeats."""

    sample_id: str
    repeat: int
    before: Any
    after: Any
    output_before: str
    output_after: str
    input: Any = None
    """What both sides were asked; None if it is not known, or before `add_questions`."""
    target: Any = None
    prompt: str | None = None
    row: Row | None = None
    """The columns of the row that were chosen; None if none was."""


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
    """`p` adjusted for the number of comparisons in the table, from `adjust_p_values`; None for derived rows."""
    exact: bool
    """False if p was sampled or approximated."""
    wins: int
    """Keys on which the second side is higher."""
    losses: int
    ties: int
    changed: list[ChangedKey]
    cautious_p: float | None = None
    """`p` if every missing value were against the observed difference, 1 if the scale has no ends; None without missing
    values.
    """
    depends_on_missing: bool = False
    """Whether the difference is significant (adjusted p up to 0.05), but would not be with `cautious_p`."""
    p_is_bound: bool = False
    """Whether no drawn outcome was as extreme: `p` is the smallest that so many draws can show."""
    bounds: tuple[float, float] | None = None
    """The lowest and highest difference that the missing values allow."""
    scale: Scale | None = None
    """Of the values on both sides; None for labels."""


class CommonKeys(msgspec.Struct, frozen=True):
    """Every key that has a value on both sides of a comparison, in plan order."""

    first: SideAnswers
    second: SideAnswers
    scorer: str
    pairs: Sequence[Pair]
    before: Sequence[Any]
    after: Sequence[Any]


Observe = Callable[[CommonKeys], None]


def compare_sides(first: SideAnswers, second: SideAnswers, *, observe: Observe | None = None) -> Iterator[Comparison]:
    """One comparison per measure, in the order of the first side. A side without any score appears in all of them.
    `observe`: gets all common keys instead; then `changed` is empty and no answer is read.
    """
    mine, theirs = first.measures(), second.measures()
    for name, each in (mine or theirs).items():
        one = mine.get(name) or first.unscored(each.scorer, each.reduction)
        other = theirs.get(name) or second.unscored(each.scorer, each.reduction)
        if one is not None and other is not None:
            yield _compare(first, second, one, other, observe)


def adjust_p_values(comparisons: Sequence[Comparison], how: Adjustment = "holm") -> list[Comparison]:
    """Fill in `adjusted_p`: the comparisons of one family of tests are adjusted together (`family_size`)."""
    adjust = holm if how == "holm" else benjamini_hochberg
    tested = _in_family(comparisons)
    ps = adjust([each.p if counts else None for each, counts in zip(comparisons, tested, strict=True)])
    against = [each.p if each.cautious_p is None else each.cautious_p for each in comparisons]
    cautious = adjust([p if counts else None for p, counts in zip(against, tested, strict=True)])
    found = []
    for each, p, other in zip(comparisons, ps, cautious, strict=True):
        depends = p is not None and other is not None and p <= ALPHA < other
        found.append(msgspec.structs.replace(each, adjusted_p=p, depends_on_missing=depends))
    return found


FindQuestions = Callable[[Side, Collection[str]], Mapping[str, Question]]
"""From a side and ids of samples to what the side was asked, by id."""


def add_questions(comparisons: Sequence[Comparison], limit: int | None, find: FindQuestions) -> list[Comparison]:
    """Fill in what the first `limit` changed keys of each comparison were asked. Rows are read only for these: of the
    first side, or of the second for samples that the first cannot show.
    """
    wanted: dict[Side, set[str]] = {}
    for each in comparisons:
        ids = {changed.sample_id for changed in each.changed[:limit]}
        wanted.setdefault(each.first, set()).update(ids)
    found = {side: dict(find(side, ids)) if ids else {} for side, ids in wanted.items()}
    made = []
    for each in comparisons:
        known, kept = found[each.first], each.changed[:limit]
        missing = {changed.sample_id for changed in kept} - known.keys()
        others = find(each.second, missing) if missing else {}
        filled = []
        for changed in kept:
            asked = known.get(changed.sample_id) or others.get(changed.sample_id) or UNKNOWN
            fields: dict[str, Any] = {
                "input": asked.input,
                "target": asked.target,
                "prompt": asked.prompt,
                "row": asked.row,
            }
            filled.append(msgspec.structs.replace(changed, **fields))
        made.append(msgspec.structs.replace(each, changed=[*filled, *each.changed[len(filled) :]]))
    return made


def family_size(comparisons: Sequence[Comparison]) -> int:
    return sum(_in_family(comparisons))


def _in_family(comparisons: Sequence[Comparison]) -> list[bool]:
    """Which tests are adjusted together: not those of rows that are derived from another row of the table (a reducer
    beside the mean, a judge's vote beside its panel), and not those without any difference, whose p is always 1.
    """
    return [
        each.p is not None and not is_derived and bool(each.wins or each.losses)
        for each, is_derived in zip(comparisons, derived_rows(comparisons), strict=True)
    ]


def derived_rows(comparisons: Sequence[Comparison]) -> list[bool]:
    """Which comparisons are derived from another one of the same sides: a reducer beside the mean, a judge's vote
    beside its panel.
    """
    names: dict[tuple[Side, Side], list[str]] = {}
    for each in comparisons:
        if each.difference is not None:  # from labels alone nothing is derived that has a test of its own
            names.setdefault((each.first, each.second), []).append(each.scorer)
    return [
        any(each.scorer.startswith((f"{other} ", f"{other}.")) for other in names.get((each.first, each.second), ()))
        for each in comparisons
    ]


class PairedSamples(msgspec.Struct, frozen=True, dict=True):
    """`first[i]` and `second[i]` are the means of one sample over the keys that both sides have."""

    first: Sequence[float]
    second: Sequence[float]
    groups: Sequence[Hashable]
    """The independent unit of each sample: its group, or the sample."""
    answers: int
    """How many keys both sides have."""
    scale: Scale
    repeats: int = 1
    """How many answers a reduced value comes from."""

    @cached_property
    def group_count(self) -> int:
        return len(set(self.groups))

    @cached_property
    def differences(self) -> list[float]:
        """Second minus first."""
        return [after - before for before, after in zip(self.first, self.second, strict=True)]

    def interval(self, confidence: float = LEVEL) -> Summary:
        found = paired_interval(self.differences, self.groups, confidence, self.scale, self.answers * self.repeats)
        return with_counts(found, self.answers, self.group_count)


def paired(first: Measure, second: Measure, keys: Container[Pair] | None = None) -> PairedSamples | None:
    """The numbers of both sides on common keys (only `keys`, if given); None without common numbers.

    If only one side knows groups, or they differ, the grouping with fewer groups is used: it assumes less independence.
    """
    mine, theirs = first.numbers(), second.numbers()
    if mine is None or theirs is None:
        return None
    common = [pair for pair in mine if pair in theirs and (keys is None or pair in keys)]
    if not common:
        return None
    samples = [sample for sample, _ in common]
    one, other = ([side[pair] for pair in common] for side in (mine, theirs))
    if len(set(samples)) < len(samples):
        means = [mean_by_sample(samples, values) for values in (one, other)]
        samples, (one, other) = list(means[0]), (list(each.values()) for each in means)
    several = [[groups.get(sample, sample) for sample in samples] for groups in (first.groups, second.groups) if groups]
    members: Sequence[Hashable] = min(several, key=lambda groups: len(set(groups))) if several else samples
    scale = _common_scale(first, second)
    weights = first.weights or second.weights
    if weights:
        # Scaled by their weights, plain means of these values are weighted means.
        mean = math.fsum(weights.get(sample, 1.0) for sample in samples) / len(samples)
        factors = [weights.get(sample, 1.0) / mean for sample in samples]
        one, other = ([factor * value for factor, value in zip(factors, side, strict=True)] for side in (one, other))
        scale = _stretched(scale, max(factors))
    return PairedSamples(one, other, members, len(common), scale, max(first.repeats, second.repeats))


def _stretched(scale: Scale, factor: float) -> Scale:
    """The scale of values that were multiplied by at most this factor."""
    if scale.lowest is None or scale.highest is None:
        return scale
    return Scale("range", min(scale.lowest, factor * scale.lowest), max(scale.highest, factor * scale.highest))


def _common_scale(first: Measure, second: Measure) -> Scale:
    """Of both sides. A side without a declaration takes that of the other."""
    if first.scale == second.scale:
        return first.scale
    declared = [side.scale for side in (first, second) if side.declared is not None]
    return declared[0] if len(declared) == 1 else NUMBER


def cautious_pair(worse: Measure, better: Measure) -> PairedSamples | None:
    """The same on all keys that both sides have planned, with every missing value against `better`: the lowest of the
    scale there, the highest on the other side. None if nothing is missing, or the scale has no ends.
    """
    if not worse.missing and not better.missing:
        return None
    scale, keys = _common_scale(worse, better), worse.planned & better.planned
    is_missing = any(pair in keys for side in (worse, better) for pair in side.missing)
    if not is_missing or scale.lowest is None or scale.highest is None:
        return None
    return paired(worse.fill(scale.highest, keys), better.fill(scale.lowest, keys), keys)


def paired_test(pairs: PairedSamples) -> "PairedTest":
    """Choose and run the test behind every reported p-value.

    The permutation test assumes least. For one right-or-wrong answer per sample, McNemar's exact test gives the same p
    and is better known.
    """
    from holdfast.stats import mcnemar_test, permutation_test

    # A reduced value may be a chance between 0 and 1: McNemar's test would count it by its sign alone.
    is_binary = {*pairs.first, *pairs.second} <= {0.0, 1.0}
    right_or_wrong = pairs.scale.is_bool and is_binary and pairs.answers == pairs.group_count
    return (mcnemar_test if right_or_wrong else permutation_test)(pairs.differences, pairs.groups)


def _caution(first: Measure, second: Measure, difference: float) -> tuple[float | None, tuple[float, float] | None]:
    """The p-value if all missing values were against the difference, and the lowest and highest difference then."""
    if not first.missing and not second.missing:
        return None, None
    up, down = cautious_pair(first, second), cautious_pair(second, first)
    if up is None or down is None:  # nothing is missing, or what is missing could be anything
        return (1.0 if first.planned & second.planned & {*first.missing, *second.missing} else None), None
    against = paired_test(up if difference > 0 else down).p
    low, high = _mean(up.differences), -_mean(down.differences)
    if difference > 0 >= low or difference < 0 <= high:  # the sign itself depends on the missing values
        against = 1.0
    return against, (low, high)


def _compare(
    first: SideAnswers, second: SideAnswers, mine: Measure, theirs: Measure, observe: Observe | None
) -> Comparison:
    common = [pair for pair in mine.values if pair in theirs.values]
    pairs = paired(mine, theirs)
    steps, test, cautious_p, bounds = list[float](), None, None, None
    if pairs is not None:
        steps, test = pairs.differences, paired_test(pairs)
        cautious_p, bounds = _caution(mine, theirs, _mean(steps))
    ours, others = [mine.values[pair] for pair in common], [theirs.values[pair] for pair in common]
    if observe is not None:
        observe(CommonKeys(first, second, mine.name, common, ours, others))
    by_key = steps
    if pairs is not None and len(common) != len(steps):  # repeats, or values without a number
        numbers = mine.numbers() or {}, theirs.numbers() or {}
        by_key = [numbers[1][pair] - numbers[0][pair] for pair in common if pair in numbers[0] and pair in numbers[1]]
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
        difference=pairs.interval() if pairs is not None else None,
        effect=cohens_dz(steps) if pairs is not None else None,
        test=test.method if test is not None else "",
        samples=_count_samples(common, pairs),
        p=test.p if test is not None else None,
        adjusted_p=None,
        exact=test is None or test.exact,
        wins=sum(step > 0 for step in by_key),
        losses=sum(step < 0 for step in by_key),
        ties=sum(map(operator.eq, ours, others)),
        changed=[
            ChangedKey(*pair, one, other, first.output(pair), second.output(pair))
            for pair, one, other in zip(common, ours, others, strict=True)
            if observe is None and one != other
        ],
        cautious_p=cautious_p,
        p_is_bound=test is not None and test.is_bound,
        bounds=bounds,
        scale=pairs.scale if pairs is not None else None,
    )


def _count_samples(common: Sequence[Pair], pairs: PairedSamples | None) -> int:
    if pairs is not None and pairs.answers == len(common):
        return len(pairs.first)
    return len({sample for sample, _ in common})


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
