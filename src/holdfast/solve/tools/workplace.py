"""What the tools of one attempt at a sample share: files, a sandbox, and things that they keep open (MCP sessions).

Invariant: everything opened here is closed when the attempt ends, by the task that opened it. A replay opens nothing:
only live calls do.
"""

import asyncio
import copy
from collections.abc import Callable, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from holdfast.errors import HoldfastError
from holdfast.records import FileChanges, Sample, parse_reference
from holdfast.sandbox.box import Box, ReadFile

_SHOWN = 100
T = TypeVar("T")


class Workplace:
    """The `ctx` of a tool that has such a parameter: `async def look(ctx, path: str)`. The model does not see it."""

    def __init__(
        self,
        sample: Sample,
        read_file: ReadFile | None = None,
        secrets: tuple[str, ...] = (),
        open_box: "Callable[[], Box] | None" = None,
    ) -> None:
        self.sample = sample
        self.secrets = secrets
        self.entered = False
        self._open_box = open_box
        self._box: Box | None = None
        self._read_file = read_file
        self._kept: dict[Hashable, _Kept] = {}
        self._closed = asyncio.Event()  # shared with copies of this

    @property
    def box(self) -> "Box | None":
        """The attempt's sandbox, created on first use: most samples have none."""
        if self._box is None and self._open_box is not None:
            self._box = self._open_box()
        return self._box

    def note_files(self, files: FileChanges) -> None:
        """Note the changes in the sandbox of a step that is being delivered."""
        if self.box is not None:
            self.box.note(files)

    @property
    def sandbox(self) -> "Box":
        """The attempt's sandbox, for tools with `sandboxed=True`; one call at a time."""
        box = self.box if self.entered else None
        if box is None:
            raise HoldfastError("ctx.sandbox is there for tools that say so: @holdfast.tool(sandboxed=True)")
        return box

    def inside(self) -> "Workplace":
        """Return the same workplace as a sandboxed tool sees it."""
        _ = self.box  # created before the copy, so that both share it
        other = copy.copy(self)
        other.entered = True
        return other

    async def file(self, reference: str) -> bytes:
        """Return the content of a file of the sample's row."""
        if parse_reference(reference) is None or self._read_file is None:
            raise HoldfastError(
                f"ctx.file({_shown(reference)}): not a file of this run; give it a value of a column that "
                "dataset.files names (a URL stays as it is, and is not fetched)"
            )
        return await self._read_file(reference)

    async def keep(self, name: Hashable, open_it: "Callable[[], AbstractAsyncContextManager[T]]") -> T:
        """Return what `open_it` opens, and share it with later calls under this name; closed when the attempt ends."""
        if self._closed.is_set():
            raise HoldfastError(
                "the attempt has ended: nothing is opened for it any more; wait for calls that you make"
            )
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = _Kept(open_it)
        try:
            return await asyncio.shield(kept.opened)
        except BaseException:
            failed = kept.opened.done() and (kept.opened.cancelled() or kept.opened.exception() is not None)
            if failed and self._kept.get(name) is kept:
                del self._kept[name]  # the next call tries again
            raise

    def forget(self, name: Hashable) -> None:
        """Close what was kept under this name; the next `keep` opens it again."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._kept[_Forgotten()] = kept
            kept.release()

    def raise_loss(self) -> None:
        """Raise if the sandbox could not be restored, even if the solver caught that error."""
        if self._box is not None and self._box.lost is not None:
            raise self._box.lost

    async def close(self) -> None:
        """Close everything, the last first. Errors are ignored: all results are recorded. Later calls of `keep` fail,
        because nothing would close what they open.
        """
        self._closed.set()
        while self._kept:
            _, kept = self._kept.popitem()
            await kept.close()
        if self._box is not None:
            await self._box.close()


class _Forgotten:
    """A unique name for something that is being closed, so that `close` still waits for it."""


class _Kept:
    """Something open, with the task that opened it and will close it: anyio requires the same task for both."""

    def __init__(self, open_it: "Callable[[], AbstractAsyncContextManager[Any]]") -> None:
        self.opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._done = asyncio.Event()
        self._owner = asyncio.ensure_future(self._own(open_it))

    def release(self) -> None:
        """Start closing it, without waiting."""
        self._done.set()

    async def close(self) -> None:
        self.release()
        if not self.opened.done():
            self._owner.cancel()
        await asyncio.gather(self._owner, return_exceptions=True)
        if self.opened.done() and not self.opened.cancelled():
            self.opened.exception()  # marks it as retrieved, so that asyncio does not warn

    async def _own(self, open_it: "Callable[[], AbstractAsyncContextManager[Any]]") -> None:
        try:
            async with open_it() as opened:
                if not self.opened.done():
                    self.opened.set_result(opened)
                await self._done.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                self.opened.cancel()
            else:
                self.opened.set_exception(error)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
