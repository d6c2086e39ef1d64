"""Live updates of a run: one event stream per open page, one reader per run.

The id of an event is the cursor behind the last record that it counts. A browser that lost its connection sends the
last id, and gets everything after exactly that record: nothing is skipped or sent twice, even if the server was killed
in between. The stream carries numbers and keys only; pages fetch what they show.
"""

import asyncio
import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from holdfast.errors import HoldfastError, StaleCursorError
from holdfast.journal import Cursor, Damage, Reader, journal_folder
from holdfast.runs import RunLocation
from holdfast.state import stamp_of, standing_of
from holdfast.view.sources import RunRef, Sources
from holdfast.view.travel import format_cursor, parse_cursor

_EVERY_SECONDS = 1.0
_QUIET_SECONDS = 15.0
"""After so long without a record a comment is sent, so that proxies keep the connection open."""
_BATCH = 5_000
"""Records of one event."""
_KEYS_MAX = 50
"""Keys named in one event."""
_RECENT = 64
"""Events that are kept for streams that are a little behind."""
T = TypeVar("T")


class RunEvent(msgspec.Struct, frozen=True):
    """What was appended: `count` records, the last of them number `n`."""

    n: int
    count: int
    types: dict[str, int]
    keys: list[str]
    """The keys that ended last; not all of them if there were many."""
    live: bool


class _Tail:
    """The end of one run's journal, read once for all of its streams. Its methods run in threads; `advance` runs once
    at a time.
    """

    def __init__(self, place: RunLocation, cursor: Cursor) -> None:
        self.folder = place.folder
        self.is_copy = bool(place.url or place.root)
        """Whether it is a copy of a mirrored or sharded run, which must be brought up to date."""
        self.cursor = cursor
        self.is_live = False
        self.streams = 0
        self._seen: tuple[str, bool] | None = None
        self._recent: OrderedDict[Cursor, tuple[RunEvent, Cursor]] = OrderedDict()

    def advance(self) -> None:
        """Read what was appended. Raises StaleCursorError if files were replaced."""
        # The lock is checked before the files: a run's last record is written before its lock is released.
        held = standing_of(self.folder).held
        seen = (stamp_of(self.folder), held)
        if seen == self._seen:
            return
        self.is_live = held
        while True:
            event, after = read_event(self.folder, self.cursor, held)
            if event.count:
                self._recent[self.cursor] = (event, after)
                self.cursor = after
            if len(self._recent) > _RECENT:
                self._recent.popitem(last=False)
            if event.count < _BATCH:
                break
        self._seen = seen  # not before: after an error the other streams must get it too

    def next(self, cursor: Cursor) -> tuple[RunEvent, Cursor]:
        """The event behind a stream's cursor: mostly one that was read for all, else its own until it has caught up."""
        recent = self._recent.get(cursor)
        if recent is not None:
            return recent
        end = self.cursor
        if cursor.n >= end.n:
            return RunEvent(cursor.n, 0, {}, [], self.is_live), cursor
        return read_event(self.folder, cursor, self.is_live, end.n)


class EventStreams:
    """The event streams of one server."""

    def __init__(self, sources: Sources, pool: ThreadPoolExecutor) -> None:
        self._sources = sources
        self._pool = pool
        self._open: set[asyncio.Task[Any]] = set()
        self._tails: dict[str, _Tail] = {}
        self._advancing: dict[_Tail, asyncio.Task[None]] = {}

    async def serve(self, request: web.Request, ref: RunRef) -> web.StreamResponse:
        ref = msgspec.structs.replace(ref, at=None)
        place, end = await self._in_thread(self._find, ref)
        tail = self._tails.setdefault(place.folder, _Tail(place, end))
        tail.streams += 1
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            cursor = parse_cursor(request.headers.get("Last-Event-ID", "")) or tail.cursor
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            with contextlib.suppress(ConnectionResetError, asyncio.CancelledError):
                await self._follow(response, ref, tail, cursor)
        finally:
            self._open.discard(task)
            tail.streams -= 1
            if not tail.streams:
                self._tails.pop(tail.folder, None)
        return response

    def close(self) -> None:
        for task in self._open:
            task.cancel()

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, functools.partial(function, *arguments))

    def _find(self, ref: RunRef) -> tuple[RunLocation, Cursor]:
        with self._sources.open(ref) as run:
            return run.place, run.index.cursor

    async def _advance(self, tail: _Tail, ref: RunRef) -> None:
        """Once for all streams that wait for it."""
        task = self._advancing.get(tail)
        if task is None:
            task = asyncio.create_task(self._in_thread(self._read, tail, ref))
            self._advancing[tail] = task
            task.add_done_callback(functools.partial(self._forget, tail))
        await asyncio.shield(task)

    def _read(self, tail: _Tail, ref: RunRef) -> None:
        if tail.is_copy:
            with self._sources.open(ref):
                pass  # opening it fetches what is new
        tail.advance()

    def _forget(self, tail: _Tail, task: "asyncio.Task[None]") -> None:
        self._advancing.pop(tail, None)
        if not task.cancelled():
            task.exception()  # if no stream waits for it any more, nobody needs to know

    async def _follow(self, response: web.StreamResponse, ref: RunRef, tail: _Tail, cursor: Cursor) -> None:
        await response.write(f"retry: 1000\nid: {format_cursor(cursor)}\nevent: hello\ndata: {{}}\n\n".encode())
        was_live, quiet = None, 0.0
        while True:
            try:
                await self._advance(tail, ref)
                end = tail.cursor  # once: a thread may be moving it
                if cursor.n >= end.n and cursor != end:
                    raise StaleCursorError(f"record {cursor.n} is of another run that had this folder before")
                while cursor != tail.cursor or was_live != tail.is_live:
                    was_live = tail.is_live
                    event, cursor = await self._in_thread(tail.next, cursor)
                    text, quiet = msgspec.json.encode(event).decode(), 0.0
                    await response.write(f"id: {format_cursor(cursor)}\nevent: records\ndata: {text}\n\n".encode())
                    if not event.count:
                        break
            except (HoldfastError, OSError) as error:
                if not isinstance(error, ConnectionResetError):
                    await response.write(b"event: reset\ndata: {}\n\n")  # files were replaced: load the page again
                return
            await asyncio.sleep(_EVERY_SECONDS)
            quiet += _EVERY_SECONDS
            if quiet >= _QUIET_SECONDS:
                quiet = 0.0
                await response.write(b": still here\n\n")


def read_event(folder: str, cursor: Cursor, live: bool, last: int | None = None) -> tuple[RunEvent, Cursor]:
    """The next records behind a cursor, at most one batch and none after number `last`; and the cursor behind them."""
    reader = Reader(journal_folder(folder), cursor=cursor)
    count, types, keys, after = 0, dict[str, int](), dict[str, None](), cursor
    with contextlib.closing(reader):
        for entry in _entries(reader):
            if count == _BATCH or (last is not None and entry.line.n > last):
                break
            count, after = count + 1, Cursor(entry.segment, entry.end, entry.line.n, entry.line.x)
            types[entry.line.t] = types.get(entry.line.t, 0) + 1
            if entry.line.t in ("sample.finished", "sample.failed"):
                keys.pop(str(entry.line.k), None)
                keys[str(entry.line.k)] = None
    return RunEvent(after.n, count, types, list(keys)[-_KEYS_MAX:], live), after


def _entries(reader: Reader) -> Iterator[Any]:
    return (each for each in reader.read(live=True) if not isinstance(each, Damage) and not each.is_copy)
