"""Comparisons and gates of random scores are those of the oracle, with repeats, groups, failures and any scale."""

import random
from typing import Any

import pytest

from holdfast.report import ExportLine
from holdfast.report.compare.comparison import compare_sides
from holdfast.report.compare.gate import GateRule, judge_against
from holdfast.report.compare.sides import SideAnswers, sides_of
from holdfast.spec.reductions import Reduction
from holdfast.stats import BOOL, NUMBER, UNIT, Scale, Summary
from tests.oracle import paired
from tests.oracle.formulas import ANY, RIGHT_OR_WRONG, Defined, Possible

GRADES = Scale("range", 1.0, 5.0)
KINDS: list[tuple[Scale | None, Possible, tuple[Any, ...]]] = [
    (None, RIGHT_OR_WRONG, (True, False)),
    (BOOL, RIGHT_OR_WRONG, (1.0, 0.0)),
    (UNIT, Possible(0.0, 1.0), (0.0, 0.25, 0.7, 1.0)),
    (GRADES, Possible(1.0, 5.0), (1.0, 2.0, 4.0, 5.0)),
    (NUMBER, ANY, (-3.0, 0.5, 12.0)),
    (None, ANY, (0.0, 2.0, 0.3)),
]


class Drawn:
    """Two sides with random scores."""

    def __init__(self, seed: int, kind: int) -> None:
        self.draw = draw = random.Random(f"{kind} {seed}")
        self.scale, self.possible, self.values = KINDS[kind]
        names = [f"x{number}" for number in range(draw.randint(2, 9))]
        self.groups = {name: (f"g{draw.randrange(4)}",) for name in names} if draw.random() < 0.3 else {}
        self.tied, self.failing = draw.choice([0.0, 0.6, 0.95, 1.0]), draw.choice([0.0, 0.0, 0.1, 0.3])
        keys = [(name, repeat) for name in names for repeat in range(1, draw.choice([1, 1, 2, 3]) + 1)]
        self.first = {key: self._score() for key in keys}
        self.second = {
            key: self._score() if value is None or draw.random() >= self.tied else value
            for key, value in self.first.items()
        }
        if draw.random() < 0.2:  # not all was planned
            self.second.pop(keys[-1])

    def _score(self) -> Any:
        return None if self.draw.random() < self.failing else self.draw.choice(self.values)

    def side(self, scores: dict[tuple[str, int], Any], run: str) -> SideAnswers:
        lines = [
            ExportLine(
                f"t/m/{sample}/{repeat}",
                "t",
                "m",
                sample,
                repeat,
                "finished",
                "text",
                None,
                {"s": value},
                group=self.groups.get(sample, ("",))[0],
            )
            for (sample, repeat), value in scores.items()
        ]
        return sides_of(run, lines, {"t": ((Reduction(),), lambda name: self.scale)})["t", "m"]

    def sides(self) -> tuple[SideAnswers, SideAnswers]:
        return self.side(self.first, "first"), self.side(self.second, "second")


def close(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-6, abs=1e-7)


def assert_same(told: Summary, found: Defined, keys: int) -> None:
    assert (told.n, told.samples or told.n, told.method) == (keys, found.n, found.method)
    assert told.mean == close(found.mean)
    assert told.standard_error == close(found.error)
    assert (told.low, told.high) == (close(found.low), close(found.high))


@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.parametrize("seed", range(60))
def test_a_comparison_is_that_of_the_definitions(seed: int, kind: int) -> None:
    drawn = Drawn(seed, kind)
    (told,) = compare_sides(*drawn.sides())
    found = paired.compared(drawn.first, drawn.second, drawn.groups, drawn.possible)
    if found is None:
        assert (told.difference, told.p, told.bounds, told.cautious_p) == (None, None, None, None)
        return
    assert told.difference is not None
    assert_same(told.difference, found.difference, found.keys)
    assert told.p == close(found.p)
    assert told.cautious_p == close(found.cautious_p)
    assert told.bounds == (None if found.bounds is None else tuple(map(close, found.bounds)))


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_a_gate_is_that_of_the_definitions(kind: int) -> None:
    seen = set()
    for seed in range(200):
        drawn = Drawn(seed, kind)
        first, second = drawn.sides()
        span = max(drawn.values) - min(drawn.values)
        margin, accepted = drawn.draw.choice([0.0, 0.3, 0.5, 0.7, 0.9]) * span, drawn.draw.choice([0, 2, 9])
        rule = GateRule(margin=margin, missing_max=accepted)
        told = judge_against(second, second.measures()["s"], first.measures()["s"], rule)
        found = paired.judged(drawn.first, drawn.second, drawn.groups, drawn.possible, margin, accepted)
        assert (told.outcome, sum(told.missing.values())) == (found.outcome, found.missing), (seed, told)
        assert told.depends_on_missing is found.depends
        seen.add((found.outcome, found.depends))
    assert {("passed", False), ("unsure", False), ("missing", False), ("unsure", True)} <= seen
