"""Time travel: a run as it was after a record, or at a moment.

`?at=N` shows the run after record N. `?moment=2026-01-31T10:00` means the last record that was written by then; times
are UTC. Every link on such a page carries the record number.
"""

from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime

import msgspec

from holdfast.journal import START, Cursor, Entry, Reader
from holdfast.state import Life
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h
from holdfast.view.page import PageRequest
from holdfast.view.sources import NotFoundError, RunRef, ViewedRun

_LIVES_MAX = 30


def ref_of(request: PageRequest) -> RunRef:
    """The run that the address names, at the record that it names or that its moment means."""
    ref, text = request.run, request.query.get("moment", "")
    if not text or ref.at is not None:
        return ref
    moment = parse_moment(text)
    with request.sources.open(ref) as run:
        return msgspec.structs.replace(ref, at=record_at(run, moment))


def parse_moment(text: str) -> str:
    """A moment as records write it. NotFoundError if the text is none."""
    try:
        found = datetime.fromisoformat(text)
        moment = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # overflow: the first or last day of the calendar, in another time zone
        raise NotFoundError(f"moment: {text[:40]!r} is not a time; write 2026-01-31T10:00, in UTC") from None
    return f"{moment.isoformat(timespec='milliseconds')[:-6]}Z"


def record_at(run: ViewedRun, moment: str) -> int:
    """The number of the last record that was written by a moment; 0 if there was none."""
    with closing(Reader(run.place.journal)) as reader:
        begun = _segment_before(reader, moment, run.index.cursor.segment)
    last = 0 if begun is None else begun.n
    with closing(Reader(run.place.journal) if begun is None else Reader(run.place.journal, cursor=begun)) as reader:
        for each in reader.read(live=True):
            if isinstance(each, Entry) and not each.is_copy:
                if each.line.at > moment:
                    break
                last = each.line.n
    return last


def _segment_before(reader: Reader, moment: str, last: int) -> Cursor | None:
    """Behind the first record of the last segment that was begun by then, found by halving."""
    low, high, found = 1, last, None
    while low <= high:
        middle = (low + high) // 2
        entry = reader.record_at(middle, 0)
        if entry is None or entry.line.at > moment:  # a damaged segment: search before it
            high = middle - 1
        else:
            found = Cursor(entry.segment, entry.end, entry.line.n, entry.line.x)
            low = middle + 1
    return found


class Stop(msgspec.Struct, frozen=True):
    """A record to travel to."""

    n: int
    label: str


def timeline_stops(lives: Iterable[Life], last_n: int) -> list[Stop]:
    """The beginning, the end of each process, and the last record."""
    every = list(lives)
    found = [Stop(each.n, "start") for each in every[:1]]
    ends = [Stop(each.last_n, f"end of process {number}") for number, each in enumerate(every, 1) if each.last_n]
    return [*found, *ends[-_LIVES_MAX:], Stop(last_n, "last record")]


def travel_form(ref: RunRef, stops: Iterable[Stop], links: Links, part: str = "") -> Markup | None:
    """Choose a record or a moment."""
    if links.is_static:
        return None
    here = msgspec.structs.replace(ref, at=None)
    hidden = [h("input", type="hidden", name=name, value=value) for name, value in here.query.items()]
    number = h(
        "input", type="number", name="at", min="1", value="" if ref.at is None else str(ref.at), aria_label="Record"
    )
    moment = h("input", type="datetime-local", name="moment", step="1", aria_label="Moment, in UTC")
    address = links.run(here, part).partition("?")[0]
    items: list[Child] = []
    for stop in stops:
        target = msgspec.structs.replace(ref, at=stop.n)
        items.append(h("li", h("a", f"{stop.label} ({stop.n:,})", href=links.run(target, part))))
    return h(
        "details",
        h("summary", "Time travel"),
        h("p", "See the run as it was: every number on the page is computed from the records up to that point."),
        h(
            "div",
            h("form", hidden, h("label", "after record ", number), h("button", "Go"), method="get", action=address),
            h("form", hidden, h("label", "at (UTC) ", moment), h("button", "Go"), method="get", action=address),
            class_="travels",
        ),
        h("ul", items, class_="stops"),
        id="travel",
        open=ref.at is not None,
    )


def format_cursor(cursor: Cursor) -> str:
    return f"{cursor.n}.{cursor.segment}.{cursor.offset}.{cursor.x}"


def parse_cursor(text: str) -> Cursor | None:
    """None for an empty text, and for one that no stream has sent."""
    n, _, rest = text.partition(".")
    segment, _, rest = rest.partition(".")
    offset, _, checksum = rest.partition(".")
    numbers = all(part.isascii() and part.isdigit() and len(part) < 20 for part in (n, segment, offset))
    if not numbers or not checksum.isalnum():
        return START if text.startswith("0.") else None
    return Cursor(int(segment), int(offset), int(n), checksum)
