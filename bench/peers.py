"""What the journal is compared with: the same group commit over a bare file, and over SQLite.

The physical limit is a thread that appends ready-made bytes and calls `fdatasync`; nothing durable in Python, fed from
an event loop, does less. All peers take what is queued (same caps as the journal), make it durable once, and only
then acknowledge all of it.
"""

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Sequence
from typing import Protocol

_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_RECORDS = 4096
_IOV_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)

_Waiting = tuple[bytes, "asyncio.Future[None]"]


class Log(Protocol):
    """Where a batch of ready-made lines becomes durable. Used by one thread only."""

    def commit(self, lines: Sequence[bytes]) -> None: ...

    def close(self) -> None: ...


class RawFile:
    """Append and fdatasync: the physical limit."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def commit(self, lines: Sequence[bytes]) -> None:
        for start in range(0, len(lines), _IOV_MAX):
            self._write(lines[start : start + _IOV_MAX])
        os.fdatasync(self._handle)

    def _write(self, lines: Sequence[bytes]) -> None:
        wrote = os.writev(self._handle, lines)
        if wrote == sum(map(len, lines)):
            return
        rest = memoryview(b"".join(lines))[wrote:]
        while rest:
            rest = rest[os.write(self._handle, rest) :]

    def close(self) -> None:
        os.close(self._handle)


class SqliteTable:
    """SQLite with a write-ahead log and synchronous=FULL: one transaction a batch."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=full")
        self._connection.execute("create table record (n integer primary key, line blob not null)")

    def commit(self, lines: Sequence[bytes]) -> None:
        self._connection.execute("begin immediate")
        self._connection.executemany("insert into record (line) values (?)", [(line,) for line in lines])
        self._connection.execute("commit")

    def close(self) -> None:
        self._connection.close()


class GroupCommit:
    """Hands lines from an event loop to one thread; an append returns when its batch is durable."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="peer-writer", daemon=True)
        self._thread.start()

    async def append(self, line: bytes) -> None:
        acknowledged: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((line, acknowledged))
        await acknowledged

    async def close(self) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        going = True
        while going:
            batch: list[_Waiting] = []
            size = 0
            waiting = self._queue.get()
            while waiting is not None:
                batch.append(waiting)
                size += len(waiting[0])
                if size >= _BATCH_BYTES or len(batch) >= _BATCH_RECORDS:
                    break
                try:
                    waiting = self._queue.get_nowait()
                except queue.Empty:
                    break
            going = waiting is not None
            if batch:
                self._log.commit([line for line, _ in batch])
                self._loop.call_soon_threadsafe(_acknowledge, batch)
        self._log.close()


def _acknowledge(batch: Sequence[_Waiting]) -> None:
    for _, acknowledged in batch:
        if not acknowledged.done():
            acknowledged.set_result(None)
