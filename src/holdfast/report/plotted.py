"""The numbers that figures are drawn of, gathered from runs in one pass over their lines each."""

from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.report.cells import RunReport
from holdfast.report.comparing import Comparison, compare
from holdfast.report.export import ExportLine
from holdfast.report.sides import Answers, pairs_between, pairs_within, sides_of
from holdfast.stats import Summary, pass_at_k, quantile

_CURVE_MAX = 1_000


class Point(msgspec.Struct, frozen=True):
    """One scorer over one cell, and what an answer of the cell cost."""

    label: str
    scorer: str
    summary: Summary
    dollars: float | None


class Curve(msgspec.Struct, frozen=True):
    """pass@k of one cell for k = 1, 2, …: the mean over its samples."""

    label: str
    scorer: str
    values: tuple[float, ...]


class Latency(msgspec.Struct, frozen=True):
    """How long the answers of one cell took: quantiles of their seconds, replayed steps included."""

    label: str
    p5: float
    p25: float
    p50: float
    p75: float
    p95: float
    p99: float


class Plotted(msgspec.Struct, frozen=True):
    """All that there is to draw."""

    points: tuple[Point, ...]
    comparisons: tuple[Comparison, ...]
    curves: tuple[Curve, ...]
    latencies: tuple[Latency, ...]

    @property
    def scorers(self) -> list[str]:
        return list(dict.fromkeys(each.scorer for each in self.points))


def plotted(runs: Sequence[tuple[RunReport, Iterable[ExportLine]]]) -> Plotted:
    """Of several runs, the first one is compared with each other one; of one, its models and variants."""
    points: list[Point] = []
    curves: list[Curve] = []
    latencies: list[Latency] = []
    sides: list[dict[tuple[str, str], Answers]] = []
    for report, lines in runs:
        prefix = f"{report.run_id} " if len(runs) > 1 else ""
        points += _points(report, prefix)
        seconds: dict[tuple[str, str], array[float]] = {}
        answers = sides_of(report.run_id, _watched(lines, seconds))
        latencies += [_latency(f"{prefix}{' / '.join(cell)}", found) for cell, found in seconds.items()]
        for cell, each in answers.items():
            curves += _curves(f"{prefix}{' / '.join(cell)}", each)
        sides.append(answers)
    return Plotted(tuple(points), tuple(_comparisons(sides)), tuple(curves), tuple(latencies))


def _points(report: RunReport, prefix: str) -> Iterator[Point]:
    for cell in report.cells:
        paid = cell.cost.dollars is not None and not cell.cost.unpriced and cell.finished
        dollars = (cell.cost.dollars or 0.0) / cell.finished if paid else None
        for each in cell.scorers:
            yield Point(f"{prefix}{cell.task} / {cell.model}", each.scorer, each.summary, dollars)


def _watched(lines: Iterable[ExportLine], seconds: "dict[tuple[str, str], array[float]]") -> Iterator[ExportLine]:
    """The same without outputs, which nothing is drawn of."""
    for line in lines:
        if line.status == "finished":
            seconds.setdefault((line.task, line.model), array("d")).append(line.seconds)
        yield msgspec.structs.replace(line, output=None)


def _latency(label: str, seconds: "array[float]") -> Latency:
    ordered = sorted(seconds)
    return Latency(label, *(quantile(ordered, share) or 0.0 for share in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)))


def _curves(label: str, answers: Answers) -> Iterator[Curve]:
    """Of scorers that say right or wrong, where every sample with a score has several."""
    for measure in answers.measures().values():
        samples: dict[str, list[float]] = {}
        for (sample, _), number in (measure.numbers() or {}).items():
            samples.setdefault(sample, []).append(number)
        fewest = min(map(len, samples.values()), default=0)
        if fewest > 1 and all(value in (0, 1) for values in samples.values() for value in values):
            every = list(samples.values())
            yield Curve(
                label, measure.scorer, tuple(_mean_pass(every, k) for k in range(1, min(fewest, _CURVE_MAX) + 1))
            )


def _mean_pass(samples: Sequence[Sequence[float]], k: int) -> float:
    """Over the same samples for every k, or the curve could fall."""
    return sum(pass_at_k(each, k) or 0.0 for each in samples) / len(samples)


def _comparisons(sides: Sequence[dict[tuple[str, str], Answers]]) -> Iterator[Comparison]:
    if len(sides) == 1:
        pairs = pairs_within(sides[0])
        yield from (each for first, second in pairs for each in compare(first, second))
        return
    for other in sides[1:]:
        for first, second in pairs_between(sides[0], other):
            yield from compare(first, second)
