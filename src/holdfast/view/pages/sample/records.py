"""The records behind a sample: a list with numbers, places and checksums; one record; the whole request of a step."""

from bisect import bisect_left
from typing import Any

import msgspec

from holdfast.journal import Entry, Position, Reader
from holdfast.records import FactDecoder, Message, Step, parse_key
from holdfast.report import conversation_of, counted
from holdfast.report.text import human_bytes
from holdfast.view.layout import facts, table
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.sources import Durability, NotFoundError, RunRef, RunStatus, ViewedRun
from holdfast.view.texts import CUT_CHARACTERS, as_json
from holdfast.view.transcript import find_key, open_reader, read_outline

_WINDOW = 100
_WHY = (
    "Everything that this sample's page shows comes from these records; those of type run.resumed belong to the whole "
    "run. Each checksum was verified just now."
)
_RAW_HINT = "record_raw: true in the spec also keeps the server's own response."
_step = FactDecoder(Step)


class KeyFrame(msgspec.Struct, frozen=True):
    """What every page about records says of the run."""

    ref: RunRef
    key: str
    status: RunStatus
    durability: Durability
    live: bool

    @classmethod
    def of(cls, run: ViewedRun, ref: RunRef, key: str) -> "KeyFrame":
        return cls(ref, key, run.shown_status(), run.durability(), run.is_live)

    def body(self, title: str, content: Markup) -> Body:
        return Body(
            f"{title} of {parse_key(self.key).sample_id}",
            content,
            self.ref,
            "samples",
            self.status,
            self.durability,
            is_live=False,
        )

    def heading(self, text: str, links: Links) -> Markup:
        name = parse_key(self.key).sample_id
        return join([h("p", h("a", f"← {name}", href=links.sample(self.ref, self.key))), h("h1", text)])


class RecordFacts(msgspec.Struct, frozen=True):
    """One record: its number, type and time, where it is, and its checksum, which was verified just now."""

    n: int
    type: str
    at: str
    segment: int
    offset: int
    bytes: int
    checksum: str


class RecordList(msgspec.Struct, frozen=True):
    frame: KeyFrame
    total: int
    first: int
    """Counted from 1."""
    records: list[RecordFacts]
    before: int | None
    after: int | None
    verify: str
    """The command that checks every byte of the run."""


class RecordView(msgspec.Struct, frozen=True):
    frame: KeyFrame
    facts: RecordFacts
    data: msgspec.Raw


class RequestView(msgspec.Struct, frozen=True):
    """A step's request as it was sent, with all messages, and its response."""

    frame: KeyFrame
    facts: RecordFacts
    messages: list[Message]
    params: dict[str, Any]
    tools: list[dict[str, Any]]
    response: Any
    """The server's own response if it was recorded (`record_raw`), else what Holdfast kept of it."""
    is_raw: bool


def load_list(request: PageRequest) -> RecordList:
    key = request.key
    with request.sources.open(request.run) as run, open_reader(run) as reader:
        positions = _positions(run, key)
        numbers = [each.n for each in positions]
        first = bisect_left(numbers, request.number("from") or 0) // _WINDOW * _WINDOW
        window = positions[first : first + _WINDOW]
        found = [_facts(entry) for each in window if (entry := _read(reader, each)) is not None]
        return RecordList(
            KeyFrame.of(run, request.run, key),
            len(numbers),
            first + 1,
            found,
            numbers[max(first - _WINDOW, 0)] if first else None,
            numbers[first + _WINDOW] if first + _WINDOW < len(numbers) else None,
            run.place.command("verify"),
        )


def load_record(request: PageRequest) -> RecordView:
    with request.sources.open(request.run) as run, open_reader(run) as reader:
        entry = find_record(run, reader, request.key, request.path["n"])
        return RecordView(KeyFrame.of(run, request.run, request.key), _facts(entry), msgspec.Raw(bytes(entry.line.d)))


def load_request(request: PageRequest) -> RequestView:
    key = request.key
    with request.sources.open(request.run) as run, open_reader(run) as reader:
        entry = find_record(run, reader, key, request.path["n"])
        step = _step.decode(entry.line) if entry.line.t == "step" else None
        if step is None or step.asked is None:
            raise NotFoundError(f"record {entry.line.n} of {key!r} is not a request to a model")
        records = read_outline(run, key, run.index.positions(find_key(run, key).o), reader)
        places = {place.n: place for place, _ in records.places}

        def find(n: int) -> Step | None:
            found = _read(reader, places[n]) if n in places else None
            return _step.decode(found.line) if found is not None else None

        messages = conversation_of(entry.line.n, find)
        asked, answer = step.asked, step.answer
        needed = {n: each.asked for n in asked.needs if (each := find(n)) is not None and each.asked is not None}
        filled = asked.filled(needed)
        is_raw = answer is not None and answer.raw is not None
        return RequestView(
            KeyFrame.of(run, request.run, key),
            _facts(entry),
            messages[:-1] if answer is not None and messages else messages,
            filled.params,
            filled.tools,
            answer.raw if is_raw and answer is not None else answer if answer is not None else step.failure,
            is_raw,
        )


def find_record(run: ViewedRun, reader: Reader, key: str, number: str) -> Entry:
    """A record of a key by its number. NotFoundError if the key has no such record."""
    n = int(number) if number.isascii() and number.isdigit() and len(number) < 16 else 0
    positions = _positions(run, key)
    at = bisect_left(positions, n, key=lambda each: each.n)
    entry = _read(reader, positions[at]) if at < len(positions) and positions[at].n == n else None
    if entry is None:
        raise NotFoundError(f"{key!r} has no record {number[:20]!r}")
    return entry


def _positions(run: ViewedRun, key: str) -> list[Position]:
    return run.index.positions(find_key(run, key).o)


def _read(reader: Reader, position: Position) -> Entry | None:
    entry = reader.record_at(position.segment, position.offset)
    return entry if entry is not None and entry.line.n == position.n else None


def _facts(entry: Entry) -> RecordFacts:
    line = entry.line
    return RecordFacts(line.n, line.t, line.at, entry.segment, entry.offset, entry.end - entry.offset, line.x)


def render_list(found: RecordList, links: Links) -> Body:
    frame = found.frame
    rows = []
    for each in found.records:
        address = links.below_sample(frame.ref, frame.key, f"records/{each.n}")
        cells: list[Child] = [
            h("a", f"{each.n:,}", href=address),
            each.type,
            each.at.replace("T", " ").removesuffix("Z"),
            f"{each.segment:06d}",
            f"{each.offset:,}",
            f"{each.bytes:,}",
            h("code", each.checksum),
        ]
        rows.append(
            h("tr", [h("td", cell, class_="number" if at in (0, 4, 5) else None) for at, cell in enumerate(cells)])
        )
    columns = ["record", "type", "time (UTC)", "segment", "offset", "bytes", "checksum"]
    beside = _windows(found, links)
    content = [
        frame.heading("Records", links),
        h("p", _WHY),
        beside,
        table(columns, rows, numbers=("record", "offset", "bytes"), class_="rows"),
        beside,
        h("p", "To check every byte of the run: ", h("code", found.verify), class_="quiet"),
    ]
    return frame.body("Records", join(content))


def _windows(found: RecordList, links: Links) -> Markup | None:
    if found.total <= _WINDOW:
        return h("p", counted(found.total, "record"), class_="quiet")
    frame = found.frame
    last = found.first + len(found.records) - 1
    shown: list[Child] = [h("span", f"Records {found.first:,} to {last:,} of {found.total:,}")]
    for rel, text, n in (("prev", "← earlier", found.before), ("next", "later →", found.after)):
        if n is not None:
            address = links.below_sample(frame.ref, frame.key, "records", **{"from": str(n)})
            shown.append(h("a", text, href=address, rel=rel))
    return h("nav", shown, class_="windows", aria_label="Records")


def _fact_list(each: RecordFacts) -> Markup:
    return facts(
        [
            ("type", each.type),
            ("time", each.at),
            ("segment", f"journal/{each.segment:06d}.jsonl, from byte {each.offset:,}, {human_bytes(each.bytes)}"),
            ("checksum", h("code", each.checksum, " (verified just now)")),
        ]
    )


def cut(text: str, address: str) -> Child:
    """A long text with a link to all of it."""
    if len(text) <= CUT_CHARACTERS:
        return h("pre", text)
    return join(
        [h("pre", text[:CUT_CHARACTERS], "…"), h("p", h("a", f"show all ({human_bytes(len(text))})", href=address))]
    )


def render_record(found: RecordView, links: Links) -> Body:
    frame, n = found.frame, found.facts.n
    raw = links.below_sample(frame.ref, frame.key, f"records/{n}/line")
    shown = msgspec.json.format(bytes(found.data), indent=2).decode("utf-8", "replace")
    content = [
        frame.heading(f"Record {n:,}", links),
        _fact_list(found.facts),
        h("p", h("a", "save the line as it is stored", href=raw)),
        cut(shown, raw),
    ]
    return frame.body(f"Record {n}", join(content))


def render_request(found: RequestView, links: Links) -> Body:
    frame, n = found.frame, found.facts.n
    whole = links.data(links.below_sample(frame.ref, frame.key, f"steps/{n}"))
    sent = {"messages": found.messages, "params": found.params, "tools": found.tools}
    content = [
        frame.heading(f"Request and response of record {n:,}", links),
        _fact_list(found.facts),
        h(
            "section",
            h("h2", f"Request, {counted(len(found.messages), 'message')}"),
            cut(as_json(sent), whole),
            h("h2", "Response" if found.is_raw else "Response, as Holdfast keeps it"),
            None if found.is_raw else h("p", _RAW_HINT, class_="quiet"),
            cut(as_json(found.response), whole),
            id="raw",
        ),
    ]
    return frame.body(f"Request {n}", join(content))
