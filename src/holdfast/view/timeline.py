"""The replay timeline of a sample: what each process that worked on it sent, waited for, retried and replayed, and
where a process ended before the sample did.

A row of the figure is one process (a life of the run). Times between processes are left out. Many steps are drawn
together, so the figure stays small.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

import msgspec

from holdfast.records import SampleFinished, Step
from holdfast.report import KeyRecords, StepOutline, counted, started_at
from holdfast.report.text import brief
from holdfast.view.markup import Markup, h

_MARKS_MAX = 240
_LANES_MAX = 4
_LEFT, _WIDTH, _RIGHT, _LANE, _GAP = 110, 1000, 90, 14, 12
_SHOWN_SECONDS = 0.0005
_CUT_OFF = frozenset({"killed", "taken over", "interrupted", "cancelled"})
"""Ends of processes that ended before the sample did."""


class TimelineMark(msgspec.Struct, frozen=True):
    """One step, or several that are drawn together. Times in seconds; `start` is that of the row."""

    n: int
    start: float
    waited: float
    """Before it was sent: for a free place, or for a rate limit."""
    lost: float
    """In tries that failed."""
    seconds: float
    """In all, without `waited`."""
    what: str
    """`model`, `tool`, `judge` or `other`."""
    label: str
    count: int = 1
    tries: int = 1
    failed: bool = False


class ProcessSpan(msgspec.Struct, frozen=True):
    """One process that worked on the sample."""

    process: int
    began: str
    ended: str
    seconds: float
    steps: int
    """Recorded by it."""
    replayed: int
    """Recorded by earlier processes and delivered again in this one."""
    end: str
    """`finished`, `failed`, `scored`, `running`, or why the process ended before the sample did."""
    killed: bool
    marks: tuple[TimelineMark, ...]


class Timeline(msgspec.Struct, frozen=True):
    lives: tuple[ProcessSpan, ...] = ()


def make_timeline(records: KeyRecords, ends: dict[int, str], *, is_live: bool) -> Timeline:
    """`ends`: why processes ended, by number, for those that ended before the sample did."""
    by_process: dict[int, list[int]] = {}
    for at, (_, _, process, _) in enumerate(records.steps):
        by_process.setdefault(process, []).append(at)
    for _, _, process, _ in records.ends:
        by_process.setdefault(process, [])
    numbers = sorted(by_process)
    return Timeline(
        tuple(
            _make_life(records, process, by_process[process], _end_of(records, process, numbers, ends, is_live))
            for process in numbers
        )
    )


def unfinished_processes(records: KeyRecords) -> list[int]:
    """The processes that recorded something of the sample and neither ended nor scored it."""
    done = {process for _, _, process, _ in (*records.ends, *records.scores)}
    return sorted({process for _, _, process, _ in records.steps} - done - {records.process})


def _end_of(
    records: KeyRecords, process: int, numbers: Sequence[int], ends: dict[int, str], is_live: bool
) -> tuple[str, str]:
    """How the process ended, as far as the sample is concerned, and when."""
    own = [(at, end) for _, at, each, end in records.ends if each == process]
    if own:
        at, end = own[-1]
        return ("finished" if isinstance(end, SampleFinished) else "failed"), at
    scored = [at for _, at, each, _ in records.scores if each == process]
    if scored:
        return "scored", scored[-1]
    if process == numbers[-1] and process in (records.process, len(records.lives)):
        return ("running" if is_live else "not finished"), ""
    return ends.get(process) or "not finished", ""


def _make_life(records: KeyRecords, process: int, places: Sequence[int], end: tuple[str, str]) -> ProcessSpan:
    steps = [records.steps[at] for at in places]
    starts = [_seconds(at) - step.seconds - (step.timing.queue if step.timing else 0.0) for _, at, _, step in steps]
    last = max([_seconds(at) for _, at, _, _ in steps] + ([_seconds(end[1])] if end[1] else []), default=0.0)
    first = min(starts, default=last)
    scopes = {step.scope for *_, step in steps}
    replayed = sum(each < process and step.scope in scopes for _, _, each, step in records.steps)
    marks = [_mark(step, start - first) for step, start in zip(steps, starts, strict=True)]
    began = min((started_at(at, step) for _, at, _, step in steps), default=end[1])
    ended = max([at for _, at, _, _ in steps] + ([end[1]] if end[1] else []), default="")
    return ProcessSpan(
        process,
        began,
        ended,
        round(last - first, 3),
        len(steps),
        replayed,
        end[0],
        end[0] in _CUT_OFF,
        tuple(_joined(marks)),
    )


def _mark(recorded: tuple[int, str, int, Step | StepOutline], start: float) -> TimelineMark:
    n, _, _, step = recorded
    timing, called, role = step.timing, step.called, step.asked.role if step.asked else ""
    what = "model" if step.kind == "generate" else "tool" if called else "other"
    label = f"tool {called.tool}" if called else f"request{f' to {role}' if role else ''}"
    return TimelineMark(
        n=n,
        start=round(start, 4),
        waited=round(timing.queue, 4) if timing else 0.0,
        lost=round(timing.lost, 4) if timing else 0.0,
        seconds=round(step.seconds, 4),
        what=what if step.scope.startswith("solve/") else "judge",
        label=label if step.kind in ("generate", "call") else step.kind,
        tries=step.tries,
        failed=step.failure is not None,
    )


def _joined(marks: Sequence[TimelineMark]) -> Iterator[TimelineMark]:
    """Not more marks than a reader can distinguish: neighbours are drawn as one."""
    size = -(-len(marks) // _MARKS_MAX) or 1
    for at in range(0, len(marks), size):
        several = marks[at : at + size]
        if len(several) == 1:
            yield several[0]
            continue
        first, end = several[0], max(each.start + each.waited + each.seconds for each in several)
        waited, lost = sum(each.waited for each in several), sum(each.lost for each in several)
        yield TimelineMark(
            n=first.n,
            start=first.start,
            waited=0.0,
            lost=round(min(lost, end - first.start), 4),
            seconds=round(end - first.start, 4),
            what="several",
            label=f"{len(several)} steps, waited {brief(waited)}" if waited else f"{len(several)} steps",
            count=len(several),
            tries=max(each.tries for each in several),
            failed=any(each.failed for each in several),
        )


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def render_timeline(found: Timeline, address: Callable[[int], str]) -> Markup | None:
    """The figure. `address`: of a step, by the number of its record."""
    if not any(life.marks for life in found.lives):
        return None
    longest = max(life.seconds for life in found.lives) or 1e-3
    room = _WIDTH - _LEFT - _RIGHT
    rows, y = [], 6.0
    for life in found.lives:
        lanes = _lanes(life.marks)
        height = _LANE * (max(lanes, default=0) + 1)
        rows += list(_row(life, lanes, (y, height, room / longest), address))
        y += height + _GAP
    axis = [
        h(
            "text",
            brief(longest * part, longest),
            x=str(_LEFT + room * part),
            y=str(y + 10),
            text_anchor="middle",
            class_="axis",
        )
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    title = "What each process sent, waited for and replayed"
    return h(
        "svg", rows, axis, viewBox=f"0 0 {_WIDTH} {y + 16}", role="img", aria_label=title, class_="figure timeline"
    )


def timeline_legend(found: Timeline) -> Iterator[tuple[str, str]]:
    """The colours that the figure has, each with its meaning."""
    marks = [mark for life in found.lives for mark in life.marks]
    kinds = {mark.what for mark in marks}
    for class_, text, is_there in (
        ("waited", "waited", any(mark.waited >= _SHOWN_SECONDS for mark in marks)),
        ("lost", "failed", any(mark.lost or mark.failed for mark in marks)),
        ("model", "steps" if "several" in kinds else "model", bool(kinds & {"model", "several"})),
        ("tool", "tool", "tool" in kinds),
        ("judge", "judge", "judge" in kinds),
        ("other", "clock, chance", "other" in kinds),
        ("replayed", "replayed", any(life.replayed for life in found.lives)),
        ("kill", "the process ended first", any(life.killed for life in found.lives)),
    ):
        if is_there:
            yield class_, text


def _row(
    life: ProcessSpan, lanes: Sequence[int], size: tuple[float, float, float], address: Callable[[int], str]
) -> Iterator[Markup]:
    """One process: its band, the steps that it replayed, those that it recorded, and its end."""
    y, height, scale = size
    width = max(life.seconds * scale, 2.0)
    yield h("text", f"process {life.process}", x=str(_LEFT - 46), y=_number(y + 11), text_anchor="end")
    if life.replayed:
        yield h(
            "g",
            h("title", f"{counted(life.replayed, 'step')} replayed from the journal"),
            h("rect", x=str(_LEFT - 38), y=_number(y), width="30", height=_number(height), class_="replayed"),
            h("text", f"↻{life.replayed}", x=str(_LEFT - 23), y=_number(y + 11), text_anchor="middle", class_="axis"),
        )
    yield h("rect", x=str(_LEFT), y=_number(y), width=_number(width), height=_number(height), class_="life")
    for mark, lane in zip(life.marks, lanes, strict=True):
        yield _drawn(mark, (_LEFT + mark.start * scale, y + lane * _LANE + 2, scale), address(mark.n))
    x = _LEFT + width
    if life.killed:
        points = f"M{_number(x)},{_number(y - 3)} l0,{_number(height + 6)}"
        yield h("path", d=points, class_="kill")
    shown = "✕ " if life.killed else "✓ " if life.end == "finished" else ""
    yield h("text", f"{shown}{life.end}", x=_number(x + 6), y=_number(y + 11), class_="killed" if life.killed else None)


def _drawn(mark: TimelineMark, place: tuple[float, float, float], address: str) -> Markup:
    x, y, scale = place
    parts, height = [], str(_LANE - 4)
    for class_, seconds in (
        ("waited", mark.waited),
        ("lost", mark.lost),
        (f"{mark.what}{' failed' if mark.failed else ''}", mark.seconds - mark.lost),
    ):
        if seconds > 0 or class_.startswith(mark.what):
            width = max(seconds * scale - 0.5, 1.0)
            parts.append(
                h("rect", x=_number(x), y=_number(y), width=_number(width), height=height, class_=f"mark {class_}")
            )
            x += seconds * scale
    return h("a", h("title", mark_text(mark)), parts, href=address, tabindex="-1", aria_hidden="true")


def mark_text(mark: TimelineMark) -> str:
    """`request, record 7: 1.2 s, waited 0.3 s, sent 3 times`."""
    parts = [brief(mark.seconds)]
    parts += [f"waited {brief(mark.waited)}"] if mark.waited >= _SHOWN_SECONDS else []
    parts += [f"sent {mark.tries} times, {brief(mark.lost)} in failed tries"] if mark.tries > 1 else []
    parts += ["failed"] if mark.failed else []
    return f"{mark.label}, record {mark.n}: {', '.join(parts)}"


def _lanes(marks: Sequence[TimelineMark]) -> list[int]:
    """The line of each mark: steps that overlap are drawn below each other, as far as there is room."""
    ends: list[float] = []
    lanes = []
    for mark in marks:
        end = mark.start + mark.waited + mark.seconds
        # Record times have milliseconds: less overlap than that is none.
        free = next((at for at, until in enumerate(ends) if until <= mark.start + 0.002), len(ends))
        free = min(free, _LANES_MAX - 1)
        if free == len(ends):
            ends.append(end)
        else:
            ends[free] = max(ends[free], end)
        lanes.append(free)
    return lanes


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
