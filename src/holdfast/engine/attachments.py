"""Puts the content of files into a request just before it is sent.

Everywhere else, in rows, messages and records, a file is a short reference with a digest. Invariant: content is checked
against its reference when it is read; otherwise the request fails with the kind `file` and the name of the file. Memory
is bounded: a cache of limited size, and few files are read at a time. They are read in threads of their own, because a
solver may occupy the default pool with agents that wait for the very request that needs a file: a deadlock.
"""

import asyncio
import base64
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from holdfast.journal import BlobError, BlobStore, read_blob, read_pieces
from holdfast.records import Message, Reference, parse_reference, references_in, with_strings
from holdfast.sandbox.snapshots import Blobs

_KEPT_BYTES_MAX = 16 << 20
_READ_AT_ONCE = 4
_BARE = "data"
"""Servers expect plain base64 under this name (`input_audio: {data: …}`), and a `data:` URI elsewhere."""

T = TypeVar("T")


class Attachments:
    """The files of one run."""

    def __init__(self, run: str, kept_bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._run = run
        self._kept_bytes_max = kept_bytes_max
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._kept_bytes = 0
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)
        self._threads = ThreadPoolExecutor(_READ_AT_ONCE, "holdfast-files")  # threads start with the first file
        self._turns: WeakValueDictionary[str, asyncio.Lock] = (
            WeakValueDictionary()
        )  # one lock per file that is being read

    async def put_into(self, messages: list[Message]) -> list[Message]:
        """Return the messages with content instead of references. BlobError if a file is missing or damaged."""
        references = set(references_in([message.get("content") for message in messages]))
        if not references:
            return messages
        encoded = {reference: await self._encoded(reference) for reference in references}

        def change(text: str, name: str) -> str:
            found = encoded.get(text)
            return text if found is None else found.partition(",")[2] if name == _BARE else found

        return [{**each, "content": with_strings(each.get("content"), change)} for each in messages]

    async def read(self, text: str) -> bytes:
        """Return the content of one file."""
        async with self._reading:
            return await self._in_thread(read_blob, text)

    async def _encoded(self, text: str) -> str:
        """Return a file as a `data:` URI."""
        found = self._kept.get(text)
        if found is not None:
            self._kept.move_to_end(text)
            return found
        turn = self._turns.setdefault(text, asyncio.Lock())
        async with turn, self._reading:
            found = self._kept.get(text)  # another sample may have read it meanwhile
            if found is None:
                found = await self._in_thread(_read_encoded, text)
                self._keep(text, found)
        return found

    async def _in_thread(self, read: Callable[[str, Reference], T], text: str) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, read, self._run, _parsed(text))

    def _keep(self, text: str, encoded: str) -> None:
        if text in self._kept or len(encoded) > self._kept_bytes_max:
            return
        self._kept[text] = encoded
        self._kept_bytes += len(encoded)
        while self._kept_bytes > self._kept_bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)


def _read_encoded(run: str, reference: Reference) -> str:
    return f"data:{reference.type};base64,{base64.b64encode(read_blob(run, reference)).decode('ascii')}"


def _parsed(text: str) -> Reference:
    reference = parse_reference(text)
    if reference is None:
        raise BlobError(f"{text[:100]!r} is no reference to a file of this run")
    return reference


def blobs_of(run: str) -> Blobs:
    """Return access to the blobs of a run, for its writer. Opens nothing yet."""
    store = BlobStore(run)
    return Blobs(store.keep_pieces, store.sync, partial(read_pieces, run), store.remove_leftovers)
