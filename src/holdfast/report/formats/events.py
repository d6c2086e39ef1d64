"""An export with what happened on the way to each answer: the steps of a key, and the conversation that they made.

The journal holds keys side by side, an export has one after the other. So the journal is read once for the places of
all steps, which a temporary database on disk keeps; each key's steps are then read when its line is written. Memory
holds one key at a time, however long the run.
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
    """A line with its events: null where they were left out, empty where nothing is recorded."""

    events: list[Event] | None = None
    messages: list[Message] | None = None
    """The last conversation with the evaluated model, whole: its last request, and the answer."""


def with_events(lines: Iterable[ExportLine], run: str, *, of_finished: bool) -> Iterator[EventLine]:
    """The same lines with the steps of their keys; those of finished keys only if they are wanted."""
    places = _Places()
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
    """A record's data with the text that its answer's message shares with the answer (`Answer.as_stored`)."""
    answer = data.get("answer")
    if isinstance(answer, dict) and answer.pop("text_once", False):
        answer["message"]["content"] = answer["text"]
    return data


def last_conversation(steps: Mapping[int, Step]) -> list[Message]:
    """Empty if the evaluated model has not been asked, or if a step that the last request needs was lost."""
    own = [
        n for n, step in steps.items() if step.asked is not None and not step.asked.role and step.scope[:6] == "solve/"
    ]
    told = [n for n in own if steps[n].answer is not None] or own
    return _conversation(steps, told[-1]) if told else []


def _conversation(steps: Mapping[int, Step], last: int) -> list[Message]:
    """From the end to the beginning: each step holds what is new in it, and how much of which one came before."""
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


class _Places:
    """Where the records of each key are. In a file that has no name and goes away with us."""

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
        """A key's records in order. One that is no longer where it was has been voided, and is passed over."""
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
    """Short, and different for different keys but by accident, which is noticed when the record is read."""
    return xxhash.xxh3_64_intdigest(key.encode()) - (1 << 63)
