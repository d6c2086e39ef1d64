"""Export lines with events: the steps of each key, and its last conversation.

A journal interleaves the records of all keys; an export lists one key after the other. So the journal is read once for
the positions of all steps, which are kept in a temporary database on disk. Each key's steps are read when its line is
written. Memory holds one key at a time. A crash leaves nothing: the database file has no name.
"""

import contextlib
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import xxhash

from holdfast.journal import Entry, Reader, journal_folder
from holdfast.records import Line
from holdfast.records.decoder import FactDecoder, check_fact
from holdfast.records.facts import Step
from holdfast.records.samples import Message
from holdfast.report.formats.lines import ExportLine

_TYPES = ("step", "step.started", "sample.failed")
_BATCH = 10_000
_data = msgspec.json.Decoder(dict[str, Any])
_step = FactDecoder(Step)


class Event(msgspec.Struct, frozen=True):
    """A record of the key, as docs/format.md describes it."""

    n: int
    at: str
    t: str
    d: dict[str, Any]


class EventLine(ExportLine, frozen=True):
    """A line with events: null if they were not requested, empty if nothing is recorded."""

    events: list[Event] | None = None
    messages: list[Message] | None = None
    """The last conversation with the evaluated model: its last request with all messages, and the answer."""


def with_events(lines: Iterable[ExportLine], run: str, *, of_finished: bool) -> Iterator[EventLine]:
    """The same lines with the steps of their keys; for finished keys only with `of_finished`."""
    places = _StepPositions()
    with contextlib.closing(places), contextlib.closing(Reader(journal_folder(run))) as reader:
        places.note(Reader(journal_folder(run)))
        for line in lines:
            fields = {name: getattr(line, name) for name in ExportLine.__struct_fields__}
            if line.status == "finished" and not of_finished:
                yield EventLine(**fields)
                continue
            entries = list(places.read(line.key, reader))
            steps = {each.line.n: _step.decode(each.line) for each in entries if each.line.t == "step"}
            events = [_event(each.line) for each in entries]
            yield EventLine(**fields, events=events, messages=last_conversation(steps))


def _event(line: Line) -> Event:
    check_fact(line)
    return Event(line.n, line.at, line.t, _whole(_data.decode(line.d)))


def _whole(data: dict[str, Any]) -> dict[str, Any]:
    """A record's data with the text restored in its answer's message, where it is stored once (`Answer.as_stored`)."""
    answer = data.get("answer")
    if isinstance(answer, dict) and answer.pop("text_once", False):
        answer["message"]["content"] = answer["text"]
    return data


def last_conversation(steps: Mapping[int, Step]) -> list[Message]:
    """Empty if the evaluated model got no request, or if a step that the last request builds on was lost."""
    own = [
        n for n, step in steps.items() if step.asked is not None and not step.asked.role and step.scope[:6] == "solve/"
    ]
    answered = [n for n in own if steps[n].answer is not None] or own
    return _conversation(steps, answered[-1]) if answered else []


def _conversation(steps: Mapping[int, Step], last: int) -> list[Message]:
    """Built from the end: each step holds its new messages, and how many messages of which earlier step precede
    them.
    """
    n, length = last, sys.maxsize
    parts: list[list[Message]] = []
    while n:
        step = steps.get(n)
        if step is None or step.asked is None:
            return []
        own = [*step.asked.new, *([step.answer.message] if step.answer is not None else [])]
        parts.append(own[: max(length - step.asked.keep, 0)])
        n, length = step.asked.after, min(length, step.asked.keep)
    return [message for part in reversed(parts) for message in part]


class _StepPositions:
    """Positions of the records of each key, in a database file without a name that disappears with the process."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = off")
        self._database.execute("CREATE TABLE places (key INTEGER, n INTEGER, segment INTEGER, at_byte INTEGER)")

    def note(self, reader: Reader) -> None:
        rows: list[tuple[int, int, int, int]] = []
        self._database.execute("BEGIN")
        for each in reader.read(live=True):
            if isinstance(each, Entry) and each.line.k is not None and each.line.t in _TYPES:
                rows.append((_number(each.line.k), each.line.n, each.segment, each.offset))
                if len(rows) == _BATCH:
                    self._put(rows)
                    rows.clear()
        self._put(rows)
        self._database.execute("CREATE INDEX by_key ON places (key, n, segment, at_byte)")
        self._database.execute("COMMIT")

    def read(self, key: str, reader: Reader) -> Iterator[Entry]:
        """A key's records in order. A record that is no longer at its position was voided meanwhile, and is skipped."""
        query = "SELECT n, segment, at_byte FROM places WHERE key = ? ORDER BY n"
        for n, segment, at_byte in self._database.execute(query, (_number(key),)):
            entry = reader.record_at(segment, at_byte)
            if entry is not None and entry.line.n == n and entry.line.k == key:
                yield entry

    def close(self) -> None:
        self._database.close()

    def _put(self, rows: list[tuple[int, int, int, int]]) -> None:
        self._database.executemany("INSERT INTO places VALUES (?, ?, ?, ?)", rows)


def _number(key: str) -> int:
    """A 64-bit digest of a key. A collision is harmless: `read` compares the key of the record."""
    return xxhash.xxh3_64_intdigest(key.encode()) - (1 << 63)
