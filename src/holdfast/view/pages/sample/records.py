"""The records behind a sample: a list with numbers, places and checksums; one record; the whole request of a step."""

import os
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.journal import SHARDS, Entry, Position, Reader, journal_folder
from holdfast.records import FactDecoder, Message, Step, parse_key, parse_shard
from holdfast.report import conversation_of, counted
from holdfast.report.text import human_bytes
from holdfast.runs import Origin, find_origins
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
_MERGED = (
    "The journal that a worker has written is not here, or is damaged: file, offset and checksum are those of the copy "
    "that the viewer has made of all shards."
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
    kept: dict[str, str] = {}
    """The evaluation and the list that the reader comes from."""

    @classmethod
    def of(cls, run: ViewedRun, request: PageRequest) -> "KeyFrame":
        kept = {name: value for name in ("evaluation", "list") if (value := request.query.get(name))}
        return cls(request.run, request.key, run.shown_status(), run.durability(), run.is_live, kept)

    def address(self, links: Links, part: str, **query: str) -> str:
        """Another page of the same sample."""
        return links.sample_subpage(self.ref, self.key, part, **query, **self.kept)

    def body(self, title: str, content: Markup) -> Body:
        return Body(
            f"{title} of {parse_key(self.key).sample_id}",
            content,
            self.ref,
            "samples",
            self.status,
            self.durability,
            self.kept.get("evaluation", ""),
        )

    def heading(self, text: str, links: Links) -> Markup:
        name = parse_key(self.key).sample_id
        return join([h("p", h("a", f"← {name}", href=self.address(links, ""))), h("h1", text)])


class RecordFacts(msgspec.Struct, frozen=True):
    """One record: its number, type and time, where it is, and its checksum, which was verified just now. Of a sharded
    run these are its place and checksum in the journal that its worker has written.
    """

    n: int
    """As pages number it."""
    type: str
    at: str
    file: str
    """Relative to the folder of the run."""
    segment: int
    offset: int
    bytes: int
    checksum: str
    number: int
    """In its journal: another one than `n` only for a sharded run, whose journals are merged for reading."""
    shard: str = ""
    """Of a sharded run: such as `3/8`; empty for its root journal."""
    is_merged: bool = False
    """Whether the journal that its worker has written is not here: then everything is that of the merged copy."""

    @classmethod
    def of(cls, run: ViewedRun, entry: Entry, origins: Mapping[int, Origin]) -> "RecordFacts":
        stored, origin = stored_entry(entry, origins), origins.get(entry.line.n)
        is_merged = bool(run.place.root) and stored is entry
        shard = origin.shard if origin is not None and not is_merged else ""
        journal = journal_folder(run.place.folder) if origin is None or is_merged else origin.journal
        name = f"{stored.segment:06d}.jsonl"
        if not os.path.exists(os.path.join(journal, name)):
            name += ".zst"
        above = f"{SHARDS}/{parse_shard(shard).folder}/" if shard else ""
        return cls(
            entry.line.n,
            entry.line.t,
            entry.line.at,
            f"{above}{os.path.basename(journal)}/{name}",
            stored.segment,
            stored.offset,
            stored.end - stored.offset,
            stored.line.x,
            stored.line.n,
            shard,
            is_merged,
        )


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
        origins = origins_of(run, key)
        found = [RecordFacts.of(run, entry, origins) for each in window if (entry := _read(reader, each)) is not None]
        return RecordList(
            KeyFrame.of(run, request),
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
        found = RecordFacts.of(run, entry, origins_of(run, request.key))
        return RecordView(KeyFrame.of(run, request), found, msgspec.Raw(bytes(entry.line.d)))


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
            KeyFrame.of(run, request),
            RecordFacts.of(run, entry, origins_of(run, key)),
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


def origins_of(run: ViewedRun, key: str) -> dict[int, Origin]:
    """Where the records of a key were written; empty for a run without shards, whose own journal is read."""
    return find_origins(run.place, key, find_key(run, key).o) if run.place.root else {}


def stored_entry(entry: Entry, origins: Mapping[int, Origin]) -> Entry:
    """A record as its worker has written it; as it was read, if that cannot be found."""
    origin = origins.get(entry.line.n)
    return (origin.read(entry.line) if origin is not None else None) or entry


def render_list(found: RecordList, links: Links) -> Body:
    frame = found.frame
    is_sharded = any(each.shard or each.is_merged for each in found.records)
    columns = ["record", "type", "time (UTC)", "file", "offset", "bytes", "checksum"]
    columns[4:4] = ["record of the file"] if is_sharded else []
    numbers = [at for at, name in enumerate(columns) if name.startswith(("record", "offset", "bytes"))]
    rows = []
    for each in found.records:
        address = frame.address(links, f"records/{each.n}")
        cells: list[Child] = [
            h("a", f"{each.n:,}", href=address),
            each.type,
            each.at.replace("T", " ").removesuffix("Z"),
            each.file,
            *([f"{each.number:,}"] if is_sharded else []),
            f"{each.offset:,}",
            f"{each.bytes:,}",
            h("code", each.checksum),
        ]
        rows.append(
            h("tr", [h("td", cell, class_="number" if at in numbers else None) for at, cell in enumerate(cells)])
        )
    beside = _windows(found, links)
    content = [
        frame.heading("Records", links),
        h("p", _WHY),
        h("p", _MERGED, class_="note") if any(each.is_merged for each in found.records) else None,
        beside,
        table(columns, rows, numbers=numbers, class_="rows"),
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
            address = frame.address(links, "records", **{"from": str(n)})
            shown.append(h("a", text, href=address, rel=rel))
    return h("nav", shown, class_="windows", aria_label="Records")


def _fact_list(each: RecordFacts) -> Markup:
    packed = " of its unpacked content" if each.file.endswith(".zst") else ""
    own = f"record {each.number:,} of its journal" if each.number != each.n or each.shard else ""
    pairs: list[tuple[str, Child]] = [
        ("type", each.type),
        ("time", each.at),
        ("shard", each.shard),
        ("file", f"{each.file}, from byte {each.offset:,}{packed}, {human_bytes(each.bytes)}"),
        ("number", own),
        ("checksum", h("code", each.checksum, " (verified just now)")),
        ("note", _MERGED if each.is_merged else ""),
    ]
    return facts([(name, value) for name, value in pairs if value])


def cut(text: str, address: str) -> Child:
    """A long text with a link to all of it."""
    if len(text) <= CUT_CHARACTERS:
        return h("pre", text)
    return join(
        [h("pre", text[:CUT_CHARACTERS], "…"), h("p", h("a", f"show all ({human_bytes(len(text))})", href=address))]
    )


def render_record(found: RecordView, links: Links) -> Body:
    frame, n = found.frame, found.facts.n
    raw = links.sample_subpage(frame.ref, frame.key, f"records/{n}/line")
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
    whole = links.data(links.sample_subpage(frame.ref, frame.key, f"steps/{n}"))
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
