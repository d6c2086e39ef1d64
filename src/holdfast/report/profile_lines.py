"""A run's profile as people read it: a table of phases, a line for each model, and its life in little bars."""

from collections.abc import Iterator, Sequence

from holdfast.report.grids import Grid
from holdfast.report.profiling import PHASES, InFlightOverTime, ModelProfile, Percentiles, ProfileReport
from holdfast.report.wording import brief, counted

_COLUMNS = ("model", "phase", "n", "p50", "p90", "p99", "max", "in all")
_BARS = "▁▂▃▄▅▆▇█"


def phase_table(report: ProfileReport) -> Grid:
    """A row for each phase of each model that anything is known of; `-` where it is not recorded."""
    rows = []
    for model in report.models:
        known = [phase for phase in PHASES if model.phases[phase] is not None or phase not in ("tools", "score")]
        rows += [
            (model.title if not place else "", phase, *_numbers(model.phases[phase]))
            for place, phase in enumerate(known)
        ]
    rows.append(("all", "commit", *_numbers(report.commit)))
    return Grid(_COLUMNS, rows, titles=2, right=_COLUMNS[2:], whole=("phase",))


def profile_lines(report: ProfileReport) -> Iterator[str]:
    """What is under the table."""
    for model in report.models:
        yield _throughput(model)
    if report.in_flight is not None:
        yield from _spark(report.in_flight)
    left = report.processes - report.commit_processes
    if left > 0:
        gone = counted(left, "process", "processes")
        yield f"commit: {gone} of {report.processes} left no times (killed, or of an older version)"
    yield f"Percentiles are within {report.relative_error:.1%}; max is exact. - means that the run does not tell."


def sparkline(values: Sequence[float | None]) -> str:
    """Each value as a bar, the greatest full; a gap where there is none."""
    known = [each for each in values if each is not None]
    most = max(known, default=0.0) or 1.0
    return "".join(
        " " if each is None else _BARS[min(int(each / most * len(_BARS)), len(_BARS) - 1)] for each in values
    )


def _numbers(found: Percentiles | None) -> tuple[str, ...]:
    if found is None:
        return ("-",) * (len(_COLUMNS) - 2)
    return str(found.count), *map(brief, (found.p50, found.p90, found.p99, found.max, found.seconds))


def _throughput(model: ModelProfile) -> str:
    told = f"{model.title}: {counted(model.requests, 'request')}, {counted(model.retries, 'retry', 'retries')}"
    if model.failed:
        told += f", {model.failed} given up"
    if model.batched:
        told += f", {model.batched} in batches"
    if model.requests_per_second is not None and model.output_tokens_per_second is not None:
        told += f"; {model.requests_per_second:.3g} requests/s, {model.output_tokens_per_second:.3g} output tokens/s"
    if model.rate_limited_share:
        told += f"; {model.rate_limited_share:.1%} of the time held by rate limits"
    return told


def _spark(found: InFlightOverTime) -> Iterator[str]:
    known = [each for each in found.mean if each is not None]
    yield f"in flight: {sparkline(found.mean)}  up to {max(known, default=0.0):.3g}, {brief(found.span_seconds)} each"
    if None in found.mean:
        yield "           (a gap: no process was at work)"
