"""Whether a run's scores are good enough, and, if not, what to look at. Pure: reads what an export says of each key.

A standard holds for every task with every model. Samples that failed or are not finished have no score; a mean over the
others would be a mean over the easy ones, so they are counted, and more than are allowed fail the run.
"""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.report.export import ExportLine
from holdfast.report.groups import member_of, with_groups
from holdfast.report.wording import count_of, counted
from holdfast.score import as_number
from holdfast.stats import Summary, summarise

_KEYS_NAMED = 10


class Standard(msgspec.Struct, frozen=True):
    """`scorer` empty means every scorer that gives numbers. `certain`: the whole interval must be high enough."""

    at_least: float
    scorer: str = ""
    confidence: float = 0.95
    certain: bool = False
    failed_max: int = 0


class Measured(msgspec.Struct, frozen=True):
    """One scorer over one task with one model."""

    task: str
    model: str
    scorer: str
    summary: Summary
    low: tuple[str, ...]
    """Keys with a score below the standard."""

    def meets(self, standard: Standard) -> bool:
        found = self.summary.low if standard.certain else self.summary.mean
        return found is not None and found >= standard.at_least


def shortcomings(lines: Iterable[ExportLine], standard: Standard) -> list[str]:
    """Why the run does not meet the standard, in lines for a person; empty if it does."""
    values: dict[tuple[str, str, str], list[tuple[float, ExportLine]]] = {}
    missing: list[str] = []
    for line in lines:
        if line.status != "finished":
            missing.append(f"{line.key} is {line.status}")
        elif any(standard.scorer in ("", name) for name in line.broken):
            missing.append(f"{line.key} could not be scored")
        for name, value in line.values.items():
            number = as_number(value)
            if number is not None and standard.scorer in ("", name):
                values.setdefault((line.task, line.model, name), []).append((number, line))
    measured = [_measured(place, found, standard) for place, found in values.items()]
    told = [line for each in measured if not each.meets(standard) for line in _told(each, standard)]
    if not measured:
        told.append("no answer has a score" + (f" of {standard.scorer}" if standard.scorer else ""))
    if len(missing) > standard.failed_max:
        told += [f"{counted(len(missing), 'sample')} without a score:", *_named(missing)]
    return told


def _measured(place: tuple[str, str, str], found: Sequence[tuple[float, ExportLine]], standard: Standard) -> Measured:
    members = [member_of(line.sample_id, line.group) for _, line in found]
    summary = summarise([number for number, _ in found], members, standard.confidence)
    summary = with_groups(summary, [line.sample_id for _, line in found], members)
    return Measured(*place, summary, tuple(line.key for number, line in found if number < standard.at_least))


def _told(measured: Measured, standard: Standard) -> list[str]:
    summary = measured.summary
    place = f"{measured.task} / {measured.model} / {measured.scorer}"
    interval = "no interval"
    if summary.low is not None and summary.high is not None:
        interval = f"{standard.confidence:.0%} interval {summary.low:.4f} .. {summary.high:.4f}"
    wanted = f"{'certainly ' if standard.certain else ''}at least {standard.at_least:g}"
    told = [f"{place}: mean {summary.mean:.4f}, wanted {wanted} ({interval}, n {count_of(summary)})"]
    if summary.high is not None and summary.high >= standard.at_least:
        told.append(f"  the interval holds {standard.at_least:g}: more samples would tell")
    if measured.low:
        told += [f"  {counted(len(measured.low), 'answer')} below it:", *_named(measured.low)]
    return told


def _named(keys: Sequence[str]) -> list[str]:
    more = len(keys) - _KEYS_NAMED
    return [f"    {key}" for key in keys[:_KEYS_NAMED]] + ([f"    … and {more} more"] if more > 0 else [])
